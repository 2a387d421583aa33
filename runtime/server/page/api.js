// The server's API: the same host, OpenAI's protocol, and an API key that lives as long as the tab.

const KEY = "trigraph.key";

export class ApiError extends Error {
  constructor(message, status = 0, code = "") {
    super(message);
    this.status = status;
    this.code = code; // the server's own name of the error
  }
}

export function hasKey() {
  return Boolean(sessionStorage.getItem(KEY));
}

export function setKey(key) {
  sessionStorage.setItem(KEY, key);
}

async function request(path, options = {}) {
  const key = sessionStorage.getItem(KEY);
  const headers = { ...options.headers, ...(key ? { Authorization: `Bearer ${key}` } : {}) };
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server cannot be reached. Is it running?");
  }
  if (!response.ok) throw await failure(response);
  return response;
}

/** What the server says of a failed request, or its status where it says nothing. */
async function failure(response) {
  const text = await response.text().catch(() => "");
  let [message, code] = ["", ""];
  try {
    const body = JSON.parse(text);
    message = errorMessage(body);
    code = body.error?.code;
  } catch {
    message = text.length < 300 ? text : "";
  }
  message ||= `The server answered ${response.status} ${response.statusText}.`;
  const wait = response.headers.get("Retry-After");
  if (wait) message += ` Try again in ${wait} s.`;
  return new ApiError(message, response.status, code);
}

function errorMessage(body) {
  const error = body.error ?? body.detail ?? body.message;
  return typeof error === "string" ? error : (error?.message ?? "");
}

/** The models served: id, context in tokens (null where the server does not tell), limits of images (null: text only). */
export async function models() {
  const list = await (await request("v1/models")).json();
  return list.data.map(({ id, max_model_len: length, meta }) => ({
    id,
    context: length ?? meta?.n_ctx ?? null,
    images: meta?.images ?? null,
  }));
}

/** What a request gets for the fields that it leaves out, under llama-server's names; empty where the server does not tell. */
export async function defaults() {
  try {
    const {
      default_generation_settings: { params },
    } = await (await request("props")).json();
    return params ?? {};
  } catch {
    return {};
  }
}

export async function metrics() {
  return (await request("metrics")).text();
}

/** Why the server takes no requests at present; empty where it does. */
export async function unready() {
  try {
    await request("health");
    return "";
  } catch (error) {
    return error.message;
  }
}

/** The chunks of a streamed completion, of a chat or of plain text. Throws where the stream ends before its mark. */
export async function* complete(body, signal) {
  const response = await request(body.messages ? "v1/chat/completions" : "v1/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({
      ...body,
      stream: true,
      stream_options: { include_usage: true, continuous_usage_stats: true },
    }),
    signal,
  });
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ApiError(errorMessage(chunk) || "The server failed.", chunk.error.code);
    yield chunk;
  }
  throw new ApiError("The connection ended before the answer did.");
}

/** The data of each server-sent event. */
async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const lines = (rest + value).split(/\r?\n/);
      rest = lines.pop();
      for (const line of lines) if (line.startsWith("data:")) yield line.slice(5).trim();
    }
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The connection was lost.");
  } finally {
    reader.cancel().catch(() => {});
  }
}
