// Copying, also where the page came over plain HTTP from another machine, and browsers keep the
// clipboard's interface from it.

import { element } from "./dom.js";

const SHOWN_MS = 2000;

// Copies a text and says so on the button for a moment.
export async function copyText(button, text) {
  const label = button.dataset.label ?? button.textContent;
  button.dataset.label = label;
  button.textContent = (await copied(text)) ? "Copied" : "Copying failed";
  setTimeout(() => {
    button.textContent = label;
  }, SHOWN_MS);
}

async function copied(text) {
  if (navigator.clipboard) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      // The browser may still allow the old way.
    }
  }
  const focused = document.activeElement;
  const field = element("textarea", { class: "unseen", "aria-hidden": "true" });
  field.value = text;
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  focused?.focus();
  return done;
}
