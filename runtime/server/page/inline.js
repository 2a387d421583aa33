// Markdown within a line: text to nodes. Text nodes and elements only; what is no Markdown stays as it was written.

import { element } from "./dom.js";

const DEEPEST = 8;
const PLAIN = /[^\\`*_~[!<h$\n]+/y;
const LINK = /!?\[([^[\]\n]*)\]\(\s*<?([^\s()<>]*(?:\([^\s()<>]*\)[^\s()<>]*)*)>?(?:\s+"[^"\n]*")?\s*\)/y;
const ADDRESS = /https?:\/\/[^\s<>"'`|\\^{}]+/y;
const MARKS = [
  ["***", "strong", "em"],
  ["**", "strong"],
  ["*", "em"],
  ["~~", "del"],
  ["__", "strong"],
  ["_", "em"],
];
const MATH = [
  ["\\(", "\\)"],
  ["\\[", "\\]"],
  ["$$", "$$"],
];

/** Nodes that show one paragraph's Markdown. */
export function inline(text, depth = 0) {
  const reader = new Reader(text, depth);
  while (reader.at < text.length) {
    const taken =
      reader.plain() ||
      reader.math() ||
      reader.escape() ||
      reader.code() ||
      reader.link() ||
      reader.address() ||
      reader.emphasis();
    if (!taken) reader.literal(1);
  }
  return reader.end();
}

class Reader {
  constructor(text, depth) {
    this.text = text;
    this.depth = depth;
    this.at = 0;
    this.nodes = [];
    this.pending = "";
    // Closers that a search did not find: none lies further on either. Keeps a long run of openers linear.
    this.missing = new Set();
  }

  match(pattern) {
    pattern.lastIndex = this.at;
    return pattern.exec(this.text);
  }

  /** Adds the next `length` characters as they are. */
  literal(length) {
    const text = this.text.slice(this.at, this.at + length);
    if (text === "\n") this.push(element("br"));
    else this.pending += text;
    this.at += length;
    return true;
  }

  push(node) {
    if (this.pending) this.nodes.push(document.createTextNode(this.pending));
    this.pending = "";
    this.nodes.push(node);
  }

  end() {
    if (this.pending) this.nodes.push(document.createTextNode(this.pending));
    return this.nodes;
  }

  plain() {
    const found = this.match(PLAIN);
    return found !== null && this.literal(found[0].length);
  }

  escape() {
    if (this.text[this.at] !== "\\" || !/[!-/:-@[-`{-~]/.test(this.text[this.at + 1] ?? "")) return false;
    this.at += 1;
    return this.literal(1);
  }

  /** Where the first `closer` from `start` on lies; -1 where there is none. */
  find(closer, start, accept = () => true) {
    if (this.missing.has(closer)) return -1;
    for (let end = this.text.indexOf(closer, start); end >= 0; end = this.text.indexOf(closer, end + 1)) {
      if (accept(end)) return end;
    }
    this.missing.add(closer);
    return -1;
  }

  /** Formulas stay as they are written: their backslashes are no escapes, their underscores no emphasis. */
  math() {
    for (const [opener, closer] of MATH) {
      if (!this.text.startsWith(opener, this.at)) continue;
      const end = this.find(closer, this.at + opener.length);
      if (end < 0) continue;
      this.push(element("code", { class: "formula" }, this.text.slice(this.at + opener.length, end).trim()));
      this.at = end + closer.length;
      return true;
    }
    return false;
  }

  code() {
    if (this.text[this.at] !== "`") return false;
    let start = this.at;
    while (this.text[start] === "`") start += 1;
    const mark = this.text.slice(this.at, start);
    const alone = (end) => this.text[end - 1] !== "`" && this.text[end + mark.length] !== "`";
    const end = this.find(mark, start, alone);
    if (end < 0) return this.literal(mark.length);
    const inner = this.text.slice(start, end).replaceAll("\n", " ");
    const padded = inner.length > 2 && inner.startsWith(" ") && inner.endsWith(" ");
    this.push(element("code", {}, padded ? inner.slice(1, -1) : inner));
    this.at = end + mark.length;
    return true;
  }

  /** Images become links too: nothing is loaded from another host. */
  link() {
    const found = "[!".includes(this.text[this.at]) ? this.match(LINK) : null;
    const address = found && safe(found[2]);
    if (!address || this.depth >= DEEPEST) return false;
    this.push(anchor(address, inline(found[1] || found[2], DEEPEST)));
    this.at += found[0].length;
    return true;
  }

  address() {
    const bracket = this.text[this.at] === "<" ? 1 : 0;
    if (this.depth >= DEEPEST || (!bracket && /\w/.test(this.text[this.at - 1] ?? ""))) return false;
    this.at += bracket;
    const found = this.match(ADDRESS);
    this.at -= bracket;
    if (!found) return false;
    const text = bracket ? found[0] : withoutPunctuation(found[0]);
    if (!safe(text)) return false;
    this.push(anchor(text, [text]));
    this.at += bracket + text.length;
    if (bracket && this.text[this.at] === ">") this.at += 1;
    return true;
  }

  emphasis() {
    for (const [mark, ...names] of MARKS) {
      if (!this.text.startsWith(mark, this.at) || this.depth >= DEEPEST) continue;
      const start = this.at + mark.length;
      if (!this.opens(start, mark)) continue;
      const end = this.find(mark, start, (place) => place > start && this.shuts(place, mark));
      if (end < 0) continue;
      const inner = inline(this.text.slice(start, end), this.depth + 1);
      this.push(names.reduceRight((children, name) => [element(name, {}, children)], inner)[0]);
      this.at = end + mark.length;
      return true;
    }
    // A run of marks that opens nothing is text as a whole, not tried again from its second character.
    const mark = this.text[this.at];
    let end = this.at;
    while (MARKS.some(([one]) => one[0] === mark) && this.text[end] === mark) end += 1;
    return end > this.at && this.literal(end - this.at);
  }

  opens(start, mark) {
    const outside = this.text[start - mark.length - 1] ?? " ";
    return (
      /\S/.test(this.text[start] ?? " ") && this.text[start] !== mark[0] && (mark[0] !== "_" || !/\w/.test(outside))
    );
  }

  shuts(end, mark) {
    const after = this.text[end + mark.length] ?? " ";
    const before = this.text[end - 1];
    if (/\s/.test(before) || before === "\\" || after === mark[0] || before === mark[0]) return false;
    return mark[0] !== "_" || !/\w/.test(after);
  }
}

function anchor(address, children) {
  return element("a", { href: address, target: "_blank", rel: "noopener noreferrer nofollow" }, children);
}

/** An address that a click may open; null for scripts, files and whatever else. */
function safe(address) {
  try {
    const { protocol } = new URL(address);
    return ["http:", "https:", "mailto:"].includes(protocol) ? address : null;
  } catch {
    return null;
  }
}

/** What ends the sentence around an address is no part of it. */
function withoutPunctuation(address) {
  let end = address.length;
  while (end > 0 && ".,;:!?*_~".includes(address[end - 1])) end -= 1;
  const text = address.slice(0, end);
  return text.endsWith(")") && !text.includes("(") ? text.slice(0, -1) : text;
}
