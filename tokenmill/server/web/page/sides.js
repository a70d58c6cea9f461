// The list of conversations and the panel of settings. Where there is room they stand beside the
// conversation; on phones one of them lies over it.

import { byId } from "./dom.js";

export class Sides {
  // panelShown: called with whether the panel can be seen, whenever that changes.
  constructor(panelShown) {
    this.panelShown = panelShown;
    this.narrow = matchMedia("(max-width: 52rem)");
    this.sides = [
      { side: byId("chats"), opener: byId("show-chats") },
      { side: byId("panel"), opener: byId("show-panel") },
    ];
  }

  start() {
    for (const { side, opener } of this.sides) {
      opener.addEventListener("click", () => this.set(side, side.hidden));
    }
    this.narrow.addEventListener("change", () => this.settle());
    this.settle();
  }

  settle() {
    this.set(byId("panel"), false);
    this.set(byId("chats"), !this.narrow.matches);
  }

  set(side, shown) {
    for (const entry of this.sides) {
      if (entry.side === side) entry.side.hidden = !shown;
      else if (shown && this.narrow.matches) entry.side.hidden = true;
      entry.opener.setAttribute("aria-expanded", String(!entry.side.hidden));
    }
    // What lies below can't be reached by keyboard.
    const covered = this.narrow.matches && this.sides.some((entry) => !entry.side.hidden);
    for (const part of document.querySelector("main").children) part.inert = covered;
    this.panelShown(!byId("panel").hidden);
  }

  // Closes what lies over the conversation. Whether there was something.
  closeOverlay() {
    const open = this.narrow.matches ? this.sides.find(({ side }) => !side.hidden) : undefined;
    if (!open) return false;
    this.set(open.side, false);
    open.opener.focus();
    return true;
  }
}
