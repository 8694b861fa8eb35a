"""The handler of an archive: it runs TorchServe's `handle(data, context)`.

`handlers.loader` makes it for `handler: torchserve:…`. It works in a model process only: it puts
the package `ts` on `sys.path`, and makes the folder of the archive the current one.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import json
import logging
import sys
import time
import uuid
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any, Final

import msgspec
from typing_extensions import override

from extensions.torchserve.config.model_config import has_sequences, is_parallel
from extensions.torchserve.config.sequences import SequenceKeys
from extensions.torchserve.config.settings import TorchServeConfig
from extensions.torchserve.config.workflow import SOURCES_OPTION
from extensions.torchserve.handlers.entry import BUILTINS, Entry, fed_by_nodes, load_entry
from extensions.torchserve.handlers.process import (
    as_only_rank,
    context_of,
    prepare_process,
    settings_of_process,
)
from extensions.torchserve.handlers.results import (
    EMPTY_PIECE,
    STATUSES,
    STREAM_NEXT,
    Reply,
    head_of,
    piece_of,
    result_of,
)
from headrace.config.model.handler_reference import HandlerReference
from headrace.errors import ConfigError, HandlerError, InputError
from headrace.handler import Context, Handler
from headrace.jobs.values.media_types import JSON_TYPE
from headrace.response import ErrorResponse

if TYPE_CHECKING:
    import ts.context
    from ts.metrics.emission import MetricRow

logger = logging.getLogger(__name__)

#: Named `body` for a handler: an input that is no form.
BODY: Final = "body"
_OUT_OF_RESOURCES: Final = 507
_YES: Final = "True"
#: The value and the content type of each member of a form; of another input, that of `body`.
Members = Mapping[str, tuple[Any, str]]
#: Takes the id of a request, the JSON of a piece, and b"". If a reply begins with the piece, the
#: last one is the JSON of its status and headers.
SendPiece = Callable[[str, bytes, bytes], None]


class TorchServeHandler(Handler):
    """Calls `handle(data, context)` of an archive once per batch."""

    #: TorchServe's rules for JSON and text differ from those of Headrace.
    raw_inputs = True

    def __init__(self, reference: HandlerReference, config: TorchServeConfig | None = None) -> None:
        self._reference = reference
        self._config = config
        self._entry: Entry
        self._ts: ts.context.Context
        self._envelope = ""
        self._decodes = True
        #: The headers of sequences; None for a model without them.
        self._sequences: SequenceKeys | None = None
        self._runner: asyncio.Runner | None = None
        #: By the id of a request: the pieces of its reply so far.
        self._pieces: dict[str, list[Any]] = {}
        self._send_piece: SendPiece | None = None
        self._send_metrics: Callable[[list[MetricRow]], None] | None = None
        self._rows: list[MetricRow] = []
        self._in_batch = False

    def send_metrics_to(self, send: Callable[[list[MetricRow]], None]) -> None:
        """Set the function that takes the rows of the handler's metrics; call it before the load.

        Those of a batch come together at its end, others one by one.
        """
        self._send_metrics = send

    def send_pieces_to(self, send: SendPiece | None) -> None:
        """Set what takes the pieces of replies while `inference` runs; None to keep them only."""
        self._send_piece = send

    @override
    def initialize(self, context: Context) -> None:
        super().initialize(context)
        config = self._config or settings_of_process()
        # Before the current folder changes.
        folder = context.model_dir.resolve()
        metrics = str(config.metrics_config.absolute()) if config.metrics_config else ""
        prepare_process(config, folder, context)
        from ts.metrics.emission import send_rows_to

        send_rows_to(self._take_row)
        self._ts = context_of(context, self._reference, config, folder, metrics)
        self._ts.keep_piece = self._keep_piece
        if is_parallel(self._ts.model_yaml_config):
            as_only_rank()
        if has_sequences(self._ts.model_yaml_config):
            self._sequences = SequenceKeys.of(config)
        sources = context.options.get(SOURCES_OPTION, ())
        entry = fed_by_nodes(
            load_entry(self._reference.target, self._reference.name, folder), sources
        )
        self._envelope = config.service_envelope
        # The results of nodes come as JSON, even where a client's input would stay bytes.
        self._decodes = config.decode_input_request or bool(sources)
        if self._envelope:
            entry = _enveloped(entry, self._envelope)
        self._entry = entry
        # TorchServe loads a model by a request, whose id the metrics of the load have.
        self._ts.metrics.set_request_ids({0: str(uuid.uuid4())})
        try:
            loading = entry.initialize(self._ts)
            if inspect.isawaitable(loading):
                self._awaited(loading)
        except UnpicklingError as error:
            raise ConfigError(
                f"a file of the archive holds more than weights: {str(error).splitlines()[0]}",
                hint="if you trust it, set `weights_only: false` in the models file, or "
                "weightsOnly in `models` of config.properties; see docs/torchserve.md",
            ) from error

    @override
    def inference(self, items: list[Any]) -> Any:
        results: list[Any] = [None] * len(items)
        members = [self._members(place, item) for place, item in enumerate(items)]
        headers = [self._with_types(self._headers(place), own) for place, own in enumerate(members)]
        groups = self._groups(headers)
        self._in_batch = True
        try:
            for places in groups:
                for place, result in zip(
                    places, self._group(members, headers, places, len(groups) > 1), strict=True
                ):
                    results[place] = result
        finally:
            self._in_batch = False
            self._send_rows()
        return results

    def _groups(self, headers: list[dict[str, Any]]) -> list[list[int]]:
        """Return the places of the requests that go into one call.

        Handlers look at the first request only for an explanation and a description, and so do
        the envelopes of KServe.
        """
        if self._envelope.startswith("kserve"):
            return [[place] for place in range(len(headers))]
        alone = [place for place, one in enumerate(headers) if is_alone(one)]
        rest = [place for place in range(len(headers)) if place not in alone]
        groups = [rest] if rest else []
        if self._sequences is not None:
            groups = turns([self._sequences.id_of(one) for one in headers], rest)
        return [*groups, *([place] for place in alone)]

    def _group(
        self,
        members: list[Members],
        headers: list[dict[str, Any]],
        places: list[int],
        several: bool,
    ) -> list[Any]:
        """Return the results of one call.

        If it raises for its only request, that is the result, so that the other calls count. In
        sequences it is that of all its requests, as another call would change their state twice.
        """
        ids = [self.context.request_ids[place] for place in places]
        self._begin_call(ids, [headers[place] for place in places])
        self._pieces = {}
        try:
            rows = [self._row(members[place]) for place in places]
            values = self._call(rows)
        except Exception as error:
            alone = several and len(places) == 1
            if (alone or self._sequences is not None) and not _of_device(error):
                return [error] * len(places)
            raise
        for n, request_id in enumerate(ids):
            if request_id in self._pieces:
                # An error in the last piece is found again below.
                with contextlib.suppress(HandlerError):
                    self._send(request_id, values[n])
        return [result_of(value, self._reply(n)) for n, value in enumerate(values)]

    def _begin_call(self, ids: list[str], headers: list[dict[str, Any]]) -> None:
        from ts.context import RequestProcessor

        self._ts.request_ids = dict(enumerate(ids))
        self._ts.request_processor = [RequestProcessor(one) for one in headers]

    def _call(self, rows: list[dict[str, Any]]) -> list[Any]:
        metrics, started = self._ts.metrics, time.perf_counter()
        metrics.set_request_ids(self._ts.request_ids)
        try:
            results = self._entry.handle(rows, self._ts)
            if inspect.isawaitable(results):
                results = self._awaited(results)
        except Exception as error:
            typed = _typed(error)
            if typed is error:
                raise
            raise typed from error
        if not isinstance(results, list):
            raise HandlerError(
                f"handle must return a list with one value for each request, not "
                f"{type(results).__name__}"
            )
        if len(results) != len(rows):
            raise HandlerError(
                f"handle must return one value for each request: it returned {len(results)} "
                f"for {len(rows)}"
            )
        took_ms = round((time.perf_counter() - started) * 1000, 2)
        metrics.add_time("PredictionTime", took_ms, None, "ms")
        return results

    def _awaited(self, result: Any) -> Any:
        if self._runner is None:
            self._runner = asyncio.Runner()
            # A handler has no verb for its end.
            weakref.finalize(self, self._runner.close)

        async def wait() -> Any:
            return await result

        # The log lines of the coroutine have the jobs of this batch.
        return self._runner.run(wait(), context=copy_context())

    def _headers(self, place: int) -> dict[str, Any]:
        """Return the headers of a request as the handler finds them."""
        context = self.context
        given = context.headers[place] if place < len(context.headers) else {}
        headers: dict[str, Any] = {"explain": "False", "url_path": "", **given}
        parameters = context.parameters[place] if place < len(context.parameters) else {}
        if parameters.get("explain"):
            headers["explain"] = _YES
        if self._sequences is not None:
            headers = self._sequences.begun(headers, context.request_ids[place])
        return headers

    @staticmethod
    def _with_types(headers: dict[str, Any], members: Members) -> dict[str, Any]:
        types = {name: {"content-type": _media_type(kind)} for name, (_, kind) in members.items()}
        return {**headers, **types}

    def _members(self, place: int, item: Any) -> Members:
        """Return the members of a form, or the body, each with its content type."""
        context = self.context
        if isinstance(item, dict):
            types = context.part_types[place] if place < len(context.part_types) else {}
            return {name: (value, types.get(name, "")) for name, value in item.items()}
        kind = context.content_types[place] if place < len(context.content_types) else ""
        return {BODY: (item, kind)}

    def _row(self, members: Members) -> dict[str, Any]:
        return {
            name: _decoded(value, kind, self._decodes) if isinstance(value, bytes) else value
            for name, (value, kind) in members.items()
        }

    def _reply(self, place: int) -> Reply:
        """Return what the handler has set for the reply to a request of this call."""
        one = self._ts.request_processor[place]
        status, phrase = one.get_response_status_code(), one.get_response_status_phrase()
        headers = dict(one.get_response_headers())
        headers.pop(STREAM_NEXT, None)
        pieces = self._pieces.get((self._ts.request_ids or {})[place], ())
        return Reply(status, phrase, headers, pieces)

    def _keep_piece(self, place: int, request_id: str, value: Any) -> None:
        """Take a piece of the reply to a request."""
        if request_id not in (self._ts.request_ids or {}).values():
            # A thread of the handler continues after the reply.
            logger.warning("a piece came after the reply: it is dropped", extra={"job": request_id})
            return
        first = request_id not in self._pieces
        self._send(request_id, value, self._ts.request_processor[place] if first else None)
        self._pieces.setdefault(request_id, []).append(value)

    def _send(
        self, request_id: str, value: Any, first: ts.context.RequestProcessor | None = None
    ) -> None:
        """Send a piece on; the first one with the status and the headers of its reply."""
        piece, head = piece_of(value), b""
        if first is not None:
            reply = Reply(first.get_response_status_code(), headers=first.get_response_headers())
            head = head_of(reply)
        if self._send_piece is not None and (head or piece != EMPTY_PIECE):
            self._send_piece(request_id, piece, head)

    def _take_row(self, row: MetricRow) -> None:
        self._rows.append(row)
        if not self._in_batch:
            self._send_rows()

    def _send_rows(self) -> None:
        rows, self._rows = self._rows, []
        if rows and self._send_metrics is not None:
            self._send_metrics(rows)


def turns(ids: Sequence[str], places: Sequence[int]) -> list[list[int]]:
    """Return the places of a batch in turns, none with two requests of one sequence.

    A model with sequences has one model process, so that each sequence finds its state there.

    Args:
        places: the requests, in the order of their submits.
    """
    found: list[list[int]] = []
    seen: dict[str, int] = {}
    for place in places:
        turn = seen.get(ids[place], 0)
        seen[ids[place]] = turn + 1
        if turn == len(found):
            found.append([])
        found[turn].append(place)
    return found


def is_alone(headers: Mapping[str, Any]) -> bool:
    """Return whether a request is the only one of its call: for an explanation or a description."""
    return headers["explain"] == _YES or headers.get("describe") == _YES


def _media_type(content_type: str) -> str:
    """Return a content type without its parameters."""
    return content_type.partition(";")[0].strip()


def _decoded(body: bytes, content_type: str, decodes: bool) -> Any:
    """Return bytes as the handler gets them: JSON is parsed, text is `str`."""
    kind = _media_type(content_type).lower()
    if decodes:
        try:
            if kind == JSON_TYPE:
                return _parsed(body)
            if kind.startswith("text"):
                return body.decode()
        except (ValueError, RecursionError) as error:
            logger.warning("an input of the type %s cannot be decoded: %s", kind, error)
    return bytearray(body)


def _parsed(text: bytes) -> Any:
    """Return the value of JSON; what Python's json accepts, such as NaN, is accepted too."""
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return json.loads(text.decode())


def _enveloped(entry: Entry, name: str) -> Entry:
    """Return the entry behind an envelope, which translates inputs and results."""
    from ts.torch_handler.request_envelope.base import BaseEnvelope
    from ts.utils.util import list_classes_from_module

    module = importlib.import_module(f"{BUILTINS}.request_envelope.{name}")
    (cls,) = list_classes_from_module(module, BaseEnvelope)
    return entry._replace(handle=cls(entry.handle).handle)


def _typed(error: Exception) -> Exception:
    """Return the error that has TorchServe's status for this one; itself if it needs none."""
    from ts.utils.util import PredictionException

    if isinstance(error, PredictionException):
        code: Any = error.error_code
        status = code if isinstance(code, int) and code in STATUSES else 500
        return HandlerError(str(error.message), response=ErrorResponse(status=status))
    if isinstance(error, InputError):
        # From our built-in handlers. TorchServe answers 503 to a bad input, as to any exception.
        return HandlerError(error.message)
    if isinstance(error, MemoryError) or _no_memory(error):
        return error
    if "CUDA" in str(error):
        text = f"{type(error).__name__}: {error}"
        return HandlerError(text, response=ErrorResponse(status=_OUT_OF_RESOURCES))
    return error


def is_lost_device(error: Exception) -> bool:
    """Return whether nothing more may run on the device after an error."""
    return "CUDA" in str(error) and not isinstance(error, MemoryError) and not _no_memory(error)


def _no_memory(error: Exception) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(error, torch.OutOfMemoryError)


def _of_device(error: Exception) -> bool:
    """Return whether the executor must see the error, as it may be one of the device."""
    response = getattr(error, "response", None)
    status = response.status if isinstance(response, ErrorResponse) else 0
    return isinstance(error, MemoryError) or _no_memory(error) or status == _OUT_OF_RESOURCES
