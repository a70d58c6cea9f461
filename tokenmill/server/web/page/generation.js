// One answer being made: reads its pieces into a message and measures them.

import { requestOf } from "./conversation.js";

export class Generation {
  constructor(conversation, message) {
    this.conversation = conversation;
    this.message = message;
    this.stopper = new AbortController();
    this.firstToken = null;
  }

  stop() {
    this.stopper.abort();
  }

  // Resolves when the answer has ended, well or by `stop`; how, stands in the message's `end`. progress: called
  // whenever there is more. Throws what Api.chat throws; what had come by then stays in the message.
  async run(api, model, progress) {
    const { message } = this;
    const asked = performance.now();
    message.content = "";
    message.end = "unfinished";
    try {
      const body = { model, ...requestOf(this.conversation, message) };
      for await (const piece of api.chat(body, this.stopper.signal)) {
        this.take(piece, asked);
        progress();
      }
    } catch (error) {
      if (error.name !== "AbortError") throw error;
      message.end = "stopped";
    }
  }

  take(piece, asked) {
    const { message } = this;
    const choice = piece.choices?.[0];
    const delta = choice?.delta ?? {};
    const thought = delta.reasoning_content ?? delta.reasoning;
    if (thought) message.reasoning = (message.reasoning ?? "") + thought;
    if (delta.content) message.content += delta.content;
    if (choice?.finish_reason) message.end = choice.finish_reason;
    if (piece.usage) this.measure(piece.usage, asked);
  }

  measure(usage, asked) {
    if (usage.completion_tokens === 0) return;
    const now = performance.now();
    this.firstToken ??= now;
    // The last piece repeats the count, some time after the last token.
    if (this.message.figures?.tokens === usage.completion_tokens) return;
    this.message.figures = {
      tokens: usage.completion_tokens,
      promptTokens: usage.prompt_tokens,
      cachedTokens: usage.prompt_tokens_details?.cached_tokens ?? 0,
      firstTokenS: (this.firstToken - asked) / 1000,
      decodeS: (now - this.firstToken) / 1000,
    };
  }
}

// Tokens a second after the first one; null while there is nothing to go by.
export function speedOf(figures) {
  return figures?.tokens > 1 && figures.decodeS > 0 ? (figures.tokens - 1) / figures.decodeS : null;
}

// An answer's figures in words.
export function describe(figures) {
  if (!figures?.tokens) return "";
  const speed = speedOf(figures);
  const parts = [`${figures.tokens} ${figures.tokens === 1 ? "token" : "tokens"}`];
  if (speed !== null) parts.push(`${speed.toFixed(1)} tokens/s`);
  parts.push(`first token after ${figures.firstTokenS.toFixed(2)} s`);
  if (figures.cachedTokens > 0) parts.push(`${figures.cachedTokens} of ${figures.promptTokens} prompt tokens from the cache`);
  return parts.join(" · ");
}
