// An answer step by step: what one step of the model brought is one mark, tinted by how many of its tokens came free.

import { element } from "./dom.js";

const STRONGEST = 5;

/** Nodes that show a text by its steps, each [characters, tokens, accepted drafts]; `legend`: tell what they mean. */
export function steps(text, lengths, legend) {
  const marks = [];
  let at = 0;
  for (const [length, tokens, free] of lengths) {
    marks.push(mark(text.slice(at, at + length), tokens, free));
    at += length;
  }
  if (at < text.length) marks.push(document.createTextNode(text.slice(at)));
  const shown = element("p", { class: "steps" }, marks);
  return legend ? [explanation(lengths), shown] : [shown];
}

function mark(text, tokens, free) {
  const title = `1 step, ${tokens} ${tokens === 1 ? "token" : "tokens"}, ${free} free`;
  return element("span", { class: `free-${Math.max(0, Math.min(STRONGEST, free))}`, title }, text);
}

function explanation(lengths) {
  const tokens = lengths.reduce((sum, [, one]) => sum + one, 0);
  const rounds = lengths.length;
  const told = `${rounds} steps of the model wrote ${tokens} tokens. A step's tint tells how many of them came free: `;
  const samples = Array.from({ length: STRONGEST + 1 }, (_, free) =>
    element("span", { class: `sample free-${free}` }, free === STRONGEST ? `${free}+` : `${free}`),
  );
  return element("p", { class: "legend" }, told, samples);
}
