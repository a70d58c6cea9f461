// Conversations in the browser's storage, each under a key of its own, and as JSON files.

import { newId, readConversation } from "./conversation.js";
import { NO_SETTINGS, readSettings } from "./settings.js";

const CONVERSATION = "tokenmill:conversation:";
const SETTINGS = "tokenmill:settings";
const FORMAT = "tokenmill-conversations";

// storage: a Storage such as localStorage. failed: called when something can't be kept. Everything is held
// in memory as well, so that the page works where nothing can be stored.
export class ConversationStore {
  constructor(storage, failed) {
    this.storage = storage;
    this.failed = failed;
    this.held = new Map();
    for (const key of this.keys()) this.read(key);
  }

  // The newest first.
  all() {
    return [...this.held.values()].sort((one, other) => other.updated - one.updated);
  }

  get(id) {
    return this.held.get(id);
  }

  // Whether the storage took it.
  save(conversation) {
    this.held.set(conversation.id, conversation);
    return this.write(CONVERSATION + conversation.id, conversation);
  }

  remove(id) {
    this.held.delete(id);
    this.storage?.removeItem(CONVERSATION + id);
  }

  // Another tab has changed this key. The conversation's id if it is one, else null.
  changed(key) {
    if (!key?.startsWith(CONVERSATION)) return null;
    const id = key.slice(CONVERSATION.length);
    this.held.delete(id);
    this.read(key);
    return id;
  }

  lastSettings() {
    try {
      return readSettings(JSON.parse(this.storage?.getItem(SETTINGS) ?? "null"));
    } catch {
      return readSettings(NO_SETTINGS);
    }
  }

  saveSettings(settings) {
    this.write(SETTINGS, settings);
  }

  keys() {
    const keys = Array.from({ length: this.storage?.length ?? 0 }, (_, index) => this.storage.key(index));
    return keys.filter((key) => key?.startsWith(CONVERSATION));
  }

  read(key) {
    const text = this.storage.getItem(key);
    if (text === null) return;
    try {
      const conversation = readConversation(JSON.parse(text));
      this.held.set(conversation.id, conversation);
    } catch {
      // What can't be read is left alone: a later version of the page may know it.
    }
  }

  write(key, value) {
    try {
      this.storage?.setItem(key, JSON.stringify(value));
      return true;
    } catch {
      this.failed("The browser's storage is full: export and delete conversations to keep new ones.");
      return false;
    }
  }
}

export function exported(conversations) {
  return JSON.stringify({ format: FORMAT, version: 1, conversations }, null, 1);
}

// The conversations of a file that `exported` made, under new ids, so that none is overwritten. Throws an
// Error with a sentence for the reader.
export function imported(text) {
  let file;
  try {
    file = JSON.parse(text);
  } catch {
    throw new Error("This file is not JSON.");
  }
  if (file?.format !== FORMAT || !Array.isArray(file.conversations)) {
    throw new Error("This file holds no conversations of tokenmill.");
  }
  if (file.version !== 1) throw new Error("This file is of a version that this page does not know.");
  return file.conversations.map((value) => ({ ...readConversation(value), id: newId() }));
}
