// A host of portable trigraph packages that uses the graphs' contract, the manifest, and nothing else of trigraph:
// greedy speculative decoding of several prompts in one batch, in a stock ONNX Runtime. Prints the ids that follow each
// prompt, a line for each, and counts to stderr. A prompt may show images: IMAGE in its list of ids is the next file of
// --image.
//
//     node host.js PACKAGE [--tokens N] [--drafts N] [--image PPM] ID,IMAGE,ID,... ...
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { parseArgs } from "node:util";
import * as ort from "onnxruntime-node";
import { inputsOf, readPpm } from "./images.js";

const CONTRACT_VERSIONS = [6, 7, 8]; // 7 has images, 8 residual streams
const int32 = (values, dims) => new ort.Tensor("int32", Int32Array.from(values), dims);
const int64 = (values, dims = [values.length]) =>
  new ort.Tensor("int64", BigInt64Array.from(values.map(BigInt)), dims);
// The first content of state does not matter.
const anything = {
  float32: (size) => new Float32Array(size).fill(NaN),
  float16: (size) => new Uint16Array(size).fill(0xffff),
  uint8: (size) => new Uint8Array(size).fill(0xff),
};

// Of the token at a place: text behind a prompt has three equal ones.
const positionOf = (prompt, place) => prompt.positions[place] ?? Array(3).fill(place + prompt.shift);

function joined(rows, width) {
  const found = new Float32Array(rows.length * width);
  rows.forEach((row, i) => found.set(row, i * width));
  return found;
}

class Host {
  static async open(folder, drafts) {
    const host = new Host();
    host.manifest = JSON.parse(readFileSync(join(folder, "manifest.json"), "utf8"));
    if (!CONTRACT_VERSIONS.includes(host.manifest.contract_version))
      throw new Error(`contract_version is ${host.manifest.contract_version}, this host knows ${CONTRACT_VERSIONS}`);
    if (!host.manifest.portable) throw new Error(`${folder}: export it with --portable`);
    const { hidden, streams } = host.manifest.config;
    host.width = hidden * (streams?.count ?? 1); // of hidden rows, which hold all streams
    host.end = streams?.ngrams?.eos ?? 0; // stands before the start of a text, where n-grams look
    host.sessions = {};
    host.folder = folder;
    for (const name of drafts ? ["prefill", "draft", "verify"] : ["prefill", "verify"]) await host.session(name);
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

  async session(name) {
    this.sessions[name] ??= await ort.InferenceSession.create(join(this.folder, `${name}.onnx`), {
      logSeverityLevel: 3,
    });
    return this.sessions[name];
  }

  // A prompt from a list of ids and IMAGE: its ids (0 in the place of each token of an image), their positions on the
  // axes time, row and column, and the rows of image tokens with their places.
  async prompt(list, files) {
    const prompt = { ids: [], positions: [], rows: [], places: [], shift: 0 };
    for (const word of list.split(",")) {
      const at = prompt.ids.length + prompt.shift;
      if (word !== "IMAGE") {
        prompt.positions.push([at, at, at]);
        prompt.ids.push(Number(word));
        continue;
      }
      const { rows, columns, embeddings } = await this.see(files.shift());
      for (let token = 0; token < rows * columns; ++token) {
        prompt.positions.push([at, at + Math.floor(token / columns), at + (token % columns)]);
        prompt.places.push(prompt.ids.length);
        prompt.rows.push(embeddings.subarray(token * this.width, (token + 1) * this.width));
        prompt.ids.push(0);
      }
      prompt.shift += Math.max(rows, columns) - rows * columns;
    }
    return prompt;
  }

  async see(file) {
    if (!file) throw new Error("a prompt has no image: give one with --image");
    const pixels = readPpm(file);
    const given = inputsOf(pixels, this.manifest.images.tower);
    const feeds = Object.fromEntries(
      Object.entries(given).map(([name, [type, values, dims]]) => [name, new ort.Tensor(type, values, dims)]),
    );
    const { embeddings } = await (await this.session("vision")).run(feeds);
    return { rows: pixels.height / 32, columns: pixels.width / 32, embeddings: embeddings.data };
  }

  // One step of a graph. A row of `batch`: { text, tokens, past, before: hidden rows, one after the other }.
  async run(name, batch) {
    const texts = batch.map((row) => row.text);
    const ends = batch.reduce((ends, row) => [...ends, ends.at(-1) + row.tokens.length], [0]);
    const pages = texts.flatMap(({ slot }) => Array.from({ length: this.pages }, (_, page) => slot * this.pages + page));
    const count = [batch.length];
    const before = batch.flatMap((row) => Array.from(row.before ?? []));
    const positions = batch.flatMap((row) => row.tokens.map((_, i) => positionOf(row.text.prompt, row.past + i)));
    const lasts = ends.slice(1).map((end) => positions[end - 1]);
    const axes = (list) => int32([0, 1, 2].flatMap((axis) => list.map((at) => at[axis])), [3, list.length]);
    // Image tokens are all computed in the prefill, which has whole prompts.
    const shown = name === "prefill" ? texts.map((text) => text.prompt) : [];
    const imageRows = shown.flatMap((prompt) => prompt.rows);
    const imagePlaces = shown.flatMap((prompt, i) => prompt.places.map((place) => ends[i] + place));
    const inputs = {
      input_ids: int64(batch.flatMap((row) => row.tokens)),
      cu_seqlens: int32(ends, [batch.length + 1]),
      past_lens: int32(batch.map((row) => row.past), count),
      accepted: int32(texts.map((text) => text.accepted), count),
      previous_ids: int64(
        batch.flatMap(({ text, past }) => {
          const known = [this.end, this.end, ...text.prompt.ids, ...(text.answer ?? [])]; // but for drafts
          return [known[past] ?? 0, known[past + 1] ?? 0];
        }),
        [batch.length, 2],
      ),
      slots_in: int32(texts.map((text) => text.slot), count),
      slots_out: int32(texts.map((text) => text.slot), count),
      page_table: int32(pages, [batch.length, this.pages]),
      prev_hidden: new ort.Tensor("float32", Float32Array.from(before), [before.length / this.width, this.width]),
      positions: axes(positions),
      last_positions: axes(lasts),
      image_rows: new ort.Tensor("float32", joined(imageRows, this.width), [imageRows.length, this.width]),
      image_places: int64(imagePlaces, [imagePlaces.length, 1]),
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
    const texts = prompts.map((prompt, slot) => ({ prompt, slot, length: prompt.ids.length, accepted: 0 }));
    const before = new Float32Array(this.width);
    const batch = texts.map((text) => ({ text, tokens: text.prompt.ids, past: 0, before }));
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
    image: { type: "string", multiple: true, default: [] },
  },
});
const [folder, ...lists] = positionals;
const [wanted, drafts] = [Number(values.tokens), Number(values.drafts)];

const host = await Host.open(folder, drafts);
const prompts = [];
for (const list of lists) prompts.push(await host.prompt(list, values.image));
if (values.image.length) throw new Error("an image has no place: write IMAGE into a prompt");
host.allocate(prompts.length, wanted + Math.max(...prompts.map((prompt) => prompt.ids.length)));
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
