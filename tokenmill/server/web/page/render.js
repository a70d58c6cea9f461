// Draws the tree that markdown.js reads. Text from a model only ever becomes the text of a node.

import { parse } from "./markdown.js";
import { copyText } from "./clipboard.js";
import { element } from "./dom.js";

const INLINE_TAGS = { strong: "strong", em: "em", del: "del" };

// Shows a text that may grow: what is drawn of blocks that have not changed stays as it is, with the
// reader's selection in it.
export class MarkdownView {
  constructor(root) {
    this.root = root;
    this.sources = [];
  }

  show(text) {
    const blocks = parse(text);
    let same = 0;
    while (same < blocks.length && blocks[same].source === this.sources[same]) same += 1;
    while (this.root.childNodes.length > same) this.root.lastChild.remove();
    this.root.append(...blocks.slice(same).map(drawBlock));
    this.sources = blocks.map((block) => block.source);
  }
}

function drawBlock(block) {
  switch (block.type) {
    case "heading":
      // The page has a heading of its own above those of answers.
      return element(`h${Math.min(block.level + 2, 6)}`, {}, drawInlines(block.inline));
    case "code":
      return drawCode(block);
    case "quote":
      return element("blockquote", {}, block.blocks.map(drawBlock));
    case "list":
      return drawList(block);
    case "table":
      return drawTable(block);
    case "rule":
      return element("hr");
    default:
      return element("p", {}, drawInlines(block.inline));
  }
}

function drawList(block) {
  const items = block.items.map((item) => {
    const blocks = item.blocks.map(drawBlock);
    if (item.checked === null) return element("li", {}, blocks);
    const box = element("input", { type: "checkbox", disabled: "", "aria-label": item.checked ? "done" : "to do" });
    box.checked = item.checked;
    return element("li", { class: "task" }, [box, element("div", {}, blocks)]);
  });
  if (!block.ordered) return element("ul", {}, items);
  return element("ol", block.start === 1 ? {} : { start: String(block.start) }, items);
}

function drawTable(block) {
  const row = (cells, tag) =>
    element(
      "tr",
      {},
      cells.map((cell, column) => element(tag, { class: `align-${block.align[column]}` }, drawInlines(cell))),
    );
  const table = element("table", {}, [
    element("thead", {}, [row(block.head, "th")]),
    element("tbody", {}, block.rows.map((cells) => row(cells, "td"))),
  ]);
  // Wide tables scroll, also by keyboard.
  return element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table" }, [table]);
}

function drawCode(block) {
  const copy = element("button", { type: "button", class: "quiet" }, ["Copy code"]);
  copy.addEventListener("click", () => copyText(copy, block.text));
  const name = block.language ? `Code, ${block.language}` : "Code";
  const body = element("pre", { tabindex: "0", role: "region", "aria-label": name }, [element("code", {}, [block.text])]);
  const head = element("div", { class: "code-head" }, [element("span", {}, [block.language]), copy]);
  return element("div", { class: "code" }, [head, body]);
}

function drawInlines(nodes) {
  return nodes.map((node) => {
    switch (node.type) {
      case "code":
        return element("code", {}, [node.text]);
      case "break":
        return element("br");
      case "link":
        return element(
          "a",
          { href: node.href, title: node.href, target: "_blank", rel: "noopener noreferrer nofollow" },
          drawInlines(node.children),
        );
      case "text":
        return document.createTextNode(node.text);
      default:
        return element(INLINE_TAGS[node.type], {}, drawInlines(node.children));
    }
  });
}
