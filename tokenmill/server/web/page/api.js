// Talking to the server that this page came from. Addresses are relative, so that the page also works below
// a path of a proxy.

import { eventsOf } from "./sse.js";

const KEY = "tokenmill:key";

export class ServerError extends Error {
  constructor(message, status, code) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

// The API key is held for this tab only: sessionStorage ends with it.
export class Api {
  constructor(session) {
    this.session = session;
    this.key = session?.getItem(KEY) ?? "";
  }

  setKey(key) {
    this.key = key;
    if (key === "") this.session?.removeItem(KEY);
    else this.session?.setItem(KEY, key);
  }

  // Throws ServerError for an answer other than 2xx; status 0 is no answer at all.
  async request(path, options = {}) {
    const { key } = this;
    const headers = { ...options.headers };
    if (key !== "") headers.authorization = `Bearer ${key}`;
    let response;
    try {
      response = await fetch(path, { ...options, headers, cache: "no-store", redirect: "error" });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ServerError("The server can't be reached. Is it still running?", 0, null);
    }
    // A refusal that comes after the key was changed says nothing about the new one.
    if (response.status === 401 && key !== this.key) return this.request(path, options);
    if (!response.ok) throw await errorOf(response);
    return response;
  }

  async models() {
    const answer = await (await this.request("v1/models")).json();
    return answer.data;
  }

  async metrics() {
    return (await this.request("metrics")).text();
  }

  async load() {
    return (await this.request("load")).json();
  }

  // The pieces of an answer. Throws ServerError also if the stream breaks or tells of an error.
  async *chat(body, signal) {
    const response = await this.request("v1/chat/completions", {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ ...body, stream: true, stream_options: STREAM_OPTIONS }),
      signal,
    });
    try {
      for await (const data of eventsOf(response.body)) {
        if (data === "[DONE]") return;
        const piece = JSON.parse(data);
        if (piece.error) throw new ServerError(piece.error.message, piece.error.status ?? 500, piece.error.code);
        yield piece;
      }
    } catch (error) {
      if (error instanceof ServerError || error.name === "AbortError") throw error;
    }
    throw new ServerError("The connection broke before the answer was complete.", 0, null);
  }
}

const STREAM_OPTIONS = { include_usage: true, continuous_usage_stats: true };

async function errorOf(response) {
  const later = Number(response.headers.get("retry-after"));
  const when = later > 0 ? ` Try again in ${later} seconds.` : "";
  try {
    const { error } = await response.json();
    return new ServerError(sentence(error.message) + when, response.status, error.code);
  } catch {
    return new ServerError(`The server answered with status ${response.status}.${when}`, response.status, null);
  }
}

function sentence(text) {
  const begun = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?]$/.test(begun) ? begun : `${begun}.`;
}
