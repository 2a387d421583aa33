// Images that the next message shows: chosen, pasted or dropped, with a preview and what they take.

import { element, iconButton } from "./dom.js";
import { count } from "./figures.js";
import { prepare, tokens } from "./images.js";

export class Attachments {
  /**
   * `actions`: limits(): {most, taken, min_tokens, max_tokens, model}, or null where the model reads text only, and
   * changed().
   */
  constructor(form, target, actions) {
    this.actions = actions;
    this.images = [];
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
      const files = imagesOf(event.clipboardData);
      if (!files.length || event.clipboardData.types.includes("text/plain")) return;
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

  /** Adds files, and says why where it cannot. */
  async add(files) {
    this.tell("");
    for (const file of files) {
      const limits = this.actions.limits();
      if (!limits) {
        this.tell("This model reads text only.");
        return;
      }
      if (limits.taken + this.images.length >= limits.most) {
        this.tell(`A conversation shows at most ${count(limits.most)} images here.`);
        return;
      }
      try {
        this.images.push(await prepare(file));
      } catch (error) {
        this.tell(error.message);
      }
      this.show();
    }
  }

  /** The images, which are no longer attached then. */
  take() {
    const taken = this.images;
    this.images = [];
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
    this.button.hidden = !limits;
    this.list.hidden = !this.images.length;
    this.list.replaceChildren(...this.images.map((image, i) => this.item(image, i, limits)));
    this.actions.changed();
  }

  item(image, i, limits) {
    const size = `${count(image.width)} × ${count(image.height)}`;
    const label = `Image ${i + 1}, ${size}`;
    const remove = iconButton("close", `Remove image ${i + 1}`, () => {
      this.images = this.images.filter((other) => other !== image);
      this.show();
      (this.list.querySelector("button") ?? this.button).focus();
    });
    return element(
      "li",
      {},
      element("img", { src: image.data, alt: label, title: size }),
      element("span", {}, limits ? `${count(tokens(image, limits))} tokens` : size),
      remove,
    );
  }
}

function imagesOf(data) {
  return [...(data?.files ?? [])].filter(({ type }) => type.startsWith("image/"));
}
