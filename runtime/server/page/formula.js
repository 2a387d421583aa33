// Formulas, typeset by KaTeX.

import { element } from "./dom.js";
import { libraries } from "./libraries.js";

const LONGEST = 5_000;
const OPTIONS = { throwOnError: true, strict: "ignore", trust: false, maxExpand: 200, maxSize: 30 };

/** A node that shows a formula; its source where KaTeX does not know what it says. */
export function formula(source, displayed) {
  try {
    if (source.length > LONGEST) throw new Error("a formula this long is none");
    const tree = libraries.katex.__renderToDomTree(source, { ...OPTIONS, displayMode: displayed });
    withoutStyles(tree);
    return tree.toNode();
  } catch {
    return element("code", { class: "formula" }, source);
  }
}

/** Attributes `style`, which the page's policy forbids, are set as KaTeX sets most of its styles: as properties. */
function withoutStyles(node) {
  const { style, ...attributes } = node.attributes ?? {};
  if (style) {
    const plain = node.toNode;
    node.attributes = attributes;
    node.toNode = () => {
      const made = plain.call(node);
      made.style.cssText = style;
      return made;
    };
  }
  for (const child of node.children ?? []) withoutStyles(child);
}
