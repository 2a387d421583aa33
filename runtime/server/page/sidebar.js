// The list of conversations, and the search in it. A wide screen can fold it; on a narrow one it is a drawer.

import { download } from "./archive.js";
import { confirmed, element, iconButton } from "./dom.js";
import { list, load } from "./library.js";
import { address } from "./place.js";
import { search } from "./search.js";

const FOLDED = "trigraph.sidebar";
const page = document.documentElement.classList;

export class Sidebar {
  /** `actions`: removed(id), renamed(id, title) and runs(id): whether an answer is being written there. */
  constructor(root, shade, actions) {
    this.root = root;
    this.items = root.querySelector("#conversations");
    this.query = root.querySelector("#search");
    this.actions = actions;
    root.querySelector("#close-sidebar").addEventListener("click", () => this.toggle(false));
    document.getElementById("open-sidebar").addEventListener("click", () => this.toggle(true));
    shade.addEventListener("click", () => this.toggle(false));
    this.query.addEventListener("input", () => this.show(this.current));
    root.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && page.contains("drawer")) this.toggle(false);
    });
  }

  /** Shows or hides the list. */
  toggle(open) {
    if (matchMedia("(max-width: 48rem)").matches) page.toggle("drawer", open);
    else {
      page.toggle("folded", !open);
      localStorage.setItem(FOLDED, open ? "" : "folded");
    }
    document.getElementById(open ? "close-sidebar" : "open-sidebar").focus();
  }

  closeDrawer() {
    page.remove("drawer");
  }

  /** The words that are searched for, "" for none. */
  wanted() {
    return this.query.value.trim();
  }

  /** Shows the list, or what the search finds, unless that is what is shown or a name is being typed. */
  async show(current) {
    this.current = current;
    const query = this.wanted();
    const found = query ? await search(query, () => query !== this.wanted()) : list();
    const key = JSON.stringify([found, this.current, query, found.map(({ id }) => this.actions.runs(id))]);
    if (query !== this.wanted() || key === this.shown || this.items.querySelector("input")) return;
    this.shown = key;
    this.items.replaceChildren(...found.map((entry) => this.item(entry)));
    this.root.querySelector("#none-found").hidden = !query || found.length > 0;
  }

  item({ id, title, message, excerpt }) {
    const name = title || "New chat";
    const open = element(
      "a",
      {
        class: "title",
        href: address(id, message),
        title: name,
        "aria-current": id === this.current ? "page" : null,
        onclick: () => this.closeDrawer(),
      },
      name,
      excerpt ? element("small", {}, excerpt) : [],
    );
    const rename = iconButton("edit", `Rename “${name}”`, () => this.rename(item, id, name));
    const keep = iconButton("save", `Export “${name}”`, async () => download(name, [await load(id)]));
    const drop = iconButton("delete", `Delete “${name}”`, () => this.drop(id, name));
    const item = element("li", { class: this.actions.runs(id) ? "runs" : null }, open, rename, keep, drop);
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
      field.remove();
      this.shown = "";
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
    this.actions.removed(id);
  }
}
