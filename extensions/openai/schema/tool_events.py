"""The events of a response that can call tools.

Which items a response has shows only while they come. So its events are counted, from the first
piece on: the number of an event follows from the pieces before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from extensions.openai.schema.answers import Generation, Part
from extensions.openai.schema.conversations import message_id
from extensions.openai.schema.responses import (
    OutputMessage,
    OutputText,
    Response,
    queued_and_running,
    text_of_part,
)
from extensions.openai.schema.tools import CallPart, item_of


class ToolEvents:
    """Writes the events of one response.

    Attributes:
        number: that of the next event.
    """

    def __init__(self, job_id: str) -> None:
        self.number = 0
        self._job_id = job_id
        self._text: OutputText | None = None
        self._calls: list[CallPart] = []
        # How many items there are; the last one may be open: "text", "call", or "".
        self._items = 0
        self._open = ""

    def head(self, response: Response) -> Iterator[dict[str, Any]]:
        """Yield the events before the first item."""
        for kind, shown in zip(
            ("created", "in_progress"), queued_and_running(response), strict=True
        ):
            yield self._event(f"response.{kind}", response=shown)

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
                item = item_of(
                    self._job_id, len(self._calls), CallPart(name=call.name), "in_progress"
                )
                self._calls.append(CallPart(name=call.name))
                self._items, self._open = self._items + 1, "call"
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
        return {"type": kind, "sequence_number": self.number - 1, **fields}
