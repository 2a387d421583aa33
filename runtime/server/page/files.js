// Text files of messages: read, sent as text, and shown.

import { element } from "./dom.js";
import { bytes } from "./figures.js";

export const MOST = 1 << 20; // bytes of all files of a message

/** A text file to send: {name, text}. Throws an Error that says what is wrong with it. */
export async function readText(file, taken) {
  const name = file.name || "The file";
  if (taken + file.size > MOST)
    throw new Error(`${name} has ${bytes(file.size)}: the text files of a message have at most ${bytes(MOST)} together.`);
  try {
    const data = new Uint8Array(await file.arrayBuffer());
    const wide = (data[0] === 0xff && data[1] === 0xfe) || (data[0] === 0xfe && data[1] === 0xff);
    const text = new TextDecoder(wide ? (data[0] === 0xff ? "utf-16le" : "utf-16be") : "utf-8", { fatal: true }).decode(data);
    if (!text.includes("\0")) return { name, text };
  } catch {
    // Told below.
  }
  throw new Error(`${name} is neither text in UTF-8 nor an image.`);
}

/** The text of a message with its files before it, each in a fence that it does not contain. */
export function withFiles(content, files = []) {
  const fenced = files.map(({ name, text }) => {
    const longest = Math.max(2, ...(text.match(/`{3,}/g) ?? []).map(({ length }) => length));
    const fence = "`".repeat(longest + 1);
    return `${name}:\n${fence}\n${text.replace(/\n$/, "")}\n${fence}`;
  });
  return [...fenced, content].filter(Boolean).join("\n\n");
}

/** What shows a message's files; a click shows their text. */
export function chips({ files = [] }) {
  return files.map(({ name, text }) =>
    element(
      "details",
      { class: "file" },
      element("summary", {}, element("span", {}, name), element("small", {}, bytes(new Blob([text]).size))),
      element("pre", { tabindex: "0" }, text),
    ),
  );
}
