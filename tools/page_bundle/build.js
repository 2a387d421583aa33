// Bundles libraries.js with esbuild: node build.js FOLDER INPUTS, where INPUTS identifies what the bundle is made of.

import { readdir, readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";

import { build } from "esbuild";

const [folder, inputs] = process.argv.slice(2);

/** KaTeX's style sheet, with each font in the one format that every browser of today reads. */
const fonts = {
  name: "fonts",
  setup({ onLoad }) {
    onLoad({ filter: /katex\.css$/ }, async ({ path }) => ({
      contents: (await readFile(path, "utf8")).replace(/, url\([^)]*\) format\(["'](woff|truetype)["']\)/g, ""),
      loader: "css",
    }));
  },
};

const { metafile } = await build({
  entryPoints: ["libraries.js"],
  outdir: folder,
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  metafile: true,
  legalComments: "none",
  banner: { js: `// inputs: ${inputs}` },
  loader: { ".woff2": "file" },
  assetNames: "[name]",
  plugins: [fonts],
});

const packages = new Set(
  Object.keys(metafile.inputs).flatMap((path) => path.match(/^node_modules\/(?:@[^/]+\/)?[^/]+/) ?? []),
);
const licences = await Promise.all([...packages].sort().map(licence));
licences.push("The fonts of KaTeX (SIL Open Font License 1.1)\n\nCopyright and licence stand in each font.\n");
await writeFile(join(folder, "LICENSES.txt"), licences.join(`\n${"-".repeat(78)}\n\n`));

async function licence(folder) {
  const { name, version, license } = JSON.parse(await readFile(join(folder, "package.json"), "utf8"));
  const file = (await readdir(folder)).find((one) => /^licen[cs]e/i.test(one));
  if (!file) throw new Error(`${name} ${version} has no licence file`);
  return `${name} ${version} (${license})\n\n${(await readFile(join(folder, file), "utf8")).trim()}\n`;
}
