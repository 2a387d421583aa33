// One message on the page.

import { copyButton, element, iconButton } from "./dom.js";
import { parts } from "./figures.js";
import { chips } from "./files.js";
import { Markdown } from "./markdown.js";
import { unpacked } from "./marks.js";
import { pictures } from "./pictures.js";
import { steps } from "./steps.js";

const WHY_ENDED = {
  length: "The answer ended at the limit of tokens.",
  content_filter: "The server withheld the rest.",
};

/**
 * Shows a message and keeps showing it while it grows. `actions`: edit(message, text), again(message), resume(message),
 * room(message), which makes room for it in the context, hasRoom(message), whether that can be made, plain(message),
 * which asks again in the plain mode, browse(message, by), which goes to another version, and isLast(message).
 */
export class MessageView {
  constructor(message, place, actions) {
    this.message = message;
    this.place = place;
    this.actions = actions;
    this.running = false;
    this.asSteps = false;
    const user = message.role === "user";
    this.element = element("article", { class: `message ${message.role}`, "aria-label": user ? "You" : "Answer" });
    this.text = element("div", { class: "text" });
    this.foot = element("div", { class: "foot" });
    if (!user) this.makeAnswer();
    if (user) this.element.append(...pictures(message), ...chips(message), this.text, this.foot);
    else this.element.append(this.thought, this.text, this.calls, this.notice, this.foot);
    this.update(false);
  }

  makeAnswer() {
    this.summary = element("summary", { onclick: () => (this.touched = true) });
    this.thoughtText = element("div", { class: "thoughts" });
    this.thought = element("details", { class: "thought", hidden: true }, this.summary, this.thoughtText);
    this.calls = element("div", { class: "calls" });
    this.notice = element("div", { class: "notice", role: "alert", hidden: true });
    this.markdown = new Markdown(this.text);
    this.thoughtMarkdown = new Markdown(this.thoughtText);
  }

  update(running) {
    this.running = running;
    this.element.classList.toggle("running", running);
    this.element.setAttribute("aria-busy", String(running));
    if (this.message.role === "user") {
      this.text.textContent = this.message.content;
      this.text.hidden = !this.message.content;
    } else this.updateAnswer();
    this.updateFoot();
  }

  updateAnswer() {
    const { message, running } = this;
    if (!this.asSteps) {
      this.markdown.update(message.content);
      this.thoughtMarkdown.update(message.reasoning);
    }
    this.updateThought();
    this.text.classList.toggle("waits", running && !message.content && !message.reasoning);
    const calls = (message.calls ?? []).map((call) =>
      element("pre", { class: "call" }, `${call.name}(${call.arguments})`),
    );
    this.calls.replaceChildren(...calls);
    this.updateNotice();
  }

  /** Thoughts are open while they are written, and fold when the answer begins, unless the reader has opened them. */
  updateThought() {
    const { message, running } = this;
    this.thought.hidden = !message.reasoning;
    const thinking = running && !message.content;
    const seconds = message.thoughtSeconds;
    this.summary.textContent = thinking ? "Thinking…" : seconds ? `Thought for ${seconds.toFixed(1)} s` : "Thoughts";
    if (!this.touched) this.thought.open = thinking;
    this.thought.classList.toggle("thinking", thinking);
    if (thinking) this.thoughtText.scrollTop = this.thoughtText.scrollHeight;
  }

  updateNotice() {
    const { message, running } = this;
    const { error } = message;
    const ended = message.stopped ? "Stopped." : message.open ? "The answer was cut off." : "";
    const text = error?.text ?? WHY_ENDED[message.finish] ?? ended;
    const ways = running || !text ? [] : this.ways();
    this.notice.hidden = running || !text;
    this.notice.classList.toggle("error", Boolean(error));
    const key = JSON.stringify([text, ways]);
    if (key === this.notice.dataset.key) return;
    this.notice.dataset.key = key;
    const buttons = ways.map(([action, label]) =>
      element("button", { type: "button", onclick: () => this.actions[action](message) }, label),
    );
    this.notice.replaceChildren(element("span", {}, text), ...buttons);
  }

  /** What can be done about an answer that ended early: [action, label] each. */
  ways() {
    const { message } = this;
    const { content, reasoning, error, finish, calls } = message;
    const last = this.actions.isLast(message);
    if (last && this.actions.hasRoom(message)) return [["room", "Make room…"]];
    const ways = [];
    // A file without a chat template: its model can only go on with a text.
    if (/chat template/.test(error?.text)) ways.push(["plain", "Use plain text"]);
    if (last && (content || reasoning) && !calls && finish !== "content_filter") ways.push(["resume", "Continue"]);
    if (error) ways.push(["again", "Try again"]);
    return ways;
  }

  updateFoot() {
    const { message, running } = this;
    const figures = message.figures
      ? parts(message.figures).map(([text, title]) => element("span", { title }, text))
      : [];
    const key = JSON.stringify([running, figures.length, this.asSteps, this.place()]);
    if (key !== this.footKey) {
      this.footKey = key;
      this.figures = element("div", { class: "figures" });
      this.foot.replaceChildren(element("div", { class: "actions" }, ...(running ? [] : this.buttons())), this.figures);
    }
    this.figures.replaceChildren(...figures);
  }

  buttons() {
    const { message } = this;
    const [at, of] = this.place();
    const other = (by, name, label) =>
      iconButton(name, label, () => this.actions.browse(message, by), { disabled: at + by < 0 || at + by >= of });
    const versions = [
      other(-1, "left", "The version before"),
      element("span", { class: "version" }, `${at + 1}/${of}`),
      other(1, "right", "The next version"),
    ];
    const answer = message.role !== "user";
    const { content = "", reasoning = "" } = message.steps ?? {};
    const drafted = unpacked(content + reasoning).some(([, tokens]) => tokens > 1);
    return [
      copyButton("Copy", () => message.content),
      iconButton("edit", "Edit", () => this.edit()),
      ...(answer ? [iconButton("again", "Answer again", () => this.actions.again(message))] : []),
      ...(answer && drafted ? [this.stepsButton()] : []),
      ...(of > 1 ? versions : []),
    ];
  }

  stepsButton() {
    const label = this.asSteps ? "Show the answer" : "Show which tokens came free";
    return iconButton("drafts", label, () => this.showSteps(!this.asSteps), { "aria-pressed": String(this.asSteps) });
  }

  showSteps(on) {
    const { message } = this;
    this.asSteps = on;
    this.markdown = new Markdown(this.text);
    this.thoughtMarkdown = new Markdown(this.thoughtText);
    this.text.replaceChildren(...(on ? steps(message.content, message.steps.content, true) : []));
    this.thoughtText.replaceChildren(...(on ? steps(message.reasoning, message.steps.reasoning, false) : []));
    this.update(this.running);
    this.foot.querySelector("[aria-pressed]").focus();
  }

  /** Changes the text to a field; Enter sends, Shift+Enter breaks the line, Esc leaves all as it was. */
  edit() {
    if (this.running || this.element.querySelector(".editor")) return;
    const field = element("textarea", { "aria-label": "Edit the message", rows: "2" });
    field.value = this.message.content;
    const close = () => {
      editor.remove();
      this.text.hidden = this.foot.hidden = false;
      this.update(this.running);
    };
    const send = () => {
      const text = field.value.trim();
      close();
      if (text && text !== this.message.content) this.actions.edit(this.message, text);
    };
    field.addEventListener("keydown", (event) => {
      if (event.isComposing) return;
      if (event.key === "Escape") close();
      else if (event.key === "Enter" && !event.shiftKey) send();
      else return;
      event.preventDefault();
      event.stopPropagation();
    });
    const buttons = element(
      "div",
      { class: "buttons" },
      element("button", { type: "button", onclick: close }, "Cancel"),
      element(
        "button",
        { type: "button", class: "primary", onclick: send },
        this.message.role === "user" ? "Send" : "Keep",
      ),
    );
    const editor = element("div", { class: "editor" }, field, buttons);
    this.text.hidden = this.foot.hidden = true;
    this.text.before(editor);
    field.focus();
    field.setSelectionRange(field.value.length, field.value.length);
  }
}
