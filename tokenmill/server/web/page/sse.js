// Server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html), read from pieces
// that may be cut anywhere. Only their data is of interest here.

export class EventReader {
  constructor() {
    this.rest = "";
    this.data = [];
    this.begun = false;
  }

  // The data of the events that this piece of text completes.
  feed(piece) {
    let text = this.rest + piece;
    if (!this.begun && text !== "") {
      this.begun = true;
      if (text.startsWith("\uFEFF")) text = text.slice(1);
    }
    const found = [];
    let from = 0;
    for (;;) {
      let end = from;
      while (end < text.length && text[end] !== "\n" && text[end] !== "\r") end += 1;
      // A "\r" at the end of a piece may be the first half of a line end.
      if (end === text.length || (text[end] === "\r" && end + 1 === text.length)) break;
      this.line(text.slice(from, end), found);
      from = end + (text[end] === "\r" && text[end + 1] === "\n" ? 2 : 1);
    }
    this.rest = text.slice(from);
    return found;
  }

  line(line, found) {
    if (line === "") {
      if (this.data.length > 0) found.push(this.data.join("\n"));
      this.data = [];
    } else if (line === "data" || line.startsWith("data:")) {
      this.data.push(line.slice(5).replace(/^ /, ""));
    }
  }
}

// The data of the events of a stream of bytes.
export async function* eventsOf(stream) {
  const reader = stream.getReader();
  const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  const events = new EventReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield* events.feed(decoder.decode(value, { stream: true }));
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
