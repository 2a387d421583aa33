// One answer in the making: reads the stream into a message, with what it took.

import { complete } from "./api.js";

/**
 * Fills `message` (content, reasoning, calls, figures, steps, error, stopped) from the stream of a chat completion,
 * whose request's body may still be in the making, and calls `changed` after every chunk and once at the end, when `running` is false.
 */
export class Generation {
  constructor(message, body, changed) {
    this.message = message;
    this.changed = changed;
    this.running = true;
    this.abort = new AbortController();
    this.begun = performance.now();
    this.first = null;
    this.counted = { tokens: 0, accepted: 0 };
    this.done = this.run(body);
  }

  stop() {
    this.abort.abort();
  }

  async run(body) {
    const { message } = this;
    try {
      for await (const chunk of complete(await body, this.abort.signal)) {
        this.take(chunk);
        this.changed();
      }
    } catch (error) {
      if (error.name === "AbortError") message.stopped = true;
      else message.error = { text: error.message, status: error.status ?? 0 };
    }
    this.running = false;
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
    if (thought && !content) message.thoughtSeconds = (performance.now() - this.begun) / 1000;
    if (chunk.usage) this.count(chunk.usage, thought.length, content.length);
    if (chunk.timings && message.figures) {
      // The server knows better than we do how long the tokens took: their way here is not in it.
      message.figures.timed = chunk.timings.predicted_n;
      message.figures.seconds = chunk.timings.predicted_ms / 1000;
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
    addStep(message.steps.reasoning, thought, step);
    addStep(message.steps.content, content, thought ? [0, 0] : step);
    if (this.first === null && tokens > 0) this.first = { time: now, tokens };
    this.counted = { tokens, accepted };
    message.figures = {
      tokens,
      accepted,
      prompt: usage.prompt_tokens ?? 0,
      reused: usage.prompt_tokens_details?.cached_tokens ?? 0,
      wait: ((this.first?.time ?? now) - this.begun) / 1000,
      // The first chunk ends the prompt's time; what came with it has no time of its own.
      seconds: this.first ? (now - this.first.time) / 1000 : 0,
      timed: tokens - (this.first?.tokens ?? tokens),
    };
  }
}

/** Adds a text's [characters, tokens, accepted drafts]; one whose tokens were counted with the text before joins it. */
function addStep(steps, length, [tokens, accepted]) {
  const last = steps.at(-1);
  if (length && !tokens && last) last[0] += length;
  else if (length) steps.push([length, tokens, accepted]);
}
