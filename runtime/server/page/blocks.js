// Markdown's blocks: text to a tree. Every line is read a bounded number of times, as a model writes what it likes.

const DEEPEST = 12;
const RULE = /^ {0,3}([-*_])[ \t]*(?:\1[ \t]*){2,}$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+|$)/;
const FENCE = /^( {0,3})(`{3,}|~{3,})(.*)$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])( +|$)/;
const TASK = /^\[([ xX])\] /;

/**
 * The blocks of a text, each with the `source` lines it comes from. Kinds: paragraph, heading, code, quote, list,
 * table, rule.
 */
export function blocks(text) {
  return blocksOf(text.split("\n"), 0);
}

function blocksOf(lines, depth) {
  const found = [];
  for (let at = 0; at < lines.length;) {
    if (blank(lines[at])) {
      at += 1;
      continue;
    }
    const [block, next] = blockAt(lines, at, depth);
    block.source = lines.slice(at, next).join("\n");
    found.push(block);
    at = next;
  }
  return found;
}

function blockAt(lines, at, depth) {
  const line = lines[at];
  const fence = fenceOf(line);
  if (fence) return code(lines, at, fence);
  const heading = HEADING.exec(line);
  if (heading)
    return [{ kind: "heading", level: heading[1].length, text: headingText(line.slice(heading[0].length)) }, at + 1];
  if (RULE.test(line)) return [{ kind: "rule" }, at + 1];
  if (depth < DEEPEST && QUOTE.test(line)) return quote(lines, at, depth);
  if (depth < DEEPEST && ITEM.test(line)) return list(lines, at, depth);
  if (beginsTable(lines, at)) return table(lines, at);
  return paragraph(lines, at, depth);
}

function blank(line) {
  return line.trim() === "";
}

/** Indent, mark and language of a line that opens a code block. */
function fenceOf(line) {
  const found = FENCE.exec(line);
  if (!found || (found[2][0] === "`" && found[3].includes("`"))) return null;
  return { indent: found[1].length, mark: found[2], language: found[3].trim().split(/\s/)[0] };
}

function code(lines, at, { indent, mark, language }) {
  let end = at + 1;
  while (end < lines.length && !closes(lines[end], mark)) end += 1;
  const text = lines.slice(at + 1, end).map((line) => line.slice(Math.min(indent, indentOf(line))));
  const open = end === lines.length;
  if (open && blank(text.at(-1) ?? "")) text.pop(); // the line that the model is about to write
  return [{ kind: "code", language, text: text.join("\n") }, open ? end : end + 1];
}

function closes(line, mark) {
  const found = line.trim();
  return indentOf(line) < 4 && found.length >= mark.length && found === mark[0].repeat(found.length);
}

function indentOf(line) {
  return line.length - line.trimStart().length;
}

function headingText(text) {
  const trimmed = text.trim();
  let end = trimmed.length;
  while (end > 0 && trimmed[end - 1] === "#") end -= 1;
  return end === 0 || " \t".includes(trimmed[end - 1]) ? trimmed.slice(0, end).trim() : trimmed;
}

function quote(lines, at, depth) {
  let end = at;
  while (end < lines.length && QUOTE.test(lines[end])) end += 1;
  const inner = lines.slice(at, end).map((line) => line.replace(QUOTE, ""));
  return [{ kind: "quote", blocks: blocksOf(inner, depth + 1) }, end];
}

function list(lines, at, depth) {
  const first = ITEM.exec(lines[at]);
  const ordered = /\d/.test(first[2]);
  const items = [];
  let loose = false;
  let next = at;
  while (next < lines.length) {
    const mark = ITEM.exec(lines[next]);
    if (!mark || /\d/.test(mark[2]) !== ordered || mark[1].length > first[1].length + 1 || RULE.test(lines[next]))
      break;
    const end = itemEnd(lines, next, mark[1].length);
    const last = endWithoutBlanks(lines, next, end);
    items.push(item(lines.slice(next, last), mark, depth));
    loose ||= lines.slice(next, last).some(blank) || (last < end && end < lines.length && ITEM.test(lines[end]));
    next = end;
  }
  return [{ kind: "list", ordered, start: ordered ? parseInt(first[2], 10) : 1, items, loose }, next];
}

function endWithoutBlanks(lines, at, end) {
  while (end > at && blank(lines[end - 1])) end -= 1;
  return end;
}

/** Models indent what belongs to an item by two columns or more, whatever its mark's width. */
function itemEnd(lines, at, indent) {
  let end = at + 1;
  for (; end < lines.length; end += 1) {
    const line = lines[end];
    if (blank(line) || indentOf(line) >= indent + 2) continue;
    const continues = !blank(lines[end - 1]) && !begins(line);
    if (!continues) break;
  }
  return end;
}

function item(lines, mark, depth) {
  const wide = mark[3].length > 4 ? 1 : Math.max(1, mark[3].length);
  const width = mark[1].length + mark[2].length + wide;
  const inner = lines.map((line, i) => line.slice(i ? Math.min(width, indentOf(line)) : width));
  const task = TASK.exec(inner[0]);
  if (task) inner[0] = inner[0].slice(task[0].length);
  return { task: task ? task[1] !== " " : null, blocks: blocksOf(inner, depth + 1) };
}

/** Whether a line begins a block of its own even right after a paragraph. */
function begins(line) {
  return Boolean(fenceOf(line)) || HEADING.test(line) || QUOTE.test(line) || ITEM.test(line) || RULE.test(line);
}

function beginsTable(lines, at) {
  if (at + 1 >= lines.length || !lines[at].includes("|") || !lines[at + 1].includes("-")) return false;
  const marks = cells(lines[at + 1]);
  return marks.length === cells(lines[at]).length && marks.every((mark) => /^:?-+:?$/.test(mark));
}

function table(lines, at) {
  const align = cells(lines[at + 1]).map((mark) => {
    if (mark.endsWith(":")) return mark.startsWith(":") ? "center" : "end";
    return "start";
  });
  let end = at + 2;
  while (end < lines.length && lines[end].includes("|") && !blank(lines[end])) end += 1;
  const rows = lines.slice(at + 2, end).map((line) => padded(cells(line), align.length));
  return [{ kind: "table", align, head: cells(lines[at]), rows }, end];
}

/** The cells of a table's row; a `\|` and a bar in code belong to the cell. */
function cells(line) {
  const found = [""];
  let inCode = false;
  const text = line.trim().replace(/^\|/, "").replace(/\|$/, "");
  for (let i = 0; i < text.length; i += 1) {
    if (text[i] === "\\" && text[i + 1] === "|") {
      found[found.length - 1] += "|";
      i += 1;
    } else if (text[i] === "|" && !inCode) {
      found.push("");
    } else {
      if (text[i] === "`") inCode = !inCode;
      found[found.length - 1] += text[i];
    }
  }
  return found.map((cell) => cell.trim());
}

function paragraph(lines, at, depth) {
  let end = at + 1;
  while (
    end < lines.length &&
    !blank(lines[end]) &&
    (depth >= DEEPEST || !begins(lines[end])) &&
    !beginsTable(lines, end)
  )
    end += 1;
  const text = lines.slice(at, end).map((line) => line.trim());
  return [{ kind: "paragraph", text: text.join("\n") }, end];
}

function padded(row, length) {
  return Array.from({ length }, (_, i) => row[i] ?? "");
}
