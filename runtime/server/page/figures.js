// Counts and times in words.

const whole = new Intl.NumberFormat("en");

export function count(number) {
  return whole.format(number);
}

export function decimal(number) {
  return number >= 100 ? whole.format(Math.round(number)) : number.toFixed(1);
}

/** A file's size. */
export function bytes(number) {
  const [unit, name] = number < 1000 ? [1, "bytes"] : number < 1e6 ? [1e3, "kB"] : [1e6, "MB"];
  return `${unit === 1 ? number : (number / unit).toFixed(number < 10 * unit ? 1 : 0)} ${name}`;
}

/** The parts of the line below an answer, each with an explanation: [text, title]. */
export function parts(figures) {
  const { tokens, accepted, prompt, reused, wait, seconds, timed } = figures;
  const found = [
    [`${count(tokens)} ${tokens === 1 ? "token" : "tokens"}`, "tokens that the model wrote, thoughts included"],
  ];
  if (timed > 0 && seconds > 0) found.push([`${decimal(timed / seconds)} tokens/s`, "since the first token"]);
  if (tokens > 0) found.push([`${wait.toFixed(wait < 10 ? 2 : 1)} s to the first`, "from sending to the first token"]);
  if (accepted > 0)
    found.push([
      `${count(accepted)} free (${Math.round((100 * accepted) / tokens)} %)`,
      "tokens that were guessed and that the model accepted: they took no step of their own",
    ]);
  if (reused > 0)
    found.push([
      `${count(reused)} of ${count(prompt)} reused`,
      "tokens of the prompt whose state the server still had",
    ]);
  return found;
}
