// Markdown on the page while it is being written: only the blocks that changed are made anew.

import { libraries } from "./libraries.js";
import { math } from "./math.js";
import { morph } from "./morph.js";
import { nodes } from "./nodes.js";

const LONGEST = 20_000; // characters of a paragraph; a longer one comes from a model in a loop
const parser = libraries && configured(new libraries.MarkdownIt({ breaks: true, linkify: true }));

/** Keeps `root` showing a text that grows; as it is written where the libraries are missing. */
export class Markdown {
  constructor(root) {
    this.root = root;
    this.keys = [];
    root.classList.toggle("plain", !parser);
  }

  update(text) {
    if (!parser) {
      morph(this.root, [document.createTextNode(text)]);
      return;
    }
    const source = text.replace(/\r\n?/g, "\n").replaceAll("\0", "\ufffd");
    const { blocks, env } = parse(source);
    const lines = source.split("\n");
    const links = JSON.stringify(env.references ?? {}); // a definition at the end changes what comes before it
    const keys = blocks.map(([first]) => `${first.type} ${links} ${lines.slice(...first.map).join("\n")}`);
    let same = 0;
    while (same < keys.length && keys[same] === this.keys[same]) same += 1;
    const changed = blocks.slice(same).map((tokens) => nodes(inline(tokens, source, env)));
    morph(this.root, changed, same);
    this.keys = keys;
  }
}

function configured(markdown) {
  // A model's answer names files and modules more often than hosts without a scheme.
  markdown.linkify.set({ fuzzyLink: false, fuzzyEmail: false });
  markdown.validateLink = (address) => ["http:", "https:", "mailto:"].includes(protocol(address));
  markdown.use(math);
  markdown.core.ruler.disable(["normalize", "block"]); // these are done first, for all blocks
  return markdown;
}

function protocol(address) {
  try {
    return new URL(address).protocol;
  } catch {
    return "";
  }
}

/** The tokens of each block, what stands within lines not parsed yet, and the links that the text defines. */
function parse(source) {
  const tokens = [];
  const env = {};
  parser.block.parse(source, parser, env, tokens);
  const blocks = [];
  for (const token of tokens) {
    if (token.level === 0 && token.nesting >= 0) blocks.push([]);
    blocks.at(-1).push(token);
  }
  return { blocks, env };
}

/** Parses what stands within the lines of a block. */
function inline(tokens, source, env) {
  for (const token of tokens) if (token.type === "inline" && token.content.length > LONGEST) token.type = "text";
  const state = new parser.core.State(source, parser, env);
  state.tokens = tokens;
  parser.core.process(state);
  return tokens;
}
