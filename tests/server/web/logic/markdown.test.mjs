import assert from "node:assert/strict";
import { test } from "node:test";

import { parse, safeAddress } from "../../../../tokenmill/server/web/page/markdown.js";

// Trees as short texts: <p>, <ul>, ... with what is in them.
const blockText = (block) => {
  switch (block.type) {
    case "heading":
      return `<h${block.level}>${inlineText(block.inline)}</h${block.level}>`;
    case "code":
      return `<pre ${block.language}>${block.text}</pre>`;
    case "quote":
      return `<q>${blocksText(block.blocks)}</q>`;
    case "list": {
      const mark = { null: "", true: "[x]", false: "[ ]" };
      const items = block.items.map((item) => `<li>${mark[item.checked]}${blocksText(item.blocks)}</li>`);
      const name = block.ordered ? `ol${block.start === 1 ? "" : ` ${block.start}`}` : "ul";
      return `<${name}>${items.join("")}</${name.slice(0, 2)}>`;
    }
    case "table": {
      const row = (cells) => cells.map(inlineText).join("|");
      return `<table ${block.align}>${[block.head, ...block.rows].map(row).join("/")}</table>`;
    }
    case "rule":
      return "<hr>";
    default:
      return `<p>${inlineText(block.inline)}</p>`;
  }
};
const blocksText = (blocks) => blocks.map(blockText).join("");
const inlineText = (nodes) =>
  nodes
    .map((node) => {
      if (node.type === "text") return node.text;
      if (node.type === "code") return `<c>${node.text}</c>`;
      if (node.type === "break") return "<br>";
      const name = { strong: "b", em: "i", del: "s", link: "a" }[node.type];
      return `<${name}${node.href ? ` ${node.href}` : ""}>${inlineText(node.children)}</${name}>`;
    })
    .join("");

const cases = {
  // paragraphs and line breaks
  "one\ntwo\n\nthree": "<p>one<br>two</p><p>three</p>",
  "one\r\ntwo\rthree": "<p>one<br>two<br>three</p>",
  "": "",
  " \n\t\n": "",
  // headings
  "# One": "<h1>One</h1>",
  "###### Six ##": "<h6>Six</h6>",
  "####### seven": "<p>####### seven</p>",
  "#none": "<p>#none</p>",
  "# C#": "<h1>C#</h1>",
  "text\n## Two\nmore": "<p>text</p><h2>Two</h2><p>more</p>",
  "#": "<h1></h1>",
  // rules
  "---\n* * *\n___": "<hr><hr><hr>",
  "--": "<p>--</p>",
  // code blocks
  "```python\nx = 1\n\n# no heading\n```\nafter": "<pre python>x = 1\n\n# no heading</pre><p>after</p>",
  "~~~\n```\n~~~": "<pre >```</pre>",
  "````\n```\n````": "<pre >```</pre>",
  "```js {1,2} title\nx\n```": "<pre js>x</pre>",
  "```\nnot closed\n": "<pre >not closed</pre>",
  "```\n": "<pre ></pre>",
  "  ```\n    x\n  ```": "<pre >  x</pre>",
  "```not a fence```": "<p><c>not a fence</c></p>",
  "```\n<b>&amp;*x*</b>\n```": "<pre ><b>&amp;*x*</b></pre>",
  // quotes
  "> one\n> two\n>\n> > inner": "<q><p>one<br>two</p><q><p>inner</p></q></q>",
  ">- a": "<q><ul><li><p>a</p></li></ul></q>",
  // lists
  "- a\n- b": "<ul><li><p>a</p></li><li><p>b</p></li></ul>",
  "* a\n\n* b": "<ul><li><p>a</p></li><li><p>b</p></li></ul>",
  "3. a\n4. b": "<ol 3><li><p>a</p></li><li><p>b</p></li></ol>",
  "1) a": "<ol><li><p>a</p></li></ol>",
  "- a\n  more\n  - b\n    - c\n- d":
    "<ul><li><p>a<br>more</p><ul><li><p>b</p><ul><li><p>c</p></li></ul></li></ul></li><li><p>d</p></li></ul>",
  "1. a\n  - b\n  - c\n2. d":
    "<ol><li><p>a</p><ul><li><p>b</p></li><li><p>c</p></li></ul></li><li><p>d</p></li></ol>",
  "1. a\n\n   ```py\n   x\n     y\n   ```\n2. b":
    "<ol><li><p>a</p><pre py>x\n  y</pre></li><li><p>b</p></li></ol>",
  "1. a\n```\nx\n```\n2. b": "<ol><li><p>a</p></li></ol><pre >x</pre><ol 2><li><p>b</p></li></ol>",
  "- a\nlazy\n\nafter": "<ul><li><p>a<br>lazy</p></li></ul><p>after</p>",
  "- [ ] to do\n- [x] done\n- [y] text":
    "<ul><li>[ ]<p>to do</p></li><li>[x]<p>done</p></li><li><p>[y] text</p></li></ul>",
  "- a\n1. b": "<ul><li><p>a</p></li></ul><ol><li><p>b</p></li></ol>",
  "-": "<ul><li></li></ul>",
  "born in\n1984. Good.": "<p>born in<br>1984. Good.</p>",
  "-5 degrees": "<p>-5 degrees</p>",
  "- a\n---": "<ul><li><p>a</p></li></ul><hr>",
  // tables
  "| a | b |\n|---|:-:|\n| 1 | 2 |\n| 3 |\nend": "<table start,center>a|b/1|2/3|</table><p>end</p>",
  "a | b\n-: | -\n`x\\|y` | **z**": "<table end,start>a|b/<c>x|y</c>|<b>z</b></table>",
  "text\n| a |\n|---|": "<p>text</p><table start>a</table>",
  "| a | b |\n|---|": "<p>| a | b |<br>|---|</p>",
  "a | b": "<p>a | b</p>",
  // emphasis
  "*a* _b_ **c** __d__ ~~e~~": "<p><i>a</i> <i>b</i> <b>c</b> <b>d</b> <s>e</s></p>",
  "***a***": "<p><i><b>a</b></i></p>",
  "**a *b* c**": "<p><b>a <i>b</i> c</b></p>",
  "**a*b***": "<p><b>a<i>b</i></b></p>",
  "snake_case_name": "<p>snake_case_name</p>",
  "2 * 3 * 4": "<p>2 * 3 * 4</p>",
  "**open": "<p>**open</p>",
  "**bold:**text": "<p><b>bold:</b>text</p>",
  "**「太字」**です": "<p><b>「太字」</b>です</p>",
  "~5 ~ 6~": "<p>~5 ~ 6~</p>",
  "****": "<hr>",
  "a **** b": "<p>a **** b</p>",
  "*a **b*": "<p>*a *<i>b</i></p>",
  // code spans and escapes
  "`a*b*` ``c`d`` ` e": "<p><c>a*b*</c> <c>c`d</c> ` e</p>",
  "`` ` ``": "<p><c>`</c></p>",
  "\\*a\\* \\` \\\\ \\n": "<p>*a* ` \\ \\n</p>",
  "\\(x^2\\) \\[y\\]": "<p>\\(x^2\\) \\[y\\]</p>",
  "\\": "<p>\\</p>",
  // links
  "[a *b*](https://x.example/c \"title\")": "<p><a https://x.example/c>a <i>b</i></a></p>",
  "[a](<https://x.example/c>)": "<p><a https://x.example/c>a</a></p>",
  "[a](https://x.example/b_(c))": "<p><a https://x.example/b_(c)>a</a></p>",
  "[](https://x.example/)": "<p><a https://x.example/>https://x.example/</a></p>",
  "![pic](https://x.example/p.png)": "<p><a https://x.example/p.png>pic</a></p>",
  "<https://x.example> <mailto:a@x.example>":
    "<p><a https://x.example/>https://x.example</a> <a mailto:a@x.example>mailto:a@x.example</a></p>",
  "See https://x.example/a_b?c=d. (https://x.example/e)":
    "<p>See <a https://x.example/a_b?c=d>https://x.example/a_b?c=d</a>. (<a https://x.example/e>https://x.example/e</a>)</p>",
  "**https://x.example/**": "<p><b><a https://x.example/>https://x.example/</a></b></p>",
  "xhttps://x.example": "<p>xhttps://x.example</p>",
  "[a] (b) [c]": "<p>[a] (b) [c]</p>",
  "[[a](https://x.example/)](https://y.example/)": "<p><a https://y.example/>a</a></p>",
  "[see https://x.example/](https://y.example/)": "<p><a https://y.example/>see https://x.example/</a></p>",
  "[a](https://x.example/ b": "<p>[a](<a https://x.example/>https://x.example/</a> b</p>",
  // what looks like HTML is text
  "<b>x</b> <script>alert(1)</script>": "<p><b>x</b> <script>alert(1)</script></p>",
  "<!-- x -->": "<p><!-- x --></p>",
};

for (const [source, expected] of Object.entries(cases)) {
  test(`reads ${JSON.stringify(source)}`, () => assert.equal(blocksText(parse(source)), expected));
}

const unsafe = [
  "javascript:alert(1)",
  "JaVaScRiPt:alert(1)",
  "java\nscript:alert(1)",
  " javascript:alert(1)",
  "\u0001javascript:alert(1)",
  "javascript&#58;alert(1)",
  "data:text/html,<script>alert(1)</script>",
  "vbscript:x",
  "file:///etc/passwd",
  "blob:https://x.example/1",
  "about:blank",
  "/v1/models",
  "//x.example",
  "?x",
  "#x",
  "",
];

for (const address of unsafe) {
  test(`${JSON.stringify(address)} is no link`, () => {
    assert.equal(safeAddress(address), null);
    for (const text of [`[a](${address})`, `[a](<${address}>)`, `![a](${address})`, `<${address}>`]) {
      const [block] = parse(text);
      // An address within it may be a link to where it says, which is as safe as any.
      const links = JSON.stringify(block ?? {}).match(/"href":"[^"]*"/g) ?? [];
      assert.ok(links.every((link) => link === '"href":"https://x.example/1"'), text);
    }
  });
}

test("a block depends on its source alone", () => {
  const text = Object.keys(cases).join("\n\n");
  for (const { source, ...block } of parse(text)) {
    const [{ source: again, ...alone }, ...more] = parse(source);
    assert.deepEqual(alone, block);
    assert.equal(again, source);
    assert.deepEqual(more, []);
  }
});

test("nesting is bounded, so that drawing can't overflow", () => {
  const deep = (nodes) =>
    1 + Math.max(0, ...nodes.map((n) => deep(n.children ?? n.inline ?? n.blocks ?? n.items ?? [])));
  const texts = [
    ">".repeat(5000),
    "- ".repeat(5000),
    "*a ".repeat(5000) + "a* ".repeat(5000),
    "[".repeat(5000) + "](https://x.example)".repeat(5000),
    Array.from({ length: 200 }, (_, i) => `${"  ".repeat(i)}- a`).join("\n"),
  ];
  for (const text of texts) assert.ok(deep(parse(text)) < 80, text.slice(0, 20));
});

test("twice the text takes no more than a few times as long", () => {
  const texts = {
    stars: (n) => "*a ".repeat(n) + "a* ".repeat(n),
    "stars and underscores": (n) => "_a *a ".repeat(n) + "a* ".repeat(n),
    brackets: (n) => "[".repeat(n) + "]".repeat(n),
    "brackets and stars": (n) => "[*".repeat(n) + "]".repeat(n),
    backticks: (n) => Array.from({ length: Math.sqrt(n) }, (_, i) => "`".repeat(i + 1)).join(" "),
    addresses: (n) => "http://".repeat(n),
    angles: (n) => "<".repeat(n),
    cells: (n) => `${"|".repeat(n)}\n${"|-".repeat(n)}`,
    lines: (n) => "a\n".repeat(n),
    items: (n) => "- a\n\n".repeat(n),
    hashes: (n) => "# ".repeat(n),
  };
  // Counting steps would be better than a clock, so the bound leaves much room: quadratic time is 64 times.
  const timed = (text) => {
    const begin = process.cpuUsage().user;
    parse(text);
    return process.cpuUsage().user - begin;
  };
  for (const [name, text] of Object.entries(texts)) {
    parse(text(2000));
    const short = Math.max(timed(text(4000)), 2000);
    assert.ok(timed(text(32000)) < 40 * short, name);
  }
});

test("anything can be read, also when it is cut anywhere", () => {
  const parts = ["*", "**", "_", "`", "```", "\n", "\n\n", "    ", "  ", "- ", "1. ", "> ", "# ", "|", "|-|\n", "[", "](", ")",
    "https://x.example", "<", ">", "\\", "~~", "a", "b c", "é", "😀", "\u0000", "\t", "!"];
  let state = 7;
  const random = (below) => {
    state = (state * 1103515245 + 12345) % 2147483648;
    return Math.floor((state / 2147483648) * below);
  };
  for (let round = 0; round < 3000; round += 1) {
    const text = Array.from({ length: random(25) }, () => parts[random(parts.length)]).join("");
    const blocks = parse(text);
    const letters = (value) => (JSON.stringify(value).match(/é|😀/g) ?? []).length;
    assert.equal(letters(blocks.map(({ source, ...block }) => source)), letters([text]), JSON.stringify(text));
  }
});
