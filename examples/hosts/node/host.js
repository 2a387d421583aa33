// A host of portable trigraph packages that uses the graphs' contract, the manifest, and nothing else of trigraph:
// greedy speculative decoding of several prompts in one batch, in a stock ONNX Runtime. Prints the ids that follow each
// prompt, a line for each, and counts to stderr.
//
//     node host.js PACKAGE [--tokens N] [--drafts N] ID,ID,... ...
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { parseArgs } from "node:util";
import * as ort from "onnxruntime-node";

const CONTRACT_VERSION = 9;
const int32 = (values, dims) => new ort.Tensor("int32", Int32Array.from(values), dims);
const int64 = (values, dims = [values.length]) =>
  new ort.Tensor("int64", BigInt64Array.from(values.map(BigInt)), dims);
// The first content of state does not matter.
const anything = {
  float32: (size) => new Float32Array(size).fill(NaN),
  float16: (size) => new Uint16Array(size).fill(0xffff),
};

class Host {
  static async open(folder, drafts) {
    const host = new Host();
    host.manifest = JSON.parse(readFileSync(join(folder, "manifest.json"), "utf8"));
    const { contract_version: version, features } = host.manifest;
    if (version !== CONTRACT_VERSION)
      throw new Error(`contract_version is ${version}, this host knows ${CONTRACT_VERSION}`);
    if (features.length) throw new Error(`this host does not know the package's feature ${features[0]}`);
    if (!host.manifest.portable) throw new Error(`${folder}: export it with --portable`);
    host.width = host.manifest.config.hidden;
    host.sessions = {};
    for (const name of drafts ? ["prefill", "draft", "verify"] : ["prefill", "verify"])
      host.sessions[name] = await ort.InferenceSession.create(join(folder, `${name}.onnx`), { logSeverityLevel: 3 });
    return host;
  }

  // State for so many sequences of so many tokens.
  allocate(sequences, context) {
    this.pages = Math.ceil((context + this.manifest.max_pending) / this.manifest.page_size);
    const sizes = { slots: sequences, pages: sequences * this.pages };
    // A step returns new state tensors, which become the next step's input: the two buffers that bodies need.
    this.state = new Map(
      this.manifest.state.map(({ name, dtype, dims }) => {
        const shape = dims.map((size) => sizes[size] ?? size);
        return [name, new ort.Tensor(dtype, anything[dtype](shape.reduce((a, b) => a * b)), shape)];
      }),
    );
  }

  // One step of a graph. A row of `batch`: { text, tokens, past, before: hidden rows, one after the other }.
  async run(name, batch) {
    const texts = batch.map((row) => row.text);
    const ends = batch.reduce((ends, row) => [...ends, ends.at(-1) + row.tokens.length], [0]);
    const pages = texts.flatMap(({ slot }) => Array.from({ length: this.pages }, (_, page) => slot * this.pages + page));
    const count = [batch.length];
    const before = batch.flatMap((row) => Array.from(row.before ?? []));
    const inputs = {
      input_ids: int64(batch.flatMap((row) => row.tokens)),
      cu_seqlens: int32(ends, [batch.length + 1]),
      past_lens: int32(batch.map((row) => row.past), count),
      accepted: int32(texts.map((text) => text.accepted), count),
      slots_in: int32(texts.map((text) => text.slot), count),
      slots_out: int32(texts.map((text) => text.slot), count),
      page_table: int32(pages, [batch.length, this.pages]),
      prev_hidden: new ort.Tensor("float32", Float32Array.from(before), [before.length / this.width, this.width]),
    };
    const session = this.sessions[name];
    const feeds = Object.fromEntries(
      session.inputNames.map((input) => [input, inputs[input] ?? this.state.get(input.replace(/^past\./, ""))]),
    );
    const results = await session.run(feeds);
    for (const output of session.outputNames)
      if (output.startsWith("present.")) this.state.set(output.slice("present.".length), results[output]);
    const rows = (first, count) => results.hidden.data.slice(first * this.width, (first + count) * this.width);
    return { tokens: Array.from(results.tokens.data, Number), rows, ends };
  }

  async prefill(prompts) {
    const texts = prompts.map((ids, slot) => ({ slot, length: ids.length, accepted: 0 }));
    const before = new Float32Array(this.width);
    const batch = texts.map((text, i) => ({ text, tokens: prompts[i], past: 0, before }));
    const { tokens, rows } = await this.run("prefill", batch);
    // `kept`: the model's choices of the last round; the last one is not in the state yet. `before`: the hidden row of
    // the token before each of them.
    return texts.map((text, i) =>
      Object.assign(text, { kept: [tokens[i]], before: rows(i, 1), answer: [tokens[i]] }));
  }

  // At most `count` guesses of how each text goes on after the last of `kept`.
  async draft(texts, count) {
    const guesses = texts.map(() => []);
    // The first run also rebuilds the head's entries of the tokens kept last, from their true hidden states.
    let batch = texts.map((text) => (
      { text, tokens: text.kept, past: text.length + 1 - text.kept.length, before: text.before }));
    for (let depth = 1; depth <= count; ++depth) {
      const { tokens, rows } = await this.run("draft", batch);
      guesses.forEach((guess, i) => guess.push(tokens[i]));
      batch = texts.map((text, i) => ({ text, tokens: [tokens[i]], past: text.length + depth, before: rows(i, 1) }));
    }
    return guesses;
  }

  // Drafts, verifies, and keeps what the model would have chosen itself; returns how many drafts that were.
  async round(texts, drafts) {
    const guesses = await this.draft(texts, drafts);
    const batch = texts.map((text, i) => ({ text, tokens: [text.kept.at(-1), ...guesses[i]], past: text.length }));
    const { tokens, rows, ends } = await this.run("verify", batch);
    let agreed = 0;
    texts.forEach((text, i) => {
      const choices = tokens.slice(ends[i], ends[i + 1]);
      const wrong = guesses[i].findIndex((guess, row) => guess !== choices[row]);
      text.kept = wrong < 0 ? choices : choices.slice(0, wrong + 1);
      text.before = rows(ends[i], text.kept.length);
      text.accepted = text.kept.length;
      text.length += text.kept.length;
      text.answer.push(...text.kept);
      agreed += text.kept.length - 1;
    });
    return agreed;
  }
}

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    tokens: { type: "string", default: "32" },
    drafts: { type: "string", default: "3" },
  },
});
const [folder, ...lists] = positionals;
if (!lists.length) {
  console.error("usage: node host.js PACKAGE [--tokens N] [--drafts N] ID,ID,... ...");
  process.exit(1);
}
const [wanted, drafts] = [Number(values.tokens), Number(values.drafts)];

const host = await Host.open(folder, drafts);
const prompts = lists.map((list) => list.split(",").map(Number));
host.allocate(prompts.length, wanted + Math.max(...prompts.map((ids) => ids.length)));
const texts = await host.prefill(prompts);
let [drafted, agreed] = [0, 0];
for (;;) {
  const unfinished = texts.filter((text) => text.answer.length < wanted);
  if (!unfinished.length) break;
  agreed += await host.round(unfinished, drafts);
  drafted += drafts * unfinished.length;
}
for (const text of texts) console.log(text.answer.slice(0, wanted).join(" "));
console.error(`${agreed} of ${drafted} drafts accepted`);
