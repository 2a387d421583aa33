// Changes what is shown into what it is to be, node by node.

/**
 * Makes the children of `root`, from one on, those `wanted`. Nodes that are equal stay, and those that grew: with them
 * what the reader has selected in them, and where the reader has scrolled.
 */
export function morph(root, wanted, from = 0) {
  let old = root.childNodes[from] ?? null;
  for (const node of wanted) {
    if (old === null) {
      root.append(node);
      continue;
    }
    const next = old.nextSibling;
    if (!old.isEqualNode(node)) change(old, node);
    old = next;
  }
  while (root.childNodes.length > from + wanted.length) root.lastChild.remove();
}

function change(old, node) {
  const text = node.nodeType === Node.TEXT_NODE && old.nodeType === Node.TEXT_NODE;
  if (text && node.data.startsWith(old.data)) old.appendData(node.data.slice(old.length));
  else if (!text && old.cloneNode().isEqualNode(node.cloneNode())) morph(old, [...node.childNodes]);
  else old.replaceWith(node);
}
