"""Answers of a given shape: before each token, a mask excludes those that cannot follow.

llguidance compiles what a request asks for, and computes the masks. The state of a mask follows
from the tokens of the answer alone. So an answer continues in another process in the same way.

Some shapes compile for minutes, and llguidance cannot be stopped. So each is compiled by another
process first, which the kernel ends (`shape_trial.py`).
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from copy import copy
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import Meta

from handlers.generation import shape_trial
from headrace.errors import InputError, TransientError

#: How many compiled shapes a process keeps.
_KEPT: Final = 32
#: For how long they were compiled in all, in seconds of a CPU. llguidance does not report the
#: memory of a shape; it grows with this time, by some 65 MB a second.
_KEPT_CPU_S: Final = 8.0
#: How many are compiled at a time, so that a large one does not hold up all others.
_COMPILERS: Final = 2
#: The most that one may take, so that those of all requests in the process fit into its memory.
_ONE_CPU_S: Final = 1.0
_TOO_LONG: Final = f"it takes too long to compile: more than {_ONE_CPU_S:g} s of a CPU"
#: The most that all which wait may take together, by what others took lately.
_WAITING_CPU_S: Final = 4.0
#: The weight of the newest in that.
_NEWEST_WEIGHT: Final = 1 / 4
#: The most characters of a shape, as JSON.
_SHAPE_CHARS: Final = 200_000
#: A space or none, as most programs write JSON. A small model would write spaces for ever.
COMPACT: Final = {"whitespace_pattern": " ?"}
#: The most characters of llguidance's reason.
_REASON_CHARS: Final = 500
#: Where llguidance has found a mistake in a grammar, and which.
_PLACE: Final = re.compile(r"(?:at )?(\d+)\(\d+\): (?:[^:]*JSON schema: )?(.*)")
#: What its errors have in common for a shape that is right and beyond a limit.
_BEYOND: Final = re.compile(r"too (?:big|large|long|many|complex)|limit|exceeded|max is")
#: With what its errors begin if no text fits.
_NOTHING: Final = "NoExtension"

#: What joins several schemas into one: each of them must allow the members of the others.
_JOINING: Final = ('"allOf":', '"if":', '"dependentSchemas":', '"unevaluatedProperties":')

_Text = Annotated[str, Meta(min_length=1)]


class Grammar(NamedTuple):
    """A shape as llguidance takes it.

    Attributes:
        text: in Lark's notation.
        regex: the text is an expression instead.
        fields: where the request has each line, and what is there; the last one is that of all
            further lines.
    """

    text: str
    fields: Sequence[tuple[str, str]]
    regex: bool = False

    @property
    def field(self) -> str:
        """Where the request has it."""
        return self.fields[0][0]

    def error(self, reason: str) -> InputError:
        """Return the error for a request, by llguidance's own."""
        reason = reason.strip().partition("\n")[0][:_REASON_CHARS]
        place = _PLACE.match(reason)
        line = int(place[1]) - 1 if place else 0
        field, what = self.fields[min(line, len(self.fields) - 1)]
        if place and what != "grammar":
            reason = place[2]
        if reason.startswith(_NOTHING):
            return InputError(f"{field}: no text fits the {what}; change it, or leave it out")
        if _BEYOND.search(reason):
            wrong, advice = "is too complex", "make it simpler"
        else:
            wrong, advice = "is one for which there are no masks", "change it, or leave it out"
        return InputError(f"{field}: the {what} {wrong}; {advice} (llguidance: {reason})")


class Shape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an answer must be; exactly one of them.

    Attributes:
        json: a JSON schema.
        json_object: any JSON object.
        regex: an expression for the whole answer.
        choice: texts, of which the answer is one.
        grammar: a grammar in Lark's notation.
        field: where the client has written it, for errors; None for `structured` itself.
    """

    json: dict[str, Any] | bool | None = None
    json_object: bool | None = None
    regex: _Text | None = None
    choice: Annotated[list[_Text], Meta(min_length=1)] | None = None
    grammar: _Text | None = None
    field: str | None = None

    def given(self, field: str = "structured") -> tuple[str, Any]:
        """Return name and value of the one that is given; raise InputError unless one is."""
        names = self.__struct_fields__[:-1]
        values = [(name, getattr(self, name)) for name in names]
        shapes = [one for one in values if one[1] is not None and one != ("json_object", False)]
        if len(shapes) != 1:
            raise InputError(
                f"{field} has {len(shapes)} shapes; give exactly one of {', '.join(names)}"
            )
        return shapes[0]

    def as_grammar(self) -> Grammar:
        """Return it as llguidance takes it; raise InputError if none is given, or several are."""
        name, value = self.given()
        field = self.field or f"structured.{name}"
        if name == "regex":
            return Grammar(value, [(field, "expression")], regex=True)
        if name == "grammar":
            return Grammar(value, [(field, "grammar")])
        if name == "choice":
            text = " | ".join(msgspec.json.encode(text).decode() for text in value)
            # As one terminal: each alternative of a rule would count against a limit.
            return Grammar(f"start: CHOICE\nCHOICE: {text}", [(field, "choice")])
        return Grammar(f"start: {json_rule(value, name)}", [(field, "JSON schema")])


def json_rule(schema: Any, name: str = "json") -> str:
    """Return what a grammar has for JSON that fits a schema; any object for `json_object`."""
    schema = {"type": "object"} if name == "json_object" else closed(schema)
    # As an object, it can have how spaces are written.
    schema = {True: {}, False: {"not": {}}}[schema] if isinstance(schema, bool) else schema
    return f"%json {msgspec.json.encode({**schema, 'x-guidance': COMPACT}).decode()}"


class Mask:
    """Which tokens can follow in one answer.

    Attributes:
        count: how many tokens of the answer it has read.

    Args:
        matcher: one of its own, which has read no token.
    """

    def __init__(self, matcher: Any, grammar: Grammar) -> None:
        self._matcher = matcher
        self._grammar = grammar
        self.count = 0

    def read(self, tokens: Sequence[int]) -> None:
        """Read the next tokens of the answer; raise InputError if llguidance is at a limit."""
        self.count += len(tokens)
        if tokens:
            self._matcher.consume_tokens(list(tokens))
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise self._grammar.error(self._matcher.get_error())

    def bits(self) -> bytes:
        """Return a bit for each token that can follow."""
        bits: bytes = self._matcher.compute_bitmask()
        self._check()
        return bits


class _Trials:
    """Processes that compile shapes, one for each thread that does."""

    def __init__(self, tokenizer: str, end_tokens: Sequence[int]) -> None:
        self._tokenizer = msgspec.json.encode([tokenizer, end_tokens, _ONE_CPU_S]) + b"\n"
        self._of_thread = threading.local()
        self._all: set[subprocess.Popen[bytes]] = set()
        weakref.finalize(self, _end_all, self._all)

    def result(self, grammar: Grammar) -> tuple[str, float]:
        """Return what is against a shape, "" for nothing, and the seconds of a CPU that it took.

        Raises:
            TransientError: a process has ended, and not because of the shape.
        """
        if (process := getattr(self._of_thread, "process", None)) is None:
            process = self._of_thread.process = self._start()
        answer = _ask(process, msgspec.json.encode([grammar.text, grammar.regex]) + b"\n")
        if answer:
            return msgspec.json.decode(answer, type=tuple[str, float])
        self._of_thread.process = None
        self._all.discard(process)
        _end_all({process})
        if process.returncode == -signal.SIGPROF:
            return _TOO_LONG, _ONE_CPU_S
        if process.returncode in (-signal.SIGSEGV, -signal.SIGABRT):
            return "it is too complex to compile", _ONE_CPU_S
        raise TransientError(
            f"{grammar.field}: the process that compiles shapes has ended; send it again"
        )

    def _start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-P", shape_trial.__file__],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self._all.add(process)
        _ask(process, self._tokenizer)
        return process


def _ask(process: subprocess.Popen[bytes], line: bytes) -> bytes:
    """Return the answer of a process to a line; b"" if it has ended."""
    if process.stdin is None or process.stdout is None:
        raise TypeError("the process has no pipes")
    try:
        process.stdin.write(line)
        process.stdin.flush()
    except BrokenPipeError:
        return b""
    return process.stdout.readline()


def _end_all(processes: set[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.kill()
        process.communicate()


class _Key(NamedTuple):
    text: str
    regex: bool


def _give(grammar: Grammar, future: Future[Any], result: Any) -> None:
    """Give a matcher, llguidance's reason or an error to one that waits, if it still does."""
    if not future.set_running_or_notify_cancel():
        return
    if isinstance(result, BaseException):
        future.set_exception(result)
    elif isinstance(result, str):
        future.set_exception(grammar.error(result))
    else:
        future.set_result(result)


def _refuse(excess: Sequence[tuple[Grammar, Future[Any]]]) -> None:
    for grammar, future in excess:
        error = TransientError(
            f"{grammar.field}: too many other shapes are compiled now; send it again later"
        )
        _give(grammar, future, error)


class Shapes:
    """Compiles shapes for one model in threads of its own, and keeps those that were used last."""

    def __init__(self, tokenizer: Any, end_tokens: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._end_tokens = list(end_tokens)
        self._threads = ThreadPoolExecutor(_COMPILERS, "shapes")
        self._lock = threading.Lock()
        self._loading = threading.Lock()
        self._compiler: Any = None
        self._trials: _Trials | None = None
        # A matcher, or llguidance's reason against the shape, and the seconds that it took, for
        # each; and who waits for others.
        self._kept: OrderedDict[_Key, tuple[Any, float]] = OrderedDict()
        self._waiting: dict[_Key, list[tuple[Grammar, Future[Any]]]] = {}
        # What a shape took lately, in seconds of a CPU.
        self._usual_s = 0.0

    def compiled(self, grammar: Grammar) -> Future[Any]:
        """Return the matcher of a shape, for `mask`; at once if it is kept.

        The future raises an InputError if the shape, or the model, is one for which there are no
        masks.

        Raises:
            InputError: the shape is too large.
        """
        field, what = grammar.fields[0]
        if len(grammar.text) > _SHAPE_CHARS:
            raise InputError(
                f"{field}: the {what} has more than {_SHAPE_CHARS:,} characters; make it shorter"
            )
        key, future = _Key(grammar.text, grammar.regex), Future[Any]()
        with self._lock:
            if (kept := self._kept.get(key)) is not None:
                self._kept.move_to_end(key)
            elif key in self._waiting:
                self._waiting[key].append((grammar, future))
            else:
                self._waiting[key] = [(grammar, future)]
                # The executor may start a thread now.
                before = threading.stack_size(shape_trial.STACK_BYTES)
                try:
                    self._threads.submit(self._work, key, grammar)
                finally:
                    threading.stack_size(before)
            excess = self._excess()
        _refuse(excess)
        if kept is not None:
            _give(grammar, future, kept[0])
        return future

    def _work(self, key: _Key, grammar: Grammar) -> None:
        """Compile a shape for those that wait for it."""
        with self._lock:
            if all(future.cancelled() for _, future in self._waiting.get(key, ())):
                self._waiting.pop(key, None)
                return
        cpu_s = 0.0
        try:
            # This takes long once, and not for this shape.
            self._load(grammar.field)
            result, cpu_s = self._compile(grammar)
        except BaseException as error:  # noqa: BLE001 - it is that of all that wait
            result = error
        with self._lock:
            self._usual_s += _NEWEST_WEIGHT * (cpu_s - self._usual_s)
            waiting = self._waiting.pop(key, ())
            if not isinstance(result, BaseException):
                # A reason takes no memory.
                self._kept[key] = result, 0.0 if isinstance(result, str) else cpu_s
                self._drop()
            excess = self._excess()
        for own, future in waiting:
            _give(own, future, result)
        _refuse(excess)

    def _excess(self) -> list[tuple[Grammar, Future[Any]]]:
        """Take out the newest that wait, as far as all of them would take too long."""
        keys = list(self._waiting)[_COMPILERS:]
        fitting = int(_WAITING_CPU_S / self._usual_s) if self._usual_s else len(keys)
        return [waiting for key in keys[fitting:] for waiting in self._waiting.pop(key)]

    def _drop(self) -> None:
        """Keep no more than may be kept, and at least the newest."""
        total_s = sum(seconds for _, seconds in self._kept.values())
        while len(self._kept) > _KEPT or (total_s > _KEPT_CPU_S and len(self._kept) > 1):
            total_s -= self._kept.popitem(last=False)[1][1]

    def _compile(self, grammar: Grammar) -> tuple[Any, float]:
        """Return the matcher of a shape, or llguidance's reason against it, and its CPU seconds."""
        if self._trials is None:
            raise TypeError("not loaded")
        reason, cpu_s = self._trials.result(grammar)
        if reason:
            return reason, cpu_s
        matcher, reason = shape_trial.compiled(self._compiler, grammar.text, regex=grammar.regex)
        return reason or matcher, cpu_s

    def _load(self, field: str) -> None:
        """Make llguidance's tokenizer, unless it is there."""
        try:
            from llguidance import LLTokenizer
        except ImportError:
            raise InputError(
                f"{field}: the server lacks llguidance; install headrace[structured] there"
            ) from None
        with self._loading:
            if self._compiler is None:
                if not self._end_tokens:
                    raise InputError(f"{field}: the model has no end token; leave it out")
                if (backend := getattr(self._tokenizer, "backend_tokenizer", None)) is None:
                    raise InputError(f"{field}: there are no masks for the model's tokenizer")
                backend = copy(backend)
                backend.no_padding()
                backend.no_truncation()
                text = backend.to_str()
                try:
                    self._compiler = LLTokenizer(text, eos_token=self._end_tokens)
                except ValueError as error:
                    raise InputError(f"{field}: the model's tokenizer: {error}") from None
                self._trials = _Trials(text, self._end_tokens)


def closed(schema: Any) -> Any:
    """Return a schema whose objects have the members that it names, unless it allows others.

    A model that may invent members does so, and a small one for ever.
    """
    try:
        written = msgspec.json.encode(schema).decode()
        return schema if any(word in written for word in _JOINING) else _closed(schema)
    except RecursionError:
        return schema


def _closed(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    result = dict(schema)
    for name in ("properties", "$defs", "definitions"):
        if isinstance(inner := schema.get(name), dict):
            result[name] = {key: _closed(member) for key, member in inner.items()}
    for name in ("items", "additionalProperties"):
        if name in schema:
            result[name] = _closed(schema[name])
    # With members of its own, a schema joins the others.
    joined = [name for name in ("anyOf", "oneOf", "$ref") if name in schema]
    if "properties" in schema and not joined and "patternProperties" not in schema:
        result.setdefault("additionalProperties", False)
    elif "properties" not in schema:
        for name in joined[:2]:
            if isinstance(listed := schema[name], list):
                result[name] = [_closed(member) for member in listed]
    return result
