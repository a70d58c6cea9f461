"""Conversations are written as transformers writes them, and hostile templates don't get far."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from tests.tokenizer.checkpoints import byte_level_library
from tokenmill.errors import RequestError
from tokenmill.tokenizer import ChatTemplate

CHATML = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- endif %}
    {{- "\\n\\n# Tools\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role != "tool" and not (message.role == "assistant" and message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' ~ tool_call.name ~ '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' ~ message.content ~ '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

LLAMA2 = (
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
    "{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}"
    "{% set system_message = false %}{% endif %}{% for message in loop_messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if loop.index0 == 0 and system_message != false %}"
    "{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}"
    "{% else %}{% set content = message['content'] %}{% endif %}"
    "{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}"
    "{% endif %}{% endfor %}"
)

PARTS = """\
{{ bos_token }}
{%- for message in messages -%}
    {{ '<start>' + (message.role if message.role != 'assistant' else 'model') + "\\n" }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}{{ '<image>' }}
            {%- elif item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}
        {%- endfor -%}
    {%- else -%}{{ raise_exception("Invalid content type") }}{%- endif -%}
    {{ '<end>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start>model\\n' }}{%- endif -%}
"""

WORKSHOP = """\
{% macro shout(text, mark='!') %}{{ text|upper }}{{ mark * 3 }}{% endmacro %}
{% set ns = namespace(count=0, names=[]) %}
{% for m in messages if m.role != 'system' %}
  {%- set ns.count = ns.count + 1 %}
  {%- set ns.names = ns.names + [m.role] %}
  {%- if loop.index > 3 %}{% break %}{% endif %}
  {%- if m.content is none or not m.content %}{% continue %}{% endif %}
  {% generation %}{{ shout(m.content[:20]) }}{% endgeneration %}
  {{ '%s=%d' % (m.role, ns.count) }} {{ "{:>8}".format(m.role) }}
  {{ loop.previtem.role if not loop.first }}
{% else %}nobody{% endfor %}
{{ ns.names|join(', ') }} {{ ns.names|unique|list|tojson }} {{ messages|map(attribute='role')|list }}
{{ messages|selectattr('role', 'equalto', 'user')|list|length }} {{ (1, 2.5, none, true)|tojson }}
{{ {'a': 1, 'b': [1, {'c': 'é<>&'}]}|tojson(indent=2) }} {{ 7 // 2 }} {{ 7 / 2 }} {{ 2 ** 10 }}
{{ -3 % 5 }}
{{ (messages[0].content or '')|replace('e', 'EE')|indent(4) }} {{ 'x'.center(9, '*') }}
{{ 'a,b'.split(',') }} {{ "**%s** %5.1f" % ('x', 2) }} {{ 'x'|truncate(20000) }}
{{ '%(a)s %(b)5d' % {'a': 'x', 'b': 2} }} {{ [[1], [2]]|sum(start=[]) }} {{ 'abc'[1:] }}
{% filter trim %}  filtered {% endfilter %}
{% set block %}in {{ messages|length }} block{% endset %}{{ block }}
{%- for key, value in (messages[0].items()|sort) %}{{ key }}:{{ value }};{% endfor %}
{{ undefined_thing }}{{ documents|length if documents else 'none' }}{{ extra|default('no extra') }}
{% for a in [1, [2, [3]]] recursive %}{{ loop(a) if a is iterable else a }}{% endfor %}
{{ messages[::-1][0].role }} {{ dict(a=1, b='x')|items|list }} {{ [1,2,3]|sum }}
{{ 'abc'|list }} {{ range(3)|list }}
"""

TEMPLATES = {"chatml": CHATML, "llama2": LLAMA2, "parts": PARTS, "workshop": WORKSHOP}

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": 'Wetter <für> & "alle"',
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]

CHATS: dict[str, list[dict[str, Any]]] = {
    "one": [{"role": "user", "content": "Hello there"}],
    "system": [
        {"role": "system", "content": "You are {{ kind }} <b>&</b> 'quiet'."},
        {"role": "user", "content": "  Hi\n\nthere \n"},
    ],
    "long": [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two 你好"},
        {"role": "user", "content": "three\tthree"},
        {"role": "assistant", "content": "four"},
        {"role": "user", "content": "five"},
    ],
}

CALLS: list[dict[str, Any]] = [
    {"role": "user", "content": "Weather?"},
    {
        "role": "assistant",
        "tool_calls": [
            {"type": "function", "function": {"name": "weather", "arguments": {"city": "Zürich"}}}
        ],
    },
    {"role": "tool", "content": "sunny"},
    {"role": "tool", "content": "warm"},
]


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerFast:
    file = tmp_path_factory.mktemp("oracle") / "tokenizer.json"
    Path(file).write_text(byte_level_library())
    return PreTrainedTokenizerFast(tokenizer_file=str(file), bos_token="<s>", eos_token="</s>")


MARKS = {"bos_token": "<s>", "eos_token": "</s>"}


@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("prompt", [True, False])
def test_conversations_are_written_as_by_transformers(
    oracle: PreTrainedTokenizerFast, name: str, chat: str, prompt: bool
) -> None:
    source = TEMPLATES[name]
    expected = oracle.apply_chat_template(
        CHATS[chat], chat_template=source, tokenize=False, add_generation_prompt=prompt
    )
    template = ChatTemplate(source, MARKS)
    assert template.render(CHATS[chat], add_generation_prompt=prompt) == expected
    assert template.render(CHATS[chat], add_generation_prompt=prompt) == expected


def test_tools_documents_and_variables(oracle: PreTrainedTokenizerFast) -> None:
    documents = [{"title": "T", "text": "x"}]
    for messages in (CALLS, CHATS["system"]):
        expected = oracle.apply_chat_template(
            messages, tools=TOOLS, chat_template=CHATML, tokenize=False, add_generation_prompt=True
        )
        assert ChatTemplate(CHATML, MARKS).render(messages, TOOLS) == expected
    expected = oracle.apply_chat_template(
        CHATS["long"], documents=documents, extra={"k": [1]}, chat_template=WORKSHOP, tokenize=False
    )
    ours = ChatTemplate(WORKSHOP, MARKS).render(
        CHATS["long"], documents=documents, extra={"k": [1]}, add_generation_prompt=False
    )
    assert ours == expected


def test_arguments_of_calls_may_come_as_json() -> None:
    as_text = [
        CALLS[0],
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"function": {"name": "weather", "arguments": '{"city": "Zürich"}'}}],
        },
    ]
    template = ChatTemplate(CHATML)
    assert template.render(as_text) == template.render(CALLS[:2])
    as_text[1]["tool_calls"][0]["function"]["arguments"] = "not JSON"
    assert '"arguments": "not JSON"' in template.render(as_text)


@pytest.mark.parametrize("name", ["chatml", "parts"])
@pytest.mark.parametrize("text", ["The answer is", "The answer is ", "two", " x "])
def test_the_last_message_can_be_continued(
    oracle: PreTrainedTokenizerFast, name: str, text: str
) -> None:
    messages = [CHATS["one"][0], {"role": "assistant", "content": text}]
    expected = oracle.apply_chat_template(
        messages, chat_template=TEMPLATES[name], tokenize=False, continue_final_message=True
    )
    template = ChatTemplate(TEMPLATES[name], MARKS)
    assert template.render(messages, continue_final_message=True) == expected
    assert messages[1]["content"] == text


def test_what_cannot_be_continued() -> None:
    with pytest.raises(RequestError, match="no last message"):
        ChatTemplate(CHATML).render([], continue_final_message=True)
    with pytest.raises(RequestError, match="no last message"):
        ChatTemplate(PARTS).render([{"role": "user", "content": []}], continue_final_message=True)
    with pytest.raises(RequestError, match="can't be continued"):
        ChatTemplate("nothing").render(CHATS["one"], continue_final_message=True)


def test_parts_of_content_are_joined_unless_the_template_reads_them() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    message = {"role": "user", "content": parts}
    assert ChatTemplate("{{ messages[0].content }}").render([message]) == "a\nb"
    assert (
        ChatTemplate(PARTS).render([message], add_generation_prompt=False) == "<start>user\nab<end>\n"
    )
    through_a_name = "{% set c = messages[0]['content'] %}{% for p in c %}[{{ p.text }}]{% endfor %}"
    assert ChatTemplate(through_a_name).render([message]) == "[a][b]"
    parts.append({"type": "image"})
    assert "<image>" in ChatTemplate(PARTS).render([message])
    with pytest.raises(RequestError, match="not 'image'"):
        ChatTemplate("{{ messages[0].content }}").render([message])


def test_templates_by_name() -> None:
    template = ChatTemplate({"default": "D", "tool_use": "T", "rag": "R"})
    assert template.render(CHATS["one"]) == "D"
    assert template.render(CHATS["one"], tools=TOOLS) == "T"
    assert template.render(CHATS["one"], template="rag") == "R"
    with pytest.raises(RequestError, match="default, rag, tool_use"):
        template.render(CHATS["one"], template="other")
    assert ChatTemplate({"default": "D"}).render(CHATS["one"], tools=TOOLS) == "D"


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ("text", "must be a list"),
        ({"role": "user"}, "must be a list"),
        (None, "must be a list"),
        (["text"], "'role'"),
        ([{"content": "x"}], "'role'"),
        ([{"role": 3, "content": "x"}], "'role'"),
        ([{"role": "user", "content": 3}], "must be text or a list"),
        ([{"role": "user", "content": [3]}], "text parts"),
        ([{"role": "user", "content": "x", "other": object()}], "type object"),
        ([{"role": "user", "content": "x", "other": nested(100_000)}], "too deeply"),
    ],
)
def test_malformed_messages_are_refused(messages: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        ChatTemplate("{{ messages[0].content }}").render(messages)


def test_a_template_speaks_for_itself() -> None:
    with pytest.raises(RequestError, match=r"^Roles must alternate user/assistant"):
        ChatTemplate(LLAMA2, MARKS).render([{"role": "assistant", "content": "x"}])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{% if %}", "malformed"),
        ("{{ x", "malformed"),
        ("{{ 'a'|no_such_filter }}", "malformed"),
        ("x" * (1 << 20) + "x", "characters"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "compiled"),
        ("{{ messages[0].role + 1 }}", "fails on these messages"),
        ("{{ none.x.y }}", "fails on these messages"),
        ("{{ 1 // 0 }}", "fails on these messages"),
        ("{% include 'other' %}", "fails on these messages"),
    ],
)
def test_broken_templates_are_explained(source: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        ChatTemplate(source).render(CHATS["one"])


DOUBLING = "{%% set ns = namespace(x='abcdefgh') %%}{%% for i in range(60) %%}%s{%% endfor %%}"

HOSTILE = {
    "nested loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "long range": "{% for a in range(10 ** 9) %}{% endfor %}",
    "endless macro": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "branching macro": (
        "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}"
    ),
    "doubling with +": DOUBLING % "{% set ns.x = ns.x + ns.x %}",
    "doubling with ~": DOUBLING % "{% set ns.x = ns.x ~ ns.x %}",
    "doubling with %": DOUBLING % "{% set ns.x = '%s%s' % (ns.x, ns.x) %}",
    "doubling with format": DOUBLING % "{% set ns.x = '{}{}'.format(ns.x, ns.x) %}",
    "doubling with a format filter": DOUBLING % "{% set ns.x = '%s%s'|format(ns.x, ns.x) %}",
    "doubling with join": DOUBLING % "{% set ns.x = [ns.x, ns.x]|join %}",
    "doubling with str.join": DOUBLING % "{% set ns.x = ''.join([ns.x, ns.x]) %}",
    "doubling with replace": DOUBLING % "{% set ns.x = ns.x.replace('a', ns.x) %}",
    "doubling with a replace filter": DOUBLING % "{% set ns.x = ns.x|replace('a', ns.x) %}",
    "doubling a block": DOUBLING % "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}",
    "doubling a list": DOUBLING % "{% set ns.x = [ns.x, ns.x] %}",
    "doubling an object": DOUBLING % "{% set ns.x = {'a': ns.x, 'b': ns.x} %}",
    "doubling with dict": DOUBLING % "{% set ns.x = dict(a=ns.x, b=ns.x) %}",
    "doubling a tuple": DOUBLING % "{% set ns.x = (ns.x, ns.x) %}",
    "doubling a namespace": DOUBLING % "{% set ns.x = namespace(a=ns.x, b=ns.x) %}" + "{{ ns.x }}",
    "doubling with map": DOUBLING
    % "{% set ns.x = range(1000)|map(attribute='none', default=ns.x)|list %}",
    "doubling with batch": DOUBLING % "{% set ns.x = [1]|batch(999, ns.x)|list %}",
    "times": "{{ 'a' * 10 ** 10 }}",
    "times the other way": "{{ 10 ** 10 * 'a' }}",
    "times a list": "{{ [1] * 10 ** 9 }}",
    "power": "{{ 9 ** (9 ** 9) }}",
    "product": DOUBLING
    % "{% set ns.x = (ns.x if ns.x is number else 99) %}{% set ns.x = ns.x * ns.x %}",
    "center": "{{ 'a'.center(10000000000) }}",
    "center filter": "{{ 'a'|center(10000000000) }}",
    "mapped center": "{{ ['a']|map('center', 10000000000)|list }}",
    "ljust": "{{ 'a'.ljust(10000000000) }}",
    "expandtabs": "{{ '\t'.expandtabs(10000000000) }}",
    "to_bytes": "{{ (1).to_bytes(10000000000, 'big') }}",
    "printf width": "{{ '%10000000000d' % 1 }}",
    "printf star": "{{ '%*d' % (1000000000, 1) }}",
    "format width": "{{ '{:>10000000000}'.format('a') }}",
    "format width argument": "{{ '{:{w}}'.format('a', w=10000000000) }}",
    "format width argument by place": "{{ '{:{}}'.format('a', 10000000000) }}",
    "format_map": "{{ '{x:{w}}'.format_map({'x': 1, 'w': 10000000000}) }}",
    "format filter": "{{ '%10000000000d'|format(1) }}",
    "indent": "{{ 'a\nb'|indent(10000000000) }}",
    "indent with text": "{{ ('\n' * 100000)|indent('x' * 100000) }}",
    "tojson indent": "{{ [1]|tojson(indent=10000000000) }}",
    "batch": "{{ [1]|batch(1000000000, 0)|list }}",
    "slice": "{{ [1]|slice(1000000000)|list }}",
    "translate": "{{ ('a' * 1000000).translate({97: 'b' * 1000000}) }}",
    "printf width by name": "{{ '%(a%b)9999999999d' % {'a%b': 1} }}",
    "slices": "{% set x = 'a' * 9999999 %}{% set l = [] %}" + "{% set y = x[1:] %}" * 20,
    "sum": "{{ (range(99999)|map('string')|map('list')|list)|sum(start=[]) }}",
    "mapped replace": "{{ ['a' * 999999]|map('replace', 'a', 'b' * 999999)|list }}",
    "encode": "{{ 'a'.encode() }}",
    "lipsum": "{{ lipsum(n=100000) }}",
    "too much output": "{% set x = 'a' * 1000000 %}{% for i in range(99999) %}{{ x }}{% endfor %}",
    "internals": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "changing messages": "{% set _ = messages.append(1) %}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_templates_are_stopped(name: str) -> None:
    with pytest.raises(RequestError) as caught:
        ChatTemplate(HOSTILE[name]).render(CHATS["one"])
    message = str(caught.value)
    if name in ("internals", "changing messages", "long range", "lipsum"):
        assert "fails on these messages" in message
    else:
        assert "was stopped" in message
        assert "memory" not in message


@pytest.mark.parametrize(
    "source", ["{{ '{0.__class__}'.format(1) }}", "{{ raise_exception.__globals__ }}"]
)
def test_the_interpreter_is_out_of_reach(source: str) -> None:
    assert ChatTemplate(source).render(CHATS["one"]) == ""


def test_a_stopped_template_stops_only_itself() -> None:
    bad, good = ChatTemplate(HOSTILE["nested loops"]), ChatTemplate(CHATML)
    expected = good.render(CHATS["long"])
    outcomes: list[Any] = []

    def run(template: ChatTemplate) -> None:
        try:
            outcomes.append(template.render(CHATS["long"]))
        except RequestError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=run, args=(t,)) for t in (bad, good, bad, good, good)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes.count(expected) == 3
    assert sum(isinstance(outcome, RequestError) for outcome in outcomes) == 2


def test_the_date_can_be_written() -> None:
    year = ChatTemplate("{{ strftime_now('%Y') }}").render(CHATS["one"])
    assert year in (time.strftime("%Y"), str(int(time.strftime("%Y")) - 1))
