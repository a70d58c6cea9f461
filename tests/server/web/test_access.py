"""The page for everybody: keyboards, screen readers, phones, light and dark."""

from __future__ import annotations

import re

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from tests.server.web.conftest import Opening, SayingEngine, Tab
from tests.server.web.test_page import LONG, MARKDOWN, SLOW, answering, delta
from tokenmill.config import ServerConfig

PHONE = {"width": 360, "height": 640}
DESK = {"width": 1280, "height": 800}

RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}


def has_no_barriers(tab: Tab) -> None:
    """By the rules that a program can check, contrast among them."""
    found = Axe().run(tab.page, options=RULES)
    assert found.violations_count == 0, found.generate_report()


@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_barriers(tabs: Opening, engine: SayingEngine, scheme: str, size: dict[str, int]) -> None:
    engine.says = MARKDOWN
    # axe itself writes HTML, which the page's policy forbids.
    tab = tabs(color_scheme=scheme, viewport=size, bypass_csp=True)
    has_no_barriers(tab)
    tab.chat("Hi")
    tab.turn(1, "Retry")
    tab.wait()
    expect(tab.page.locator(".turn").nth(1)).to_contain_text("2 of 2")
    has_no_barriers(tab)
    tab.turn(0, "Edit")
    has_no_barriers(tab)
    tab.page.keyboard.press("Escape")
    tab.page.route("**/v1/chat/completions", answering([delta(reasoning="So."), delta("length")]))
    tab.chat("More")
    tab.page.click("summary")
    has_no_barriers(tab)
    tab.page.click("#show-panel")
    tab.page.get_by_label("Temperature", exact=True).fill("hot")
    expect(tab.page.locator("#figures dd").first).to_be_visible()
    has_no_barriers(tab)
    tab.page.get_by_label("Temperature", exact=True).fill("")
    tab.page.click("#show-panel")
    if size is PHONE:
        tab.page.click("#show-chats")
        has_no_barriers(tab)
        tab.page.click("#show-chats")
    tab.expected.append("Failed to load resource")
    tab.page.unroute("**/v1/chat/completions")
    engine.says = ""
    tab.ask("Again")
    expect(tab.page.locator("#notice")).to_contain_text("too long")
    has_no_barriers(tab)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_barriers_before_the_key(tabs: Opening, scheme: str) -> None:
    tab = tabs(ServerConfig(api_keys=("k",)), color_scheme=scheme, bypass_csp=True)
    tab.expected.append("Failed to load resource")
    expect(tab.page.get_by_role("dialog")).to_be_visible()
    has_no_barriers(tab)


def test_colours_follow_the_system(tabs: Opening) -> None:
    def brightness(scheme: str) -> int:
        colour = tabs(color_scheme=scheme).page.evaluate(
            "getComputedStyle(document.body).backgroundColor"
        )
        return sum(map(int, re.findall(r"\d+", colour)))

    assert brightness("light") > 600
    assert brightness("dark") < 150


@pytest.mark.parametrize("width", [320, 360, 768, 1280])
def test_nothing_is_wider_than_the_screen(tabs: Opening, engine: SayingEngine, width: int) -> None:
    wide = "| " + " | ".join(["a long head"] * 20) + " |\n" + "|-" * 20 + "|\n"
    engine.says = f"{MARKDOWN}\n{'x' * 500}\n\n```\n{'y' * 500}\n```\n\n{wide}"
    tab = tabs(viewport={"width": width, "height": 640})
    tab.chat("z" * 500)
    states = [(), ("#show-panel", "#show-panel"), ("#show-chats", "#show-chats")]
    for clicks in states:
        for place in ("document.documentElement", "document.querySelector('#messages')"):
            overflow = tab.page.evaluate(f"{place}.scrollWidth - {place}.clientWidth")
            assert overflow <= 0, (place, clicks)
        for click in clicks[:1]:
            tab.page.click(click)
            overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            assert tab.page.evaluate(overflow) <= 0
        for click in clicks[1:]:
            tab.page.click(click)


def test_on_phones_the_sides_lie_over_the_conversation(tabs: Opening) -> None:
    tab = tabs(viewport=PHONE)
    chats, panel = tab.page.locator("#chats"), tab.page.locator("#panel")
    expect(chats).to_be_hidden()
    assert tab.chat("Hi") == "Hello."
    tab.page.click("#show-chats")
    expect(chats).to_be_visible()
    expect(tab.page.locator("#show-chats")).to_have_attribute("aria-expanded", "true")
    assert tab.page.evaluate("document.querySelector('#messages').inert")
    tab.page.click("#show-panel")
    expect(chats).to_be_hidden()
    expect(panel).to_be_visible()
    tab.page.keyboard.press("Escape")
    expect(panel).to_be_hidden()
    expect(tab.page.locator("#show-panel")).to_be_focused()
    assert not tab.page.evaluate("document.querySelector('#messages').inert")
    tab.page.click("#show-chats")
    tab.page.get_by_role("button", name="New chat").click()
    expect(chats).to_be_hidden()
    expect(tab.page.locator("#prompt")).to_be_focused()


def test_a_window_that_changes_its_width(tabs: Opening) -> None:
    tab = tabs(viewport=PHONE)
    tab.page.click("#show-panel")
    tab.page.set_viewport_size(DESK)  # type: ignore[arg-type]
    expect(tab.page.locator("#chats")).to_be_visible()
    assert not tab.page.evaluate("document.querySelector('#messages').inert")
    assert tab.chat("Hi") == "Hello."


def focused(tab: Tab) -> str:
    """The name of what has the focus; what can't be seen to have it fails."""
    name, outline = tab.page.evaluate(
        "(e => [e.id || e.textContent, getComputedStyle(e).outlineStyle])(document.activeElement)"
    )
    assert outline != "none" or name == "", name
    return str(name)


def test_the_keyboard_reaches_everything_in_order(tab: Tab, engine: SayingEngine) -> None:
    engine.says = "```\ncode\n```"
    tab.chat("Hi")
    tab.page.click("#show-panel")
    tab.page.evaluate("document.activeElement.blur(); window.getSelection().empty()")
    tab.page.evaluate("document.body.tabIndex = -1; document.body.focus()")
    order = []
    for _ in range(30):
        tab.page.keyboard.press("Tab")
        order.append(focused(tab))
        if order[-1] == "change-key":
            break
    assert order == [
        *("Skip to the message field", "show-chats", "show-panel"),
        *("new-chat", "Hi", "Export", "Delete", "export-all", "import"),
        *("messages", "Copy", "Edit", "Retry", "Copy code", "code", "Copy", "Edit", "Retry"),
        *("prompt", "send", "title", "system"),
        *(
            f"setting-{name}"
            for name in ("temperature", "top_p", "top_k", "min_p", "max_tokens", "seed")
        ),
        "change-key",
    ]


def test_the_message_field_is_one_step_away(tab: Tab) -> None:
    tab.page.evaluate("document.body.tabIndex = -1; document.body.focus()")
    tab.page.keyboard.press("Tab")
    expect(tab.page.get_by_text("Skip to the message field")).to_be_in_viewport()
    tab.page.keyboard.press("Enter")
    expect(tab.page.locator("#prompt")).to_be_focused()


def test_screen_readers_hear_every_line_once(tabs: Opening, engine: SayingEngine) -> None:
    engine.says, engine.pace = "One **line**.\n\n- Another\n\nLast", SLOW
    tab = tabs()
    tab.page.evaluate(
        """() => {
            window.heard = [];
            const told = document.querySelector('#announcer');
            new MutationObserver((changes) => {
                const added = changes.flatMap((change) => [...change.addedNodes]);
                heard.push(...added.map((node) => node.textContent));
            }).observe(told, {childList: true, subtree: true, characterData: true});
        }"""
    )
    log = tab.page.get_by_role("log")
    expect(log).to_have_attribute("aria-live", "polite")
    tab.chat("Hi")
    heard = [re.sub(r"\s+", " ", text) for text in tab.page.evaluate("heard")]
    assert heard == ["One line .", "- Another", "Last", "End of the answer"]
    # Nothing else that grows is read out.
    assert (
        tab.page.locator("#turns").evaluate("e => e.closest('[aria-live], [role=log], [role=status]')")
        is None
    )


def test_stopping_is_told(tabs: Opening, engine: SayingEngine) -> None:
    engine.says, engine.pace = LONG, SLOW
    tab = tabs()
    tab.ask("Hi")
    expect(tab.page.locator(".turn.assistant > .said")).to_have_text(re.compile("word"))
    tab.page.keyboard.press("Escape")
    tab.wait()
    expect(tab.page.get_by_role("log")).to_have_text(re.compile("Stopped$"))


def test_names_and_places(tab: Tab) -> None:
    tab.chat("Hi")
    for role in ("banner", "navigation", "main", "complementary"):
        if role == "complementary":
            tab.page.click("#show-panel")
        expect(tab.page.get_by_role(role)).to_be_visible()
    expect(tab.page.get_by_role("textbox", name="Message", exact=True)).to_be_visible()
    assert tab.page.locator("html").get_attribute("lang") == "en"
    headings = tab.page.locator("h1, h2, h3").evaluate_all("all => all.map(e => e.localName)")
    assert headings[:4] == ["h1", "h2", "h3", "h3"]
