// What the user has set, for all conversations of this browser. An empty field is left out of requests.

import { withImages } from "./images.js";

const KEY = "trigraph.settings";
const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "seed", "max_tokens"];
const DEFAULTS = {
  model: "",
  system: "",
  thinking: "",
  mode: "",
  ...Object.fromEntries(NUMBERS.map((name) => [name, ""])),
};

export function load() {
  try {
    const kept = JSON.parse(localStorage.getItem(KEY)) ?? {};
    return Object.fromEntries(Object.keys(DEFAULTS).map((name) => [name, String(kept[name] ?? "")]));
  } catch {
    return { ...DEFAULTS };
  }
}

/**
 * The fields of a request that the settings tell; `messages` without the system message. Plain text has a `prompt` in
 * their place: all that was written so far, which the model goes on with.
 */
function fields(settings, messages) {
  const system = settings.system.trim();
  const all = [...(system ? [{ role: "system", content: system }] : []), ...messages];
  const plain = settings.mode === "plain";
  const body = plain ? { prompt: all.map(({ content }) => content).join("") } : { messages: all };
  if (settings.model) body.model = settings.model;
  for (const name of NUMBERS) if (settings[name] !== "") body[name] = Number(settings[name]);
  if (settings.thinking && !plain) body.chat_template_kwargs = { enable_thinking: settings.thinking === "on" };
  return body;
}

/** The body of a request to a model, with the images of its messages. */
export async function requestBody(model, messages) {
  const settings = { ...load(), model };
  return fields(settings, settings.mode === "plain" ? messages : await withImages(messages));
}

/** A server's default in a few characters; numbers of 32 bits come with more digits than were meant. */
function shown(name, value) {
  if (typeof value !== "number") return "";
  if (value === -1 || (name === "seed" && value === 0xffffffff)) return name === "seed" ? "random" : "no limit";
  return String(Number(value.toPrecision(4)));
}

/** The dialog: shows the settings, keeps what is typed at once; `changed` is called with all of them. */
export class SettingsDialog {
  constructor(dialog, changed) {
    this.dialog = dialog;
    this.form = dialog.querySelector("form");
    this.changed = changed;
    this.form.addEventListener("input", () => this.keep());
    this.form.elements.model.addEventListener("input", () => this.keep()); // in the page's header
    dialog.querySelector("#reset").addEventListener("click", () => {
      this.fill(DEFAULTS);
      this.keep();
    });
    this.fill(load());
  }

  show() {
    this.dialog.showModal();
  }

  /** Changes one setting. */
  set(name, value) {
    this.form.elements[name].value = value;
    this.keep();
  }

  /** Shows what the server does where a field is empty. */
  tell(defaults) {
    const told = { ...defaults, max_tokens: defaults.max_tokens ?? defaults.n_predict };
    for (const name of NUMBERS) this.form.elements[name].placeholder = shown(name, told[name]);
  }

  /** Offers the models that the server has; the one that was chosen before stays if it is among them. */
  offer(models) {
    const select = this.form.elements.model;
    const chosen = load().model;
    select.replaceChildren(...models.map(({ id }) => new Option(id, id)));
    select.value = models.some(({ id }) => id === chosen) ? chosen : (models[0]?.id ?? "");
    select.hidden = models.length < 2;
  }

  fill(settings) {
    for (const [name, value] of Object.entries(settings)) {
      if (name !== "model") this.form.elements[name].value = value;
    }
  }

  /** The settings as the form has them, without values that it marks as wrong. */
  read() {
    const settings = {};
    for (const name of Object.keys(DEFAULTS)) {
      const field = this.form.elements[name];
      settings[name] = field.validity.valid ? field.value : "";
    }
    return settings;
  }

  keep() {
    const settings = this.read();
    localStorage.setItem(KEY, JSON.stringify(settings));
    this.changed(settings);
  }
}
