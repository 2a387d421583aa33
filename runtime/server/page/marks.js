// Which tokens of an answer came free. A mark tells it of a piece of text, [characters, tokens, accepted drafts]; an
// answer has thousands, so that they are kept as a string with three characters each.

const SIZE = 3;

export function packed(marks) {
  return marks.map((mark) => String.fromCharCode(...mark)).join("");
}

export function unpacked(text) {
  const codes = Array.from({ length: text.length }, (_, i) => text.charCodeAt(i));
  return Array.from({ length: codes.length / SIZE }, (_, i) => codes.slice(SIZE * i, SIZE * (i + 1)));
}

/** Marks with one more; a text whose tokens were counted with the text before joins that. */
export function marked(marks, length, [tokens, accepted]) {
  if (!length) return marks;
  if (tokens || !marks) return marks + packed([[length, tokens, accepted]]);
  const [last, ...rest] = unpacked(marks.slice(-SIZE))[0];
  return marks.slice(0, -SIZE) + packed([[last + length, ...rest]]);
}
