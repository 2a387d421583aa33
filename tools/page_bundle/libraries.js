// What the chat page takes from other projects: one module, one style sheet and the fonts that it names.

import "katex/dist/katex.css";

export { default as katex } from "katex";
export { common, createLowlight } from "lowlight";
export { default as MarkdownIt } from "markdown-it";
