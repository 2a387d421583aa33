// Markdown, formulas and the colours of code, which `make page` bundles; null in a checkout without them.

export const libraries = await import("./bundle/libraries.js").catch(() => null);
