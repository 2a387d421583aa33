// The list of conversations; a drawer on a narrow screen.

import { confirmed, element, iconButton } from "./dom.js";
import { list, load, remove, save } from "./conversations.js";

export class Sidebar {
  /** `actions`: open(id), removed(id), renamed(id, title), and runs(id): whether an answer is being written there. */
  constructor(root, shade, actions) {
    this.root = root;
    this.items = root.querySelector("#conversations");
    this.actions = actions;
    const close = () => this.toggle(false);
    root.querySelector("#close-sidebar").addEventListener("click", close);
    shade.addEventListener("click", close);
    root.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.isOpen()) close();
    });
  }

  isOpen() {
    return document.body.classList.contains("drawer");
  }

  toggle(open) {
    document.body.classList.toggle("drawer", open);
    if (open) this.root.querySelector("button").focus();
    else if (this.root.contains(document.activeElement)) document.getElementById("open-sidebar").focus();
  }

  show(current) {
    this.current = current;
    this.items.replaceChildren(...list().map((entry) => this.item(entry)));
  }

  item({ id, title }) {
    const name = title || "New chat";
    const open = element(
      "button",
      {
        type: "button",
        class: "title",
        title: name,
        "aria-current": id === this.current ? "true" : null,
        onclick: () => this.actions.open(id),
      },
      name,
    );
    const rename = iconButton("edit", `Rename “${name}”`, () => this.rename(item, id, name));
    const drop = iconButton("delete", `Delete “${name}”`, () => this.drop(id, name));
    const item = element("li", { class: this.actions.runs(id) ? "runs" : null }, open, rename, drop);
    return item;
  }

  rename(item, id, name) {
    const field = element("input", {
      type: "text",
      "aria-label": "Name of the conversation",
      value: name,
      maxlength: "200",
    });
    let left = false;
    const leave = (keep) => {
      if (left) return;
      left = true;
      const title = field.value.trim();
      if (keep && title) this.actions.renamed(id, title);
      this.show(this.current);
    };
    field.addEventListener("blur", () => leave(true));
    field.addEventListener("keydown", (event) => {
      if (event.isComposing || !["Enter", "Escape"].includes(event.key)) return;
      event.stopPropagation();
      leave(event.key === "Enter");
    });
    item.replaceChildren(field);
    field.select();
  }

  async drop(id, name) {
    if (!(await confirmed(`Delete “${name}”? This cannot be undone.`, "Delete"))) return;
    remove(id);
    this.actions.removed(id);
    this.show(this.current);
  }
}

/** Gives a conversation that is kept a new title. */
export function retitle(id, title) {
  const kept = load(id);
  if (kept) save({ ...kept, title });
}
