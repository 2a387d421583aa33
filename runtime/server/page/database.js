// The browser's database: conversations, one a record, and the images that they show, which are data URIs by their ids.

const NAME = "trigraph";
const VERSION = 2; // 1 had images only

let opening = null;

function open() {
  opening ??= new Promise((resolve, reject) => {
    const request = indexedDB.open(NAME, VERSION); // throws where a browser forbids it
    request.onupgradeneeded = ({ oldVersion }) => {
      const database = request.result;
      if (oldVersion < 1) database.createObjectStore("images");
      // The list shows titles, the latest first: from the keys of this index, without reading any conversation.
      database.createObjectStore("conversations", { keyPath: "id" }).createIndex("list", ["changed", "title"]);
    };
    request.onblocked = () => reject(new Error("another tab has an older version of this page: reload it"));
    request.onerror = () => reject(request.error);
    request.onsuccess = () => {
      const forget = () => (opening = null);
      request.result.onclose = forget;
      request.result.onversionchange = () => {
        request.result.close(); // a newer page must not wait for this one
        forget();
      };
      resolve(request.result);
    };
  }).catch((error) => {
    opening = null; // the next try may succeed
    throw error;
  });
  return opening;
}

/**
 * Runs a transaction: `action` gets the stores by name and returns a request, or nothing. Resolves to the request's
 * result once all is written.
 */
export async function transact(mode, action) {
  const database = await open();
  return new Promise((resolve, reject) => {
    const transaction = database.transaction(["conversations", "images"], mode);
    const [conversations, images] = ["conversations", "images"].map((name) => transaction.objectStore(name));
    const request = action({ conversations, images });
    transaction.oncomplete = () => resolve(request?.result);
    transaction.onabort = () => reject(transaction.error ?? new Error("the browser ended the transaction"));
  });
}
