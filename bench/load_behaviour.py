"""What the clients of the load test do, and whether the server gives the answer that was asked for."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from http_client import Address, Reply, encode, send

CHAT = "/v1/chat/completions"

WORDS = [
    "river", "stone", "window", "lantern", "quiet", "market", "copper", "bridge", "winter", "garden",
    "letter", "engine", "harbour", "paper", "mountain", "silver", "question", "answer", "morning",
    "shadow", "train", "orchard", "signal", "story", "measure", "corner", "voice",
]  # fmt: skip

INSTRUCTIONS = "You answer in a few short sentences. " + " ".join(WORDS * 6)
"""Begins half of the conversations, so that the prefix cache has something to find."""

OVERSIZED_WORDS = 60_000
OVERSIZED_BYTES = 17 << 20
SLOW_BUFFER_BYTES = 2048


@dataclass
class Outcome:
    """How one request went.

    asked_for: whether the answer was what such a request must get. what: in a few words. ttft_s,
    gaps_s: to the first piece of text, and between pieces, of streams that ran freely.
    """

    kind: str
    asked_for: bool
    what: str
    seconds: float = 0.0
    pieces: int = 0
    ttft_s: float | None = None
    gaps_s: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Wrong:
    """A request that must be refused."""

    what: str
    body: bytes
    statuses: frozenset[int]
    method: str = "POST"
    path: str = CHAT


class Unasked(Exception):
    """The server did something that it was not asked to."""


class Asker:
    """One client's requests, drawn from its own generator of random numbers."""

    def __init__(self, address: Address, model: str, rng: random.Random) -> None:
        self._address = address
        self._model = model
        self._rng = rng

    async def once(self) -> Outcome:
        """One request of a random kind. Whatever goes wrong is in the outcome."""
        kind = self._rng.choices(list(KINDS), [weight for weight, _ in KINDS.values()])[0]
        outcome = Outcome(kind, True, "")
        started = time.perf_counter()
        try:
            await KINDS[kind][1](self, outcome)
        except Unasked as error:
            outcome.asked_for, outcome.what = False, str(error)
        except (OSError, EOFError, ValueError) as error:
            outcome.asked_for, outcome.what = False, f"{type(error).__name__}: {error}"
        outcome.seconds = time.perf_counter() - started
        return outcome

    async def stream(self, outcome: Outcome) -> None:
        """Reads an answer as it comes."""
        started = last = time.perf_counter()
        async with send(self._address, "POST", CHAT, encode(self._chat())) as reply:
            async for _ in texts(reply):
                now = time.perf_counter()
                if outcome.ttft_s is None:
                    outcome.ttft_s = now - started
                else:
                    outcome.gaps_s.append(now - last)
                last = now
                outcome.pieces += 1
        outcome.what = "200, whole"

    async def abort(self, outcome: Outcome) -> None:
        """Leaves somewhere in the middle, now and then before anything came."""
        wanted = self._rng.choice((0, 1, 1, 3, 10))
        async with send(self._address, "POST", CHAT, encode(self._chat())) as reply:
            if wanted:
                async for _ in texts(reply):
                    outcome.pieces += 1
                    if outcome.pieces == wanted:
                        break
        outcome.what = "left"

    async def impatient(self, outcome: Outcome) -> None:
        """Leaves before the head of the answer is there, streaming or not."""
        body = self._chat() | {"stream": self._rng.random() < 0.5}
        try:
            async with asyncio.timeout(self._rng.uniform(0.0, 0.5)):
                async with send(self._address, "POST", CHAT, encode(body)) as reply:
                    await reply.body()
        except TimeoutError:
            outcome.what = "left"
            return
        outcome.what = "200, whole"

    async def slow(self, outcome: Outcome) -> None:
        """Takes its time over every piece, with little room for what it has not read."""
        body = encode(self._chat())
        async with send(self._address, "POST", CHAT, body, receive_buffer=SLOW_BUFFER_BYTES) as reply:
            async for _ in texts(reply):
                outcome.pieces += 1
                await asyncio.sleep(self._rng.uniform(0.0, 0.25))
        outcome.what = "200, whole"

    async def malformed(self, outcome: Outcome) -> None:
        """Sends what no server should take."""
        wrong = self._rng.choice(self._wrongs())
        await self._refused(outcome, wrong)

    async def oversized_prompt(self, outcome: Outcome) -> None:
        """Sends more text than any context holds."""
        body = self._chat() | {"messages": [{"role": "user", "content": "word " * OVERSIZED_WORDS}]}
        await self._refused(outcome, Wrong("prompt", encode(body), frozenset({400})))

    async def oversized_body(self, outcome: Outcome) -> None:
        """Sends a body that a server should not even read."""
        wrong = Wrong("body", b" " * OVERSIZED_BYTES, frozenset({413}))
        await self._refused(outcome, wrong)

    async def _refused(self, outcome: Outcome, wrong: Wrong) -> None:
        async with send(self._address, wrong.method, wrong.path, wrong.body) as reply:
            content = await reply.body()
        outcome.what = f"{reply.status}, {wrong.what}"
        if reply.status not in wrong.statuses:
            raise Unasked(outcome.what)
        if not _is_error(content):
            raise Unasked(f"{outcome.what}, without an error object: {content[:200]!r}")

    def _wrongs(self) -> list[Wrong]:
        good, bad = self._chat(), frozenset({400})
        return [
            Wrong("broken JSON", encode(good)[:-5], bad),
            Wrong("no JSON", b"\xff\xfe\x00 hello", bad),
            Wrong("not an object", b"[1, 2, 3]", bad),
            Wrong("nested deeply", b"[" * 100_000, bad),
            Wrong("no messages", encode({"model": self._model}), bad),
            Wrong("a wrong type", encode(good | {"max_tokens": "many"}), bad),
            Wrong("out of range", encode(good | {"temperature": -1}), bad),
            Wrong("not a message", encode(good | {"messages": [1]}), bad),
            Wrong("another model", encode(good | {"model": "nobody"}), frozenset({404})),
            Wrong("a wrong method", b"{}", frozenset({405}), method="PUT"),
            Wrong("an unknown path", b"{}", frozenset({404}), path="/v1/nothing"),
        ]

    def _chat(self) -> dict[str, Any]:
        rng = self._rng
        words = " ".join(rng.choices(WORDS, k=rng.randint(5, 150)))
        messages = [{"role": "user", "content": f"Write about these words: {words}"}]
        if rng.random() < 0.5:
            messages.insert(0, {"role": "system", "content": INSTRUCTIONS})
        return {
            "model": self._model,
            "messages": messages,
            "max_tokens": rng.randint(8, 96),
            "temperature": rng.choice((0.0, 0.7, 1.0)),
            "seed": rng.randrange(1 << 30),
            "stream": True,
        }


KINDS: Mapping[str, tuple[int, Callable[[Asker, Outcome], Awaitable[None]]]] = {
    "stream": (55, Asker.stream),
    "slow": (10, Asker.slow),
    "abort": (12, Asker.abort),
    "impatient": (5, Asker.impatient),
    "malformed": (12, Asker.malformed),
    "oversized_prompt": (4, Asker.oversized_prompt),
    "oversized_body": (2, Asker.oversized_body),
}
"""Kinds of requests, and how often each is drawn."""


async def texts(reply: Reply) -> AsyncIterator[str]:
    """The pieces of text of a chat stream. Raises Unasked unless it is a whole, well-formed one."""
    if reply.status != 200:
        raise Unasked(f"{reply.status}: {(await reply.body())[:200]!r}")
    finished = False
    async for data in reply.events():
        if data == "[DONE]":
            if not finished:
                raise Unasked("the stream ended without a reason")
            return
        event = json.loads(data)
        if "error" in event:
            raise Unasked(f"an error in the stream: {event['error']}")
        for choice in event["choices"]:
            if choice["delta"].get("content"):
                yield choice["delta"]["content"]
            finished = finished or choice["finish_reason"] in ("stop", "length")
    raise Unasked("the stream ended without [DONE]")


def _is_error(content: bytes) -> bool:
    try:
        return set(json.loads(content)["error"]) >= {"message", "type", "code"}
    except (ValueError, KeyError, TypeError):
        return False
