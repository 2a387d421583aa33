// Listings: code in the colours of highlight.js, with its language and a button that copies it.

import { copyButton, element } from "./dom.js";
import { libraries } from "./libraries.js";

// Characters of a listing in colours, and of its lines: they are found anew with every frame while the listing grows,
// and some languages' patterns take a time that grows with the square of it.
const LONGEST = 10_000;
const WIDEST = 1_000;
const lowlight = libraries?.createLowlight(libraries.common);

export function listing(language, text) {
  // What is copied is the listing when the button is pressed, which may be more than when it was made.
  const copy = copyButton("Copy the code", () => copy.closest("figure").querySelector("code").textContent);
  return element(
    "figure",
    { class: "listing" },
    element("figcaption", {}, element("span", {}, language || "text"), copy),
    element("pre", { tabindex: "0" }, element("code", {}, coloured(language, text))),
  );
}

function coloured(language, text) {
  if (text.length > LONGEST || !lowlight.registered(language)) return [text];
  if (text.split("\n").some((line) => line.length > WIDEST)) return [text];
  return lowlight.highlight(language, text).children.map(node);
}

function node({ value, properties, children }) {
  if (!children) return document.createTextNode(value);
  return element("span", { class: properties.className.join(" ") }, children.map(node));
}
