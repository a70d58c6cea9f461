// Tells screen readers of an answer while it grows: whole lines, each one once. Reading out what is drawn
// instead would begin again with every token.

import { element } from "./dom.js";

export class Announcer {
  constructor(root) {
    this.root = root;
    this.begin();
  }

  begin() {
    this.root.replaceChildren();
    this.told = 0;
  }

  // text: all that has come so far.
  grow(text) {
    const end = text.lastIndexOf("\n") + 1;
    if (end > this.told) this.tell(text.slice(this.told, end));
    this.told = Math.max(this.told, end);
  }

  // The answer has ended; how: said after it.
  end(text, how) {
    this.tell(text.slice(this.told));
    this.told = text.length;
    this.tell(how);
  }

  tell(text) {
    const plain = text.replace(/[*_`#|>~]+/g, " ").trim();
    if (plain !== "") this.root.append(element("p", {}, [plain]));
  }
}
