// Markdown on the page while it is being written: only the blocks that changed are made anew.

import { blocks } from "./blocks.js";
import { copyButton, element } from "./dom.js";
import { inline } from "./inline.js";

/** Keeps `root` showing a text that grows. */
export class Markdown {
  constructor(root) {
    this.root = root;
    this.shown = [];
  }

  update(text) {
    const wanted = blocks(text);
    let same = 0;
    while (same < wanted.length && same < this.shown.length && equal(this.shown[same], wanted[same])) same += 1;
    if (grows(this.shown[same], wanted[same])) {
      // The node stays, so that a selection in a long listing and its scroll position do.
      this.root.children[same].querySelector("code").firstChild.data = wanted[same].text;
      same += 1;
    }
    while (this.root.children.length > same) this.root.lastElementChild.remove();
    for (const block of wanted.slice(same)) this.root.append(node(block));
    this.shown = wanted;
  }
}

function equal(one, other) {
  return one.kind === other.kind && one.source === other.source;
}

function grows(old, wanted) {
  const both = old?.kind === "code" && wanted?.kind === "code";
  return both && old.language === wanted.language && wanted.text.startsWith(old.text);
}

const MAKERS = {
  paragraph: ({ text }) => element("p", {}, inline(text)),
  // The page's own headings come before a message's.
  heading: ({ level, text }) => element(`h${Math.min(6, level + 2)}`, { class: `level-${level}` }, inline(text)),
  rule: () => element("hr"),
  quote: (block) => element("blockquote", {}, block.blocks.map(node)),
  code: ({ language, text }) =>
    element(
      "figure",
      { class: "listing" },
      element("figcaption", {}, element("span", {}, language || "text"), listingCopy()),
      element("pre", { tabindex: "0" }, element("code", {}, document.createTextNode(text))),
    ),
  list: ({ ordered, start, items, loose }) =>
    element(
      ordered ? "ol" : "ul",
      { class: loose ? "loose" : "tight", start: ordered && start !== 1 ? start : null },
      items.map(item),
    ),
  table: ({ align, head, rows }) =>
    element(
      "div",
      { class: "table", tabindex: "0" },
      element(
        "table",
        {},
        element("thead", {}, row(head, align, "th")),
        element(
          "tbody",
          {},
          rows.map((cells) => row(cells, align, "td")),
        ),
      ),
    ),
};

function node(block) {
  return MAKERS[block.kind](block);
}

/** Copies the listing as it is when it is pressed, which may be more than when it was made. */
function listingCopy() {
  const button = copyButton("Copy the code", () => button.closest("figure").querySelector("code").textContent);
  return button;
}

function item({ task, blocks: inner }) {
  const box =
    task === null
      ? []
      : [element("input", { type: "checkbox", disabled: true, checked: task, "aria-label": task ? "done" : "to do" })];
  return element("li", { class: task === null ? null : "task" }, box, inner.map(node));
}

function row(cells, align, name) {
  return element(
    "tr",
    {},
    cells.map((text, i) => element(name, { class: align[i] }, inline(text))),
  );
}
