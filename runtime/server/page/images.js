// Images of messages: made ready to be sent, and what they take.

import { newId } from "./conversations.js";
import { transact } from "./database.js";

const SENT = ["image/jpeg", "image/png", "image/webp", "image/gif"];
const LARGEST = 2 << 20; // bytes of a file that is sent as it is
const AREA = 4 << 20; // pixels of a larger one: the model sees fewer
const SIDE = 32; // of a token, in pixels

/**
 * An image to send: {id, data, width, height}, with a data URI. A large file, or one of a type that the server does not
 * read, becomes a smaller JPEG. Throws an Error that says what is wrong with the file.
 */
export async function prepare(file) {
  let bitmap;
  try {
    bitmap = await createImageBitmap(file);
  } catch {
    throw new Error(`${file.name || "This"} is not an image that this browser can read.`);
  }
  const { width, height } = bitmap;
  if (SENT.includes(file.type) && file.size <= LARGEST) return { id: newId(), data: await asUri(file), width, height };
  const scale = Math.min(1, Math.sqrt(AREA / (width * height)));
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(width * scale));
  canvas.height = Math.max(1, Math.round(height * scale));
  const context = canvas.getContext("2d");
  context.fillStyle = "white"; // where it is transparent, as the server does
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  return { id: newId(), data: canvas.toDataURL("image/jpeg", 0.92), width: canvas.width, height: canvas.height };
}

function asUri(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new Error(`${file.name || "The image"} cannot be read.`));
    reader.readAsDataURL(file);
  });
}

/** How many tokens an image takes of a model whose images have so many: the server's own computation. */
export function tokens({ width, height }, { min_tokens: least, max_tokens: most }) {
  const sides = [height, width];
  let [rows, columns] = sides.map((side) => evenly(side / SIDE));
  if (rows * columns > most) {
    const shrink = Math.sqrt((height * width) / (most * SIDE * SIDE));
    [rows, columns] = sides.map((side) => Math.max(1, Math.floor(side / shrink / SIDE)));
  } else if (rows * columns < least) {
    const grow = Math.sqrt((least * SIDE * SIDE) / (height * width));
    [rows, columns] = sides.map((side) => Math.ceil((side * grow) / SIDE));
  }
  return rows * columns;
}

/** Rounds, halves to even. */
function evenly(number) {
  const low = Math.floor(number);
  if (number - low !== 0.5) return Math.round(number);
  return low % 2 ? low + 1 : low;
}

const known = new Map(); // data URIs by id

/** Remembers an image that a message of this page shows. */
export function remember({ id, data }) {
  known.set(id, data);
}

/** The data URI of an image; undefined where it is gone. */
export async function find(id) {
  if (!known.has(id)) {
    const data = await transact("readonly", ({ images }) => images.get(id)).catch(() => undefined);
    if (data === undefined) return undefined;
    remember({ id, data });
  }
  return known.get(id);
}

/** Messages as the API takes them, with their images before their texts; those that are gone are left out. */
export async function withImages(messages) {
  return Promise.all(
    messages.map(async ({ images, ...message }) => {
      if (!images) return message;
      const found = (await Promise.all(images.map(({ id }) => find(id)))).filter(Boolean);
      if (!found.length) return message;
      const text = message.content ? [{ type: "text", text: message.content }] : [];
      const parts = found.map((url) => ({ type: "image_url", image_url: { url } }));
      return { ...message, content: [...parts, ...text] };
    }),
  );
}
