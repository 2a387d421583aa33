// The field below the messages, and the keys of the page.

import { Attachments } from "./attachments.js";
import { icon } from "./dom.js";

const TALLEST = 0.4;

export class Composer {
  /**
   * `actions`: send(text, {images, files}), stop(), limits() of images, and editLast(): whether there was a message to
   * edit.
   */
  constructor(form, actions) {
    this.field = form.querySelector("textarea");
    this.button = form.querySelector("#send");
    this.actions = actions;
    this.running = false;
    this.attachments = new Attachments(form, form.closest("main"), {
      limits: () => actions.limits(),
      changed: () => this.attachments && this.show(this.running),
    });
    this.field.addEventListener("input", () => this.grow());
    this.field.addEventListener("keydown", (event) => this.key(event));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.running) this.actions.stop();
      else this.send();
    });
    document.addEventListener("keydown", (event) => this.pageKey(event));
    this.show(false);
  }

  /** Shows whether an answer is being written: the button stops it then. */
  show(running) {
    this.running = running;
    const label = running ? "Stop" : "Send";
    this.button.setAttribute("aria-label", label);
    this.button.title = label;
    this.button.replaceChildren(icon(running ? "stop" : "up"));
    this.button.disabled = !running && this.empty();
  }

  empty() {
    return this.field.value.trim() === "" && this.attachments.isEmpty();
  }

  grow() {
    this.field.style.height = "auto";
    this.field.style.height = `${Math.min(this.field.scrollHeight, window.innerHeight * TALLEST)}px`;
    this.show(this.running);
  }

  send() {
    const text = this.field.value;
    if (this.empty() || this.running) return;
    this.field.value = "";
    const attached = this.attachments.take();
    this.grow();
    this.actions.send(text, attached);
  }

  key(event) {
    if (event.isComposing) return;
    // A phone's keyboard has no other way to break a line.
    const typed = matchMedia("(pointer: coarse)").matches;
    if (event.key === "Enter" && !event.shiftKey && !typed) {
      event.preventDefault();
      this.send();
    } else if (event.key === "ArrowUp" && this.field.value === "" && !this.running) {
      if (this.actions.editLast()) event.preventDefault();
    }
  }

  pageKey(event) {
    if (document.querySelector("dialog[open]") || event.isComposing) return;
    if (event.key === "Escape" && this.running) {
      this.actions.stop();
    } else if (
      event.key === "/" &&
      !event.ctrlKey &&
      !event.metaKey &&
      !event.altKey &&
      !event.target.closest?.("input, textarea, select")
    ) {
      event.preventDefault();
      this.field.focus();
    }
  }
}
