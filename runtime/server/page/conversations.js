// Conversations, kept in the browser. Each is a tree of messages: an edit or another try is a sibling, nothing is lost.

const PREFIX = "trigraph.conversation.";
const TITLE = 48;

export function newId() {
  // crypto.randomUUID is there only on https and on loopback.
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export function create() {
  return { id: newId(), title: "", changed: Date.now(), messages: [], leaf: null };
}

/** Every conversation, the latest first. */
export function all() {
  const keys = Array.from({ length: localStorage.length }, (_, i) => localStorage.key(i));
  const ids = keys.filter((key) => key.startsWith(PREFIX)).map((key) => key.slice(PREFIX.length));
  const found = ids.map(load).filter((kept) => kept !== null);
  return found.sort((one, other) => other.changed - one.changed);
}

/** A conversation, or null where it is gone or not readable. */
export function load(id) {
  try {
    const kept = JSON.parse(localStorage.getItem(PREFIX + id));
    return Array.isArray(kept?.messages) ? kept : null;
  } catch {
    return null;
  }
}

/** Throws an Error whose message says what to do where the browser has no more room. */
export function save(conversation) {
  try {
    localStorage.setItem(PREFIX + conversation.id, JSON.stringify(conversation));
  } catch {
    throw new Error("The browser has no more room for conversations. Delete some of them.");
  }
}

export function remove(id) {
  localStorage.removeItem(PREFIX + id);
}

/** Adds a message after `parent` (an id, or null for the first) and shows the branch that it ends. */
export function add(conversation, parent, message) {
  const added = { id: newId(), parent, ...message };
  conversation.messages.push(added);
  conversation.leaf = added.id;
  conversation.changed = Date.now();
  if (!conversation.title && message.role === "user")
    conversation.title = titleOf(message.content) || (message.images ? "Image" : "");
  return added;
}

function titleOf(text) {
  const line = text.trim().split("\n")[0];
  return line.length > TITLE ? `${line.slice(0, TITLE).trimEnd()}…` : line;
}

/** The messages of the branch that is shown, the first one first. */
export function branch(conversation) {
  const byId = new Map(conversation.messages.map((message) => [message.id, message]));
  const found = [];
  for (let message = byId.get(conversation.leaf); message; message = byId.get(message.parent)) found.push(message);
  return found.reverse();
}

/** The versions of a message: what else follows its parent, in the order in which it was written. */
export function versions(conversation, message) {
  return conversation.messages.filter(({ parent }) => parent === message.parent);
}

/** Shows the branch through a message that was written last. */
export function choose(conversation, message) {
  let last = message;
  for (;;) {
    const next = conversation.messages.findLast(({ parent }) => parent === last.id);
    if (!next) break;
    last = next;
  }
  conversation.leaf = last.id;
}

/** The ids of all images that conversations show: those that are kept, and `others`, for which there may be no room. */
export function imagesOfAll(others) {
  const messages = [...all(), ...others].flatMap((conversation) => conversation.messages);
  return new Set(messages.flatMap(({ images = [] }) => images.map(({ id }) => id)));
}

/**
 * The messages up to one as the API takes them, but for images, of which they have the ids, and without answers that
 * failed before their first word. Thoughts go along: the model's template chooses which it repeats.
 */
export function history(conversation, last) {
  const ids = branch(conversation).map(({ id }) => id);
  const until = ids.indexOf(last);
  return branch(conversation)
    .slice(0, until + 1)
    .filter(({ content, reasoning, images }) => content || reasoning || images)
    .map(({ role, content, reasoning, images }) => ({
      role,
      content,
      ...(reasoning ? { reasoning_content: reasoning } : {}),
      ...(images ? { images } : {}),
    }));
}
