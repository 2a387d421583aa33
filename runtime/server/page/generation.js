// One answer in the making: reads the stream into a message, with what it took.

import { complete } from "./api.js";
import { marked } from "./marks.js";

const NOTHING = { tokens: 0, accepted: 0, seconds: 0, timed: 0 };

/**
 * Fills `message` (content, reasoning, calls, figures, steps, error, stopped), or continues it, from the stream of a
 * completion. `makeBody(signal)` resolves to the request's body; `changed` is called after every chunk and once at the
 * end, when `running` is false. A message is `open` until then.
 */
export class Generation {
  constructor(message, makeBody, changed) {
    this.message = message;
    this.changed = changed;
    this.running = true;
    this.before = message.figures; // of what is continued
    this.thoughtBefore = message.thoughtSeconds ?? 0;
    for (const name of ["error", "stopped", "finish"]) delete message[name];
    message.open = true;
    this.abort = new AbortController();
    this.begun = performance.now();
    this.first = null;
    this.counted = { tokens: 0, accepted: 0 };
    this.done = this.run(makeBody);
  }

  stop() {
    this.abort.abort();
  }

  async run(makeBody) {
    const { message } = this;
    try {
      for await (const chunk of complete(await makeBody(this.abort.signal), this.abort.signal)) {
        this.take(chunk);
        this.changed();
      }
    } catch (error) {
      if (error.name === "AbortError") message.stopped = true;
      else message.error = { text: error.message, status: error.status ?? 0, code: error.code };
    }
    this.running = message.open = false;
    this.changed();
  }

  take(chunk) {
    const { message } = this;
    const { delta = {}, text, finish_reason: finish } = chunk.choices?.[0] ?? {};
    const thought = delta.reasoning_content ?? "";
    const content = delta.content ?? text ?? "";
    message.reasoning += thought;
    message.content += content;
    for (const call of delta.tool_calls ?? []) this.takeCall(call);
    if (finish) message.finish = finish;
    if (chunk.model) message.model = chunk.model;
    if (thought && !content) message.thoughtSeconds = this.thoughtBefore + (performance.now() - this.begun) / 1000;
    if (chunk.usage) this.count(chunk.usage, thought.length, content.length);
    if (chunk.timings && message.figures) {
      // The server knows better than we do how long the tokens took: their way here is not in it.
      const { timed, seconds } = this.before ?? NOTHING;
      message.figures.timed = timed + chunk.timings.predicted_n;
      message.figures.seconds = seconds + chunk.timings.predicted_ms / 1000;
    }
  }

  takeCall({ index = 0, function: called = {} }) {
    const calls = (this.message.calls ??= []);
    const call = (calls[index] ??= { name: "", arguments: "" });
    call.name += called.name ?? "";
    call.arguments += called.arguments ?? "";
  }

  /** Figures from the counts so far, and what they say of the text that came with them. */
  count(usage, thought, content) {
    const { message, counted } = this;
    const now = performance.now();
    const tokens = usage.completion_tokens ?? 0;
    const accepted = usage.completion_tokens_details?.accepted_prediction_tokens ?? 0;
    const step = [tokens - counted.tokens, accepted - counted.accepted];
    message.steps.reasoning = marked(message.steps.reasoning, thought, step);
    message.steps.content = marked(message.steps.content, content, thought ? [0, 0] : step);
    if (this.first === null && tokens > 0) this.first = { time: now, tokens };
    this.counted = { tokens, accepted };
    const before = this.before ?? NOTHING;
    message.figures = {
      tokens: before.tokens + tokens,
      accepted: before.accepted + accepted,
      prompt: before.prompt ?? usage.prompt_tokens ?? 0,
      reused: before.reused ?? usage.prompt_tokens_details?.cached_tokens ?? 0,
      wait: before.wait ?? ((this.first?.time ?? now) - this.begun) / 1000,
      // The first chunk ends the prompt's time; what came with it has no time of its own.
      seconds: before.seconds + (this.first ? (now - this.first.time) / 1000 : 0),
      timed: before.timed + tokens - (this.first?.tokens ?? tokens),
    };
  }
}
