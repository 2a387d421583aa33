// Short ways to make elements. Texts become text nodes; nothing here parses HTML.

const SVG = "http://www.w3.org/2000/svg";

/**
 * An element with attributes and children, which are nodes, texts, and lists of them. Functions among the attributes
 * listen to the event that their name (onclick, …) tells.
 */
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(key.slice(2), value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value !== undefined && value !== null) made.setAttribute(key, value);
  }
  // One by one: a long list of arguments overflows the stack.
  for (const child of children.flat()) made.append(child);
  return made;
}

/** A symbol of index.html. */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  const use = document.createElementNS(SVG, "use");
  use.setAttribute("href", `#icon-${name}`);
  svg.setAttribute("aria-hidden", "true");
  svg.append(use);
  return svg;
}

export function iconButton(name, label, onclick, attributes = {}) {
  return element(
    "button",
    { type: "button", class: "icon", "aria-label": label, title: label, onclick, ...attributes },
    icon(name),
  );
}

/** A button that copies what `text()` returns and shows that it did. */
export function copyButton(label, text) {
  const button = iconButton("copy", label, async () => {
    const copied = await copy(text());
    button.replaceChildren(icon(copied ? "done" : "close"));
    setTimeout(() => button.replaceChildren(icon("copy")), 1500);
  });
  return button;
}

/** The clipboard's interface is there only on https and on loopback; elsewhere the old command must do. */
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const field = element("textarea", { class: "unseen" });
    field.value = text;
    document.body.append(field);
    field.select();
    const copied = document.execCommand("copy");
    field.remove();
    return copied;
  }
}

/** Shows a dialog; resolves to the value of the button that closed it, "" where none did. */
export function shown(dialog) {
  return new Promise((resolve) => {
    dialog.returnValue = "";
    dialog.addEventListener("close", () => resolve(dialog.returnValue), { once: true });
    dialog.showModal();
  });
}

/** Asks before something that cannot be undone; resolves to whether it was confirmed. */
export async function confirmed(question, action) {
  const dialog = document.getElementById("question");
  dialog.querySelector("p").textContent = question;
  dialog.querySelector(".danger").textContent = action;
  return (await shown(dialog)) === "ok";
}
