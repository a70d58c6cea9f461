// The list of conversations.

import { button, element } from "./dom.js";

// store: a ConversationStore. actions: open(id), remove(id), save(id).
export class ChatList {
  constructor(root, store, actions) {
    this.root = root;
    this.store = store;
    this.actions = actions;
  }

  // current: id of the one that is shown. running: ids of those with an answer being made.
  show(current, running) {
    const focused = document.activeElement?.closest("#chat-list [data-id]")?.dataset.id;
    this.root.replaceChildren(...this.store.all().map((chat) => this.item(chat, chat.id === current, running.has(chat.id))));
    if (focused) this.root.querySelector(`[data-id="${CSS.escape(focused)}"]`)?.querySelector("button").focus();
  }

  item(chat, isCurrent, isRunning) {
    const title = chat.title || "Without a name";
    const { actions } = this;
    const open = button(isRunning ? `${title} (answering…)` : title, () => actions.open(chat.id), { class: "open", title });
    if (!isCurrent) return element("li", { "data-id": chat.id }, [open]);
    open.setAttribute("aria-current", "true");
    const tools = element("div", { class: "tools" }, [
      button("Export", () => actions.save(chat.id), { class: "quiet", "aria-label": `Export ${title}` }),
      button("Delete", () => actions.remove(chat.id), { class: "quiet", "aria-label": `Delete ${title}` }),
    ]);
    return element("li", { "data-id": chat.id }, [open, tools]);
  }
}
