// A conversation: messages that each answer another one. Asking in other words and retrying add a message beside
// the old one, so nothing that was said is lost; `leaf` is the last message of the branch that is shown.

import { readSettings } from "./settings.js";

const ROLES = new Set(["user", "assistant"]);
const ID = /^[a-z0-9-]{1,64}$/;
const LONGEST_TITLE = 200;
const TITLE_FROM_MESSAGE = 60;
const FIGURES = ["tokens", "promptTokens", "cachedTokens", "firstTokenS", "decodeS"];

export function newConversation(settings) {
  const now = Date.now();
  return { id: newId(), title: "", created: now, updated: now, settings: readSettings(settings), messages: [], leaf: null };
}

// Adds a message under another (null: as a first one) and shows its branch.
export function addMessage(conversation, parent, role, content) {
  const message = { id: newId(), parent, role, content };
  conversation.messages.push(message);
  conversation.leaf = message.id;
  conversation.updated = Date.now();
  if (conversation.title === "" && role === "user") conversation.title = titleOf(content);
  return message;
}

// The messages of the branch that is shown, the first one first.
export function branchOf(conversation) {
  return ancestry(conversation, conversation.leaf);
}

// A message and those before it, the first one first.
export function ancestry(conversation, id) {
  const known = new Map(conversation.messages.map((message) => [message.id, message]));
  const path = [];
  for (let message = known.get(id); message; message = known.get(message.parent)) path.push(message);
  return path.reverse();
}

// The messages at the same place as this one, itself included, the oldest first.
export function versionsOf(conversation, message) {
  return conversation.messages.filter((other) => other.parent === message.parent);
}

// Shows the branch of a message, down to what was said last in it.
export function showBranch(conversation, message) {
  const lastAnswer = (id) => conversation.messages.findLast((other) => other.parent === id);
  let last = message;
  for (let next = message; next; next = lastAnswer(next.id)) last = next;
  conversation.leaf = last.id;
}

// What the server is sent to make the answer `message`.
export function requestOf(conversation, message) {
  const { system, sampling } = conversation.settings;
  const said = ancestry(conversation, message.parent).map(({ role, content }) => ({ role, content }));
  const first = system.trim() === "" ? [] : [{ role: "system", content: system }];
  return { messages: [...first, ...said], ...sampling };
}

function titleOf(text) {
  const line = text.trim().replace(/\s+/g, " ");
  return line.length > TITLE_FROM_MESSAGE ? `${line.slice(0, TITLE_FROM_MESSAGE).trimEnd()}…` : line;
}

// A conversation from a file or the browser's storage, with what isn't known left out. Throws an Error with
// a sentence for the reader if it can't be one.
export function readConversation(value) {
  if (typeof value !== "object" || value === null || !Array.isArray(value.messages)) {
    throw new Error("There is no list of messages in it.");
  }
  const messages = [];
  const seen = new Set();
  for (const message of value.messages) {
    const known = typeof message?.content === "string" && ROLES.has(message.role);
    if (!known || !isId(message.id) || seen.has(message.id)) throw new Error("A message in it is not complete.");
    // A parent comes before its children, so there are no circles.
    if (message.parent !== null && !seen.has(message.parent)) throw new Error("A message in it answers none.");
    seen.add(message.id);
    messages.push(readMessage(message));
  }
  const now = Date.now();
  const created = readTime(value.created, now);
  return {
    id: isId(value.id) ? value.id : newId(),
    title: typeof value.title === "string" ? value.title.slice(0, LONGEST_TITLE) : "",
    created,
    updated: readTime(value.updated, created),
    settings: readSettings(value.settings),
    messages,
    leaf: seen.has(value.leaf) ? value.leaf : (messages.at(-1)?.id ?? null),
  };
}

function readMessage({ id, parent, role, content, reasoning, end, figures }) {
  const message = { id, parent, role, content };
  if (typeof reasoning === "string") message.reasoning = reasoning;
  if (typeof end === "string") message.end = end.slice(0, LONGEST_TITLE);
  if (typeof figures === "object" && figures !== null) {
    const known = FIGURES.filter((name) => Number.isFinite(figures[name]) && figures[name] >= 0);
    message.figures = Object.fromEntries(known.map((name) => [name, figures[name]]));
  }
  return message;
}

function isId(value) {
  return typeof value === "string" && ID.test(value);
}

function readTime(value, otherwise) {
  return Number.isFinite(value) ? value : otherwise;
}

export function newId() {
  // crypto.randomUUID is kept from pages that come over plain HTTP.
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
