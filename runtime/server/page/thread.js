// The messages of one conversation, and where the reader is in them.

import { branch, versions } from "./conversations.js";
import { MessageView } from "./message.js";
import { divider } from "./room.js";
import { highlight } from "./search.js";

const NEAR = 40;

export class Thread {
  constructor({ root, scroller, toEnd, welcome }, actions) {
    Object.assign(this, { root, scroller, toEnd, welcome, actions });
    this.views = new Map();
    this.changed = new Map();
    this.follows = true;
    this.top = 0;
    this.pause = 0; // milliseconds: a long answer must leave time for all else
    scroller.addEventListener("scroll", () => this.scrolled());
    toEnd.addEventListener("click", () => this.end());
    root.addEventListener("load", () => this.follow(), true); // of images, which are there later than their messages
    // The window's size and the keyboard of a phone move the end without a scroll.
    new ResizeObserver(() => this.follow()).observe(scroller);
  }

  /** Shows the branch of a conversation; views of messages that were shown before stay as they are. */
  show(conversation, runs) {
    const messages = branch(conversation);
    const old = this.views;
    this.views = new Map();
    for (const message of messages) {
      const place = () => {
        const all = versions(conversation, message);
        return [all.indexOf(message), all.length];
      };
      const known = old.get(message.id);
      const view = known?.message === message ? known : new MessageView(message, place, this.actions);
      view.update(runs(message.id));
      this.views.set(message.id, view);
    }
    const elements = [...this.views.values()].map((view) => view.element);
    const cut = messages.findLast(({ start }) => start);
    const begins = messages.findIndex(({ id }) => id === cut?.start);
    if (begins > 0) elements.splice(begins, 0, this.dividedBy(cut.summary));
    const same =
      elements.length === this.root.children.length && elements.every((one, i) => one === this.root.children[i]);
    if (!same) this.root.replaceChildren(...elements); // else the reader's selection and focus stay
    this.welcome.hidden = messages.length > 0;
    this.follow();
  }

  dividedBy(summary) {
    if (summary !== this.divider?.summary || !this.divider) this.divider = { summary, element: divider(summary) };
    return this.divider.element;
  }

  /** Shows a message's news with the next frame, however many chunks come before it. */
  refresh(message, running) {
    if (!this.changed.size) setTimeout(() => requestAnimationFrame(() => this.paint()), this.pause);
    this.changed.set(message.id, running);
  }

  paint() {
    const begun = performance.now();
    for (const [id, running] of this.changed) this.views.get(id)?.update(running);
    this.changed.clear();
    this.follow();
    this.pause = performance.now() - begun;
  }

  /** Goes to a message of the branch that is shown, and marks it and the words in it that were searched for. */
  reveal(id, words) {
    const view = this.views.get(id);
    if (!view) return;
    this.follows = false;
    this.root.querySelector(".found")?.classList.remove("found");
    view.element.classList.add("found");
    const range = highlight(view.text, words);
    const { top, height } = (range ?? view.element).getBoundingClientRect();
    const middle = this.scroller.getBoundingClientRect().top + this.scroller.clientHeight / 2;
    this.scroller.scrollTop += top + Math.min(height, this.scroller.clientHeight) / 2 - middle;
  }

  /** Follows the end while the reader is there; one who scrolls up stays where they are. */
  scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.scroller;
    const below = scrollHeight - clientHeight - scrollTop;
    this.follows = below < (scrollTop < this.top ? 2 : NEAR);
    this.top = scrollTop;
    this.toEnd.hidden = below < 3 * NEAR;
  }

  follow() {
    if (this.follows) this.scroller.scrollTop = this.scroller.scrollHeight;
    else this.scrolled();
  }

  end() {
    this.follows = true;
    this.follow();
  }

  /** Begins to edit the last message of the user. */
  editLast() {
    const last = [...this.views.values()].findLast((view) => view.message.role === "user");
    last?.edit();
    return Boolean(last);
  }
}
