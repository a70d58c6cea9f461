// Markdown as models write it, read into a tree of plain objects. Nothing here knows the DOM, and no
// HTML is ever made or understood: tags in a text stay text. Time grows with the text's length, also for
// texts that are made to be slow, and nesting is bounded.
//
// blocks:  {type: "heading", level, inline}  {type: "paragraph", inline}  {type: "code", language, text}
//          {type: "quote", blocks}  {type: "list", ordered, start, items: [{checked, blocks}]}
//          {type: "table", align, head, rows}  {type: "rule"}
// inlines: {type: "text", text}  {type: "code", text}  {type: "break"}  {type: "link", href, children}
//          {type: "strong" | "em" | "del", children}

const MOST_NESTED = 16;
const LONGEST_ADDRESS = 2000;
const MARKER = /^( *)([-*+]|\d{1,9}[.)])(?=[ \t]|$)/;
const FENCE = /^ *(`{3,}|~{3,})[ \t]*(.*)$/;
const TASK = /^\[([ xX])\][ \t]+/;
const PUNCTUATION = /[!-/:-@[-`{-~]/;
const WORD = /[\p{L}\p{N}]/u;
const SAFE_SCHEMES = new Set(["http:", "https:", "mailto:"]);

// The blocks of a text. Each one has its `source`, on which alone it depends, so that a view can keep
// what it has drawn of a text that grows.
export function parse(text) {
  const lines = text.replace(/\r\n?/g, "\n").replaceAll("\t", "    ").split("\n");
  return blocksOf(lines, 0);
}

// The address if a link may lead there, else null: no script, no file, nothing on this server.
export function safeAddress(address) {
  try {
    const url = new URL(address);
    return SAFE_SCHEMES.has(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

function blocksOf(lines, depth) {
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (isBlank(lines[at])) {
      at += 1;
      continue;
    }
    const [block, next] = blockAt(lines, at, depth);
    block.source = lines.slice(at, next).join("\n");
    blocks.push(block);
    at = next;
  }
  return blocks;
}

// The block that begins at a line, and the line after its end.
function blockAt(lines, at, depth) {
  const line = lines[at];
  const fence = fenceOf(line);
  if (fence) return codeAt(lines, at, fence);
  const level = headingLevel(line);
  if (level) return [{ type: "heading", level, inline: inlinesOf(headingText(line)) }, at + 1];
  if (isRule(line)) return [{ type: "rule" }, at + 1];
  if (depth < MOST_NESTED) {
    if (isQuote(line)) return quoteAt(lines, at, depth);
    if (MARKER.test(line)) return listAt(lines, at, depth);
  }
  if (isTable(lines, at)) return tableAt(lines, at);
  return paragraphAt(lines, at, depth);
}

function isBlank(line) {
  return line.trim() === "";
}

function indentOf(line) {
  return line.length - line.trimStart().length;
}

function fenceOf(line) {
  const found = FENCE.exec(line);
  // `` `code` `` in backticks alone on a line is a code span.
  return found && !(found[1][0] === "`" && found[2].includes("`")) ? found : null;
}

function codeAt(lines, at, fence) {
  const indent = indentOf(lines[at]);
  const mark = fence[1];
  const closes = (line) => line.length >= mark.length && line === mark[0].repeat(line.length);
  let end = at + 1;
  while (end < lines.length && !closes(lines[end].trim())) end += 1;
  const body = lines.slice(at + 1, end).map((line) => line.slice(Math.min(indent, indentOf(line))));
  // One that is never closed is still being written, and the last line end not yet one of the code.
  if (end === lines.length && body.at(-1) === "") body.pop();
  const language = fence[2].trim().split(/[\s{]/, 1)[0];
  return [{ type: "code", language, text: body.join("\n") }, Math.min(end + 1, lines.length)];
}

function headingLevel(line) {
  const found = /^ {0,3}(#{1,6})(?= |$)/.exec(line);
  return found ? found[1].length : 0;
}

function headingText(line) {
  const text = line.trim().replace(/^#+/, "").trim();
  let end = text.length;
  while (end > 0 && text[end - 1] === "#") end -= 1;
  return end === 0 || text[end - 1] === " " ? text.slice(0, end).trim() : text;
}

function isRule(line) {
  return /^(-{3,}|\*{3,}|_{3,})$/.test(line.replaceAll(" ", ""));
}

function isQuote(line) {
  return line.trimStart().startsWith(">");
}

function quoteAt(lines, at, depth) {
  let next = at;
  while (next < lines.length && isQuote(lines[next])) next += 1;
  const inner = lines.slice(at, next).map((line) => line.trimStart().slice(1).replace(/^ /, ""));
  return [{ type: "quote", blocks: blocksOf(inner, depth + 1) }, next];
}

function listAt(lines, at, depth) {
  const first = MARKER.exec(lines[at]);
  const base = first[1].length;
  const ordered = /\d/.test(first[2]);
  const continues = (line) => {
    const marker = line === undefined || isRule(line) ? null : MARKER.exec(line);
    return marker && marker[1].length < base + 2 && /\d/.test(marker[2]) === ordered ? marker : null;
  };
  const items = [];
  let next = at;
  for (let marker = first; marker; ) {
    const [item, end] = itemAt(lines, next, marker, depth);
    items.push(item);
    // Blank lines between items don't end a list.
    const following = afterBlanks(lines, end);
    marker = continues(lines[following]);
    next = marker ? following : end;
  }
  return [{ type: "list", ordered, start: ordered ? parseInt(first[2], 10) : 1, items }, next];
}

function afterBlanks(lines, at) {
  let after = at;
  while (after < lines.length && isBlank(lines[after])) after += 1;
  return after;
}

function itemAt(lines, at, marker, depth) {
  const base = marker[1].length;
  const rest = lines[at].slice(marker[0].length);
  const spaces = indentOf(rest);
  // Models often indent less than the width of "1. ", so two more than the marker is inside.
  let indent = marker[0].length + (spaces > 4 || rest.trim() === "" ? 1 : spaces);
  const task = TASK.exec(rest.trimStart());
  const inner = [task ? rest.trimStart().slice(task[0].length) : rest.slice(spaces > 4 ? 1 : spaces)];
  let next = at + 1;
  for (; next < lines.length; next += 1) {
    const line = lines[next];
    if (isBlank(line)) {
      const after = afterBlanks(lines, next);
      if (after === lines.length || indentOf(lines[after]) < base + 2) break;
      inner.push(...lines.slice(next, after).map(() => ""));
      next = after - 1;
      continue;
    }
    const own = indentOf(line);
    if (own < base + 2) {
      // The paragraph goes on without indentation, unless something else begins.
      if (MARKER.test(line) || begins(lines, next) || isBlank(lines[next - 1])) break;
      inner.push(line.trimStart());
      continue;
    }
    indent = Math.min(indent, own);
    inner.push(line.slice(indent));
  }
  const checked = task ? task[1] !== " " : null;
  return [{ checked, blocks: blocksOf(inner, depth + 1) }, next];
}

// The cells of a row; a `\|` is part of its cell.
function cellsOf(line) {
  const cells = [];
  let cell = "";
  const row = line.trim();
  for (let at = row.startsWith("|") ? 1 : 0; at < row.length; at += 1) {
    if (row[at] === "\\" && row[at + 1] === "|") {
      cell += "|";
      at += 1;
    } else if (row[at] === "|") {
      cells.push(cell.trim());
      cell = "";
    } else {
      cell += row[at];
    }
  }
  if (cell.trim() !== "") cells.push(cell.trim());
  return cells;
}

function isTable(lines, at) {
  const under = lines[at + 1];
  if (under === undefined || !lines[at].includes("|") || !/^[ |:-]+$/.test(under)) return false;
  const marks = cellsOf(under);
  return marks.length === cellsOf(lines[at]).length && marks.every((mark) => /^:?-+:?$/.test(mark));
}

function tableAt(lines, at) {
  const align = cellsOf(lines[at + 1]).map((mark) => {
    if (!mark.endsWith(":")) return "start";
    return mark.startsWith(":") ? "center" : "end";
  });
  const inlineCells = (line) => {
    const cells = cellsOf(line);
    return align.map((_, column) => inlinesOf(cells[column] ?? ""));
  };
  const rows = [];
  let next = at + 2;
  for (; next < lines.length && lines[next].includes("|"); next += 1) rows.push(inlineCells(lines[next]));
  return [{ type: "table", align, head: inlineCells(lines[at]), rows }, next];
}

// Whether a line can't be part of the paragraph before it.
function begins(lines, at) {
  const line = lines[at];
  if (fenceOf(line) || headingLevel(line) || isRule(line) || isQuote(line)) return true;
  const marker = MARKER.exec(line);
  // A number at a line's beginning is more often one of a sentence than the first of a list.
  if (marker && (!/\d/.test(marker[2]) || parseInt(marker[2], 10) === 1)) return true;
  return isTable(lines, at);
}

function paragraphAt(lines, at, depth) {
  let next = at + 1;
  const goesOn = (line) => !isBlank(line) && (depth >= MOST_NESTED || !begins(lines, next));
  while (next < lines.length && goesOn(lines[next])) next += 1;
  const text = lines
    .slice(at, next)
    .map((line) => line.trim())
    .join("\n");
  return [{ type: "paragraph", inline: inlinesOf(text) }, next];
}

function inlinesOf(text) {
  return new Inlines(text).nodes();
}

// Reads what stands within a block. `out` is what has been read; `open` and `brackets` hold the marks in it
// that something may still close, each with its place in `out`. Whatever is looked at in vain is not looked
// at again.
class Inlines {
  constructor(text) {
    this.text = text;
    this.at = 0;
    this.plain = "";
    this.out = [];
    this.open = [];
    this.brackets = [];
    this.none = new Map(); // up to which place in `open` nothing suits a kind of mark
    this.unclosed = new Set(); // lengths of backtick runs that nothing closes any more
  }

  nodes() {
    while (this.at < this.text.length) this.step();
    this.flush();
    return this.out;
  }

  step() {
    const char = this.text[this.at];
    if (char === "\\") this.escape();
    else if (char === "`") this.codeSpan();
    else if (char === "*" || char === "_" || char === "~") this.mark(char);
    else if (char === "[" || (char === "!" && this.text[this.at + 1] === "[")) this.openBracket(char);
    else if (char === "]") this.closeBracket();
    else if (char === "<" || char === "h") this.address(char);
    else if (char === "\n") this.push({ type: "break" }, 1);
    else this.take(1);
  }

  take(count) {
    this.plain += this.text.slice(this.at, this.at + count);
    this.at += count;
  }

  flush() {
    if (this.plain === "") return;
    this.out.push({ type: "text", text: this.plain });
    this.plain = "";
  }

  push(node, length) {
    this.flush();
    this.out.push(node);
    this.at += length;
  }

  escape() {
    const next = this.text[this.at + 1] ?? "";
    // \( and \[ begin formulas more often than they escape something.
    const literal = PUNCTUATION.test(next) && !"()[]".includes(next);
    if (literal) this.at += 1;
    this.take(literal ? 1 : 1 + next.length);
  }

  runLength(char) {
    let end = this.at;
    while (this.text[end] === char) end += 1;
    return end - this.at;
  }

  codeSpan() {
    const length = this.runLength("`");
    if (!this.unclosed.has(length)) {
      for (let from = this.at + length; ; ) {
        const start = this.text.indexOf("`", from);
        if (start < 0) break;
        let end = start;
        while (this.text[end] === "`") end += 1;
        if (end - start === length) {
          const inner = this.text.slice(this.at + length, start).replaceAll("\n", " ");
          const padded = /^ .*[^ ].* $/.test(inner);
          this.push({ type: "code", text: padded ? inner.slice(1, -1) : inner }, end - this.at);
          return;
        }
        from = end;
      }
      this.unclosed.add(length);
    }
    this.take(length);
  }

  mark(char) {
    let count = this.runLength(char);
    const before = this.text[this.at - 1] ?? " ";
    const after = this.text[this.at + count] ?? " ";
    if (char === "~" && count !== 2) return this.take(count);
    let opens = after.trim() !== "";
    let closes = before.trim() !== "";
    if (char === "_") {
      opens &&= !WORD.test(before);
      closes &&= !WORD.test(after);
    }
    this.at += count;
    this.flush();
    while (closes && count > 0) {
      const used = this.close(char, count, opens);
      if (used === 0) break;
      count -= used;
    }
    if (count === 0) return;
    if (opens) {
      this.open.push({ char, count, closes, at: this.out.length });
      this.out.push({ type: "text", text: char.repeat(count) });
    } else {
      this.plain += char.repeat(count);
    }
  }

  // Ends what the nearest mark that suits began; how many characters that took.
  close(char, count, opens) {
    // Of marks that could open and close, those don't suit whose lengths add up to a multiple of three
    // (https://spec.commonmark.org/0.31.2/#emphasis-and-strong-emphasis, rules 9 and 10).
    const suits = (opener) =>
      opener.char === char &&
      (!(opens || opener.closes) || (opener.count + count) % 3 !== 0 || (opener.count % 3 === 0 && count % 3 === 0));
    const kind = `${char}${opens}${count % 3}`;
    const bottom = this.none.get(kind) ?? 0;
    let index = this.open.length - 1;
    while (index >= bottom && !suits(this.open[index])) index -= 1;
    if (index < bottom) {
      this.none.set(kind, this.open.length);
      return 0;
    }
    const opener = this.open[index];
    const used = char === "~" ? 2 : Math.min(opener.count, count, 2);
    const node = this.wrap(opener.at + 1, char === "~" ? "del" : used === 2 ? "strong" : "em");
    if (node === null) return 0;
    opener.count -= used;
    this.forget(opener.count === 0 ? index : index + 1);
    while (this.brackets.length && this.brackets.at(-1).at > opener.at) this.brackets.pop();
    if (opener.count === 0) this.out.pop();
    else this.out[opener.at] = { type: "text", text: char.repeat(opener.count) };
    this.out.push(node);
    return used;
  }

  // Drops marks from a place in `open` on.
  forget(from) {
    this.open.length = from;
    for (const [kind, place] of this.none) this.none.set(kind, Math.min(place, from));
  }

  // Takes what stands from a place on as children of a new node; null if that would be too deep.
  wrap(from, type) {
    let depth = 0;
    for (let at = from; at < this.out.length; at += 1) depth = Math.max(depth, this.out[at].depth ?? 0);
    if (depth < MOST_NESTED) return { type, children: this.out.splice(from), depth: depth + 1 };
    // Earlier marks would go around this as well.
    this.forget(0);
    this.brackets.length = 0;
    return null;
  }

  openBracket(char) {
    this.flush();
    // Pictures are not loaded, since that would tell others what is talked about: they become links.
    const text = char === "!" ? "![" : "[";
    this.brackets.push({ at: this.out.length, open: this.open.length });
    this.push({ type: "text", text }, text.length);
  }

  closeBracket() {
    const bracket = this.brackets.pop();
    const found = bracket ? this.destination() : null;
    if (found === null) return this.take(1);
    this.flush();
    const href = safeAddress(found.address);
    const node = href === null ? null : this.wrap(bracket.at + 1, "link");
    // Otherwise it is shown as it was written, so that nobody takes it for a link to somewhere else.
    if (node === null) return this.take(found.length);
    this.forget(bracket.open);
    this.out.pop();
    const children = withoutLinks(node.children);
    if (children.length === 0) children.push({ type: "text", text: href });
    this.push({ ...node, href, children }, found.length);
  }

  // What follows a bracket: `](address "title")`.
  destination() {
    if (this.text[this.at + 1] !== "(") return null;
    const inside = this.text.slice(this.at + 2, this.at + 2 + LONGEST_ADDRESS);
    let depth = 1;
    for (let at = 0; at < inside.length; at += 1) {
      if (inside[at] === "\n") return null;
      if (inside[at] === "(") depth += 1;
      if (inside[at] === ")") depth -= 1;
      if (depth === 0) {
        const address = inside.slice(0, at).trim().split(" ", 1)[0];
        return { address: address.replace(/^<|>$/g, ""), length: at + 3 };
      }
    }
    return null;
  }

  // An address that stands for itself, in angle brackets or without.
  address(char) {
    const pattern = char === "<" ? /<((?:https?:\/\/|mailto:)[^\s<>]{1,2000})>/y : /https?:\/\/[^\s<>"`*\\[\]|]{1,2000}/y;
    pattern.lastIndex = this.at;
    const found = char === "<" || !WORD.test(this.text[this.at - 1] ?? " ") ? pattern.exec(this.text) : null;
    if (!found) return this.take(1);
    const text = found[1] ?? withoutEnd(found[0]);
    const href = safeAddress(text);
    if (href === null) return this.take(1);
    const length = found[1] === undefined ? text.length : found[0].length;
    this.push({ type: "link", href, children: [{ type: "text", text }], depth: 1 }, length);
  }
}

// An address without the punctuation of the sentence around it.
function withoutEnd(address) {
  let unbalanced = address.split(")").length - address.split("(").length;
  let end = address.length;
  for (; end > 0; end -= 1) {
    const last = address[end - 1];
    if (last === ")" && unbalanced > 0) unbalanced -= 1;
    else if (!".,;:!?'_~".includes(last)) break;
  }
  return address.slice(0, end);
}

function withoutLinks(nodes) {
  return nodes.flatMap((node) => {
    if (node.type === "link") return withoutLinks(node.children);
    return node.children ? [{ ...node, children: withoutLinks(node.children) }] : [node];
  });
}
