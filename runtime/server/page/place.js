// Where the reader is: the page's address names a conversation, and maybe a message of it, after its `#`.

/** The address of a conversation, or of a message in it. */
export function address(id, message) {
  return `#/${[id, message].filter(Boolean).join("/")}`;
}

/** The ids of the conversation and of the message that the page's address names; undefined where it names none. */
export function place() {
  const [, id, message] = /^#\/(\w+)(?:\/(\w+))?$/.exec(location.hash) ?? [];
  return { id, message };
}

/** Changes the address without going anywhere. */
export function stay(id) {
  history.replaceState(null, "", address(id));
}
