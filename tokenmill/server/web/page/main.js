// The page: which conversation is shown, and what happens to it.

import { Announcer } from "./announcer.js";
import { Api, ServerError } from "./api.js";
import { ChatList } from "./chats.js";
import { addMessage, branchOf, newConversation, versionsOf } from "./conversation.js";
import { button, byId, element } from "./dom.js";
import { saveFile } from "./files.js";
import { Generation } from "./generation.js";
import { Sides } from "./sides.js";
import { SettingsForm } from "./settings_form.js";
import { ConversationStore, exported, imported } from "./store.js";
import { Turns } from "./turns.js";
import { Watch } from "./watch.js";

const SAVE_EVERY_MS = 2000;
const NEAR_END_PX = 40;
const PLACE = "#chat-";

class Page {
  constructor() {
    this.api = new Api(storageOf("sessionStorage"));
    this.store = new ConversationStore(storageOf("localStorage"), (text) => this.notice(text, { wrong: true }));
    this.running = new Map();
    this.model = null;
    this.meeting = false;
    this.follows = true;
    this.announcer = new Announcer(byId("announcer"));
    this.turns = new Turns(byId("turns"), {
      retry: (message) => this.answer(message.role === "user" ? message.id : message.parent),
      resend: (message, text) => this.ask(message.parent, text),
      rewrite: (message, text) => this.rewrite(message, text),
      changed: () => this.changed(),
    });
    this.list = new ChatList(byId("chat-list"), this.store, {
      open: (id) => this.open(id),
      remove: (id) => this.remove(id),
      save: (id) => saveFile("tokenmill-chat.json", exported([this.store.get(id)])),
    });
    this.settings = new SettingsForm(byId("settings"), (values) => this.set(values));
    this.watch = new Watch(byId("figures"), byId("figures-problem"), this.api);
    this.sides = new Sides((shown) => this.watch.look(shown));
  }

  start() {
    this.listen();
    this.sides.start();
    const last = location.hash.startsWith(PLACE) ? this.store.get(location.hash.slice(PLACE.length)) : null;
    this.show(last ?? newConversation(this.store.lastSettings()));
    byId("prompt").focus();
    this.meet();
  }

  listen() {
    const prompt = byId("prompt");
    prompt.addEventListener("input", () => fit(prompt));
    prompt.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.send();
    });
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    byId("stop").addEventListener("click", () => this.stop());
    document.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || event.defaultPrevented || byId("key-dialog").open) return;
      if (!this.sides.closeOverlay()) this.stop();
    });
    byId("new-chat").addEventListener("click", () => this.begin());
    byId("export-all").addEventListener("click", () => saveFile("tokenmill-chats.json", exported(this.store.all())));
    byId("import").addEventListener("click", () => byId("import-file").click());
    byId("import-file").addEventListener("change", (event) => this.import(event.target));
    byId("change-key").addEventListener("click", () => this.askKey(""));
    byId("key-form").addEventListener("submit", (event) => this.takeKey(event));
    byId("key-cancel").addEventListener("click", () => byId("key-dialog").close());
    const messages = byId("messages");
    messages.addEventListener("scroll", () => {
      this.follows = messages.scrollHeight - messages.scrollTop - messages.clientHeight < NEAR_END_PX;
      byId("to-end").hidden = this.follows;
    });
    byId("to-end").addEventListener("click", () => this.toEnd());
    window.addEventListener("storage", (event) => this.storedElsewhere(event.key));
    window.addEventListener("pagehide", () => this.running.forEach(({ conversation }) => this.store.save(conversation)));
  }

  // The server's model, at the beginning and after a key was given.
  async meet() {
    if (this.meeting) return;
    this.meeting = true;
    try {
      [this.model] = await this.api.models();
      this.drawHead();
    } catch (error) {
      this.failed(error, () => this.meet());
    } finally {
      this.meeting = false;
    }
  }

  // Shows a conversation.
  show(conversation) {
    this.conversation = conversation;
    this.announcer.begin();
    this.settings.show(conversation);
    this.draw();
    this.toEnd();
  }

  draw() {
    const { conversation } = this;
    const generation = this.running.get(conversation.id);
    this.turns.show(conversation, generation?.message ?? null);
    byId("empty").hidden = conversation.messages.length > 0;
    byId("send").hidden = Boolean(generation);
    byId("stop").hidden = !generation;
    byId("messages").setAttribute("aria-busy", String(Boolean(generation)));
    this.drawHead();
    this.drawList();
  }

  drawHead() {
    const title = this.conversation.title || "New chat";
    byId("chat-title").textContent = title;
    document.title = `${title} – tokenmill`;
    if (this.model === null) return;
    const { id, max_model_len: room } = this.model;
    const last = branchOf(this.conversation).findLast((message) => message.figures?.tokens);
    const used = last ? `${number(last.figures.promptTokens + last.figures.tokens)} of ` : "";
    byId("model").textContent = room ? `${id} · ${used}${number(room)} tokens` : id;
  }

  drawList() {
    this.list.show(this.conversation.id, new Set(this.running.keys()));
  }

  // The conversation that is shown was changed.
  changed() {
    this.store.save(this.conversation);
    this.draw();
    if (this.follows) this.toEnd();
  }

  begin() {
    history.replaceState(null, "", location.pathname + location.search);
    this.show(newConversation(this.store.lastSettings()));
    this.sides.closeOverlay();
    byId("prompt").focus();
  }

  open(id) {
    this.show(this.store.get(id));
    history.replaceState(null, "", PLACE + id);
    if (this.sides.closeOverlay()) byId("prompt").focus();
  }

  remove(id) {
    const conversation = this.store.get(id);
    this.running.get(id)?.stop();
    this.store.remove(id);
    this.begin();
    this.notice(`Deleted “${conversation.title || "Without a name"}”.`, {
      action: "Undo",
      act: () => {
        this.store.save(conversation);
        this.open(id);
      },
    });
  }

  set({ title, system, sampling }) {
    const { conversation } = this;
    conversation.settings = { system, sampling };
    this.store.saveSettings(conversation.settings);
    conversation.title = title;
    if (conversation.messages.length > 0) this.store.save(conversation);
    this.drawHead();
    this.drawList();
  }

  send() {
    const prompt = byId("prompt");
    const text = prompt.value;
    if (text.trim() === "" || this.running.has(this.conversation.id)) return;
    if (!this.ask(this.conversation.leaf, text)) return;
    prompt.value = "";
    fit(prompt);
  }

  // Says something and has it answered. Whether that can be done now.
  ask(parent, text) {
    if (!this.settings.isRight()) {
      this.notice("A setting is wrong: see Settings.", { wrong: true });
      return false;
    }
    const message = addMessage(this.conversation, parent, "user", text);
    history.replaceState(null, "", PLACE + this.conversation.id);
    this.settings.show(this.conversation);
    this.follows = true;
    this.answer(message.id);
    return true;
  }

  rewrite(message, text) {
    message.content = text;
    this.changed();
    this.turns.focus(message);
  }

  // Makes an answer to a message of the conversation that is shown.
  async answer(parent) {
    const { conversation } = this;
    if (this.running.has(conversation.id)) return;
    byId("notice").replaceChildren();
    const message = addMessage(conversation, parent, "assistant", "");
    const generation = new Generation(conversation, message);
    this.running.set(conversation.id, generation);
    this.announcer.begin();
    this.changed();
    // What was clicked may be gone. (The message field would make phones show their keyboard.)
    if (document.activeElement === document.body) byId("messages").focus();
    let failure = null;
    try {
      await generation.run(this.api, this.model?.id, this.progressOf(generation));
    } catch (error) {
      failure = error;
    }
    this.running.delete(conversation.id);
    if (message.content === "" && !message.reasoning && (failure || message.end === "stopped")) {
      withdraw(conversation, message);
    }
    if (this.store.get(conversation.id)) this.store.save(conversation);
    if (conversation === this.conversation) {
      this.draw();
      if (this.follows) this.toEnd();
      this.announcer.end(message.content, message.end === "stopped" ? "Stopped" : "End of the answer");
    } else {
      this.drawList();
    }
    if (failure) this.failed(failure, () => this.retry(conversation, parent));
  }

  retry(conversation, parent) {
    if (conversation !== this.conversation) this.open(conversation.id);
    this.answer(parent);
  }

  // Draws at most once a frame, and keeps what has come now and then.
  progressOf(generation) {
    const { conversation, message } = generation;
    let frame = null;
    let saved = performance.now();
    const draw = () => {
      frame = null;
      if (!this.running.has(conversation.id) || conversation !== this.conversation) return;
      this.turns.update(message);
      this.announcer.grow(message.content);
      if (this.follows) this.toEnd();
    };
    return () => {
      frame ??= requestAnimationFrame(draw);
      if (performance.now() - saved < SAVE_EVERY_MS || !this.store.get(conversation.id)) return;
      this.store.save(conversation);
      saved = performance.now();
    };
  }

  stop() {
    this.running.get(this.conversation.id)?.stop();
  }

  toEnd() {
    const messages = byId("messages");
    messages.scrollTop = messages.scrollHeight;
  }

  // Says what went wrong. again: does it once more.
  failed(error, again) {
    if (!(error instanceof ServerError)) {
      this.notice(`The page failed: ${error.message}`, { wrong: true });
      throw error;
    }
    if (error.status === 401) this.askKey(this.api.key === "" ? "" : error.message, again);
    else this.notice(error.message, { wrong: true, action: "Try again", act: again });
  }

  notice(text, { wrong = false, action = null, act = null } = {}) {
    const close = () => {
      byId("notice").replaceChildren();
      byId("prompt").focus();
    };
    const doIt = () => {
      close();
      act();
    };
    const buttons = [...(action ? [button(action, doIt)] : []), button("Dismiss", close)];
    const box = element("div", wrong ? { class: "wrong" } : {}, [element("span", {}, [text]), ...buttons]);
    byId("notice").replaceChildren(box);
  }

  askKey(problem, again = () => this.meet()) {
    this.afterKey = again;
    byId("key-problem").textContent = problem;
    byId("key").value = this.api.key;
    if (!byId("key-dialog").open) byId("key-dialog").showModal();
  }

  takeKey(event) {
    event.preventDefault();
    const key = byId("key").value.trim();
    if (!/^[\x21-\x7e]*$/.test(key)) {
      byId("key-problem").textContent = "A key has only letters, digits and signs of ASCII.";
      return;
    }
    this.api.setKey(key);
    byId("key-dialog").close();
    this.afterKey();
    if (this.model === null) this.meet();
  }

  async import(input) {
    const [file] = input.files;
    input.value = "";
    if (!file) return;
    try {
      const conversations = imported(await file.text());
      const kept = conversations.filter((conversation) => this.store.save(conversation));
      if (conversations.length > 0) this.open(conversations[0].id);
      if (kept.length < conversations.length) return; // the store has said why
      this.notice(`Imported ${kept.length === 1 ? "one chat" : `${kept.length} chats`}.`);
    } catch (error) {
      this.notice(error.message, { wrong: true });
    }
  }

  // Another tab changed what is stored. Its version of the shown conversation is taken over.
  storedElsewhere(key) {
    const id = this.store.changed(key);
    if (id === null) return;
    const changed = this.store.get(id);
    if (id !== this.conversation.id || !changed || this.running.has(id)) {
      this.drawList();
      return;
    }
    this.conversation = changed;
    if (!byId("settings").contains(document.activeElement)) this.settings.show(changed);
    this.draw();
    if (this.follows) this.toEnd();
  }
}

// An answer that has not begun leaves nothing behind; an earlier version of it is shown again.
function withdraw(conversation, message) {
  conversation.messages = conversation.messages.filter((other) => other !== message);
  if (conversation.leaf !== message.id) return;
  conversation.leaf = versionsOf(conversation, message).at(-1)?.id ?? message.parent;
}

function storageOf(name) {
  try {
    return window[name];
  } catch {
    return null; // forbidden by the browser's settings
  }
}

function fit(field) {
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight + field.offsetHeight - field.clientHeight}px`;
}

function number(value) {
  return value.toLocaleString("en");
}

new Page().start();
