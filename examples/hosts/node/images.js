// Images as a host prepares them for vision.onnx: patches, their places, and the rows of the table of positions. They
// come as PPM files (P6) whose sides are multiples of 32 pixels, so nothing is resized here.
import { readFileSync } from "node:fs";

const PATCH = 16; // pixels of a side; a token has 2 x 2 patches
const TOKEN = 32;

export function readPpm(file) {
  const bytes = readFileSync(file);
  const head = /^P6\s+(\d+)\s+(\d+)\s+255\s/.exec(bytes.subarray(0, 40).toString("latin1"));
  if (!head) throw new Error(`${file}: is not a PPM file with 8 bits a colour`);
  const [width, height] = [Number(head[1]), Number(head[2])];
  if (!width || !height || width % TOKEN || height % TOKEN)
    throw new Error(`${file}: its sides must be multiples of ${TOKEN} pixels, resize it first`);
  const values = bytes.subarray(head[0].length);
  if (values.length < 3 * width * height) throw new Error(`${file}: is cut off`);
  return { width, height, values };
}

// Type, values and dimensions of each input of vision.onnx. `tower`: what the manifest says of it.
export function inputsOf({ width, height, values }, tower) {
  const [rows, columns] = [height / PATCH, width / PATCH];
  const count = rows * columns;
  const patches = new Float32Array(count * 3 * PATCH * PATCH);
  const places = new Int32Array(2 * count);
  const [table, weights] = [new Int32Array(4 * count), new Float32Array(4 * count)];
  const { mean, std, table_side: side } = tower;
  // In float32, as everywhere else.
  const level = (value, colour) =>
    Math.fround(Math.fround(value * (1 / 255)) - Math.fround(mean[colour])) / Math.fround(std[colour]);
  for (let i = 0; i < count; ++i) {
    // Tokens row by row, and in each of them the patches row by row.
    const [token, part] = [Math.floor(i / 4), i % 4];
    const row = 2 * Math.floor(token / (columns / 2)) + Math.floor(part / 2);
    const column = 2 * (token % (columns / 2)) + (part % 2);
    [places[i], places[count + i]] = [row, column];
    let at = i * 3 * PATCH * PATCH;
    for (let colour = 0; colour < 3; ++colour)
      for (let y = row * PATCH; y < (row + 1) * PATCH; ++y)
        for (let x = column * PATCH; x < (column + 1) * PATCH; ++x)
          patches[at++] = level(values[(y * width + x) * 3 + colour], colour);
    const [top, bottom, down] = stretched(row, rows, side);
    const [left, right, across] = stretched(column, columns, side);
    const corners = [
      [top * side + left, (1 - down) * (1 - across)],
      [top * side + right, (1 - down) * across],
      [bottom * side + left, down * (1 - across)],
      [bottom * side + right, down * across],
    ];
    corners.forEach(([index, weight], corner) => {
      table[corner * count + i] = index;
      weights[corner * count + i] = weight;
    });
  }
  return {
    patches: ["float32", patches, [count, 3 * PATCH * PATCH]],
    places: ["int32", places, [2, count]],
    table_rows: ["int32", table, [4, count]],
    table_weights: ["float32", weights, [4, count]],
    cu_seqlens: ["int32", Int32Array.of(0, count), [2]],
  };
}

// Where a patch lies in the table, stretched so that the corners meet: the rows around it, and the part of the second.
function stretched(place, patches, side) {
  const at = place * ((side - 1) / (patches - 1));
  const low = Math.min(Math.floor(at), side - 1);
  return [low, Math.min(low + 1, side - 1), at - low];
}
