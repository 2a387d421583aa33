// The images of a message, small at first; a click makes them as large as the page has room.

import { element } from "./dom.js";
import { count } from "./figures.js";
import { find } from "./images.js";

/** What shows a message's images: one element, or none. */
export function pictures({ images }) {
  return images ? [element("div", { class: "pictures" }, images.map(picture))] : [];
}

function picture({ id, width, height }, i) {
  const size = `${count(width)} × ${count(height)}`;
  const image = element("img", { alt: `Image ${i + 1}, ${size}`, width, height });
  const button = element(
    "button",
    {
      type: "button",
      title: size,
      "aria-pressed": "false",
      onclick: () => button.setAttribute("aria-pressed", String(button.getAttribute("aria-pressed") === "false")),
    },
    image,
  );
  find(id).then((data) => {
    if (data) image.src = data;
    else button.replaceWith(element("p", { class: "gone" }, "This image is not in this browser."));
  });
  return button;
}
