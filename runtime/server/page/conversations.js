// A conversation is a tree of messages: an edit or another try is a sibling, nothing is lost.

import { withFiles } from "./files.js";

const TITLE = 48;

export function newId() {
  // crypto.randomUUID is there only on https and on loopback.
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export function create() {
  return { id: newId(), title: "", changed: Date.now(), messages: [], leaf: null };
}

/** Puts messages in the place of those with their ids, which only grow, or after all others. */
export function merge(conversation, messages) {
  const known = new Map(conversation.messages.map((message) => [message.id, message]));
  for (const message of messages) {
    const old = known.get(message.id);
    if (!old) {
      conversation.messages.push(message);
      known.set(message.id, message);
    } else if (old !== message && size(message) >= size(old)) {
      for (const name of Object.keys(old)) if (!(name in message)) delete old[name];
      Object.assign(old, message);
    }
  }
}

/** Takes over what another tab has written of a conversation, but for the message `mine` that this one writes. */
export function catchUp(conversation, kept, mine) {
  merge(conversation, kept.messages.filter(({ id }) => id !== mine));
  conversation.title = kept.title;
  const others = branch({ ...conversation, leaf: kept.leaf });
  if (others.some(({ id }) => id === conversation.leaf)) conversation.leaf = kept.leaf; // else another version is read
}

function size({ content, reasoning = "" }) {
  return content.length + reasoning.length;
}

/** Adds a message after `parent` (an id, or null for the first) and shows the branch that it ends. */
export function add(conversation, parent, message) {
  const added = { id: newId(), parent, ...message };
  conversation.messages.push(added);
  conversation.leaf = added.id;
  conversation.changed = Date.now();
  if (!conversation.title && message.role === "user")
    conversation.title = titleOf(message.content) || (message.files?.[0].name ?? (message.images ? "Image" : ""));
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

/** The fields of a message for what is attached to it: of images what is not their data. */
export function attached({ images = [], files = [] }) {
  const shown = images.map(({ id, width, height }) => ({ id, width, height }));
  return { ...(shown.length && { images: shown }), ...(files.length && { files }) };
}

/** The images that messages show, without their data. */
export function imagesOf(messages) {
  return messages.flatMap((message) => message.images ?? []);
}

/**
 * What the model is sent of a branch up to a message: {messages, summary}. An answer that was asked for with less
 * begins at its `start`; a `summary` tells what came before.
 */
export function sent(conversation, last) {
  const all = branch({ ...conversation, leaf: last });
  const { start, summary } = all.findLast((message) => message.start) ?? {};
  return { messages: all.slice(Math.max(0, all.findIndex(({ id }) => id === start))), summary };
}

/**
 * Messages as the API takes them, but for images, of which they have the ids, and without answers that failed before
 * their first word. Thoughts go along: the model's template chooses which it repeats.
 */
export function history({ messages, summary }) {
  const found = messages
    .filter(({ content, reasoning, images, files }) => content || reasoning || images || files)
    .map(({ role, content, reasoning, images, files }) => ({
      role,
      content: withFiles(content, files),
      ...(reasoning ? { reasoning_content: reasoning } : {}),
      ...(images ? { images } : {}),
    }));
  const before = `Our conversation until now, in short:\n\n${summary}\n\n---\n\n`;
  if (summary) found[0].content = before + found[0].content;
  return found;
}
