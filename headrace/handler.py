"""The handler: TorchServe's four verbs, list in, list out.

A handler lives in a model process and sees batches. The process calls, in this order and, unless
the handler says `overlap = True`, never at the same time::

    initialize(context)                    once, before the first batch
    initialize_preprocess(context)         instead, in a process that preprocesses only
    example_input()                        once; runs through the verbs before the first batch
    preprocess(inputs)  -> items           one item per input, in order
    inference(items)    -> outputs         whatever the model gives for the good items
    postprocess(outputs) -> results        one result per good item, in order

An exception *instance* in place of an item or a result fails that job alone. A verb that raises
fails nobody at first: the batch is split and its halves tried again until the bad inputs stand
alone (workers/model_process/executor.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from headrace.jobs.progress import Progress, progress_of

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Context:
    """What a handler knows of its surroundings. One per model process; attributes may be added.

    Attributes:
        model_name: the model's name in the models file.
        version: the model's version in the models file.
        device: a torch device string, such as "cpu" or "cuda:0".
        model_dir: the directory that relative paths in the models file are taken from.
        weights: the weights file, if the models file names one.
        options: the model's free `options`.
        channels_last: "on", "off" or "auto", as the models file has it.
        max_batch_size: the most inputs that one batch can hold.
        allowed_batch_sizes: the sizes that `inference` is called with, ascending; empty is any.
        request_ids: the job ids of the batch at hand, in order.
        content_types: the content type of each input of the batch at hand, in order.
        traceparents: where in a trace each job of it was submitted (W3C `traceparent`), "" for
            nowhere; empty where that holds for all.
    """

    model_name: str
    version: str
    device: str
    model_dir: Path
    weights: Path | None = None
    options: dict[str, Any] = field(default_factory=dict)
    channels_last: str = "auto"
    max_batch_size: int = 1
    allowed_batch_sizes: list[int] = field(default_factory=list)
    request_ids: list[str] = field(default_factory=list)
    content_types: list[str] = field(default_factory=list)
    traceparents: list[str] = field(default_factory=list)
    #: Takes what `progress` is told on to the worker; None outside of a model process.
    _reports: Callable[[int | None, Progress], None] | None = field(
        default=None, init=False, repr=False, compare=False
    )
    _complained: bool = field(default=False, init=False, repr=False, compare=False)

    def progress(
        self,
        done: float | None = None,
        total: float | None = None,
        message: str = "",
        *,
        item: int | None = None,
    ) -> None:
        """Say how far the batch at hand has come; whoever watches one of its jobs sees it.

        Cheap enough for an inner loop: the newest word counts, and a few a second are passed on.
        It never raises and never waits; outside of a batch it does nothing.

        Args:
            done: a fraction from 0 to 1; with `total`, how much of that.
            total: how much there is, in any unit.
            message: a few words for people, 200 characters at the most.
            item: the place, in what the verb was given, of the item that this is about; None for
                all of them.
        """
        if self._reports is not None:
            said = progress_of(done, total, message, self._complain)
            if said is not None:
                self._reports(item, said)

    def _complain(self, words: str, *values: Any) -> None:
        """Log a mistake once, as it may be made in an inner loop."""
        if not self._complained:
            self._complained = True
            logger.warning("%s; so are others like it, without a word", words % values)

    def reports_to(self, take: Callable[[int | None, Progress], None]) -> None:
        """Have what `progress` is told taken on; for whoever runs the handler."""
        self._reports = take


@dataclass(frozen=True, slots=True)
class Response:
    """A result that is not JSON: bytes with their content type."""

    body: bytes
    content_type: str = "application/octet-stream"


class Handler:
    """Base class of handlers; each verb passes its argument on unless it is overridden.

    An input is what the client sent: the parsed value of JSON, `str` for text/*, `bytes` for the
    rest. A result is anything that JSON can say (numpy arrays and torch tensors become lists),
    `bytes`, or a `Response`.
    """

    #: The verbs keep nothing between each other but what they hand on, so that `preprocess` of the
    #: next batch and `postprocess` of the last may run in other threads while `inference` runs.
    overlap: ClassVar[bool] = False

    #: `preprocess` sees each input for itself, so that several of it may share a batch.
    preprocess_per_item: ClassVar[bool] = False

    context: Context

    def initialize(self, context: Context) -> None:
        """Load the model. Called once; an exception here is a failed load, shown in /ready."""
        self.context = context

    def initialize_preprocess(self, context: Context) -> None:
        """Load what `preprocess` needs, without the model.

        Called in place of `initialize` in each of the model's `preprocess_processes`.
        """
        self.context = context

    def example_input(self) -> Any:
        """An input as a client would send it, or None. It may be an attribute as well.

        Before the first batch it runs through the other verbs, alone and `max_batch_size` times
        together; where that raises, or gives an error, the load has failed.
        """
        return None

    def preprocess(self, inputs: list[Any]) -> list[Any]:
        """Turn inputs into items for the model, one each; an exception instance fails that one.

        Raises:
            headrace.errors.InputError: better returned at its position than raised.
        """
        return inputs

    def inference(self, items: Any) -> Any:
        """Run the model once on the good items of the batch."""
        return items

    def postprocess(self, outputs: Any) -> list[Any]:
        """Turn the model's outputs into one result per item, in order."""
        return list(outputs)
