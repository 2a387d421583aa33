// Images and text files of the next message: chosen, pasted or dropped, with a preview and what they take.

import { element, iconButton } from "./dom.js";
import { bytes, count } from "./figures.js";
import { readText } from "./files.js";
import { prepare, tokens } from "./images.js";

export class Attachments {
  /**
   * `actions`: limits(): {most, taken, min_tokens, max_tokens, model}, or null where the model reads text only, and
   * changed().
   */
  constructor(form, target, actions) {
    this.actions = actions;
    this.images = [];
    this.files = []; // {name, text, size}
    this.list = form.querySelector("#attached");
    this.told = form.querySelector("#attach-told");
    this.button = form.querySelector("#attach");
    this.file = form.querySelector("#attach-file");
    this.button.addEventListener("click", () => this.file.click());
    this.file.addEventListener("change", async () => {
      await this.add(this.file.files);
      this.file.value = ""; // so that the same file can be chosen again
    });
    form.querySelector("textarea").addEventListener("paste", (event) => {
      const { files, types } = event.clipboardData;
      // Some programs give a picture of the text that they copy as well.
      const asText = types.includes("text/html") || (types.includes("text/plain") && [...files].every(isImage));
      if (!files.length || asText) return;
      event.preventDefault();
      this.add(files);
    });
    this.acceptDrops(target);
    this.show();
  }

  acceptDrops(target) {
    const drop = target.querySelector("#drop");
    const holds = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
    target.addEventListener("dragover", (event) => {
      if (!holds(event)) return;
      event.preventDefault();
      drop.hidden = false;
    });
    target.addEventListener("dragleave", (event) => {
      if (!target.contains(event.relatedTarget)) drop.hidden = true;
    });
    target.addEventListener("drop", (event) => {
      drop.hidden = true;
      if (!holds(event)) return;
      event.preventDefault();
      this.add(event.dataTransfer.files);
    });
  }

  isEmpty() {
    return !this.images.length && !this.files.length;
  }

  /** Adds files, and says why where it cannot. */
  async add(files) {
    this.tell("");
    for (const file of [...files]) {
      try {
        if (isImage(file)) await this.addImage(file);
        else {
          const taken = this.files.reduce((sum, { size }) => sum + size, 0);
          this.files.push({ ...(await readText(file, taken)), size: file.size });
        }
      } catch (error) {
        this.tell(error.message);
      }
      this.show();
    }
  }

  async addImage(file) {
    const limits = this.actions.limits();
    if (!limits) throw new Error("This model reads text only.");
    if (limits.taken + this.images.length >= limits.most)
      throw new Error(`A conversation shows at most ${count(limits.most)} images here.`);
    this.images.push(await prepare(file));
  }

  /** What is attached, {images, files}; it is no longer attached then. */
  take() {
    const taken = { images: this.images, files: this.files.map(({ name, text }) => ({ name, text })) };
    [this.images, this.files] = [[], []];
    this.tell("");
    this.show();
    return taken;
  }

  tell(text) {
    this.told.textContent = text;
    this.told.hidden = !text;
  }

  show() {
    const limits = this.actions.limits();
    const label = limits ? "Add images or text files" : "Add text files";
    this.button.title = label;
    this.button.setAttribute("aria-label", label);
    this.list.hidden = this.isEmpty();
    this.list.replaceChildren(
      ...this.images.map((image, i) => this.image(image, i, limits)),
      ...this.files.map((file) => this.chip(file)),
    );
    this.actions.changed();
  }

  image(image, i, limits) {
    const size = `${count(image.width)} × ${count(image.height)}`;
    const shown = element("img", { src: image.data, alt: `Image ${i + 1}, ${size}`, title: size });
    const takes = element("span", {}, limits ? `${count(tokens(image, limits))} tokens` : size);
    return element("li", {}, shown, takes, this.remover(`Remove image ${i + 1}`, image));
  }

  chip(file) {
    const shown = [element("span", { title: file.name }, file.name), element("small", {}, bytes(file.size))];
    return element("li", { class: "file" }, ...shown, this.remover(`Remove ${file.name}`, file));
  }

  remover(label, removed) {
    return iconButton("close", label, () => {
      [this.images, this.files] = [this.images, this.files].map((all) => all.filter((one) => one !== removed));
      this.show();
      (this.list.querySelector("button") ?? this.button).focus();
    });
  }
}

/** Pictures that are drawn from text are text to a model. */
function isImage({ type }) {
  return type.startsWith("image/") && type !== "image/svg+xml";
}
