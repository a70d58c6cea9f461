// Making elements. Children are nodes or texts; texts are never read as HTML.

export function element(tag, attributes = {}, children = []) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

export function button(label, onClick, attributes = {}) {
  const made = element("button", { type: "button", ...attributes }, [label]);
  made.addEventListener("click", onClick);
  return made;
}

export function byId(id) {
  return document.getElementById(id);
}
