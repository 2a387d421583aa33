// The conversations of this browser. Every tab writes only what it has changed, and hears of what the others write.

import { imagesOf, merge } from "./conversations.js";
import { transact } from "./database.js";
import { packed } from "./marks.js";

// In localStorage: conversations of pages that knew no database, and the last words of answers whose page was left.
const LEFT = "trigraph.conversation.";
const channel = new BroadcastChannel("trigraph");
const titles = new Map(); // {id, title, changed} by id
const unkept = new Map(); // {conversation, images} by id: what the database has not taken
let absent = false; // there is no database

/** Every conversation as {id, title, changed}, the latest first. */
export function list() {
  return [...titles.values()].sort((one, other) => other.changed - one.changed);
}

function note({ id, title, changed }) {
  titles.set(id, { id, title, changed });
}

/** Whether all is in the database that is to stay. */
export function isKept() {
  return unkept.size === 0;
}

/** Tells the other tabs: {changed, writing}, {removed, again}, {left}, or what else the page agrees on. */
export function tell(event) {
  channel.postMessage(event);
}

/** Calls `heard` with what other tabs tell. */
export function listen(heard) {
  channel.onmessage = ({ data: event }) => {
    if (event.changed) note(event.changed);
    if (event.removed) titles.delete(event.removed);
    heard(event);
  };
}

/** Reads the list, and takes over what is in localStorage. Throws an Error that says what is not kept, and why. */
export async function start() {
  let trouble = null;
  try {
    await transact("readonly", ({ conversations }) => {
      const request = conversations.index("list").openKeyCursor();
      request.onsuccess = () => {
        const cursor = request.result;
        if (!cursor) return;
        note({ id: cursor.primaryKey, changed: cursor.key[0], title: cursor.key[1] });
        cursor.continue();
      };
    });
    absent = false;
  } catch (error) {
    absent = true;
    trouble = explained(error);
  }
  await takeOver().catch((error) => (trouble = error));
  if (trouble) throw trouble;
}

/** Moves conversations from localStorage to the database; those that it does not take stay where they are. */
export async function takeOver() {
  let trouble = null;
  for (const key of Object.keys(localStorage).filter((name) => name.startsWith(LEFT))) {
    const text = localStorage.getItem(key);
    try {
      const conversation = read(text);
      if (!conversation) continue;
      await save(conversation, conversation.messages);
      if (localStorage.getItem(key) === text) localStorage.removeItem(key); // a page of old may be writing there
    } catch (error) {
      trouble = error;
    }
  }
  if (trouble) throw trouble;
}

/** A conversation of localStorage; null where it is not readable. Marks were lists once. */
function read(text) {
  try {
    const conversation = JSON.parse(text);
    for (const { steps } of conversation.messages)
      for (const part in steps) if (Array.isArray(steps[part])) steps[part] = packed(steps[part]);
    return conversation;
  } catch {
    return null;
  }
}

/** A conversation, or null where it is gone. */
export async function load(id) {
  const mine = unkept.get(id)?.conversation;
  const kept = absent ? undefined : await transact("readonly", ({ conversations }) => conversations.get(id));
  if (mine && kept) merge(mine, kept.messages);
  return mine ?? kept ?? null;
}

/** Shows `look` every conversation, the latest first, until it returns false. */
export async function scan(look) {
  for (const { conversation } of unkept.values()) if (look(conversation) === false) return;
  if (absent) return;
  await transact("readonly", ({ conversations }) => {
    const request = conversations.index("list").openCursor(null, "prev");
    request.onsuccess = () => {
      const cursor = request.result;
      if (cursor && (unkept.has(cursor.primaryKey) || look(cursor.value) !== false)) cursor.continue();
    };
  });
}

/**
 * Writes messages of a conversation that are new or have grown; what other tabs have written stays. `images`: those of
 * the messages, {id, data}; `title`: a new one; `writing`: the id of a message that grows, null once it has ended.
 * Throws an Error that says what to do where the browser does not take it. It stays in this page then.
 */
export async function save(conversation, messages, { images = [], title = "", writing } = {}) {
  const { id } = conversation;
  const waiting = unkept.get(id);
  const all = waiting ? [...waiting.conversation.messages, ...conversation.messages] : messages;
  const pictures = [...(waiting?.images ?? []), ...images];
  note(conversation);
  try {
    await transact("readwrite", (stores) => {
      for (const { id: name, data } of pictures) stores.images.put(data, name);
      const asked = stores.conversations.get(id);
      asked.onsuccess = () => {
        const kept = asked.result ?? conversation;
        if (asked.result) {
          merge(kept, all);
          kept.leaf = conversation.leaf;
          kept.changed = Math.max(kept.changed, conversation.changed);
          kept.title = title || kept.title || conversation.title;
        }
        note(kept);
        stores.conversations.put(kept);
      };
    });
    if (unkept.get(id) === waiting) unkept.delete(id);
  } catch (error) {
    unkept.set(id, { conversation, images: pictures });
    throw explained(error);
  }
  if (titles.has(id)) tell({ changed: titles.get(id), writing }); // else it was deleted meanwhile
}

function explained(error) {
  if (error.name === "QuotaExceededError")
    return new Error("The browser has no more room: export conversations, then delete some of them.");
  return new Error(`The browser keeps no conversations here (${error.message}): export those that you need.`);
}

/**
 * Deletes a conversation with its images. What had found no room may find it then. `again`: another tab has deleted it;
 * what this one wrote before it heard of that goes as well.
 */
export async function remove(id, again = false) {
  unkept.delete(id);
  titles.delete(id);
  localStorage.removeItem(LEFT + id);
  if (!absent)
    await transact("readwrite", (stores) => {
      const asked = stores.conversations.get(id);
      asked.onsuccess = () => {
        for (const image of asked.result ? imagesOf(asked.result.messages) : []) stores.images.delete(image.id);
        stores.conversations.delete(id);
      };
    });
  titles.delete(id); // which a write on its way may have told
  tell({ removed: id, again });
  for (const { conversation } of [...unkept.values()]) await save(conversation, []);
}

/** Keeps messages of a conversation whose page is being left, at once: a database takes its time. */
export function leave(conversation, messages) {
  const all = unkept.has(conversation.id) ? conversation.messages : messages;
  try {
    localStorage.setItem(LEFT + conversation.id, JSON.stringify({ ...conversation, messages: all }));
  } catch {
    return; // The database has what was written a moment ago.
  }
  tell({ left: conversation.id });
}
