// The dialog that asks for an API key.

import { hasKey, setKey } from "./api.js";
import { shown } from "./dom.js";

const get = (id) => document.getElementById(id);

get("cancel-key").addEventListener("click", () => get("key").close());

/** Asks for a key, unless that is being done; resolves to whether one was given. */
export async function askKey() {
  if (get("key").open) return false;
  get("key-field").value = "";
  get("refused").hidden = !hasKey();
  if ((await shown(get("key"))) !== "ok") return false;
  setKey(get("key-field").value);
  return true;
}
