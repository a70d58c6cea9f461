// Giving the reader a file.

import { element } from "./dom.js";

const ADDRESS_KEPT_MS = 60000;

export function saveFile(name, text) {
  const address = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  element("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), ADDRESS_KEPT_MS);
}
