// Where formulas begin and end in Markdown: $…$ and \(…\) within a line, $$…$$ and \[…\] displayed. Rules for markdown-it.

const DISPLAYED = [
  ["$$", "$$"],
  ["\\[", "\\]"],
];
const ALL = [...DISPLAYED, ["\\(", "\\)"], ["$", "$"]];

export function math(markdown) {
  markdown.inline.ruler.before("escape", "math_inline", inline);
  markdown.block.ruler.before("fence", "math_block", block, { alt: ["paragraph", "reference", "blockquote", "list"] });
}

function inline(state, silent) {
  const { src, pos } = state;
  for (const delimiters of ALL) {
    const [opener, closer] = delimiters;
    if (!src.startsWith(opener, pos)) continue;
    const start = pos + opener.length;
    const end = endOf(state, start, closer);
    if (end < 0) continue;
    if (!silent) add(state, "math_inline", src.slice(start, end), DISPLAYED.includes(delimiters));
    state.pos = end + closer.length;
    return true;
  }
  return false;
}

/** Where the formula that starts at `start` ends; -1 where it does not. */
function endOf(state, start, closer) {
  const { src } = state;
  // Closers that a search did not find: none lies further on either. Keeps a long run of openers linear.
  const missing = (state.missing ??= new Set());
  if (missing.has(closer)) return -1;
  if (closer === "$" && /\s/.test(src[start] ?? " ")) return -1;
  const code = closer === "$" ? src.indexOf("`", start) : -1; // a dollar before code and one in it are no pair
  for (let end = src.indexOf(closer, start); end >= 0; end = src.indexOf(closer, end + 1)) {
    if (end > start && (closer !== "$" || closes(src, end))) return code < 0 || end < code ? end : -1;
  }
  missing.add(closer);
  return -1;
}

/** A dollar after a space, or before a digit, is money. */
function closes(src, end) {
  return !/[\s\\$]/.test(src[end - 1]) && !/[\d$]/.test(src[end + 1] ?? "");
}

function block(state, first, last, silent) {
  const begin = state.bMarks[first] + state.tShift[first];
  const [opener, closer] = DISPLAYED.find(([mark]) => state.src.startsWith(mark, begin)) ?? [];
  if (!opener || state.sCount[first] - state.blkIndent >= 4) return false;
  const closers = (state.env.closers ??= {});
  closers[closer] ??= state.src.lastIndexOf(closer);
  if (begin + opener.length > closers[closer]) return false;
  const source = [];
  for (let line = first; line < last; line += 1) {
    if (line > first && state.sCount[line] < state.blkIndent && !state.isEmpty(line)) return false;
    const start = line === first ? begin + opener.length : state.bMarks[line];
    const text = state.src.slice(start, state.eMarks[line]).trimEnd();
    const end = text.indexOf(closer);
    source.push(end < 0 ? text : text.slice(0, end));
    if (end < 0) continue;
    if (end + closer.length < text.length) return false; // more follows in this line: it is a paragraph's
    if (silent) return true;
    state.line = line + 1;
    add(state, "math_block", source.join("\n"), true).map = [first, state.line];
    return true;
  }
  return false;
}

function add(state, type, content, displayed) {
  const token = state.push(type, "math", 0);
  token.content = content.trim();
  token.meta = { displayed };
  return token;
}
