// The messages of a conversation, and what can be done with each.

import { copyText } from "./clipboard.js";
import { branchOf, showBranch, versionsOf } from "./conversation.js";
import { button, element } from "./dom.js";
import { describe } from "./generation.js";
import { MarkdownView } from "./render.js";

const ENDS = {
  stopped: "Stopped.",
  length: "The answer was cut off at its longest length.",
  unfinished: "The answer is not complete.",
  content_filter: "The answer was withheld.",
};

// actions: retry(message), resend(message, text), rewrite(message, text), changed(); each is about the
// conversation shown.
export class Turns {
  constructor(root, actions) {
    this.root = root;
    this.actions = actions;
    this.views = [];
  }

  // Draws a conversation anew. running: the answer being made, or null.
  show(conversation, running) {
    this.conversation = conversation;
    this.busy = running !== null;
    this.views = branchOf(conversation).map((message) => new Turn(message, this, message === running));
    this.root.replaceChildren(...this.views.map((view) => view.root));
  }

  // A message has grown.
  update(message) {
    this.views.find((view) => view.message === message)?.update();
  }

  focus(message) {
    this.views.find((view) => view.message === message)?.root.focus();
  }
}

class Turn {
  constructor(message, turns, running) {
    this.message = message;
    this.turns = turns;
    this.running = running;
    const own = message.role === "user";
    this.said = element("div", { class: "said" });
    this.foot = element("div", { class: "foot" });
    this.root = element("article", { class: `turn ${message.role}`, tabindex: "-1" }, [
      element("h3", {}, [own ? "You" : "Answer"]),
      this.said,
      this.foot,
    ]);
    if (!own) this.markdown = new MarkdownView(this.said);
    this.figures = element("span", { class: "figures" });
    this.update();
    this.drawFoot();
    if (!running && !own) this.drawEnd();
  }

  update() {
    const { message } = this;
    if (message.role === "user") {
      this.said.textContent = message.content;
      return;
    }
    if (message.reasoning) this.drawThoughts();
    this.markdown.show(message.content);
    this.said.classList.toggle("waiting", this.running && message.content === "");
    this.figures.textContent = describe(message.figures);
  }

  drawThoughts() {
    if (!this.thoughts) {
      const body = element("div", { class: "said" });
      this.thoughts = new MarkdownView(body);
      this.summary = element("summary");
      this.said.before(element("details", { class: "thoughts" }, [this.summary, body]));
    }
    this.summary.textContent = this.running && this.message.content === "" ? "Thinking…" : "Thoughts";
    this.thoughts.show(this.message.reasoning);
  }

  drawEnd() {
    const text = ENDS[this.message.end];
    if (text) this.said.after(element("p", { class: "end" }, [text]));
  }

  drawFoot() {
    if (this.running) {
      this.foot.replaceChildren(this.figures);
      return;
    }
    const { message, turns } = this;
    const own = message.role === "user";
    const able = turns.busy ? { disabled: "" } : {};
    const copy = button("Copy", () => copyText(copy, message.content), { class: "quiet" });
    const edit = button("Edit", () => this.edit(), { class: "quiet", ...able });
    const retry = button("Retry", () => turns.actions.retry(message), { class: "quiet", ...able });
    retry.title = own ? "Ask this again" : "Make another answer";
    this.foot.replaceChildren(...this.versionButtons(able), copy, edit, retry);
    if (!own) this.foot.append(this.figures);
  }

  versionButtons(able) {
    const { message, turns } = this;
    const versions = versionsOf(turns.conversation, message);
    if (versions.length < 2) return [];
    const at = versions.indexOf(message);
    const step = (label, by, name) => {
      const other = versions[at + by];
      const unable = other ? able : { disabled: "" };
      const show = () => {
        showBranch(turns.conversation, other);
        turns.actions.changed();
        turns.focus(other);
      };
      return button(label, show, { class: "quiet", "aria-label": name, ...unable });
    };
    return [
      step("‹", -1, "Earlier version"),
      element("span", {}, [`${at + 1} of ${versions.length}`]),
      step("›", 1, "Later version"),
    ];
  }

  edit() {
    const { message, turns } = this;
    const own = message.role === "user";
    const field = element("textarea", { "aria-label": own ? "Your message" : "The answer's text" });
    field.value = message.content;
    const done = () => {
      const text = field.value;
      if (text.trim() === "") return;
      (own ? turns.actions.resend : turns.actions.rewrite)(message, text);
    };
    const cancel = () => {
      this.root.replaceChildren(...before);
      this.foot.querySelector("button")?.focus();
    };
    const save = button(own ? "Send" : "Save", done, { class: "main" });
    const row = element("div", { class: "row" }, [save, button("Cancel", cancel)]);
    const editor = element("div", { class: "editor" }, [field, row]);
    editor.addEventListener("keydown", (event) => {
      if (event.isComposing) return;
      if (event.key === "Escape") cancel();
      else if (event.key === "Enter" && event.target === field && !event.shiftKey && own) done();
      else return;
      event.preventDefault();
      event.stopPropagation();
    });
    const before = [...this.root.childNodes];
    this.root.replaceChildren(this.root.firstChild, editor);
    field.focus();
  }
}
