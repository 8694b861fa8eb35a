"""The base class of handlers, with its four verbs: list in, list out.

A handler runs in a model process and receives batches. The process calls the verbs in this order,
and never two at the same time unless the handler sets `overlap = True`::

    initialize(context)                    once, before the first batch
    initialize_preprocess(context)         instead, in a process for `preprocess` only
    example_input()                        once; its input runs through the verbs to warm up
    preprocess(inputs)  -> items           one item per input, in order
    inference(items)    -> outputs         whatever the model returns for the good items
    postprocess(outputs) -> results        one result per good item, in order

An exception *instance* in place of an item or a result fails only that job. If a verb raises, the
batch is split and its halves run again, until each bad input is alone and only its job fails
(workers/model_process/executor.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from headrace.jobs.progress import Progress, progress_of

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Context:
    """The environment of a handler. One per model process; handlers may add attributes.

    Attributes:
        model_name: the model's name in the models file.
        version: the model's version in the models file.
        device: a torch device string, such as "cpu" or "cuda:0".
        model_dir: the directory to which relative paths in the models file refer.
        weights: the weights file, if the models file names one.
        weights_only: the models file's setting: False allows pickled modules in weights files.
        tensors: the models file's `tensors`, with the keys `inputs` and `outputs`; empty if it has
            none.
        declared_tensors: the `tensors` of the model's `inputs` and `outputs`, by these keys; empty
            if it has none. Else an input is a mapping of arrays, and so is a result.
        options: the model's free `options`.
        channels_last: the models file's setting: "on", "off" or "auto".
        allowed_batch_sizes: the batch sizes that `inference` receives, ascending; empty for any.
        request_ids: the job ids of the current batch, in order.
        content_types: the content type of each input of the current batch, in order.
        traceparents: the trace of each job of the current batch (W3C `traceparent`), "" for none;
            empty if no job has one.
        parameters: for each input of the current batch, the value of each parameter of the model.
        headers: for each input, the headers of its request that the models file names.
        metadata: for each input, the `metadata` that the client sent with it.
        part_types: for each input, the content types of the parts that became bytes or text. The
            key is the place in the input, such as `image` or `images[0]`.
    """

    model_name: str
    version: str
    device: str
    model_dir: Path
    weights: Path | None = None
    weights_only: bool = True
    tensors: dict[str, Any] = field(default_factory=dict)
    declared_tensors: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    channels_last: str = "auto"
    max_batch_size: int = 1
    allowed_batch_sizes: list[int] = field(default_factory=list)
    request_ids: list[str] = field(default_factory=list)
    content_types: list[str] = field(default_factory=list)
    traceparents: list[str] = field(default_factory=list)
    parameters: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    metadata: list[dict[str, Any]] = field(default_factory=list)
    part_types: list[dict[str, str]] = field(default_factory=list)
    #: Reports progress to the worker; None outside of a model process.
    _reports: Callable[[int | None, Progress], None] | None = field(
        default=None, init=False, repr=False, compare=False
    )
    _warned: bool = field(default=False, init=False, repr=False, compare=False)

    def progress(
        self,
        done: float | None = None,
        total: float | None = None,
        message: str = "",
        *,
        item: int | None = None,
    ) -> None:
        """Report the progress of the current batch to the clients that watch its jobs.

        It is cheap enough for an inner loop: only the latest report counts, and a few per second
        are sent. It never raises and never waits. Outside of a batch it does nothing.

        Args:
            done: a fraction from 0 to 1; with `total`, the finished part of it.
            total: the whole amount, in any unit.
            message: a few words for people, at most 200 characters.
            item: the position of one item in the verb's argument, from 0; None for all items.
        """
        if self._reports is not None:
            progress = progress_of(done, total, message, self._warn_once)
            if progress is not None:
                self._reports(item, progress)

    def _warn_once(self, text: str, *values: Any) -> None:
        """Log the first mistake only, as an inner loop may repeat it."""
        if not self._warned:
            self._warned = True
            logger.warning("%s; further warnings are suppressed", text % values)

    def reports_to(self, report: Callable[[int | None, Progress], None]) -> None:
        """Set the function that receives the progress; the model process calls this."""
        self._reports = report


@dataclass(frozen=True, slots=True)
class Response:
    """A result that is not JSON: bytes with their content type.

    Attributes:
        content_type: their media type.
        status: the HTTP status on TorchServe's URLs.
        headers: further headers of the response on TorchServe's URLs.
    """

    body: bytes
    content_type: str = "application/octet-stream"
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Exportable:
    """A torch module that another form of itself can replace; for the model option `optimize`.

    Attributes:
        module: the module, in evaluation mode on the model's device. The verbs call it with
            tensors as positional arguments. Its inputs are learnt from `example_input`.
        use: puts a callable in the place of the module's calls. It takes and returns what the
            module does, without gradients.
        scores: returns a score for each class (N, classes, ...) of the module's output, so that the
            best classes can be compared. None if the model has no classes.
        dims: for each input, the names of the dimensions whose size differs from call to call.
            One is "batch", with the batch size. Empty: the first dimension of each is the batch.
            Of the second stage of a detector it is the objects of a batch.
    """

    module: Any
    use: Callable[[Callable[..., Any]], None]
    scores: Callable[[Any], Any] | None = None
    dims: Sequence[Mapping[int, str]] = ()


class Handler:
    """Base class of handlers; a verb that is not overridden returns its argument.

    An input is what the client sent: the parsed value of JSON, `str` for text/*, `bytes` for the
    rest. A result is any JSON value (numpy arrays and torch tensors become lists), `bytes`, or a
    `Response`.
    """

    #: True if the verbs share no state besides their arguments. Then `preprocess` of the next batch
    #: and `postprocess` of the last may run in other threads while `inference` runs.
    overlap: ClassVar[bool] = False

    #: True if `preprocess` treats each input separately, and may run in several threads at once.
    #: Then threads or processes may share a batch; what is faster is measured at the load.
    preprocess_per_item: ClassVar[bool] = False

    #: True if `{"content_type", "base64"}` anywhere inside a JSON input arrives as bytes (str for
    #: text/*). An input that is nothing else arrives so for every handler, and so does a form.
    accepts_nested_bytes: ClassVar[bool] = False

    #: True if an input arrives as the bytes that the client sent, whatever their content type. A
    #: form arrives as a mapping of its parts: bytes where `part_types` has a type, else JSON.
    raw_inputs: ClassVar[bool] = False

    context: Context

    def initialize(self, context: Context) -> None:
        """Load the model. Called once; an exception here fails the load, which /ready shows."""
        self.context = context

    def initialize_preprocess(self, context: Context) -> None:
        """Load what `preprocess` needs, without the model.

        Called instead of `initialize` in each of the model's `preprocess_processes`.
        """
        self.context = context

    def example_input(self) -> Any:
        """Return an input as a client would send it, or None. It may also be an attribute.

        Before the first batch it runs through the other verbs, once alone and once as a batch of
        `max_batch_size`. If a verb raises or returns an error for it, the load fails.
        """
        return None

    def exportable(self) -> Exportable | Sequence[Exportable] | None:
        """Return the module that the model option `optimize` is about; None without one.

        Called after `initialize`, if the model has that option. A model with several stages
        returns a list; the verbs call each of these modules once for a batch.
        """
        return None

    def preprocess(self, inputs: list[Any]) -> list[Any]:
        """Turn inputs into items for the model, one each; an exception instance fails its job.

        Raises:
            headrace.errors.InputError: an input is bad; better return it at its position.
        """
        return inputs

    def inference(self, items: Any) -> Any:
        """Run the model once on the good items of the batch."""
        return items

    def postprocess(self, outputs: Any) -> list[Any]:
        """Turn the model's outputs into one result per item, in order."""
        results: list[Any] = outputs
        return results
