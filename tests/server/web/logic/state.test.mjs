import assert from "node:assert/strict";
import { test } from "node:test";

import {
  addMessage,
  branchOf,
  newConversation,
  readConversation,
  requestOf,
  showBranch,
  versionsOf,
} from "../../../../tokenmill/server/web/page/conversation.js";
import { describe, speedOf } from "../../../../tokenmill/server/web/page/generation.js";
import { derive, readMetrics } from "../../../../tokenmill/server/web/page/metrics.js";
import { NO_SETTINGS, SAMPLING, problemOf, readSettings } from "../../../../tokenmill/server/web/page/settings.js";
import { ConversationStore, exported, imported } from "../../../../tokenmill/server/web/page/store.js";

class Storage {
  constructor(room = Infinity) {
    this.map = new Map();
    this.room = room;
  }
  get length() {
    return this.map.size;
  }
  key(at) {
    return [...this.map.keys()][at] ?? null;
  }
  getItem(key) {
    return this.map.get(key) ?? null;
  }
  setItem(key, value) {
    if (value.length > this.room) throw new Error("full");
    this.map.set(key, value);
  }
  removeItem(key) {
    this.map.delete(key);
  }
}

function talk() {
  const conversation = newConversation({ system: "Be brief.", sampling: { temperature: 0.5 } });
  const question = addMessage(conversation, null, "user", "  What is\nthis? ");
  const answer = addMessage(conversation, question.id, "assistant", "A test.");
  return { conversation, question, answer };
}

const texts = (conversation) => branchOf(conversation).map((message) => message.content.trim());

test("the first message names a conversation", () => {
  assert.equal(talk().conversation.title, "What is this?");
  const long = newConversation(NO_SETTINGS);
  addMessage(long, null, "user", "word ".repeat(50));
  assert.ok(long.title.length <= 61 && long.title.endsWith("…"));
});

test("another version hides the branch of the first, and loses nothing", () => {
  const { conversation, question, answer } = talk();
  const other = addMessage(conversation, null, "user", "Other?");
  assert.deepEqual(texts(conversation), ["Other?"]);
  assert.deepEqual(versionsOf(conversation, other), [question, other]);
  showBranch(conversation, question);
  assert.deepEqual(branchOf(conversation), [question, answer]);
  const again = addMessage(conversation, question.id, "assistant", "Again.");
  const more = addMessage(conversation, again.id, "user", "More?");
  showBranch(conversation, answer);
  assert.deepEqual(branchOf(conversation), [question, answer]);
  showBranch(conversation, question);
  assert.deepEqual(branchOf(conversation), [question, again, more]);
});

test("a request has what was said before, and the settings", () => {
  const { conversation, answer, question } = talk();
  assert.deepEqual(requestOf(conversation, answer), {
    messages: [
      { role: "system", content: "Be brief." },
      { role: "user", content: question.content },
    ],
    temperature: 0.5,
  });
  conversation.settings = NO_SETTINGS;
  assert.deepEqual(requestOf(conversation, answer), { messages: [{ role: "user", content: question.content }] });
});

test("what is exported comes back, under other ids", () => {
  const { conversation, answer } = talk();
  Object.assign(answer, { reasoning: "hm", end: "stop", figures: { tokens: 3, firstTokenS: 0.5, decodeS: 1 } });
  const [back] = imported(exported([conversation]));
  assert.notEqual(back.id, conversation.id);
  assert.deepEqual({ ...back, id: conversation.id }, conversation);
});

const message = { id: "a", parent: null, role: "user", content: "x" };
const wrong = [
  "not JSON",
  "null",
  "[]",
  "{}",
  JSON.stringify({ format: "other", version: 1, conversations: [] }),
  JSON.stringify({ format: "tokenmill-conversations", version: 2, conversations: [] }),
  ...[
    null,
    5,
    {},
    { messages: "x" },
    { messages: [null] },
    { messages: [{ ...message, role: "system" }] },
    { messages: [{ ...message, content: 5 }] },
    { messages: [{ ...message, id: "__proto__" }] },
    { messages: [{ ...message, id: "a b" }] },
    { messages: [message, message] },
    { messages: [{ ...message, parent: "a" }] },
    { messages: [{ ...message, parent: "b" }, { ...message, id: "b", parent: "a" }] },
    { messages: [{ id: "a", role: "user", content: "x" }] },
  ].map((value) => JSON.stringify({ format: "tokenmill-conversations", version: 1, conversations: [value] })),
];

for (const text of wrong) {
  test(`${text} is not imported`, () => assert.throws(() => imported(text), { message: /\.$/ }));
}

test("only what is known is taken from a file", () => {
  const found = readConversation({
    id: "<img>",
    title: 5,
    created: "x",
    leaf: "nothing",
    evil: 1,
    settings: { system: [], sampling: { temperature: 99, top_p: 0.5, seed: 1.5, other: 1 } },
    messages: [{ ...message, evil: 1, reasoning: 5, figures: { tokens: "x", decodeS: -1, firstTokenS: 2 } }],
  });
  assert.match(found.id, /^[0-9a-f]{24}$/);
  assert.equal(found.title, "");
  assert.equal(found.leaf, "a");
  assert.deepEqual(found.settings, { system: "", sampling: { top_p: 0.5 } });
  assert.deepEqual(found.messages, [{ ...message, figures: { firstTokenS: 2 } }]);
  assert.ok(!("evil" in found));
});

test("a store keeps conversations for the next page", () => {
  const storage = new Storage();
  const { conversation } = talk();
  const store = new ConversationStore(storage, assert.fail);
  store.save(conversation);
  store.saveSettings({ system: "s", sampling: { seed: 1 } });
  const next = new ConversationStore(storage, assert.fail);
  assert.deepEqual(next.all(), [conversation]);
  assert.deepEqual(next.lastSettings(), { system: "s", sampling: { seed: 1 } });
  next.remove(conversation.id);
  assert.deepEqual(next.all(), []);
  assert.equal(store.changed(`tokenmill:conversation:${conversation.id}`), conversation.id);
  assert.deepEqual(store.all(), []);
  assert.equal(store.changed("other"), null);
  assert.equal(store.changed(null), null);
});

test("what a store can't read it leaves alone", () => {
  const storage = new Storage();
  storage.setItem("tokenmill:conversation:x", "{");
  storage.setItem("tokenmill:settings", "{");
  storage.setItem("other", "1");
  const store = new ConversationStore(storage, assert.fail);
  assert.deepEqual(store.all(), []);
  assert.deepEqual(store.lastSettings(), { system: "", sampling: {} });
  assert.equal(storage.length, 3);
});

test("a full storage is told, and the page goes on", () => {
  const told = [];
  const store = new ConversationStore(new Storage(10), (text) => told.push(text));
  const { conversation } = talk();
  store.save(conversation);
  assert.match(told[0], /full/);
  assert.equal(store.get(conversation.id), conversation);
});

test("without a storage everything works but keeping", () => {
  const store = new ConversationStore(null, assert.fail);
  const { conversation } = talk();
  store.save(conversation);
  assert.deepEqual(store.all(), [conversation]);
  store.saveSettings(NO_SETTINGS);
  assert.deepEqual(store.lastSettings(), { system: "", sampling: {} });
  store.remove(conversation.id);
});

test("fields are checked", () => {
  const named = Object.fromEntries(SAMPLING.map((setting) => [setting.name, setting]));
  for (const [name, text] of [["temperature", ""], ["temperature", " 0.7 "], ["top_k", "0"], ["seed", "9007199254740991"]]) {
    assert.equal(problemOf(named[name], text), null);
  }
  for (const [name, text] of [["temperature", "x"], ["temperature", "-1"], ["temperature", "3"], ["top_p", "0"],
    ["top_k", "1.5"], ["max_tokens", "0"], ["seed", "Infinity"]]) {
    assert.match(problemOf(named[name], text), new RegExp(`^${named[name].label} must be `));
  }
  assert.deepEqual(readSettings(undefined), { system: "", sampling: {} });
});

test("figures in words", () => {
  assert.equal(describe(undefined), "");
  assert.equal(describe({ tokens: 1, firstTokenS: 0.5, decodeS: 0, cachedTokens: 0, promptTokens: 9 }), "1 token · first token after 0.50 s");
  assert.equal(
    describe({ tokens: 11, firstTokenS: 0.25, decodeS: 2, cachedTokens: 16, promptTokens: 20 }),
    "11 tokens · 5.0 tokens/s · first token after 0.25 s · 16 of 20 prompt tokens from the cache",
  );
  assert.equal(speedOf({ tokens: 11, decodeS: 2 }), 5);
  assert.equal(speedOf({ tokens: 1, decodeS: 2 }), null);
});

const METRICS = `# HELP tokenmill:num_requests_running Answers being made.
# TYPE tokenmill:num_requests_running gauge
PREFIX:num_requests_running{model_name="a b",engine="0"} 2
PREFIX:num_requests_waiting{model_name="a b",engine="0"} 1
PREFIX:kv_cache_usage_perc{engine="0"} 0.25
PREFIX:prefix_cache_queries_total 200
PREFIX:prefix_cache_hits_total 50
PREFIX:generation_tokens_total{engine="0"} 1e3
PREFIX:prompt_tokens_total{engine="0"} 100
PREFIX:constructor 5
process_open_fds 12
`;

for (const prefix of ["tokenmill", "vllm", "My_1"]) {
  test(`reads metrics named ${prefix}:`, () => {
    assert.deepEqual(readMetrics(METRICS.replaceAll("PREFIX", prefix)), {
      running: 2,
      waiting: 1,
      cacheUsage: 0.25,
      prefixQueries: 200,
      prefixHits: 50,
      generatedTokens: 1000,
      promptTokens: 100,
    });
  });
}

test("shares and speeds need something to go by", () => {
  const now = { prefixQueries: 200, prefixHits: 50, generatedTokens: 1000, promptTokens: 100 };
  const first = derive(now, null, NaN);
  assert.equal(first.hitRate, 0.25);
  assert.equal(first.tokensPerS, null);
  const next = derive(now, { ...now, generatedTokens: 980, promptTokens: 90 }, 2);
  assert.equal(next.tokensPerS, 10);
  assert.equal(next.promptTokensPerS, 5);
  assert.equal(derive({ ...now, prefixQueries: 0 }, null, NaN).hitRate, null);
  // A server that was started again counts from zero.
  assert.equal(derive({ ...now, generatedTokens: 5 }, now, 2).tokensPerS, null);
});
