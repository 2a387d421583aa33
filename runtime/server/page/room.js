// What can be done when a conversation is longer than the model's context: it goes on without its oldest messages.

import { complete } from "./api.js";
import { history, sent } from "./conversations.js";
import { element, shown } from "./dom.js";
import { count } from "./figures.js";
import { withFiles } from "./files.js";
import { requestBody } from "./settings.js";

const IMAGE = 4_000; // characters that take about as much as an image
const KEPT = 0.5; // of the context: the rest is for the summary and the answers to come
const LONGEST = 1_024; // tokens of a summary
const REQUEST =
  "Summarize our conversation until now for yourself: you will go on with it, but will see nothing of it except your " +
  "summary. Keep facts, names, numbers, decisions, open questions and what I have asked of you. At most 400 words.";

/**
 * How a conversation can make room for an answer that found none: {start, left, all, most, needed}: the message that it
 * begins with then, how many messages that leaves out of all, and the tokens that there may be, and are. Null where the
 * context is not what is wrong, or where there is but one question.
 */
export function roomFor(conversation, { id, error }) {
  if (error?.code !== "context_length_exceeded") return null;
  const { messages } = sent(conversation, id);
  const [most, needed] = (error.text.match(/\d+/g) ?? []).map(Number).sort((one, other) => one - other);
  const fits = needed ? (KEPT * most) / needed : KEPT;
  const sizes = messages.map((one) => withFiles(one.content, one.files).length + IMAGE * (one.images?.length ?? 0));
  const all = sizes.reduce((sum, size) => sum + size, 0);
  let rest = all;
  let start = null;
  for (const [i, message] of messages.entries()) {
    if (message.role === "user" && i > 0) {
      start = { start: message.id, left: i, all: messages.filter((one) => one.id !== id).length, most, needed };
      if (rest <= fits * all) break;
    }
    rest -= sizes[i];
  }
  return start;
}

/** Asks what to do; resolves to the fields of an answer that is asked for with less, or to null. */
export async function askRoom({ start, left, all, most, needed }, plain) {
  const dialog = document.getElementById("room");
  const sizes = `This conversation has ${count(needed)} tokens, and the model reads at most ${count(most)}. `;
  const way = "they stay on this page, but the model no longer sees them.";
  const text = `${needed ? sizes : ""}Its first ${left} of ${all} messages can make room: ${way}`;
  document.getElementById("room-text").textContent = text;
  dialog.querySelector("[value=summary]").hidden = plain; // which takes a model that answers
  const chosen = await shown(dialog);
  if (chosen !== "leave" && chosen !== "summary") return null;
  return chosen === "summary" ? { start, summary: "" } : { start };
}

/** The body of the request for an answer; it has the model summarize first what the answer leaves out, if it is to. */
export async function bodyOf(model, conversation, message, signal, summarised) {
  if (message.summary === "") {
    message.summary = await summarise(model, conversation, message, signal);
    summarised();
  }
  return requestBody(model, history(sent(conversation, message.id)));
}

async function summarise(model, conversation, { parent, start }, signal) {
  const { messages, summary } = sent(conversation, parent);
  const left = messages.slice(0, messages.findIndex(({ id }) => id === start));
  const asked = [...history({ messages: left, summary }), { role: "user", content: REQUEST }];
  const body = await requestBody(model, asked);
  Object.assign(body, { max_tokens: LONGEST, chat_template_kwargs: { enable_thinking: false } });
  let text = "";
  for await (const { choices } of complete(body, signal)) text += choices?.[0]?.delta?.content ?? "";
  if (!text.trim()) throw new Error("The model wrote no summary. Try again, or leave the oldest messages out.");
  return text.trim();
}

/** What stands between the messages that the model no longer sees and the others. */
export function divider(summary) {
  if (summary === undefined) return element("p", { class: "cut" }, "The model no longer sees the messages above.");
  if (!summary) return element("p", { class: "cut" }, "The messages above are being summarized.");
  const told = element("summary", {}, "The model sees a summary in place of the messages above.");
  return element("details", { class: "cut" }, told, element("p", {}, summary));
}
