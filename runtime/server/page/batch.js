// The live view of what the server does for all its clients, from its metrics.

import { metrics, unready } from "./api.js";
import { count, decimal } from "./figures.js";

const SECONDS = 2;
const SAMPLES = 60;
const NAMES = {
  running: "vllm:num_requests_running",
  waiting: "vllm:num_requests_waiting",
  tokens: "vllm:generation_tokens_total",
  drafted: "vllm:spec_decode_num_draft_tokens_total",
  accepted: "vllm:spec_decode_num_accepted_tokens_total",
};

/** The values of the metrics we show, summed over their labels; 0 for one that is not there. */
export function read(text) {
  const sums = Object.fromEntries(Object.values(NAMES).map((name) => [name, 0]));
  for (const line of text.split("\n")) {
    const found = /^([A-Za-z_:][\w:]*)(?:\{.*\})?\s+(\S+)/.exec(line);
    if (found && found[1] in sums && Number.isFinite(Number(found[2]))) sums[found[1]] += Number(found[2]);
  }
  return Object.fromEntries(Object.entries(NAMES).map(([key, name]) => [key, sums[name]]));
}

/**
 * Asks every two seconds while the page is seen: for the metrics if `allowed()`; `said` is called with why the server
 * takes no requests, or "".
 */
export class Batch {
  constructor(section, allowed, said) {
    this.section = section;
    this.allowed = allowed;
    this.said = said;
    this.last = null;
    this.rates = [];
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden) this.last = null; // what passed in between is no rate of now
    });
    this.loop();
  }

  async loop() {
    for (;;) {
      if (!document.hidden) await this.look();
      await new Promise((resolve) => setTimeout(resolve, SECONDS * 1000));
    }
  }

  async look() {
    try {
      if (!this.allowed()) throw new Error("no key yet");
      const values = { time: performance.now() / 1000, ...read(await metrics()) };
      this.show(values);
      this.last = values;
      this.section.hidden = false;
    } catch {
      this.section.hidden = true;
      this.last = null;
    }
    this.said(await unready());
  }

  show(values) {
    const { last } = this;
    const set = (id, text) => (this.section.querySelector(`#${id}`).textContent = text);
    set("running", count(values.running));
    set("waiting", count(values.waiting));
    if (last) {
      const rate = Math.max(0, values.tokens - last.tokens) / (values.time - last.time);
      this.rates = [...this.rates, rate].slice(-SAMPLES);
      set("rate", decimal(rate));
    }
    set("kept", values.drafted > 0 ? `${Math.round((100 * values.accepted) / values.drafted)} %` : "–");
    this.draw();
  }

  /** The rates of the last two minutes, the latest at the right. */
  draw() {
    const most = Math.max(1, ...this.rates);
    const left = SAMPLES - this.rates.length;
    const points = this.rates.map(
      (rate, i) => `${(((left + i) * 120) / (SAMPLES - 1)).toFixed(1)},${(26 - (24 * rate) / most).toFixed(1)}`,
    );
    this.section.querySelector("polyline").setAttribute("points", points.join(" "));
  }
}
