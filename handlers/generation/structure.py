"""Answers of a given shape: before each token, a mask excludes those that cannot follow.

llguidance compiles what a request asks for, and computes the masks. The state of a mask follows
from the tokens of the answer alone. So an answer continues in another process in the same way.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from headrace.errors import InputError

#: How many compiled shapes a process keeps.
_KEPT: Final = 32
#: The most characters of a shape, as JSON.
_SHAPE_CHARS: Final = 200_000
#: A space or none, as most programs write JSON. A small model would write spaces for ever.
COMPACT: Final = {"whitespace_pattern": " ?"}

#: What joins several schemas into one: each of them must allow the members of the others.
_JOINING: Final = ('"allOf":', '"if":', '"dependentSchemas":', '"unevaluatedProperties":')

_Text = Annotated[str, Meta(min_length=1)]


class Shape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an answer must be; exactly one of them.

    Attributes:
        json: a JSON schema.
        json_object: any JSON object.
        regex: an expression for the whole answer.
        choice: texts, of which the answer is one.
        grammar: a grammar in Lark's notation.
    """

    json: dict[str, Any] | bool | None = None
    json_object: bool | None = None
    regex: _Text | None = None
    choice: Annotated[list[_Text], Meta(min_length=1)] | None = None
    grammar: _Text | None = None

    def given(self) -> tuple[str, Any]:
        """Return the name and the value of the one that is given.

        Raises:
            InputError: none is, or several are.
        """
        shapes = [
            (name, value)
            for name in self.__struct_fields__
            if (value := getattr(self, name)) is not None and (name, value) != ("json_object", 0)
        ]
        if len(shapes) != 1:
            names = ", ".join(self.__struct_fields__)
            raise InputError(f"structured has {len(shapes)} shapes; give exactly one of {names}")
        return shapes[0]


#: Lower than llguidance's own: a mask is computed in a step, for which all answers wait, and the
#: states of a matcher take memory.
_LIMITS: Final = {
    "initial_lexer_fuel": 100_000, "max_lexer_states": 50_000, "step_lexer_fuel": 100_000,
    "step_max_items": 20_000,
}  # fmt: skip


class Mask:
    """Which tokens can follow in one answer.

    Attributes:
        count: how many tokens of the answer it has read.

    Args:
        matcher: one of its own, which has read no token.
    """

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher
        self.count = 0

    def read(self, tokens: Sequence[int]) -> None:
        """Read the next tokens of the answer.

        Raises:
            InputError: llguidance has reached one of its limits.
        """
        self.count += len(tokens)
        if tokens:
            self._matcher.consume_tokens(list(tokens))
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise InputError(f"structured: {_first_line(self._matcher.get_error())}")

    def bits(self) -> bytes:
        """Return a bit for each token that can follow."""
        bits: bytes = self._matcher.compute_bitmask()
        self._check()
        return bits


class Shapes:
    """Compiles shapes for one model, and keeps those that were used last."""

    def __init__(self, tokenizer: Any, end_tokens: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._end_tokens = list(end_tokens)
        self._lock = threading.Lock()
        self._compiler: Any = None
        self._kept: OrderedDict[bytes, Any] = OrderedDict()

    def mask(self, shape: Shape) -> Mask:
        """Return a mask for a new answer.

        Raises:
            InputError: the shape, or the model, is one for which there are no masks.
        """
        name, value = shape.given()
        key = msgspec.json.encode((name, value))
        if len(key) > _SHAPE_CHARS:
            raise InputError(f"structured.{name} has more than {_SHAPE_CHARS:,} characters")
        with self._lock:
            matcher = self._kept.get(key)
        if matcher is None:
            # Without the lock: the steps of other answers do not wait for it.
            matcher = self._compiled(name, value)
        with self._lock:
            self._kept[key] = matcher
            self._kept.move_to_end(key)
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
            return Mask(matcher.deep_copy())

    def _compiled(self, name: str, value: Any) -> Any:
        llguidance = self._library()
        make = llguidance.LLMatcher
        try:
            if name == "json" or name == "json_object":
                schema = {"type": "object"} if name == "json_object" else closed(value)
                text = msgspec.json.encode(schema).decode()
                grammar = make.grammar_from_json_schema(text, overrides=COMPACT)
            elif name == "regex":
                grammar = make.grammar_from_regex(value)
            elif name == "choice":
                choices = " | ".join(msgspec.json.encode(text).decode() for text in value)
                grammar = make.grammar_from_lark(f"start: {choices}")
            else:
                grammar = make.grammar_from_lark(value)
            limits = llguidance.LLParserLimits(**_LIMITS)
            matcher = make(self._compiler, grammar, log_level=0, limits=limits)
            # Now, and not in a step of the batch: the first one takes longest, and finds limits.
            matcher.compute_bitmask()
        except ValueError as error:
            raise InputError(f"structured.{name}: {_first_line(str(error))}") from None
        if matcher.is_error():
            raise InputError(f"structured.{name}: {_first_line(matcher.get_error())}")
        return matcher

    def _library(self) -> Any:
        try:
            import llguidance
            import llguidance.hf
        except ImportError:
            raise InputError(
                "structured: the server lacks llguidance; install headrace[structured] there"
            ) from None
        if self._compiler is None:
            if not self._end_tokens:
                raise InputError("structured: the model has no end token; leave it out")
            try:
                self._compiler = llguidance.hf.from_tokenizer(
                    self._tokenizer, eos_token=self._end_tokens
                )
            except ValueError as error:
                raise InputError(f"structured: the model's tokenizer: {error}") from None
        return llguidance


def closed(schema: Any) -> Any:
    """Return a schema whose objects have the members that it names, unless it allows others.

    A model that may invent members does so, and a small one for ever.
    """
    try:
        written = msgspec.json.encode(schema).decode()
        return schema if any(one in written for one in _JOINING) else _closed(schema)
    except RecursionError:
        return schema


def _closed(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    found = dict(schema)
    for name in ("properties", "$defs", "definitions"):
        if isinstance(inner := schema.get(name), dict):
            found[name] = {key: _closed(one) for key, one in inner.items()}
    for name in ("items", "additionalProperties"):
        if name in schema:
            found[name] = _closed(schema[name])
    # With members of its own, a schema joins the others.
    joined = [name for name in ("anyOf", "oneOf", "$ref") if name in schema]
    if "properties" in schema and not joined and "patternProperties" not in schema:
        found.setdefault("additionalProperties", False)
    elif "properties" not in schema:
        for name in joined[:2]:
            if isinstance(listed := schema[name], list):
                found[name] = [_closed(one) for one in listed]
    return found


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0][:500]
