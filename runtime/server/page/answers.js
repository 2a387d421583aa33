// The answers that are being written: several at once in this tab if need be, and those of other tabs.

import { Generation } from "./generation.js";
import { leave, tell } from "./library.js";

const SAVE_SECONDS = 2;

export class Answers {
  /** `actions`: shown(conversation, message, running), and keep(conversation, messages, options of `save`). */
  constructor(actions) {
    this.actions = actions;
    this.running = new Map(); // of a conversation's id: {conversation, generation, saved}
    this.elsewhere = new Map(); // of a conversation's id: the id of the message that another tab writes
    // What is on its way when the page is left ends here; what came of it stays. Some browsers have only the one, and
    // some cut connections before the other.
    addEventListener("beforeunload", () => this.leave());
    addEventListener("pagehide", () => this.leave());
  }

  /** The id of the message that is being written in a conversation; undefined where none is. */
  writing(id) {
    return this.running.get(id)?.generation.message.id ?? this.elsewhere.get(id);
  }

  /** Fills a message, which is the last one of its conversation; `images`: those to keep with the message before. */
  start(conversation, message, makeBody, images) {
    const { id } = message;
    const written = conversation.messages.filter((one) => one === message || one.id === message.parent);
    const generation = new Generation(message, makeBody, () => this.progress(conversation, generation));
    this.running.set(conversation.id, { conversation, generation, written, saved: performance.now() });
    this.actions.keep(conversation, written, { images, writing: id });
  }

  /** Shows and keeps what came. */
  progress(conversation, { message, running }) {
    const entry = this.running.get(conversation.id);
    const now = performance.now();
    if (!running) this.running.delete(conversation.id);
    this.actions.shown(conversation, message, running);
    if (running && now - entry.saved < SAVE_SECONDS * 1000) return;
    entry.saved = now;
    this.actions.keep(conversation, [message], { writing: running ? message.id : null });
  }

  stop(id) {
    this.running.get(id)?.generation.stop();
    if (this.elsewhere.delete(id)) tell({ stop: id });
  }

  /** Stops what is being written in a conversation that is deleted; whoever hears that it is does the same. */
  drop(id) {
    this.elsewhere.delete(id);
    const { conversation, generation } = this.running.get(id) ?? {};
    if (!conversation) return;
    conversation.removed = true;
    generation.stop();
  }

  leave() {
    for (const { conversation, generation, written } of this.running.values()) {
      generation.stop(); // else it would end as a lost connection
      Object.assign(generation.message, { stopped: true, open: false });
      if (!conversation.removed) leave(conversation, written);
    }
  }

  /** Takes note of what other tabs tell. */
  heard({ changed, writing, removed, left, stop, hello }) {
    if (writing) this.elsewhere.set(changed.id, writing);
    else if (writing === null) this.elsewhere.delete(changed.id);
    this.elsewhere.delete(removed ?? left);
    this.running.get(stop)?.generation.stop();
    if (!hello) return;
    for (const { conversation: { id, title, changed: time }, generation } of this.running.values())
      tell({ changed: { id, title, changed: time }, writing: generation.message.id });
  }
}
