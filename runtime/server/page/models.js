// The models that the server has, and the one that the user has chosen.

import { defaults, models } from "./api.js";
import { imagesOf } from "./conversations.js";
import { count } from "./figures.js";
import { askKey } from "./key.js";
import { load } from "./settings.js";

export class Models {
  /** `changed` is called when the models, or the settings, are others. */
  constructor(settings, changed) {
    this.settings = settings;
    this.changed = changed;
    this.all = [];
    this.connecting = false;
    this.locked = false; // the server wants a key that we do not have
  }

  /** Learns which models the server has; asks for a key where it wants one. */
  async connect() {
    if (this.connecting) return;
    this.connecting = true;
    try {
      this.all = await models();
      this.locked = false;
      this.settings.offer(this.all);
      this.settings.tell(await defaults());
      this.changed();
    } catch (error) {
      this.locked = error.status === 401;
    }
    this.connecting = false;
    if (this.locked) await this.askKey();
  }

  async askKey() {
    if (await askKey()) await this.connect();
  }

  /** The model that answers; undefined where none is known. */
  chosen() {
    const { model } = load();
    return this.all.find(({ id }) => id === model) ?? this.all[0];
  }

  /** Shows in the header which model answers, unless the user can choose there. */
  show(root) {
    const model = this.chosen();
    const name = this.all.length > 1 ? "" : (model?.id ?? "");
    root.textContent = [name, load().mode === "plain" && "plain text"].filter(Boolean).join(", ");
    root.title = model?.context ? `${model.id}, context of ${count(model.context)} tokens` : "";
  }

  /** What images may follow these messages; null where the model, or the mode, takes text only. */
  images(messages) {
    const limits = this.chosen()?.images;
    return limits && load().mode !== "plain" ? { ...limits, taken: imagesOf(messages).length } : null;
  }
}
