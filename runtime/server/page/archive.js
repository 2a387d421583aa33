// Conversations as a file: to keep them elsewhere, or to take them to another browser.

import { attached, imagesOf } from "./conversations.js";
import { find } from "./images.js";
import { load, save, scan } from "./library.js";
import { packed, unpacked } from "./marks.js";

const FORMAT = "trigraph.conversations";
const VERSION = 1;
const IMAGE = /^data:image\/(jpeg|png|webp|gif);base64,[A-Za-z0-9+/]*={0,2}$/;
const ROLES = ["user", "assistant"];

/** Makes the buttons of the settings work; `changed` is called once conversations were imported. */
export function connect(section, changed) {
  const [file, told] = [section.querySelector("input"), section.querySelector("#imported")];
  const telling = (action) => async () => {
    try {
      told.textContent = await action();
      told.classList.remove("trouble");
    } catch (error) {
      told.textContent = error.message;
      told.classList.add("trouble");
    }
    told.hidden = !told.textContent;
  };
  section.querySelector("#export").addEventListener("click", telling(downloadAll));
  section.querySelector("#import").addEventListener("click", () => file.click());
  const importFile = telling(async () => {
    const count = await take(await file.files[0].text());
    return `Imported ${count} ${count === 1 ? "conversation" : "conversations"}.`;
  });
  file.addEventListener("change", async () => {
    await importFile();
    file.value = ""; // so that the same file can be chosen again
    changed();
  });
}

async function downloadAll() {
  const all = [];
  await scan((conversation) => void all.push(conversation));
  await download("trigraph-conversations", all);
  return "";
}

/** Offers a file with conversations and their images as a download. */
export async function download(name, conversations) {
  const given = await Promise.all(conversations.map(withData));
  const text = JSON.stringify({ format: FORMAT, version: VERSION, conversations: given }, null, 1);
  const address = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  const link = document.createElement("a");
  link.href = address;
  link.download = `${name.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "") || "conversation"}.json`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}

/** A conversation whose images have their data, as far as the browser has it, and whose marks are lists. */
async function withData(conversation) {
  const found = (images) =>
    images && Promise.all(images.map(async (image) => ({ ...image, data: await find(image.id) })));
  const messages = conversation.messages.map(async (message) => ({
    ...message,
    images: await found(message.images),
    steps: message.steps && inBoth(message.steps, unpacked),
  }));
  return { ...conversation, messages: await Promise.all(messages) };
}

function inBoth({ content, reasoning }, change) {
  return { content: change(content), reasoning: change(reasoning) };
}

/**
 * Keeps the conversations of such a file; one that is here as well gets the messages that it lacks if the file's has
 * changed later. Returns how many the file has. Throws an Error that says what is wrong with the file, and keeps none
 * of it then.
 */
async function take(text) {
  const found = read(text).map(checked);
  for (const conversation of found) {
    const kept = await load(conversation.id);
    const images = imagesOf(conversation.messages).filter(({ data }) => data);
    const messages = conversation.messages.map((message) => ({ ...message, ...attached(message) }));
    if (!(kept?.changed >= conversation.changed))
      await save({ ...conversation, messages }, messages, { images, title: conversation.title });
  }
  return found.length;
}

function read(text) {
  let file;
  try {
    file = JSON.parse(text);
  } catch {
    throw new Error("This file is not JSON.");
  }
  if (file?.format !== FORMAT || !Array.isArray(file.conversations))
    throw new Error("This file has no conversations that this page has exported.");
  if (file.version !== VERSION) throw new Error(`This file has version ${file.version}; this page reads ${VERSION}.`);
  return file.conversations;
}

/** A conversation of a file with the fields that the page knows, of the types that it relies on. */
function checked(conversation, place) {
  const wrong = (what) => new Error(`Conversation ${place + 1} of the file has a wrong ${what}.`);
  const { id, title, changed, messages, leaf } = conversation ?? {};
  if (!isId(id)) throw wrong("id");
  if (!isText(title)) throw wrong("title");
  if (!Number.isFinite(changed)) throw wrong("time");
  if (!Array.isArray(messages)) throw wrong("list of messages");
  const known = new Set([null]);
  for (const message of messages) {
    // A message follows one that stands before it, so that there are no circles.
    if (!isMessage(message) || known.has(message.id) || !known.has(message.parent)) throw wrong("message");
    known.add(message.id);
  }
  if (!known.has(leaf)) throw wrong("last message");
  return { id, title, changed, leaf, messages: messages.map(fields) };
}

function isId(id) {
  return isText(id) && /^\w{1,64}$/.test(id);
}

function isMessage(message) {
  const { id, role, content, reasoning = "", images = [], files = [] } = message ?? {};
  const texts = isText(content) && isText(reasoning);
  return isId(id) && ROLES.includes(role) && texts && isImages(images) && isFiles(files);
}

/** What an answer may have besides its text, and how it must look; anything else is left out. */
const EXTRAS = {
  finish: isText,
  model: isText,
  stopped: isTruth,
  open: isTruth,
  start: isId,
  summary: isText,
  thoughtSeconds: Number.isFinite,
  error: ({ text, status }) => isText(text) && Number.isFinite(status),
  calls: isListOf(({ name, arguments: given }) => isText(name) && isText(given)),
  figures: (all) => FIGURES.every((name) => Number.isFinite(all[name])),
  steps: ({ content, reasoning }) => isSteps(content) && isSteps(reasoning),
};
const FIGURES = ["tokens", "accepted", "prompt", "reused", "wait", "seconds", "timed"];
const isImages = isListOf(
  ({ id, width, height, data = "" }) =>
    isId(id) && width > 0 && height > 0 && isText(data) && (data === "" || IMAGE.test(data)),
);
const isFiles = isListOf(({ name, text }) => isText(name) && isText(text));
const isSteps = isListOf(isListOf(Number.isFinite));

function isText(value) {
  return typeof value === "string";
}

function isTruth(value) {
  return typeof value === "boolean";
}

function isListOf(isItem) {
  return (value) => Array.isArray(value) && value.every((item) => item !== null && isItem(item));
}


function fields(message) {
  const { id, parent, role, content, reasoning = "", images, files } = message;
  if (role === "user") {
    const given = files?.map(({ name, text }) => ({ name, text }));
    return { id, parent, role, content, ...(images && { images }), ...(given?.length && { files: given }) };
  }
  const extras = Object.entries(EXTRAS).filter(([name, accepts]) => message[name] != null && accepts(message[name]));
  const kept = Object.fromEntries(extras.map(([name]) => [name, message[name]]));
  const steps = kept.steps ? inBoth(kept.steps, packed) : { content: "", reasoning: "" };
  return { id, parent, role, content, reasoning, ...kept, steps };
}
