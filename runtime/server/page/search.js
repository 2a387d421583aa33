// Finds conversations by what was said in them.

import { scan } from "./library.js";

const BEFORE = 24;
const LONGEST = 120;

/**
 * The conversations whose title or text contains `query`, whatever the case, the latest first: each with the message
 * that contains it and the words around it, which are undefined where only the title does. Ends early where `stale()`.
 */
export async function search(query, stale) {
  const wanted = query.toLowerCase();
  const found = [];
  await scan(({ id, title, messages }) => {
    const message = messages.findLast(({ content }) => content.toLowerCase().includes(wanted));
    if (message) found.push({ id, title, message: message.id, excerpt: excerpt(message.content, wanted) });
    else if (title.toLowerCase().includes(wanted)) found.push({ id, title });
    return !stale();
  });
  return found;
}

function excerpt(content, wanted) {
  const start = Math.max(0, content.toLowerCase().indexOf(wanted) - BEFORE);
  const text = content.slice(start, start + LONGEST).replace(/\s+/g, " ");
  return `${start > 0 ? "…" : ""}${text}`;
}

/**
 * Marks where the text that `root` shows contains `query`; returns the first such range. Browsers without such marks
 * only get the range; null where there is none.
 */
export function highlight(root, query) {
  const nodes = [];
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) nodes.push(walker.currentNode);
  const text = nodes.map(({ data }) => data).join("");
  const wanted = new RegExp(query.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&"), "giu");
  let [node, begun] = [0, 0]; // the text node, and the characters before it
  const place = (at) => {
    while (at > begun + nodes[node].length) begun += nodes[node++].length;
    return [nodes[node], at - begun];
  };
  const ranges = Array.from(query ? text.matchAll(wanted) : [], ({ 0: { length }, index }) => {
    const range = new Range();
    range.setStart(...place(index));
    range.setEnd(...place(index + length));
    return range;
  });
  CSS.highlights?.set("found", new Highlight(...ranges));
  return ranges[0] ?? null;
}
