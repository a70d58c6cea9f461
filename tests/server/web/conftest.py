from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page

from tests.server.conftest import running
from tests.server.fake_engine import Asked, FakeEngine
from tests.server.web.browser import browsing
from tokenmill.config import ServerConfig
from tokenmill.engine.outputs import CompletionOutput, RequestMetrics, RequestOutput
from tokenmill.engine.sampling_params import RequestOutputKind, SamplingParams
from tokenmill.errors import EngineDeadError, RequestError


@dataclass
class SayingEngine(FakeEngine):
    """Answers with ``says``, a token for each character, and a pause of ``pace`` before each.

    It fails where ``says`` has a NUL, and refuses to say nothing.
    """

    says: str = "Hello."

    async def generate(
        self,
        prompt: Any,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> AsyncIterator[RequestOutput]:
        params = sampling_params or self.default_sampling_params
        call = Asked(prompt, params, request_id, priority, cache_salt)
        self.asked.append(call)
        if self.says == "":
            raise RequestError("the prompt is too long")
        text = self.says[: params.max_tokens]
        try:
            for at, letter in enumerate(text):
                await asyncio.sleep(self.pace)
                if letter == "\0":
                    raise EngineDeadError("the engine stopped")
                yield _output(letter, finished=at == len(text) - 1, delta=params.output_kind)
            call.ended = "finished"
        finally:
            call.ended = call.ended or "dropped"


def _output(letter: str, *, finished: bool, delta: RequestOutputKind) -> RequestOutput:
    assert delta is RequestOutputKind.DELTA
    part = CompletionOutput(
        index=0, text=letter, token_ids=[ord(letter)], finish_reason="stop" if finished else None
    )
    return RequestOutput(
        request_id="",
        prompt=None,
        prompt_token_ids=list(range(10)),
        outputs=[part],
        finished=finished,
        num_cached_tokens=4,
        metrics=RequestMetrics(0.0),
    )


@pytest.fixture
def engine() -> SayingEngine:
    return SayingEngine()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    # Not longer than a module: while Playwright runs, other tests could not use asyncio.run.
    with browsing() as found:
        yield found


@dataclass
class Tab:
    """A page in the browser.

    problems: what must not happen in it, but for what has a text of ``expected`` in it.
    """

    page: Page
    address: str
    expected: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def watch(self) -> None:
        host = urlsplit(self.address).netloc
        page = self.page

        def asked(url: str) -> None:
            if urlsplit(url).netloc != host and not url.startswith("blob:"):
                self.problems.append(f"asked another server: {url}")

        page.on("request", lambda request: asked(request.url))
        page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        page.on("dialog", lambda dialog: self.problems.append(f"dialog: {dialog.message}"))
        page.on(
            "console",
            lambda message: (
                self.problems.append(message.text) if message.type in ("error", "warning") else None
            ),
        )

    def check(self) -> None:
        left = [p for p in self.problems if not any(text in p for text in self.expected)]
        assert not left

    def open(self, place: str = "") -> Tab:
        self.page.goto(f"{self.address}/{place}")
        return self

    def ask(self, text: str) -> None:
        """Say something, and don't wait for the answer."""
        self.page.fill("#prompt", text)
        self.page.keyboard.press("Enter")

    def chat(self, text: str) -> str:
        """Say something; the answer."""
        self.ask(text)
        self.wait()
        return self.answers()[-1]

    def wait(self) -> None:
        """Until no answer is being made."""
        self.page.wait_for_selector("#send:visible")

    def answers(self) -> list[str]:
        return self.page.locator(".turn.assistant > .said").all_inner_texts()

    def questions(self) -> list[str]:
        return self.page.locator(".turn.user > .said").all_inner_texts()

    def turn(self, number: int, name: str) -> None:
        """Click a button of a message."""
        self.page.locator(".turn").nth(number).get_by_role("button", name=name, exact=True).click()


Opening = Callable[..., Tab]


@pytest.fixture
def tabs(browser: Browser, engine: SayingEngine) -> Iterator[Opening]:
    """Opens the page of a server with ``engine``: tabs(config=..., **how the browser is)."""
    with ExitStack() as stack:
        made: list[Tab] = []

        def open_tab(
            config: ServerConfig | None = None,
            prepare: Callable[[Page], None] | None = None,
            **context: Any,
        ) -> Tab:
            address = stack.enter_context(running(engine, config))
            tab = stack.enter_context(opened(browser, address, **context))
            made.append(tab)
            if prepare is not None:
                prepare(tab.page)
            return tab.open()

        yield open_tab
        for tab in made:
            tab.check()


@contextmanager
def opened(browser: Browser, address: str, **options: Any) -> Iterator[Tab]:
    """A tab of its own for a server that is there. Nothing is checked at its end."""
    context = browser.new_context(**options)
    context.set_default_timeout(15_000)
    try:
        tab = Tab(context.new_page(), address)
        tab.watch()
        yield tab
    finally:
        context.close()


@pytest.fixture
def tab(tabs: Opening) -> Tab:
    return tabs()
