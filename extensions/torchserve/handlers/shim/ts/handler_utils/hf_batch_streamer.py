"""Streams the texts that a model of `transformers` generates for a batch."""

from __future__ import annotations

from typing import Any

from transformers.generation.streamers import BaseStreamer, TextIteratorStreamer


class TextIteratorStreamerBatch(BaseStreamer):  # type: ignore[misc]
    """An iterator over the generated texts: each value is a list with a text for each input.

    It ends when the text of one input ends.
    """

    def __init__(
        self,
        tokenizer: Any,
        batch_size: int,
        skip_prompt: bool = False,
        timeout: float | None = None,
        **decode_kwargs: Any,
    ) -> None:
        self.batch_size = batch_size
        self.streamers = [
            TextIteratorStreamer(tokenizer, skip_prompt, timeout, **decode_kwargs)
            for _ in range(batch_size)
        ]
        self._iterators = [iter(one) for one in self.streamers]

    def put(self, value: Any) -> None:
        """Take the next tokens of all inputs.

        Raises:
            ValueError: the number of inputs is not `batch_size`.
        """
        if value.shape[0] != self.batch_size:
            raise ValueError(
                f"the streamer is made for {self.batch_size} inputs, but got {value.shape[0]}"
            )
        for row, one in enumerate(self.streamers):
            one.put(value[row : row + 1])

    def end(self) -> None:
        """Note that the generation has ended."""
        for one in self.streamers:
            one.end()

    def __iter__(self) -> TextIteratorStreamerBatch:
        return self

    def __next__(self) -> list[str]:
        return [next(one) for one in self._iterators]
