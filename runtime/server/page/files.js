// Text files of messages: read, sent as text, and shown.

import { element } from "./dom.js";
import { bytes } from "./figures.js";

const MOST = 1_000_000; // bytes of all files of a message

/** A text file to send, {name, text}, after others of so many bytes. Throws an Error that says what is wrong with it. */
export async function readText(file, taken) {
  const { name, size } = file;
  if (taken + size > MOST)
    throw new Error(`${name} has ${bytes(size)}: the text files of a message have at most ${bytes(MOST)} together.`);
  try {
    const data = new Uint8Array(await file.arrayBuffer());
    const text = new TextDecoder(encoding(data), { fatal: true }).decode(data);
    if (!text.includes("\0")) return { name, text };
  } catch {
    // Told below.
  }
  throw new Error(`${name} is neither text in UTF-8 nor an image.`);
}

/** UTF-8, unless two bytes at its beginning tell the one that Windows writes. */
function encoding([first, second]) {
  if (first === 0xff && second === 0xfe) return "utf-16le";
  return first === 0xfe && second === 0xff ? "utf-16be" : "utf-8";
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
