// Where the page starts.

import { Batch } from "./batch.js";
import { Chat } from "./chat.js";

const chat = new Chat();
chat.models.connect();
new Batch(
  document.getElementById("batch"),
  () => chat.models.all.length > 0,
  (trouble) => chat.said(trouble),
);
