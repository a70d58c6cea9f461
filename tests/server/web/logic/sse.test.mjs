import assert from "node:assert/strict";
import { test } from "node:test";

import { EventReader, eventsOf } from "../../../../tokenmill/server/web/page/sse.js";

const read = (...pieces) => {
  const reader = new EventReader();
  return pieces.flatMap((piece) => reader.feed(piece));
};

const cases = [
  [["data: a\n\n"], ["a"]],
  [["data: a\n\ndata: b\n\n"], ["a", "b"]],
  [["data:a\n\n"], ["a"]],
  [["data:  a\n\n"], [" a"]],
  [["data: a\ndata: b\n\n"], ["a\nb"]],
  [["data\n\n"], [""]],
  [["data: a\r\n\r\ndata: b\r\rdata: c\n\n"], ["a", "b", "c"]],
  [[": comment\n\n"], []],
  [["event: x\nid: 1\nretry: 5\ndata: a\n\n"], ["a"]],
  [["\n\n\n"], []],
  [["database: a\n\n"], []],
  [["\uFEFFdata: a\n\n"], ["a"]],
  [["data: not complete"], []],
  [["data: not complete\n"], []],
];

for (const [pieces, expected] of cases) {
  test(`reads ${JSON.stringify(pieces)}`, () => assert.deepEqual(read(...pieces), expected));
  test(`reads ${JSON.stringify(pieces)} letter by letter`, () => assert.deepEqual(read(...pieces.join("")), expected));
}

test("characters may be cut between bytes", async () => {
  const bytes = new TextEncoder().encode("data: é😀\n\ndata: b\n\n");
  const stream = new ReadableStream({
    start(controller) {
      for (const byte of bytes) controller.enqueue(new Uint8Array([byte]));
      controller.close();
    },
  });
  const found = [];
  for await (const data of eventsOf(stream)) found.push(data);
  assert.deepEqual(found, ["é😀", "b"]);
});

test("leaving early cancels the stream", async () => {
  let cancelled = false;
  const stream = new ReadableStream({
    pull: (controller) => controller.enqueue(new TextEncoder().encode("data: a\n\n")),
    cancel: () => {
      cancelled = true;
    },
  });
  for await (const data of eventsOf(stream)) {
    assert.equal(data, "a");
    break;
  }
  assert.ok(cancelled);
});
