// What the page does: conversations, and the answers that are being written in them, several at once if need be.

import { defaults, models } from "./api.js";
import { connect as connectArchive } from "./archive.js";
import { Composer } from "./composer.js";
import { add, branch, choose, create, history, imagesOfAll, load, save, versions } from "./conversations.js";
import { count } from "./figures.js";
import { Generation } from "./generation.js";
import { forgetOthers, keep as keepImage } from "./images.js";
import { askKey } from "./key.js";
import { libraries } from "./libraries.js";
import { place, stay } from "./place.js";
import { load as loadSettings, requestBody, SettingsDialog } from "./settings.js";
import { retitle, Sidebar } from "./sidebar.js";
import { Thread } from "./thread.js";

const SAVE_SECONDS = 2;
const get = (id) => document.getElementById(id);

export class Chat {
  constructor() {
    this.conversation = create();
    this.running = new Map(); // of a conversation's id: {conversation, generation}
    this.models = [];
    this.connecting = false;
    this.locked = false; // the server wants a key that we do not have
    this.trouble = ""; // why the server takes no requests
    this.full = ""; // why the browser keeps no conversations
    this.thread = new Thread(
      { root: get("thread"), scroller: get("scroller"), toEnd: get("to-end"), welcome: get("welcome") },
      {
        edit: (message, text) => this.edit(message, text),
        again: (message) => this.again(message),
        plain: (message) => this.plain(message),
        turn: (message, by) => this.turn(message, by),
      },
    );
    this.composer = new Composer(get("composer"), {
      send: (text, images) => this.send(text, images),
      limits: () => this.imageLimits(),
      stop: () => this.running.get(this.conversation.id)?.generation.stop(),
      editLast: () => this.thread.editLast(),
    });
    this.sidebar = new Sidebar(get("sidebar"), get("shade"), {
      removed: (id) => this.removed(id),
      renamed: (id, title) => this.renamed(id, title),
      runs: (id) => this.running.has(id),
    });
    this.settings = new SettingsDialog(get("settings"), () => this.showModel());
    get("new").addEventListener("click", () => this.composer.field.focus());
    get("open-settings").addEventListener("click", () => this.settings.show());
    connectArchive(get("archive"), () => this.reload());
    // What is on its way when the page is left ends here; what came of it stays. Some browsers have only the one, and
    // some cut connections before the other.
    addEventListener("beforeunload", () => this.leave());
    addEventListener("pagehide", () => this.leave());
    // Another tab has changed the conversations.
    addEventListener("storage", () => this.sidebar.show(this.conversation.id));
    addEventListener("popstate", () => this.visit());
    get("unbundled").hidden = libraries !== null;
    get("licences").hidden = libraries === null;
    this.visit();
    this.composer.field.focus();
  }

  /** Learns which models the server has; asks for a key where it wants one. */
  async connect() {
    if (this.connecting) return;
    this.connecting = true;
    try {
      this.models = await models();
      this.locked = false;
      this.settings.offer(this.models);
      this.settings.tell(await defaults());
      this.showModel();
    } catch (error) {
      this.locked = error.status === 401;
    }
    this.connecting = false;
    if (this.locked) await this.askKey();
  }

  async askKey() {
    if (await askKey()) await this.connect();
  }

  /** Shows what the page's address names; a new conversation where it names none. */
  visit() {
    const { id, message } = place();
    const known = this.running.get(id)?.conversation ?? load(id);
    this.gone = Boolean(id) && !known;
    if (!known || id !== this.conversation.id) this.conversation = known ?? create();
    const { conversation } = this;
    const found = conversation.messages.find((one) => one.id === message);
    if (found && !branch(conversation).includes(found)) choose(conversation, found);
    this.show();
    if (found) this.thread.reveal(message);
    else if (!known) this.composer.field.focus();
  }

  /** Shows the conversation as it is kept, which may be another than before an import. */
  reload() {
    const { id } = this.conversation;
    if (!this.running.has(id)) this.conversation = load(id) ?? this.conversation;
    this.show();
  }

  show() {
    const { id } = this.conversation;
    const generation = this.running.get(id)?.generation;
    this.thread.show(this.conversation, (message) => generation?.message.id === message);
    this.thread.end();
    this.composer.show(Boolean(generation));
    this.sidebar.closeDrawer();
    this.greet();
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
    const model = this.model();
    get("model").textContent = model ? model.id + (loadSettings().mode === "plain" ? ", plain text" : "") : "";
    get("model").title = model?.context ? `${model.id}, context of ${count(model.context)} tokens` : "";
    this.composer.attachments.show();
    this.greet();
    this.showContext();
  }

  greet() {
    const model = this.model();
    const text = model ? `Ask ${model.id} something.` : "Ask something.";
    get("greeting").textContent = this.gone ? "This conversation is not in this browser." : text;
  }

  model() {
    const chosen = loadSettings().model;
    return this.models.find(({ id }) => id === chosen) ?? this.models[0];
  }

  /** How much of the context the conversation takes, or why the server takes nothing. */
  showContext() {
    const last = this.conversation.messages.find(({ id }) => id === this.conversation.leaf)?.figures;
    const context = this.model()?.context;
    const used = last && context ? `${count(last.prompt + last.tokens)} of ${count(context)} tokens of context` : "";
    get("context").textContent = this.trouble || this.full || used;
    get("context").classList.toggle("trouble", Boolean(this.trouble || this.full));
  }

  /** Takes note of why the server takes no requests; "" where it does. */
  said(trouble) {
    if (!trouble && !this.models.length && !this.locked) this.connect();
    if (trouble === this.trouble) return;
    this.trouble = trouble;
    this.showContext();
  }

  /** What images a message may have; null where the model, or the mode, takes text only. */
  imageLimits() {
    const limits = this.model()?.images;
    if (!limits || loadSettings().mode === "plain") return null;
    return { ...limits, taken: branch(this.conversation).flatMap(({ images }) => images ?? []).length };
  }

  send(text, images) {
    const { conversation } = this;
    for (const image of images) {
      keepImage(image).catch((error) => {
        this.full = error.message;
        this.showContext();
      });
    }
    // A space before plain text may be what parts it from the words before.
    const content = loadSettings().mode === "plain" ? text : text.trim();
    stay(this.conversation.id);
    const shown = images.map(({ id, width, height }) => ({ id, width, height }));
    const asked = add(conversation, conversation.leaf, { role: "user", content, ...(shown.length && { images: shown }) });
    this.answer(asked.id);
  }

  /** A changed message of the user is answered anew; a changed answer stands as it is. */
  edit(message, text) {
    if (this.running.has(this.conversation.id)) return;
    const { role, images } = message;
    const answer = role === "user" ? {} : { reasoning: message.reasoning, steps: { content: [], reasoning: [] } };
    const shown = images ? { images } : {};
    const added = add(this.conversation, message.parent, { role, content: text, ...shown, ...answer });
    if (role === "user") this.answer(added.id);
    else this.keep(this.conversation, true);
  }

  again(message) {
    if (this.running.has(this.conversation.id)) return;
    this.answer(message.parent);
  }

  plain(message) {
    this.settings.set("mode", "plain");
    this.again(message);
  }

  turn(message, by) {
    if (this.running.has(this.conversation.id)) return;
    const all = versions(this.conversation, message);
    choose(this.conversation, all[all.indexOf(message) + by]);
    this.keep(this.conversation, false);
  }

  answer(parent) {
    const { conversation } = this;
    conversation.leaf = parent;
    const body = requestBody(this.model()?.id ?? "", history(conversation, parent));
    const message = add(conversation, parent, {
      role: "assistant",
      content: "",
      reasoning: "",
      steps: { content: [], reasoning: [] },
    });
    const generation = new Generation(message, body, () => this.progress(conversation, generation));
    this.running.set(conversation.id, { conversation, generation, saved: performance.now() });
    this.keep(conversation, true);
    get("announcer").textContent = "Writing the answer.";
  }

  /** Shows and keeps what came; the rest of the page changes only when the answer is over. */
  progress(conversation, generation) {
    const { message, running } = generation;
    const entry = this.running.get(conversation.id);
    const now = performance.now();
    if (conversation === this.conversation) this.thread.refresh(message, running);
    if (running && now - entry.saved < SAVE_SECONDS * 1000) return;
    entry.saved = now;
    if (running) {
      this.store(conversation);
      return;
    }
    this.running.delete(conversation.id);
    get("announcer").textContent = message.error ? "The answer failed." : "The answer is complete.";
    this.keep(conversation, false);
    if (message.error?.status === 401) this.askKey();
  }

  /** Keeps a conversation and shows it, if it is the one that is open; `end`: where it ends. */
  keep(conversation, end) {
    this.store(conversation);
    if (conversation !== this.conversation) {
      this.sidebar.show(this.conversation.id);
      return;
    }
    const generation = this.running.get(conversation.id)?.generation;
    this.thread.show(conversation, (message) => generation?.message.id === message);
    if (end) this.thread.end();
    this.composer.show(Boolean(generation));
    this.showList();
    this.showContext();
  }

  store(conversation) {
    if (conversation.removed) return;
    try {
      save(conversation);
      this.full = "";
    } catch (error) {
      this.full = error.message;
    }
  }

  leave() {
    for (const { conversation, generation } of this.running.values()) {
      generation.stop(); // else it would end as a lost connection
      generation.message.stopped = true;
      this.store(conversation);
    }
  }

  renamed(id, title) {
    const conversation = id === this.conversation.id ? this.conversation : this.running.get(id)?.conversation;
    if (conversation) conversation.title = title;
    retitle(id, title);
    this.showList();
  }

  removed(id) {
    forgetOthers(imagesOfAll(id === this.conversation.id ? [] : [this.conversation]));
    const entry = this.running.get(id);
    if (entry) {
      entry.conversation.removed = true;
      entry.generation.stop();
    }
    if (id !== this.conversation.id) return;
    stay();
    this.visit();
  }
}
