// Tokens of markdown-it to nodes. Text nodes and elements only, no HTML: what a model writes cannot become markup.

import { element } from "./dom.js";
import { formula } from "./formula.js";
import { listing } from "./listing.js";

const TASK = /^\[([ xX])\] /;

/** The node that shows one block's tokens. */
export function nodes(tokens) {
  const root = document.createDocumentFragment();
  build(root, tokens);
  return root.firstChild;
}

function build(root, tokens) {
  const parents = [root];
  tokens.forEach((token, i) => {
    const parent = parents.at(-1);
    if (token.nesting > 0) parents.push(opened(token, parent, tokens));
    else if (token.nesting < 0) parents.pop();
    else if (token.type === "inline") inline(token, parent, tokens[i - 2]?.type === "list_item_open");
    else parent.append(leaf(token));
  });
}

/** Adds a token's element to `parent`; returns where what it contains goes. */
function opened(token, parent, tokens) {
  if (token.hidden) return parent; // the paragraph of a tight list
  const made = element(...(CONTAINERS[token.type] ?? plain)(token, tokens));
  parent.append(token.type === "table_open" ? element("div", { class: "table", tabindex: "0" }, made) : made);
  return made;
}

const plain = ({ tag }) => [tag];
const aligned = (token) => [token.tag, { class: /(center|right)$/.exec(token.attrGet("style") ?? "")?.[0] }];
const CONTAINERS = {
  // The page's own headings come before a message's.
  heading_open: ({ tag }) => [`h${Math.min(6, Number(tag[1]) + 2)}`, { class: `level-${tag[1]}` }],
  ordered_list_open: (token) => ["ol", { start: token.attrGet("start") }],
  link_open: (token) => link(token.attrGet("href"), token.attrGet("title")),
  th_open: aligned,
  td_open: aligned,
};

function link(address, title) {
  return ["a", { href: address, title, target: "_blank", rel: "noopener noreferrer nofollow" }];
}

function inline({ content, children }, parent, isItem) {
  const task = isItem && children[0]?.type === "text" ? TASK.exec(content) : null;
  if (task) {
    const done = task[1] !== " ";
    children[0].content = children[0].content.slice(task[0].length);
    parent.closest("li").className = "task";
    parent.append(
      element("input", { type: "checkbox", disabled: true, checked: done, "aria-label": done ? "done" : "to do" }),
    );
  }
  build(parent, children);
}

function leaf(token) {
  return (LEAVES[token.type] ?? ((other) => document.createTextNode(other.content)))(token);
}

const code = ({ info, content }) => listing(info.trim().split(/\s/)[0], content.replace(/\n$/, ""));
const LEAVES = {
  hr: () => element("hr"),
  softbreak: () => element("br"),
  hardbreak: () => element("br"),
  code_inline: ({ content }) => element("code", {}, content),
  fence: code,
  code_block: code,
  math_inline: ({ content, meta }) => formula(content, meta.displayed),
  math_block: ({ content }) => element("div", { class: "formula", tabindex: "0" }, formula(content, true)),
  // Images become links, too: nothing is loaded from another host.
  image: (token) =>
    element(...link(token.attrGet("src"), token.attrGet("title")), token.content || token.attrGet("src")),
};
