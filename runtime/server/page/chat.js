// What the page does: conversations, and the answers that are being written in them, several at once if need be.

import { Answers } from "./answers.js";
import { connect as connectArchive } from "./archive.js";
import { Composer } from "./composer.js";
import { add, attached, branch, catchUp, choose, create, versions } from "./conversations.js";
import { count } from "./figures.js";
import { remember } from "./images.js";
import { libraries } from "./libraries.js";
import { isKept, listen, load, remove, save, start, takeOver, tell } from "./library.js";
import { Models } from "./models.js";
import { place, stay } from "./place.js";
import { askRoom, bodyOf, roomFor } from "./room.js";
import { load as loadSettings, SettingsDialog } from "./settings.js";
import { Sidebar } from "./sidebar.js";
import { Thread } from "./thread.js";

const get = (id) => document.getElementById(id);

export class Chat {
  constructor() {
    this.conversation = create();
    this.answers = new Answers({
      shown: (...news) => this.progress(...news),
      keep: (...changes) => this.keep(...changes),
    });
    this.settings = new SettingsDialog(get("settings"), () => this.showModel());
    this.models = new Models(this.settings, () => this.showModel());
    this.trouble = ""; // why the server takes no requests
    this.full = ""; // why the browser keeps no conversations
    this.thread = new Thread(
      { root: get("thread"), scroller: get("scroller"), toEnd: get("to-end"), welcome: get("welcome") },
      {
        edit: (message, text) => this.edit(message, text),
        again: (message) => this.again(message),
        resume: (message) => this.resume(message),
        room: (message) => this.makeRoom(message),
        hasRoom: (message) => roomFor(this.conversation, message) !== null,
        isLast: ({ id }) => id === this.conversation.leaf,
        plain: (message) => this.plain(message),
        browse: (message, by) => this.browse(message, by),
      },
    );
    this.composer = new Composer(get("composer"), {
      send: (text, attached) => this.send(text, attached),
      limits: () => this.models.images(branch(this.conversation)),
      stop: () => this.stop(),
      editLast: () => this.thread.editLast(),
    });
    this.sidebar = new Sidebar(get("sidebar"), get("shade"), {
      removed: (id) => this.removed(id),
      renamed: (id, title) => this.renamed(id, title),
      runs: (id) => Boolean(this.answers.writing(id)),
    });
    get("new").addEventListener("click", () => this.composer.field.focus());
    get("open-settings").addEventListener("click", () => this.settings.show());
    connectArchive(get("archive"), () => this.catchUp());
    addEventListener("beforeunload", (event) => {
      if (!isKept()) event.preventDefault(); // the browser asks
    });
    addEventListener("pageshow", ({ persisted }) => {
      if (persisted) this.begin(); // it heard nothing meanwhile
    });
    addEventListener("popstate", () => (this.visited = this.visit()));
    listen((event) => this.heard(event));
    get("unbundled").hidden = libraries !== null;
    get("licences").hidden = libraries === null;
    this.begin();
    this.composer.field.focus();
  }

  /** Reads the conversations, then shows the one that is asked for. */
  begin() {
    this.visited = start()
      .catch((error) => this.told(error))
      .then(() => this.visit());
    tell({ hello: true });
  }

  /** Shows what the page's address names; a new conversation where it names none. */
  async visit() {
    const { hash } = location;
    const { id, message } = place();
    const known = id === this.conversation.id ? this.conversation : id && (await this.find(id));
    if (hash !== location.hash) return;
    this.gone = Boolean(id) && !known;
    this.conversation = known || create();
    const { conversation } = this;
    const found = conversation.messages.find((one) => one.id === message);
    if (found && !branch(conversation).includes(found)) choose(conversation, found);
    this.show();
    if (found) this.thread.reveal(message, this.sidebar.wanted());
    else if (!known) this.composer.field.focus();
  }

  /** A conversation of this browser; nothing where it is gone. */
  find(id) {
    return this.answers.running.get(id)?.conversation ?? load(id).catch((error) => this.told(error));
  }

  /** Shows the conversation as it is kept, which another tab or an import may have changed. */
  async catchUp() {
    const { conversation } = this;
    const { id } = conversation;
    const kept = await load(id).catch(() => null); // told when it is written
    const mine = this.answers.running.get(id)?.generation.message.id;
    if (kept && conversation === this.conversation) catchUp(conversation, kept, mine);
    this.refresh();
  }

  show() {
    this.refresh();
    this.thread.end();
    this.sidebar.closeDrawer();
    this.greet();
  }

  /** Shows the conversation's messages where the reader is in them. */
  refresh() {
    const writing = this.answers.writing(this.conversation.id);
    this.thread.show(this.conversation, (message) => writing === message);
    this.composer.show(Boolean(writing));
    this.showList();
    this.showContext();
  }

  showList() {
    const title = this.conversation.title || "New chat";
    get("title").textContent = title;
    document.title = this.conversation.title ? `${title} · trigraph` : "trigraph";
    this.sidebar.show(this.conversation.id);
  }

  showModel() {
    this.models.show(get("model"));
    this.composer.attachments.show();
    this.greet();
    this.showContext();
  }

  greet() {
    const model = this.models.chosen();
    const text = model ? `Ask ${model.id} something.` : "Ask something.";
    get("greeting").textContent = this.gone ? "This conversation is not in this browser." : text;
  }

  /** How much of the context the conversation takes, or why the server takes nothing. */
  showContext() {
    const last = this.conversation.messages.find(({ id }) => id === this.conversation.leaf)?.figures;
    const context = this.models.chosen()?.context;
    const used = last && context ? `${count(last.prompt + last.tokens)} of ${count(context)} tokens of context` : "";
    get("context").textContent = this.trouble || this.full || used;
    get("context").classList.toggle("trouble", Boolean(this.trouble || this.full));
  }

  /** Takes note of why the server takes no requests; "" where it does. */
  said(trouble) {
    if (!trouble && !this.models.all.length && !this.models.locked) this.models.connect();
    if (trouble === this.trouble) return;
    this.trouble = trouble;
    this.showContext();
  }

  async send(text, given) {
    await this.visited;
    const { conversation } = this;
    given.images.forEach(remember);
    // A space before plain text may be what parts it from the words before.
    const content = loadSettings().mode === "plain" ? text : text.trim();
    stay(conversation.id);
    const asked = add(conversation, conversation.leaf, { role: "user", content, ...attached(given) });
    this.answer(asked.id, {}, given.images);
  }

  /** A changed message of the user is answered anew; a changed answer stands as it is. */
  edit(message, text) {
    if (this.answers.writing(this.conversation.id)) return;
    const { role } = message;
    const answer = role === "user" ? {} : { reasoning: message.reasoning, steps: { content: "", reasoning: "" } };
    const added = add(this.conversation, message.parent, { role, content: text, ...attached(message), ...answer });
    if (role === "user") this.answer(added.id);
    else {
      this.keep(this.conversation, [added]);
      this.show();
    }
  }

  again({ parent, start, summary }) {
    const cut = start ? { start, ...(summary !== undefined && { summary }) } : {};
    if (!this.answers.writing(this.conversation.id)) this.answer(parent, cut);
  }

  plain(message) {
    this.settings.set("mode", "plain");
    this.again(message);
  }

  browse(message, by) {
    if (this.answers.writing(this.conversation.id)) return;
    const all = versions(this.conversation, message);
    choose(this.conversation, all[all.indexOf(message) + by]);
    this.keep(this.conversation, []);
    this.refresh();
  }

  /** Asks the user how an answer that found no room in the context can be asked for again. */
  async makeRoom(message) {
    const chosen = await askRoom(roomFor(this.conversation, message), loadSettings().mode === "plain");
    if (!chosen) return;
    delete message.summary;
    this.resume(Object.assign(message, chosen));
  }

  /** Goes on with an answer that ended early. */
  resume(message) {
    if (this.answers.writing(this.conversation.id)) return;
    this.conversation.changed = Date.now();
    this.write(message);
  }

  answer(parent, cut = {}, images = []) {
    const steps = { content: "", reasoning: "" };
    const message = add(this.conversation, parent, { role: "assistant", content: "", reasoning: "", steps, ...cut });
    this.write(message, images);
  }

  write(message, images = []) {
    const { conversation } = this;
    const model = this.models.chosen()?.id ?? "";
    const body = (signal) => bodyOf(model, conversation, message, signal, () => this.refresh());
    this.answers.start(conversation, message, body, images);
    this.show();
    get("announcer").textContent = "Writing the answer.";
  }

  stop() {
    this.answers.stop(this.conversation.id);
    this.refresh();
  }

  /** Shows what came of an answer; the rest of the page changes only when it is over. */
  progress(conversation, message, running) {
    if (conversation === this.conversation) this.thread.refresh(message, running);
    if (running) return;
    get("announcer").textContent = message.error ? "The answer failed." : "The answer is complete.";
    if (conversation === this.conversation) this.refresh();
    else this.showList();
    if (message.error?.status === 401) this.models.askKey();
    else if (!this.models.chosen()?.context) this.models.connect(); // a model that was loaded for it tells more now
  }

  /** Keeps messages of a conversation in the browser. */
  async keep(conversation, messages, options) {
    if (conversation.removed) return;
    try {
      await save(conversation, messages, options);
      if (isKept()) this.told({ message: "" });
    } catch (error) {
      this.told(error);
    }
  }

  /** Shows why the browser keeps no conversations, or "". */
  told({ message }) {
    this.full = message;
    this.showContext();
  }

  /** What another tab tells. */
  async heard(event) {
    const { changed, removed, again, left } = event;
    this.answers.heard(event);
    if (removed && !again) await this.removed(removed, true);
    if (left) await takeOver().catch((error) => this.told(error));
    if ((changed?.id ?? left) === this.conversation.id) await this.catchUp();
    else this.showList();
  }

  async renamed(id, title) {
    const conversation = id === this.conversation.id ? this.conversation : await this.find(id);
    if (!conversation) return;
    conversation.title = title;
    await this.keep(conversation, [], { title });
    this.showList();
  }

  /** Deletes a conversation; `again`: another tab has. */
  async removed(id, again = false) {
    this.answers.drop(id);
    await remove(id, again).catch((error) => this.told(error));
    if (id === this.conversation.id) {
      stay();
      this.conversation = create();
      this.show();
    } else this.showList();
  }
}
