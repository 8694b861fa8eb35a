"""Calls of tools in the text of an answer: the published formats, and a parser for each.

What a parser has found follows from the text so far alone. So the parser of another process, which
gets the same text in other parts, goes on in the same way.
"""

from __future__ import annotations

import re
from collections.abc import Set
from typing import Any, Final, NamedTuple

import msgspec


class CallFormat(NamedTuple):
    """How a model writes calls.

    Attributes:
        mark: the text before a call, or before all of them; "" for none.
        opening: what comes before the first call.
        before: what comes before the name of a tool.
        between: what comes between the name and the arguments.
        after: what comes after the arguments.
        separator: what comes between two calls.
        closing: what comes after the last call.
        lists: one mark can have several calls.
        bare: an answer that begins with an object can be a call without a mark.
    """

    mark: str
    opening: str
    before: str
    between: str
    after: str
    separator: str
    closing: str = ""
    lists: bool = False
    bare: bool = False

    def call(self, name: str, arguments: str) -> str:
        """Return one call."""
        return f"{self.before}{name}{self.between}{arguments}{self.after}"

    def calls(self, calls: list[tuple[str, str]]) -> str:
        """Return calls as the model writes them, each of a name and its arguments as JSON."""
        written = self.separator.join(self.call(*call) for call in calls)
        return f"{self.opening}{written}{self.closing}"


HERMES: Final = CallFormat(
    "<tool_call>", "", '<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>", "\n"
)
LLAMA: Final = CallFormat(
    "<|python_tag|>", "", '{"name": "', '", "parameters": ', "}", "; ", lists=True, bare=True
)
MISTRAL: Final = CallFormat(
    "[TOOL_CALLS]", "[TOOL_CALLS] [", '{"name": "', '", "arguments": ', "}", ", ", "]", lists=True
)
#: That of Mistral's models since November 2024; the parser of MISTRAL reads it too.
MISTRAL_NAMED: Final = CallFormat("[TOOL_CALLS]", "", "[TOOL_CALLS]", "[ARGS]", "", "")

#: The tokens of these formats that a tokenizer can hold for special ones.
MARKS: Final = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|python_tag|>", "<tool_call>")

_NAME: Final = r"([A-Za-z0-9_.-]{1,64})"
#: Up to the brace with which the arguments begin.
_OBJECT_HEAD: Final = re.compile(
    rf'\s*\[?\s*\{{\s*"name"\s*:\s*"{_NAME}"\s*,\s*"(?:arguments|parameters)"\s*:\s*\{{'
)
_NAMED_HEAD: Final = re.compile(rf"\s*{_NAME}(?:\[CALL_ID\]\w{{1,64}})?(?:\[ARGS\])?\s*\{{")
_FIRST_MEMBER: Final = re.compile(r'\s*\[?\s*\{\s*"(name|arguments|parameters|type|id)"\s*:')
#: What can come between a mark and the first brace.
_BEFORE_BRACE: Final = re.compile(r"[\s\[\]A-Za-z0-9_.-]{0,200}")
_BRACES: Final = re.compile(r'["{}\[\]]')
_QUOTES: Final = re.compile(r'["\\]')


class _ObjectEnd:
    """Finds the end of a JSON object that comes in parts, from its first brace on."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_text = self._escaped = False

    def find(self, text: str, at: int = 0) -> int:
        """Read a part; return the place behind the end of the object, or -1."""
        if self._escaped and at < len(text):
            self._escaped = False
            at += 1
        while match := (_QUOTES if self._in_text else _BRACES).search(text, at):
            at = match.end()
            mark = match[0]
            if mark == '"':
                self._in_text = not self._in_text
            elif mark == "\\":
                self._escaped = at == len(text)
                at += 1
            else:
                self._depth += 1 if mark in "{[" else -1
                if self._depth == 0:
                    return at
        return -1


class _CallHead(NamedTuple):
    """A call as far as it is known: its name, and the arguments so far."""

    name: str
    arguments: str


class CallParser:
    """Finds the calls in the text of one answer, while it comes.

    What is no call of a tool in `names` stays text. The text behind the first call is left out, and
    so is white space before it.

    Args:
        names: those of the tools.
        calls_max: how many calls count; None for all.
        calls_only: the answer has calls alone, so the beginning of a cut one is no text.

    Attributes:
        count: how many calls have begun.
        complete: calls have come, each of them is whole, and no other one has begun.
    """

    def __init__(
        self, form: CallFormat, names: Set[str], calls_max: int | None = None, *,
        calls_only: bool = False,
    ) -> None:  # fmt: skip
        self._form = form
        self._names = names
        mark = re.escape(form.mark)
        self._anywhere = re.compile(mark)
        self._at_beginning = re.compile(rf"{mark}|\A\s*(?=\{{)")
        self._after_calls = re.compile(rf"{mark}|(?=\{{)")
        self._calls_max = calls_max
        self._calls_only = calls_only
        self.count = 0
        self.complete = False
        # What may still become a call; for a text, a part of its mark or white space before it.
        self._held = ""
        self._mark = ""
        self._head: _ObjectEnd | None = None
        self._arguments: _ObjectEnd | None = None
        self._opened = False
        self._begun = False
        self._text: list[str] = []
        self._calls: list[dict[str, Any]] = []

    def read(self, text: str, *, last: bool = False) -> dict[str, Any]:
        """Read the next part; return what is certain now, as a piece of the answer.

        A call comes as `{"index": 0, "name": "...", "arguments": "..."}`. Further parts of its
        arguments have no name.

        Args:
            last: no more follows.
        """
        at = 0
        while at < len(text):
            if self._arguments is not None:
                at = self._read_arguments(self._arguments, text, at)
            elif self._opened:
                self._read_head(text[at])
                at += 1
            else:
                at = self._read_text(text, at)
        self.complete = self.count > 0 and not self._is_cut()
        if last:
            self._say(self._mark + self._held)
            self._held = self._mark = ""
            self._opened = False
        piece: dict[str, Any] = {"text": "".join(self._text)}
        if self._calls:
            piece["tool_calls"] = self._calls
        self._text, self._calls = [], []
        return piece

    def _read_text(self, text: str, at: int) -> int:
        """Read up to where a call can begin, or to the end; return the place behind."""
        new = self._held + text[at:]
        before = len(text) - len(new)
        opener = self._opener().search(new)
        if opener is None:
            keep = self._certain_chars(new)
            self._say(new[:keep])
            self._held = new[keep:]
            return len(text)
        keep = len(new[: opener.start()].rstrip())
        self._say(new[:keep])
        self._opened, self._mark, self._held, self._head = True, new[keep : opener.end()], "", None
        return opener.end() + before

    def _opener(self) -> re.Pattern[str]:
        """Return what a call can begin with here."""
        if self._form.bare and not self._begun:
            return self._at_beginning
        return self._after_calls if self._form.lists and self.count else self._anywhere

    def _certain_chars(self, text: str) -> int:
        """Return how many characters come before what may become a mark, and before white space."""
        mark = self._form.mark
        for length in range(min(len(mark) - 1, len(text)), 0, -1):
            if text.endswith(mark[:length]):
                return len(text[:-length].rstrip())
        return len(text.rstrip())

    def _read_head(self, char: str) -> None:
        """Read a character of what may be a call."""
        self._held += char
        if self._head is None and char != "{":
            if not self._fits_before_brace():
                self._no_call()
            return
        if char == "{" and (call := self._matched()) is not None:
            self._begin(call)
            return
        if self._head is None:
            self._head = _ObjectEnd()
        if char == ":" and not _FIRST_MEMBER.match(self._held):
            self._no_call()
        elif self._head.find(char) > 0:
            whole = _whole_call(self._held)
            if whole is None or whole.name not in self._names:
                self._no_call()
            else:
                self._begin(whole, complete=True)

    def _fits_before_brace(self) -> bool:
        if self._form.mark == MISTRAL.mark:
            return _BEFORE_BRACE.fullmatch(self._held) is not None
        return not self._held.strip()

    def _matched(self) -> _CallHead | None:
        match = _OBJECT_HEAD.fullmatch(self._held)
        if match is None and self._mark.endswith(MISTRAL.mark):
            match = _NAMED_HEAD.fullmatch(self._held)
        return _CallHead(match[1], "{") if match and match[1] in self._names else None

    def _begin(self, call: _CallHead, *, complete: bool = False) -> None:
        """Begin a call; without `complete`, more of its arguments follows."""
        self._begun, self._opened, self._held, self._mark = True, False, "", ""
        if self._counts(self.count):
            self._calls.append({"index": self.count, **call._asdict()})
        self.count += 1
        if not complete:
            self._arguments = _ObjectEnd()
            self._arguments.find(call.arguments)

    def _is_cut(self) -> bool:
        """Return whether a call that counts has begun and is not whole."""
        if self._arguments is not None:
            return self._counts(self.count - 1)
        return self._counts(self.count) and (self._opened or bool(self._held.strip()))

    def _counts(self, index: int) -> bool:
        return self._calls_max is None or index < self._calls_max

    def _read_arguments(self, arguments: _ObjectEnd, text: str, at: int) -> int:
        end = arguments.find(text, at)
        new = text[at:] if end < 0 else text[at:end]
        index = self.count - 1
        if self._counts(index):
            if self._calls and self._calls[-1]["index"] == index:
                self._calls[-1]["arguments"] += new
            else:
                self._calls.append({"index": index, "arguments": new})
        if end < 0:
            return len(text)
        self._arguments = None
        return end

    def _no_call(self) -> None:
        held = self._mark + self._held
        self._opened, self._held, self._mark = False, "", ""
        self._say(held)

    def _say(self, text: str) -> None:
        if text:
            self._begun = True
            if not self.count and not self._calls_only:
                self._text.append(text)


def _whole_call(text: str) -> _CallHead | None:
    """Return an object as a call, with its members in any order; None for another object."""
    try:
        call = msgspec.json.decode(text[text.index("{") :])
    except (msgspec.DecodeError, RecursionError):
        return None
    arguments = call.get("arguments", call.get("parameters"))
    if isinstance(arguments, str):
        # Some models write the arguments as a text that has the JSON.
        written = arguments
    else:
        written = "{}" if arguments is None else msgspec.json.encode(arguments).decode()
    name = call.get("name")
    fits = isinstance(name, str) and written.lstrip().startswith("{")
    return _CallHead(name, written) if fits else None
