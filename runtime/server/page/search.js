// Finds conversations by what was said in them.

import { all } from "./conversations.js";

const BEFORE = 24;
const LONGEST = 120;

/**
 * The conversations whose title or text contains `query`, whatever the case, the latest first: each with the message
 * that contains it and the words around it, which are undefined where only the title does.
 */
export function search(query) {
  const wanted = query.toLowerCase();
  const found = [];
  for (const { id, title, messages } of all()) {
    const message = messages.findLast(({ content }) => content.toLowerCase().includes(wanted));
    if (message) found.push({ id, title, message: message.id, excerpt: excerpt(message.content, wanted) });
    else if (title.toLowerCase().includes(wanted)) found.push({ id, title });
  }
  return found;
}

function excerpt(content, wanted) {
  const start = Math.max(0, content.toLowerCase().indexOf(wanted) - BEFORE);
  const text = content.slice(start, start + LONGEST).replace(/\s+/g, " ");
  return `${start > 0 ? "…" : ""}${text}`;
}
