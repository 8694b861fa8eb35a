"""The events of a response, as its stream has them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Literal

import msgspec
from typing_extensions import override

from extensions.openai.schema.answers import Generation, Part
from extensions.openai.schema.conversations import message_id
from extensions.openai.schema.errors import ErrorDetail
from extensions.openai.schema.responses import OutputMessage, OutputText, Response, text_of_part
from extensions.openai.schema.tools import CallPart, item_of

#: Events before the first text: created, in progress, item added, part added.
HEAD_EVENTS: Final = 4
#: Events after the last piece: a text without pieces, text done, part done, item done, completed.
TAIL_EVENTS: Final = 5


class ResponseEvents:
    """Writes the events of a response that can call tools.

    Which items a response has shows only while they come. So its events are counted, from the first
    piece on: the number of an event follows from the pieces before it.

    Attributes:
        number: that of the next event.
    """

    def __init__(self, job_id: str) -> None:
        self.number = 0
        self._job_id = job_id
        self._text: OutputText | None = None
        self._calls: list[CallPart] = []
        # How many items there are; the last one may be open.
        self._items = 0
        self._open: Literal["text", "call", ""] = ""

    def head(self, response: Response) -> Iterator[dict[str, Any]]:
        """Yield the events before the first item."""
        begun = {"response": msgspec.structs.replace(response, output=[], usage=None)}
        for kind, status in (("created", "queued"), ("in_progress", "in_progress")):
            begun["response"] = msgspec.structs.replace(begun["response"], status=status)
            yield self._event(f"response.{kind}", **begun)

    def part(self, part: Part) -> Iterator[dict[str, Any]]:
        """Yield the events of the next part of the answer."""
        if part.text:
            if self._text is None:
                yield from self._open_message()
            if self._text is not None and self._open == "text":
                new = text_of_part(part)
                self._text.text += new.text
                self._text.logprobs += new.logprobs
                yield self._event(
                    "response.output_text.delta", **self._place(), delta=new.text,
                    logprobs=new.logprobs,
                )  # fmt: skip
        for call in part.tool_calls or ():
            if call.name:
                yield from self._close()
                self._calls.append(CallPart(name=call.name))
                self._items, self._open = self._items + 1, "call"
                item = item_of(self._job_id, len(self._calls) - 1, self._calls[-1], "in_progress")
                yield self._event("response.output_item.added", **self._index(), item=item)
            if call.arguments and self._calls:
                self._calls[-1].arguments += call.arguments
                yield self._event(
                    "response.function_call_arguments.delta", **self._place(), delta=call.arguments
                )

    def tail(self, response: Response, found: Generation | None) -> Iterator[dict[str, Any]]:
        """Yield the events behind the last part, which end the stream."""
        if found is None:
            yield self._event("response.failed", response=response)
            return
        if not self._items:
            yield from self._open_message()
        yield from self._close(complete=found.finish != "length")
        yield self._event(f"response.{response.status}", response=response)

    def _open_message(self) -> Iterator[dict[str, Any]]:
        yield from self._close()
        self._items, self._open, self._text = self._items + 1, "text", OutputText(text="")
        item = OutputMessage(id=message_id(self._job_id), status="in_progress", content=[])
        yield self._event("response.output_item.added", **self._index(), item=item)
        yield self._event("response.content_part.added", **self._place(), part=OutputText(text=""))

    def _close(self, *, complete: bool = True) -> Iterator[dict[str, Any]]:
        status: Literal["completed", "incomplete"] = "completed" if complete else "incomplete"
        place = self._place()
        item: Any = None
        if self._text is not None and self._open == "text":
            part = self._text
            item = OutputMessage(id=message_id(self._job_id), status=status, content=[part])
            yield self._event(
                "response.output_text.done", **place, text=part.text, logprobs=part.logprobs
            )
            yield self._event("response.content_part.done", **place, part=part)
        elif self._open == "call":
            call = self._calls[-1]
            item = item_of(self._job_id, len(self._calls) - 1, call, status)
            yield self._event(
                "response.function_call_arguments.done", **place, name=call.name,
                arguments=call.arguments,
            )  # fmt: skip
        if item is not None:
            yield self._event("response.output_item.done", **self._index(), item=item)
        self._open = ""

    def _index(self) -> dict[str, Any]:
        return {"output_index": self._items - 1}

    def _place(self) -> dict[str, Any]:
        if self._open == "call":
            number = len(self._calls) - 1
            return {"item_id": item_of(self._job_id, number, CallPart()).id, **self._index()}
        return {"item_id": message_id(self._job_id), **self._index(), "content_index": 0}

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        self.number += 1
        return _event(self.number - 1, kind, **fields)


class TextEvents(ResponseEvents):
    """Writes the events of a response that is one text.

    The number of an event follows from how many pieces its job has had, so that a process need not
    read the earlier ones. A text that ends with the n-th piece has the number n + 3.
    """

    @override
    def head(self, response: Response) -> Iterator[dict[str, Any]]:
        yield from super().head(response)
        yield from self._open_message()

    def delta(self, last: int, part: Part) -> Iterator[dict[str, Any]]:
        """Yield the event with the text up to the piece `last`."""
        self.number = HEAD_EVENTS - 1 + last
        yield from self.part(part)

    def end(
        self, last: int, response: Response, found: Generation | None
    ) -> Iterator[dict[str, Any]]:
        """Yield the events after the piece `last`, which end the stream."""
        self.number = HEAD_EVENTS + 1 + last
        self._text = None if found is None else text_of_part(found)
        yield from self.tail(response, found)


def error_event(number: int, error: ErrorDetail) -> dict[str, Any]:
    """Return the event for a stream that ends before its response.

    OpenAI's description has the members at the top, that of Open Responses in `error`. OpenAI's
    SDKs raise what is in `error`.
    """
    return _event(
        number, "error", code=error.code, message=error.message, param=error.param, error=error
    )


def _event(number: int, kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": kind, "sequence_number": number, **fields}
