"""The page in a real browser, before a real server whose engine says what it is told."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.server.web.conftest import Opening, SayingEngine, Tab, opened
from tokenmill.config import ServerConfig
from tokenmill.engine.outputs import EngineStats

REFUSED = "Failed to load resource"
"""What the browser's console says of every status that is an error."""

SLOW = 0.02
"""Seconds between tokens, for tests that do something meanwhile."""

LONG = "word " * 2000


# Asking and answering


def test_an_answer_streams_in(tabs: Opening, engine: SayingEngine) -> None:
    engine.says, engine.pace = "Hello there.", SLOW
    tab = tabs()
    tab.ask("Hi")
    answer = tab.page.locator(".turn.assistant > .said")
    expect(answer).to_have_text(re.compile("^Hel"))
    assert answer.inner_text() != "Hello there."
    tab.wait()
    assert tab.questions() == ["Hi"]
    assert tab.answers() == ["Hello there."]
    figures = tab.page.locator(".turn.assistant .figures").inner_text()
    assert re.fullmatch(
        r"12 tokens · \d+\.\d tokens/s · first token after \d+\.\d\d s · "
        r"4 of 10 prompt tokens from the cache",
        figures,
    )
    expect(tab.page.locator("#model")).to_have_text("fake · 22 of 1,000 tokens")
    expect(tab.page.locator("#prompt")).to_be_focused()
    expect(tab.page.locator("#prompt")).to_have_value("")


def test_the_speed_is_shown_while_it_goes(tabs: Opening, engine: SayingEngine) -> None:
    engine.says, engine.pace = LONG, SLOW
    tab = tabs()
    tab.ask("Hi")
    expect(tab.page.locator(".figures")).to_have_text(re.compile(r"^\d+ tokens · \d+\.\d tokens/s"))
    tab.page.click("#stop")
    tab.wait()


def test_the_model_sees_the_conversation(tab: Tab) -> None:
    tab.chat("One")
    with tab.page.expect_request("**/v1/chat/completions") as asked:
        tab.ask("Two")
    assert asked.value.post_data_json == {
        "model": "fake",
        "messages": [
            {"role": "user", "content": "One"},
            {"role": "assistant", "content": "Hello."},
            {"role": "user", "content": "Two"},
        ],
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    tab.wait()


def test_shift_enter_begins_a_line(tab: Tab, engine: SayingEngine) -> None:
    prompt = tab.page.locator("#prompt")
    height = prompt.bounding_box()
    prompt.type("one")
    tab.page.keyboard.press("Shift+Enter")
    prompt.type("two")
    assert prompt.input_value() == "one\ntwo"
    grown = prompt.bounding_box()
    assert height is not None
    assert grown is not None
    assert grown["height"] > height["height"]
    assert engine.asked == []
    tab.page.keyboard.press("Enter")
    tab.wait()
    assert tab.questions() == ["one\ntwo"]


@pytest.mark.parametrize("text", ["", "  \n "])
def test_nothing_is_not_sent(tab: Tab, engine: SayingEngine, text: str) -> None:
    tab.ask(text)
    tab.page.click("#send")
    assert engine.asked == []
    assert tab.page.locator(".turn").count() == 0


def test_questions_are_shown_as_they_were_written(tab: Tab) -> None:
    text = "<b>x</b> **y**\n  z <img src=x onerror=alert(1)>"
    tab.chat(text)
    assert tab.questions() == [text]
    assert tab.page.locator(".turn.user .said").evaluate("e => e.children.length") == 0


# Stopping


@pytest.mark.parametrize("how", ["Escape", "button"])
def test_stopping_keeps_what_there_is(tabs: Opening, engine: SayingEngine, how: str) -> None:
    engine.says, engine.pace = LONG, SLOW
    tab = tabs()
    tab.ask("Hi")
    expect(tab.page.locator(".turn.assistant > .said")).to_have_text(re.compile("word"))
    expect(tab.page.locator("#send")).to_be_hidden()
    if how == "Escape":
        tab.page.keyboard.press("Escape")
    else:
        tab.page.click("#stop")
    tab.wait()
    assert tab.answers()[0].startswith("word")
    expect(tab.page.locator(".turn .end")).to_have_text("Stopped.")
    expect(tab.page.locator("#notice")).to_be_empty()
    tab.page.wait_for_timeout(200)
    assert engine.asked[0].ended == "dropped"
    engine.says = "More."
    assert tab.chat("Go on") == "More."


def test_an_answer_stopped_before_it_began_leaves_nothing(tabs: Opening, engine: SayingEngine) -> None:
    engine.pace = 60
    tab = tabs()
    tab.ask("Hi")
    expect(tab.page.locator("#stop")).to_be_visible()
    tab.page.keyboard.press("Escape")
    tab.wait()
    assert tab.questions() == ["Hi"]
    assert tab.answers() == []


# Editing and retrying


def test_retrying_makes_another_version(tab: Tab, engine: SayingEngine) -> None:
    tab.chat("Hi")
    engine.says = "Other."
    tab.turn(1, "Retry")
    expect(tab.page.locator(".turn.assistant > .said")).to_have_text("Other.")
    tab.wait()
    expect(tab.page.locator(".turn").nth(1)).to_contain_text("2 of 2")
    tab.turn(1, "Earlier version")
    assert tab.answers() == ["Hello."]
    expect(tab.page.get_by_role("button", name="Earlier version")).to_be_disabled()
    tab.turn(1, "Later version")
    assert tab.answers() == ["Other."]


def test_a_question_can_be_asked_again(tab: Tab, engine: SayingEngine) -> None:
    tab.chat("Hi")
    tab.chat("More")
    engine.says = "Anew."
    tab.turn(0, "Retry")
    expect(tab.page.locator(".turn.assistant > .said")).to_have_text(["Anew."])
    tab.wait()
    assert tab.questions() == ["Hi"]
    tab.turn(1, "Earlier version")
    assert tab.questions() == ["Hi", "More"]


def test_a_question_can_be_put_in_other_words(tab: Tab, engine: SayingEngine) -> None:
    tab.chat("Hi")
    tab.chat("More")
    tab.turn(0, "Edit")
    editor = tab.page.get_by_label("Your message")
    expect(editor).to_be_focused()
    expect(editor).to_have_value("Hi")
    editor.fill("Good morning")
    with tab.page.expect_request("**/v1/chat/completions") as asked:
        tab.page.keyboard.press("Enter")
    assert asked.value.post_data_json["messages"] == [{"role": "user", "content": "Good morning"}]
    tab.wait()
    assert tab.questions() == ["Good morning"]
    tab.turn(0, "Earlier version")
    assert tab.questions() == ["Hi", "More"]


def test_an_answer_can_be_corrected(tab: Tab) -> None:
    tab.chat("Hi")
    tab.turn(1, "Edit")
    editor = tab.page.get_by_label("The answer's text")
    editor.fill("**Corrected**")
    tab.page.get_by_role("button", name="Save").click()
    assert tab.answers() == ["Corrected"]
    with tab.page.expect_request("**/v1/chat/completions") as asked:
        tab.ask("More")
    assert asked.value.post_data_json["messages"][1]["content"] == "**Corrected**"
    tab.wait()


def test_escape_leaves_an_edit(tab: Tab) -> None:
    tab.chat("Hi")
    tab.turn(0, "Edit")
    tab.page.get_by_label("Your message").fill("Other")
    tab.page.keyboard.press("Escape")
    assert tab.questions() == ["Hi"]
    expect(tab.page.locator(".turn textarea")).to_have_count(0)


def test_nothing_can_be_changed_while_an_answer_is_made(tabs: Opening, engine: SayingEngine) -> None:
    tab = tabs()
    tab.chat("Hi")
    engine.says, engine.pace = LONG, SLOW
    tab.ask("More")
    expect(tab.page.locator(".turn").nth(3)).to_contain_text("word")
    for name in ("Edit", "Retry"):
        for button in tab.page.get_by_role("button", name=name, exact=True).all():
            expect(button).to_be_disabled()
    tab.page.keyboard.press("Escape")
    tab.wait()


# What answers look like


MARKDOWN = """\
# Heading

A *word*, **another**, `code`, [a link](https://x.example/a) and ~~no more~~.

1. one
   - inner
2. two

> quoted

| left | right |
|------|------:|
| a    | 1     |

```python
print("<b>")
```

- [x] done
---
"""


def test_markdown_is_drawn(tab: Tab, engine: SayingEngine) -> None:
    engine.says = MARKDOWN
    tab.chat("Hi")
    said = tab.page.locator(".turn.assistant > .said")
    for selector, text in {
        "h3": "Heading",
        "p > em": "word",
        "p > strong": "another",
        "p > code": "code",
        "del": "no more",
        "ol > li:nth-child(1) ul > li": "inner",
        "ol > li:nth-child(2)": "two",
        "blockquote": "quoted",
        "thead th.align-end": "right",
        "tbody td.align-end": "1",
        "pre code": 'print("<b>")',
        ".code-head span": "python",
        "li.task": "done",
    }.items():
        expect(said.locator(selector)).to_have_text(text)
    expect(said.locator("hr")).to_have_count(1)
    expect(said.locator("li.task input")).to_be_checked()
    link = said.locator("a")
    expect(link).to_have_attribute("href", "https://x.example/a")
    expect(link).to_have_attribute("rel", "noopener noreferrer nofollow")
    expect(link).to_have_attribute("target", "_blank")


HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg onload=alert(1)><iframe srcdoc='<script>alert(1)</script>'>",
    "[a](javascript:alert(1)) <javascript:alert(1)> [a](JAVASCRIPT:alert(1))",
    "[a](data:text/html,<script>alert(1)</script>)",
    "![a](https://tracker.example/?q=secret)",
    '[a](https://x.example/"onmouseover="alert(1))',
    "`<script>alert(1)</script>`",
    '```"><script>alert(1)</script>\n</code></pre><script>alert(1)</script>\n```',
    "| <img src=x onerror=alert(1)> |\n|---|\n| </table><script>alert(1)</script> |",
    "# <style>*{display:none}</style>",
    "> <form action=https://x.example><input name=a autofocus onfocus=alert(1)>",
    "<base href=https://x.example><meta http-equiv=refresh content='0;url=https://x.example'>",
    "<a href=javascript:alert(1)>x</a> &lt;b&gt; &#x6a;",
]

ALLOWED_TAGS = {
    *("p", "br", "hr", "h3", "h4", "h5", "h6", "em", "strong", "del", "code", "pre", "ul", "ol", "li"),
    *("blockquote", "a", "table", "thead", "tbody", "tr", "th", "td", "div", "span", "button", "input"),
}


@pytest.mark.parametrize("text", HOSTILE)
def test_answers_can_do_nothing(tab: Tab, engine: SayingEngine, text: str) -> None:
    engine.says = f"{text}\n\nend"
    tab.page.evaluate("void (window.alert = () => console.error('a script of an answer ran'))")
    said = tab.chat("Hi")
    tab.turn(0, "Edit")
    tab.page.keyboard.press("Escape")
    assert said.endswith("end")
    found: list[list[Any]] = tab.page.locator(".turn.assistant > .said *").evaluate_all(
        "all => all.map(e => [e.localName, e.getAttributeNames(), e.getAttribute('href')])"
    )
    for tag, attributes, href in found:
        assert tag in ALLOWED_TAGS
        assert not any(name.startswith("on") or name in ("src", "style") for name in attributes)
        assert href is None or href.startswith("https://")
    # Also as a title and as thoughts, in a file that somebody made, and after loading the page again.
    file = {
        "format": "tokenmill-conversations",
        "version": 1,
        "conversations": [
            {
                "title": text,
                "messages": [
                    {"id": "a", "parent": None, "role": "user", "content": text},
                    {
                        "id": "b",
                        "parent": "a",
                        "role": "assistant",
                        "content": text,
                        "reasoning": text,
                        "end": text,
                    },
                ],
            }
        ],
    }
    import_text(tab, json.dumps(file))
    expect(tab.page.locator("#notice")).to_contain_text("Imported one chat.")
    tab.page.reload()
    expect(tab.page.locator(".thoughts")).to_be_visible()
    assert tab.page.locator("script:not([src]), iframe, img, form:not([id]), base").count() == 0


def test_drawn_blocks_stay_while_an_answer_grows(tabs: Opening, engine: SayingEngine) -> None:
    engine.says, engine.pace = "first\n\n" + LONG, SLOW
    tab = tabs()
    tab.ask("Hi")
    expect(tab.page.locator(".said p")).to_have_count(2)
    tab.page.evaluate("document.querySelector('.turn.assistant .said p').mark = 1")
    before = tab.answers()[0]
    expect(tab.page.locator(".turn.assistant > .said")).not_to_have_text(before)
    assert tab.page.evaluate("document.querySelector('.turn.assistant .said p').mark") == 1
    tab.page.keyboard.press("Escape")
    tab.wait()


def answering(pieces: list[dict[str, Any]]) -> Any:
    """Stands in for the server's chat."""

    def answer(route: Route) -> None:
        events = [f"data: {json.dumps(piece)}\n\n" for piece in pieces]
        body = "".join([*events, "data: [DONE]\n\n"])
        route.fulfill(status=200, headers={"content-type": "text/event-stream"}, body=body)

    return answer


def delta(finish: str | None = None, **values: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": values, "finish_reason": finish}]}


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_thoughts_are_folded(tab: Tab, name: str) -> None:
    pieces = [
        delta(**{name: "I *think*"}),
        delta(**{name: " so."}),
        delta(content="Yes."),
        delta("stop"),
    ]
    tab.page.route("**/v1/chat/completions", answering(pieces))
    assert tab.chat("Hi") == "Yes."
    thoughts = tab.page.locator("details.thoughts")
    expect(thoughts.locator("summary")).to_have_text("Thoughts")
    expect(thoughts.locator("em")).to_be_hidden()
    thoughts.locator("summary").click()
    expect(thoughts.locator(".said")).to_have_text("I think so.")
    with tab.page.expect_request("**/v1/chat/completions") as asked:
        tab.ask("More")
    assert asked.value.post_data_json["messages"][1] == {"role": "assistant", "content": "Yes."}


def test_an_answer_that_was_cut_off_says_so(tab: Tab) -> None:
    tab.page.route("**/v1/chat/completions", answering([delta(content="Ye"), delta("length")]))
    tab.chat("Hi")
    expect(tab.page.locator(".turn .end")).to_have_text("The answer was cut off at its longest length.")


def test_copying(tabs: Opening, engine: SayingEngine) -> None:
    engine.says = MARKDOWN
    tab = tabs(permissions=["clipboard-read", "clipboard-write"])
    tab.chat("Hi")
    copied = "navigator.clipboard.readText()"
    tab.page.get_by_role("button", name="Copy code").click()
    expect(tab.page.get_by_role("button", name="Copied")).to_be_visible()
    assert tab.page.evaluate(copied) == 'print("<b>")'
    tab.turn(1, "Copy")
    expect(tab.page.get_by_role("button", name="Copied")).to_have_count(2)
    assert tab.page.evaluate(copied) == MARKDOWN


def test_copying_where_the_clipboard_is_kept_away(tabs: Opening) -> None:
    def without(page: Page) -> None:
        page.add_init_script("Object.defineProperty(navigator, 'clipboard', {value: undefined})")

    tab = tabs(prepare=without)
    tab.chat("Hi")
    tab.turn(1, "Copy")
    expect(tab.page.get_by_role("button", name="Copied")).to_be_visible()
    tab.page.locator("#prompt").press("Control+v")
    expect(tab.page.locator("#prompt")).to_have_value("Hello.")


def test_the_end_stays_in_sight_unless_one_reads_above(tabs: Opening, engine: SayingEngine) -> None:
    engine.says, engine.pace = "line\n\n" * 300, 0.005
    tab = tabs()
    tab.ask("Hi")
    below = "document.querySelector('#messages').scrollTop"
    expect(tab.page.locator(".turn.assistant p").nth(60)).to_be_in_viewport()
    assert tab.page.evaluate(below) > 300
    expect(tab.page.locator("#to-end")).to_be_hidden()
    tab.page.locator("#messages").evaluate("e => e.scrollTop = 0")
    expect(tab.page.locator("#to-end")).to_be_visible()
    words = tab.answers()[0]
    expect(tab.page.locator(".turn.assistant > .said")).not_to_have_text(words)
    assert tab.page.evaluate(below) == 0
    tab.page.click("#to-end")
    assert tab.page.evaluate(below) > 300
    expect(tab.page.locator("#to-end")).to_be_hidden()
    tab.page.keyboard.press("Escape")
    tab.wait()


# Settings


def test_settings_reach_the_engine(tab: Tab, engine: SayingEngine) -> None:
    tab.page.click("#show-panel")
    values = {
        "System prompt": "Be brief.",
        "Temperature": "0.5",
        "Top p": "0.9",
        "Top k": "40",
        "Min p": "0.05",
        "Longest answer": "3",
        "Seed": "7",
    }
    for label, value in values.items():
        tab.page.get_by_label(label, exact=True).fill(value)
    with tab.page.expect_request("**/v1/chat/completions") as asked:
        assert tab.chat("Hi") == "Hel"
    assert asked.value.post_data_json["messages"][0] == {"role": "system", "content": "Be brief."}
    params = engine.asked[0].params
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.5, 0.9, 40, 0.05)
    assert (params.max_tokens, params.seed) == (3, 7)
    # A new chat begins with them, the old one keeps its own.
    tab.page.click("#new-chat")
    expect(tab.page.get_by_label("Seed", exact=True)).to_have_value("7")
    tab.page.get_by_label("Seed", exact=True).fill("8")
    tab.page.get_by_role("button", name="Hi", exact=True).click()
    expect(tab.page.get_by_label("Seed", exact=True)).to_have_value("7")
    tab.page.reload()
    tab.page.click("#new-chat")
    tab.page.click("#show-panel")
    expect(tab.page.get_by_label("Seed", exact=True)).to_have_value("8")
    expect(tab.page.get_by_label("System prompt")).to_have_value("Be brief.")


def test_a_wrong_setting_is_told_and_not_sent(tab: Tab, engine: SayingEngine) -> None:
    tab.page.click("#show-panel")
    field = tab.page.get_by_label("Temperature", exact=True)
    field.fill("hot")
    expect(field).to_have_attribute("aria-invalid", "true")
    expect(tab.page.get_by_text("Temperature must be a number.")).to_be_visible()
    tab.page.fill("#prompt", "Hi")
    tab.page.click("#send")
    expect(tab.page.locator("#notice")).to_contain_text("A setting is wrong")
    expect(tab.page.locator("#prompt")).to_have_value("Hi")
    assert engine.asked == []
    field.fill("")
    expect(field).to_have_attribute("aria-invalid", "false")
    tab.page.click("#send")
    tab.wait()
    assert tab.answers() == ["Hello."]


# Keys


def test_a_key_is_asked_for_and_kept_in_the_tab(tabs: Opening, engine: SayingEngine) -> None:
    tab = tabs(ServerConfig(api_keys=("right",)))
    tab.expected.append(REFUSED)
    dialog = tab.page.get_by_role("dialog")
    expect(dialog).to_contain_text("This server needs an API key")
    expect(tab.page.locator("#key")).to_be_focused()
    tab.page.keyboard.type("wrong")
    tab.page.keyboard.press("Enter")
    expect(dialog).to_contain_text("This API key is not valid here.")
    tab.page.locator("#key").fill("schlüssel")
    tab.page.keyboard.press("Enter")
    expect(dialog).to_contain_text("ASCII")
    tab.page.locator("#key").fill("right")
    tab.page.keyboard.press("Enter")
    expect(dialog).to_be_hidden()
    expect(tab.page.locator("#model")).to_have_text("fake · 1,000 tokens")
    assert tab.chat("Hi") == "Hello."
    stored = tab.page.evaluate("[JSON.stringify(localStorage), JSON.stringify(sessionStorage)]")
    assert "right" not in stored[0]
    assert "right" in stored[1]
    tab.page.reload()
    assert tab.chat("More") == "Hello."


def test_a_late_refusal_of_a_former_key_asks_for_nothing(tabs: Opening) -> None:
    held: list[Route] = []

    def hold(route: Route) -> None:
        if route.request.headers.get("authorization") == "Bearer wrong":
            held.append(route)
        else:
            route.continue_()

    tab = tabs(ServerConfig(api_keys=("right",)), lambda page: page.route("**/v1/models", hold))
    tab.expected.append(REFUSED)
    dialog = tab.page.get_by_role("dialog")
    expect(dialog).to_contain_text("This server needs an API key")
    tab.page.locator("#key").fill("wrong")
    tab.page.keyboard.press("Enter")
    expect(dialog).to_be_hidden()
    tab.page.click("#show-panel")
    tab.page.click("#change-key")
    tab.page.locator("#key").fill("right")
    tab.page.keyboard.press("Enter")
    with tab.page.expect_response("**/v1/models"):
        held[0].continue_()
    expect(tab.page.locator("#model")).to_have_text("fake · 1,000 tokens")
    expect(dialog).to_be_hidden()
    assert len(held) == 1
    assert tab.chat("Hi") == "Hello."


def test_a_question_waits_for_the_key(tabs: Opening, engine: SayingEngine) -> None:
    tab = tabs(ServerConfig(api_keys=("right",)))
    tab.expected.append(REFUSED)
    tab.page.get_by_role("button", name="Cancel").click()
    tab.ask("Hi")
    expect(tab.page.get_by_role("dialog")).to_be_visible()
    tab.page.locator("#key").fill("right")
    tab.page.get_by_role("button", name="Use this key").click()
    expect(tab.page.locator(".turn.assistant > .said")).to_have_text("Hello.")
    assert tab.questions() == ["Hi"]
    expect(tab.page.locator("#model")).to_have_text("fake · 16 of 1,000 tokens")


# Conversations


def import_text(tab: Tab, text: str) -> None:
    file = {"name": "chats.json", "mimeType": "application/json", "buffer": text.encode()}
    tab.page.set_input_files("#import-file", file)  # type: ignore[arg-type]


def titles(tab: Tab) -> list[str]:
    return tab.page.locator("#chat-list .open").all_inner_texts()


def test_conversations_outlast_the_page(tab: Tab) -> None:
    tab.chat("First")
    tab.page.click("#new-chat")
    assert tab.questions() == []
    tab.chat("Second")
    assert titles(tab) == ["Second", "First"]
    tab.page.reload()
    assert tab.questions() == ["Second"]
    tab.page.get_by_role("button", name="First", exact=True).click()
    assert (tab.questions(), tab.answers()) == (["First"], ["Hello."])
    assert tab.page.title() == "First – tokenmill"
    expect(tab.page.get_by_role("button", name="First", exact=True)).to_have_attribute(
        "aria-current", "true"
    )


def test_a_conversation_can_be_named(tab: Tab) -> None:
    tab.chat("Hi")
    tab.page.click("#show-panel")
    tab.page.get_by_label("Name").fill("Greetings")
    assert titles(tab) == ["Greetings"]
    tab.page.reload()
    assert titles(tab) == ["Greetings"]


def test_deleting_can_be_undone(tab: Tab) -> None:
    tab.chat("Hi")
    tab.page.get_by_role("button", name="Delete Hi").click()
    assert titles(tab) == []
    assert tab.questions() == []
    tab.page.get_by_role("button", name="Undo").click()
    assert tab.questions() == ["Hi"]
    tab.page.get_by_role("button", name="Delete Hi").click()
    tab.page.reload()
    assert titles(tab) == []
    assert "Hello" not in tab.page.evaluate("JSON.stringify(localStorage)")


def test_exporting_and_importing(tabs: Opening, tmp_path: Path) -> None:
    tab = tabs()
    tab.chat("First")
    tab.page.click("#new-chat")
    tab.chat("Second")
    with tab.page.expect_download() as one:
        tab.page.get_by_role("button", name="Export Second").click()
    one.value.save_as(tmp_path / "one.json")
    with tab.page.expect_download() as everything:
        tab.page.get_by_role("button", name="Export all").click()
    everything.value.save_as(tmp_path / "all.json")
    assert one.value.suggested_filename == "tokenmill-chat.json"
    assert len(json.loads((tmp_path / "one.json").read_text())["conversations"]) == 1
    other = tabs()
    with other.page.expect_file_chooser() as chooser:
        other.page.get_by_role("button", name="Import").click()
    chooser.value.set_files(tmp_path / "all.json")
    expect(other.page.locator("#notice")).to_contain_text("Imported 2 chats.")
    assert titles(other) == ["Second", "First"]
    assert other.answers() == ["Hello."]
    # Once more: nothing is overwritten.
    other.page.set_input_files("#import-file", tmp_path / "one.json")
    expect(other.page.locator("#notice")).to_contain_text("Imported one chat.")
    assert sorted(titles(other)) == ["First", "Second", "Second"]


def test_a_file_that_is_none_is_told(tab: Tab) -> None:
    import_text(tab, "{")
    expect(tab.page.get_by_role("alert").filter(has_text="This file is not JSON.")).to_be_visible()
    assert titles(tab) == []


def test_answers_go_on_in_the_background(tabs: Opening, engine: SayingEngine) -> None:
    engine.says, engine.pace = "One two three four five.", SLOW
    tab = tabs()
    tab.ask("Slow")
    expect(tab.page.locator("#stop")).to_be_visible()
    tab.page.click("#new-chat")
    expect(tab.page.locator("#send")).to_be_visible()
    assert titles(tab) == ["Slow (answering…)"]
    assert tab.chat("Beside") == "One two three four five."
    tab.page.get_by_role("button", name=re.compile("^Slow")).click()
    expect(tab.page.locator(".turn.assistant > .said")).to_have_text("One two three four five.")
    assert sorted(titles(tab)) == ["Beside", "Slow"]


def test_two_tabs_know_of_each_other(tab: Tab) -> None:
    tab.chat("Hi")
    other = Tab(tab.page.context.new_page(), tab.address)
    other.open()
    assert titles(other) == ["Hi"]
    other.page.get_by_role("button", name="Hi", exact=True).click()
    other.chat("More")
    expect(tab.page.locator(".turn.user > .said")).to_have_text(["Hi", "More"])
    tab.page.get_by_role("button", name="Delete Hi").click()
    expect(other.page.locator("#chat-list .open")).to_have_count(0)


def test_a_full_storage_is_told(tabs: Opening) -> None:
    def full(page: Page) -> None:
        page.add_init_script(
            "Storage.prototype.setItem = () => { throw new DOMException('', 'QuotaExceededError'); }"
        )

    tab = tabs(prepare=full)
    tab.ask("Hi")
    tab.wait()
    assert tab.answers() == ["Hello."]
    expect(tab.page.locator("#notice")).to_contain_text("The browser's storage is full")
    tab.page.get_by_role("button", name="Dismiss").click()
    chat = {"messages": [{"id": "a", "parent": None, "role": "user", "content": "Other"}]}
    file = {"format": "tokenmill-conversations", "version": 1, "conversations": [chat]}
    import_text(tab, json.dumps(file))
    expect(tab.page.locator("#notice")).to_contain_text("The browser's storage is full")
    assert tab.questions() == ["Other"]


def test_forbidden_storage_only_forgets(tabs: Opening) -> None:
    def forbid(page: Page) -> None:
        forbidden = "{get() { throw new DOMException('', 'SecurityError'); }}"
        for name in ("localStorage", "sessionStorage"):
            page.add_init_script(f"Object.defineProperty(window, '{name}', {forbidden})")

    tab = tabs(prepare=forbid)
    assert tab.chat("Hi") == "Hello."
    assert titles(tab) == ["Hi"]
    tab.page.reload()
    assert titles(tab) == []


# What goes wrong


def test_a_refused_question_can_be_tried_again(tab: Tab, engine: SayingEngine) -> None:
    tab.expected.append(REFUSED)
    engine.says = ""
    tab.ask("Hi")
    alert = tab.page.locator("#notice")
    expect(alert).to_contain_text("The prompt is too long.")
    assert (tab.questions(), tab.answers()) == (["Hi"], [])
    engine.says = "Now."
    alert.get_by_role("button", name="Try again").click()
    expect(tab.page.locator(".turn.assistant > .said")).to_have_text("Now.")
    expect(alert).to_be_empty()


def test_a_retry_that_is_refused_shows_the_earlier_answer(tab: Tab, engine: SayingEngine) -> None:
    tab.chat("Hi")
    tab.expected.append(REFUSED)
    engine.says = ""
    tab.turn(1, "Retry")
    expect(tab.page.locator("#notice")).to_contain_text("The prompt is too long.")
    assert tab.answers() == ["Hello."]


def test_an_error_in_the_middle_keeps_what_there_is(tab: Tab, engine: SayingEngine) -> None:
    engine.says = "Half\0"
    tab.ask("Hi")
    expect(tab.page.locator("#notice")).to_contain_text("the engine stopped")
    assert tab.answers() == ["Half"]
    expect(tab.page.locator(".turn .end")).to_have_text("The answer is not complete.")


def test_a_busy_server_says_when_to_come_back(tabs: Opening, engine: SayingEngine) -> None:
    engine.waiting = 300
    tab = tabs(ServerConfig(max_queue=1))
    tab.expected.append(REFUSED)
    tab.ask("Hi")
    expect(tab.page.locator("#notice")).to_contain_text("Try again in 2 seconds.")


def test_a_server_that_is_gone(tab: Tab) -> None:
    tab.expected.append(REFUSED)
    tab.page.route("**/v1/**", lambda route: route.abort())
    tab.ask("Hi")
    expect(tab.page.locator("#notice")).to_contain_text("The server can't be reached.")
    assert tab.questions() == ["Hi"]
    tab.page.unroute("**/v1/**")
    tab.page.get_by_role("button", name="Try again").click()
    expect(tab.page.locator(".turn.assistant > .said")).to_have_text("Hello.")


@pytest.mark.parametrize("body", ["data: {\n\n", "", "data: {}\n\n"])
def test_a_stream_that_breaks(tab: Tab, body: str) -> None:
    tab.page.route("**/v1/chat/completions", lambda route: route.fulfill(status=200, body=body))
    tab.ask("Hi")
    expect(tab.page.locator("#notice")).to_contain_text("The connection broke")
    assert tab.answers() == []


def test_an_answer_that_is_no_json(tab: Tab) -> None:
    tab.expected.append(REFUSED)
    tab.page.route("**/v1/chat/completions", lambda route: route.fulfill(status=502, body="<html>"))
    tab.ask("Hi")
    expect(tab.page.locator("#notice")).to_contain_text("The server answered with status 502.")


# Watching


def figures(tab: Tab) -> dict[str, str]:
    names = tab.page.locator("#figures dt").all_inner_texts()
    return dict(zip(names, tab.page.locator("#figures dd").all_inner_texts(), strict=True))


def test_the_server_can_be_watched(
    tabs: Opening, engine: SayingEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    stats = EngineStats(
        3, 2, 8, 0.125, prefix_queries=200, prefix_hits=50, prompt_tokens=9, generated_tokens=70
    )
    monkeypatch.setattr(engine, "stats", lambda: stats)
    tab = tabs()
    tab.page.click("#show-panel")
    expect(tab.page.locator("#figures dt")).to_have_count(6)
    found = figures(tab)
    assert found["Answers being made"] == "3"
    assert found["Answers waiting"] == "2"
    assert found["Cache in use"] == "12.5 %"
    assert found["Prompts found in cache"] == "25.0 %"
    assert found["Tokens made a second"] == "0.0"
    # Nobody looks, nobody asks.
    tab.page.click("#show-panel")
    asked: list[str] = []
    tab.page.on("request", lambda request: asked.append(request.url))
    tab.page.wait_for_timeout(2500)
    assert asked == []


def test_watching_without_metrics(tab: Tab, engine: SayingEngine) -> None:
    tab.expected.append(REFUSED)
    engine.running, engine.waiting = 3, 2
    tab.page.route("**/metrics", lambda route: route.fulfill(status=404, body=""))
    tab.page.click("#show-panel")
    expect(tab.page.locator("#figures dt")).to_have_count(2)
    assert figures(tab) == {"Answers being made": "3", "Answers waiting": "2"}


def test_watching_a_server_that_is_gone(tab: Tab) -> None:
    tab.expected.append(REFUSED)
    tab.page.route("**/metrics", lambda route: route.abort())
    tab.page.click("#show-panel")
    expect(tab.page.locator("#figures-problem")).to_contain_text("The server can't be reached.")
    tab.page.unroute("**/metrics")
    expect(tab.page.locator("#figures dt").first).to_be_visible()
    expect(tab.page.locator("#figures-problem")).to_be_empty()


def test_the_page_works_below_a_path(tabs: Opening, engine: SayingEngine) -> None:
    """As behind a proxy that serves other things as well."""
    tab = tabs()

    def forward(route: Route) -> None:
        url = route.request.url.replace("/models/demo/", "/")
        route.fulfill(response=route.fetch(url=url))

    tab.page.route("**/models/demo/**", forward)
    tab.open("models/demo/")
    assert tab.chat("Hi") == "Hello."


@pytest.mark.model
def test_a_real_model(demo: str, browser: Browser) -> None:
    with opened(browser, demo) as tab:
        tab.open()
        tab.page.click("#show-panel")
        tab.page.get_by_label("System prompt").fill("You are a helpful assistant.")
        tab.page.get_by_label("Longest answer", exact=True).fill("20")
        tab.page.get_by_label("Temperature", exact=True).fill("0")
        answer = tab.chat("What is the capital of France?")
        assert "Paris" in answer
        expect(tab.page.locator("#model")).to_have_text(re.compile(r"^fake · \d+ of 1,024 tokens$"))
        expect(tab.page.locator(".turn.assistant .figures")).to_have_text(re.compile("tokens/s"))
        assert tab.chat("And of Italy?") != ""
        # The first turn is in the prefix cache by now.
        expect(tab.page.locator(".figures").last).to_have_text(
            re.compile("prompt tokens from the cache")
        )
        expect(tab.page.locator("#figures")).to_contain_text(re.compile(r"found in cache[1-9][\d.]* %"))
        tab.check()
