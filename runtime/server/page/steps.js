// An answer as it came: what one or more steps of the model brought at once is one mark, tinted by how many of its
// tokens were accepted drafts.

import { element } from "./dom.js";
import { unpacked } from "./marks.js";

const STRONGEST = 5;

/** Nodes that show a text by its marks; `legend`: tell what they mean. */
export function steps(text, packed, legend) {
  const pieces = unpacked(packed);
  const marks = [];
  let at = 0;
  for (const [length, tokens, free] of pieces) {
    marks.push(mark(text.slice(at, at + length), tokens, free));
    at += length;
  }
  if (at < text.length) marks.push(document.createTextNode(text.slice(at)));
  const shown = element("p", { class: "steps" }, marks);
  return legend ? [explanation(pieces), shown] : [shown];
}

function mark(text, tokens, free) {
  return element("span", { class: `free-${Math.max(0, Math.min(STRONGEST, free))}`, title: told(tokens, free) }, text);
}

/** A step of the model writes one token of its own after the drafts that it accepts. */
function told(tokens, free) {
  return `${plural(tokens, "token")} in ${plural(tokens - free, "step")}, ${free} free`;
}

function plural(number, word) {
  return `${number} ${word}${number === 1 ? "" : "s"}`;
}

function explanation(pieces) {
  const sum = (place) => pieces.reduce((total, piece) => total + piece[place], 0);
  const samples = Array.from({ length: STRONGEST + 1 }, (_, free) =>
    element("span", { class: `sample free-${free}` }, free === STRONGEST ? `${free}+` : `${free}`),
  );
  return element("p", { class: "legend" }, `${told(sum(1), sum(2))}. The tint tells how many came free: `, samples);
}
