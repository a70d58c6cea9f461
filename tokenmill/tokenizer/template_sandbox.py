"""Runs a chat template that nobody has read.

A template is a program from the internet. Jinja's sandbox keeps it from the interpreter's insides,
but lets it loop and grow values as it likes. Here every loop, call, filter and operator draws on a
budget of steps, time and produced text, and whatever could blow up within a single step is measured
beforehand.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from tokenmill.errors import RequestError

MAX_SOURCE = 1 << 20
MAX_STEPS = 500_000
MAX_SECONDS = 5.0
MAX_PRODUCED = 1 << 27
"""Characters and list entries that one rendering may produce in all, intermediate results included."""
MAX_CHARACTERS = 1 << 24
MAX_ENTRIES = 1 << 18
"""What one value may hold, with everything that is nested in it, as often as it is nested."""
MAX_NUMBER_BITS = 1 << 12
MAX_WIDTH = 10_000
"""Largest number that may be given to what pads, indents or fills up."""

_PRINTF_WIDTH = re.compile(r"%[^a-zA-Z%(]*(?:\*|\d{5,})")
_FORMAT_WIDTH = re.compile(r"\{[^{}]*(?:\{|\d{5,})")
"""Formats that pad far, or to a width that is only known when they are used. Both take linear time."""
_LONG_NUMBER = re.compile(r"\d{5}")
_PADDING_METHODS = frozenset({"center", "expandtabs", "ljust", "rjust", "zfill"})
_PADDING_FILTERS = frozenset({"batch", "center", "indent", "round", "slice", "tojson"})
_REFUSED_METHODS = frozenset({"encode", "maketrans", "to_bytes", "translate"})
_REFUSED_FILTERS = ("pprint", "striptags", "urlize", "wordwrap", "xmlattr")
_REFUSED_GLOBALS = ("lipsum",)


class _OverBudget(Exception):
    """The template took too long or produced too much."""


class _Budget:
    """What one rendering may still use."""

    def __init__(self) -> None:
        self._steps = MAX_STEPS
        self._produced = MAX_PRODUCED
        self._deadline = time.monotonic() + MAX_SECONDS

    def step(self) -> None:
        """One more loop pass, call, filter or operator."""
        self._steps -= 1
        if self._steps < 0:
            raise _OverBudget(f"it takes more than {MAX_STEPS} steps")
        if not self._steps & 0x1F and time.monotonic() > self._deadline:
            raise _OverBudget(f"it takes more than {MAX_SECONDS:g} seconds")

    def produce(self, value: Any) -> Any:
        """A new value; returned if there is room for it."""
        if type(value) is not str:
            _check_size(value)
        if isinstance(value, str | list | tuple | Mapping):
            self._produced -= len(value)
        if self._produced < 0:
            raise _OverBudget("it produces too much text")
        return value


_budget: ContextVar[_Budget] = ContextVar("budget")


def _step() -> None:
    _budget.get().step()


def _produce(value: Any) -> Any:
    return _budget.get().produce(value)


def _check_size(value: Any) -> int:
    """The characters of a value and of all that is nested in it; _OverBudget if it is too large."""
    characters = entries = 0
    pending = [value]
    while pending:
        item = pending.pop()
        entries += 1
        if isinstance(item, str):
            characters += len(item)
        elif isinstance(item, Mapping):
            pending += item.keys()
            pending += item.values()
        elif isinstance(item, list | tuple | set | frozenset):
            pending += item
        elif isinstance(item, Namespace):
            pending.append(dict(item._Namespace__attrs))
        elif isinstance(item, int):
            _check_bits(item.bit_length())
        _check_entries(entries + len(pending))
    _check_room(characters)
    return characters


def _check_room(characters: int) -> None:
    if characters > MAX_CHARACTERS:
        raise _OverBudget("it makes too large a value")


def _check_entries(entries: int) -> None:
    if entries > MAX_ENTRIES:
        raise _OverBudget("it makes too large a value")


def _check_bits(bits: int) -> None:
    if bits > MAX_NUMBER_BITS:
        raise _OverBudget("it makes too large a number")


def _check_width(values: Iterable[Any]) -> None:
    for value in values:
        if isinstance(value, int | float) and abs(value) > MAX_WIDTH:
            raise _OverBudget(f"it pads to more than {MAX_WIDTH} characters")


def _check_printf(template: str) -> None:
    named = "%(" in template and _LONG_NUMBER.search(template)
    if named or _PRINTF_WIDTH.search(template):
        raise _OverBudget(f"it pads to more than {MAX_WIDTH} characters")


def _check_format(template: str) -> None:
    if _FORMAT_WIDTH.search(template.replace("{{", "")):
        raise _OverBudget(f"it pads to more than {MAX_WIDTH} characters, or to a computed width")


def _check_replace(text: str, old: Any, new: Any) -> None:
    if isinstance(old, str) and isinstance(new, str):
        _check_room(len(text) + text.count(old) * max(0, len(new) - len(old)))


class _Generation(Extension):
    """Lets ``{% generation %}`` stand around what the model wrote; it changes nothing."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The statements within."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Environment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox with a budget."""

    intercepted_binops = frozenset({"*", "**", "+", "%", "//"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, loopcontrols],
            optimized=False,
            finalize=_finalize,
        )
        self.filters["tojson"] = _tojson
        for name in _REFUSED_FILTERS:
            del self.filters[name]
        for name in _REFUSED_GLOBALS:
            del self.globals[name]
        self.filters = {name: _bounded_filter(name, f) for name, f in self.filters.items()}
        self.filters["_counted"] = _counted
        self.filters["_joined"] = _joined
        self.filters["_made"] = _made
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    # Jinja joins what templates and captured blocks print with this.
    @staticmethod
    def concat(parts: Iterable[str]) -> str:
        """The parts as one text, if there is room for it."""
        budget = _budget.get()
        joined = [budget.produce(part) for part in parts]
        return "".join(joined)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = super()._parse(source, name, filename)
        for loop in template.find_all(nodes.For):
            loop.iter = _filtered(loop.iter, "_counted")
        _Rewriter().rewrite(template)
        return template

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """An arithmetic operator, if its result can't be too large."""
        _step()
        if operator == "*":
            for value, times in ((left, right), (right, left)):
                if isinstance(times, int) and isinstance(value, str):
                    _check_room(len(value) * times)
                elif isinstance(times, int) and isinstance(value, list | tuple):
                    _check_entries(len(value) * times)
        elif operator == "**":
            if isinstance(left, int) and isinstance(right, int) and right > 0:
                _check_bits(left.bit_length() * right)
        elif operator == "%" and isinstance(left, str):
            _check_printf(left)
        return _produce(super().call_binop(context, operator, left, right))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """A call, of a macro or a method, if its result can't be too large."""
        _step()
        # Jinja wraps some methods to make them safe.
        method = getattr(__obj, "__wrapped__", __obj)
        owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        if isinstance(owner, str | int):
            args = _checked_arguments(owner, name, args, kwargs)
        return _produce(super().call(__context, __obj, *args, **kwargs))


def _checked_arguments(
    owner: str | int, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Any, ...]:
    """The arguments of a method of a text or number, if its result can't be too large."""
    if name in _REFUSED_METHODS:
        raise _OverBudget(f"it calls the method {name}")
    if name in _PADDING_METHODS:
        _check_width((*args, *kwargs.values()))
        if name == "expandtabs" and isinstance(owner, str):
            _check_room(len(owner) * max([8, *(a for a in args if isinstance(a, int))]))
    elif name in ("format", "format_map"):
        _check_format(str(owner))
    elif name == "replace" and len(args) >= 2:
        _check_replace(str(owner), args[0], args[1])
    elif name == "join" and args and isinstance(owner, str):
        items = list(args[0])
        _check_room(_check_size(items) + len(owner) * len(items))
        return (items, *args[1:])
    return args


def _filtered(node: Any, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


class _Rewriter:
    """Lets whatever makes a text or a list out of others go through the budget."""

    def rewrite(self, node: nodes.Node) -> None:
        """Rewrite all that is beneath the node."""
        for field, value in node.iter_fields():
            if isinstance(value, list):
                setattr(node, field, [self._item(item) for item in value])
            else:
                setattr(node, field, self._item(value))

    def _item(self, value: Any) -> Any:
        if not isinstance(value, nodes.Node):
            return value
        self.rewrite(value)
        if isinstance(value, nodes.Concat):
            return _filtered(nodes.List(value.nodes, lineno=value.lineno), "_joined")
        if isinstance(value, nodes.Getitem) and isinstance(value.arg, nodes.Slice):
            return _filtered(value, "_made")
        stored = isinstance(value, nodes.Tuple) and value.ctx != "load"
        if isinstance(value, nodes.List | nodes.Dict | nodes.Tuple) and not stored:
            return _filtered(value, "_made")
        return value


def _counted(values: Iterable[Any]) -> Iterator[Any]:
    """The values of a loop; each is a step."""
    budget = _budget.get()
    for value in values:
        budget.step()
        yield value


def _joined(parts: list[Any]) -> str:
    """What the operator ~ does."""
    _check_size(parts)
    text: str = _produce("".join(map(str, parts)))
    return text


def _made(value: Any) -> Any:
    """A list, tuple or object that the template wrote down, or part of a text or list."""
    return _produce(value)


@jinja2.pass_context
def _finalize(context: Context, value: Any) -> Any:
    """A value that is to be printed. (Jinja would compute constants early if this took no context.)"""
    if type(value) is not str:
        _check_size(value)
    return value


def _bounded_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    # Filters that are given the context, or the like, take it first.
    extra = 1 if hasattr(function, "jinja_pass_arg") else 0

    def bounded(*args: Any, **kwargs: Any) -> Any:
        _step()
        value, rest = args[extra], args[extra + 1 :]
        if name in _PADDING_FILTERS:
            _check_width((*rest, *kwargs.values()))
        elif name == "format":
            _check_printf(str(value))
        elif name == "replace" and len(rest) >= 2:
            _check_replace(str(value), rest[0], rest[1])
        if name == "join":
            value = list(value)
            separator = rest[0] if rest else kwargs.get("d", "")
            _check_room(_check_size(value) + _check_size(separator) * len(value))
            args = (*args[:extra], value, *rest)
        elif name == "sum":
            value = list(value)
            start = kwargs.get("start", rest[1] if len(rest) > 1 else 0)
            if not isinstance(start, int | float):
                # Joining lists one after another takes time that grows with the square.
                _check_entries(len(value) ** 2)
            args = (*args[:extra], value, *rest)
        elif name == "indent":
            text, width = str(value), rest[0] if rest else kwargs.get("width", 4)
            extra_size = len(width) if isinstance(width, str) else width
            _check_room(len(text) + (text.count("\n") + 1) * extra_size)
        elif not isinstance(value, str):
            _check_size(value)
        result = function(*args, **kwargs)
        if isinstance(result, Iterator):
            # Made a list at once, so that its size is known; a template can't tell the difference
            # except by printing the iterator itself.
            result = list(_counted(result))
        return _produce(result)

    for attribute in ("jinja_pass_arg", "jinja_async_variant", "__name__", "__doc__"):
        if hasattr(function, attribute):
            setattr(bounded, attribute, getattr(function, attribute))
    return bounded


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is; Jinja's own filter escapes it for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


class _Refused(jinja2.TemplateError):
    """The template itself refuses the conversation."""


def _raise_exception(message: Any) -> None:
    raise _Refused(str(message))


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _reads_parts(template: nodes.Template) -> bool:
    """Whether a template goes through the parts of a message's content itself."""

    def is_content(expression: Any, names: set[str]) -> bool:
        while isinstance(expression, nodes.Filter):
            expression = expression.node
        if isinstance(expression, nodes.Getattr):
            return expression.attr == "content"
        if isinstance(expression, nodes.Getitem):
            return isinstance(expression.arg, nodes.Const) and expression.arg.value == "content"
        return isinstance(expression, nodes.Name) and expression.name in names

    names: set[str] = set()
    for assignment in template.find_all(nodes.Assign):
        if isinstance(assignment.target, nodes.Name) and is_content(assignment.node, set()):
            names.add(assignment.target.name)
    return any(is_content(loop.iter, names) for loop in template.find_all(nodes.For))


class CompiledTemplate:
    """A template, ready to run. reads_parts: it goes through lists of content parts itself.

    Raises RequestError if the source is not a template.
    """

    def __init__(self, source: str) -> None:
        if len(source) > MAX_SOURCE:
            raise RequestError(
                f"the chat template has {len(source)} characters; at most {MAX_SOURCE} are allowed"
            )
        environment = _Environment()
        token = _budget.set(_Budget())
        try:
            self.reads_parts = _reads_parts(environment.parse(source))
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise RequestError(f"the chat template is malformed: {_message(error)}") from error
        except (_OverBudget, SyntaxError, RecursionError, MemoryError) as error:
            raise RequestError(f"the chat template can't be compiled: {_message(error)}") from error
        finally:
            _budget.reset(token)

    def render(self, variables: Mapping[str, Any]) -> str:
        """The text for these variables. Raises RequestError if the template refuses them or fails."""
        token = _budget.set(_Budget())
        try:
            return self._template.render(variables)
        except _Refused as error:
            raise RequestError(_message(error)) from error
        except _OverBudget as error:
            raise RequestError(f"the chat template was stopped: {error}") from error
        except RecursionError as error:
            raise RequestError("the chat template was stopped: it calls itself too deeply") from error
        except MemoryError as error:
            raise RequestError("the chat template was stopped: it needs too much memory") from error
        except Exception as error:
            # Whatever goes wrong in there is the template's doing, or the messages'.
            raise RequestError(
                f"the chat template fails on these messages: {_message(error)}"
            ) from error
        finally:
            _budget.reset(token)


def _message(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
