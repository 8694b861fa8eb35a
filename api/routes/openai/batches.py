"""`/v1/batches`, by OpenAI's conventions: create, list, retrieve, cancel."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

import msgspec

from api.http.bodies import not_json, read_body, require_json
from api.http.messages import NO_STORE, Reply, Request
from api.http.openai_errors import InvalidParameter
from api.routes.openai.files import limit_of, list_object, ttl_of
from api.services import Services
from headrace.access.api_key import Caller
from headrace.batches.files.record import BATCH, KEEP_MAX_S
from headrace.batches.record import (
    ENDED,
    FAILED,
    JOBS_ENDPOINT,
    MODEL_ENDPOINT,
    MOMENTS,
    BatchRecord,
    BatchSpec,
    endpoint_model,
)
from headrace.errors import BatchNotFound, FileMissing, HeadraceError, ModelNotFound

PAGE_DEFAULT: Final = 20
PAGE_MAX: Final = 100
BODY_LIMIT_BYTES: Final = 256 * 1024
METADATA_MAX: Final = 16
METADATA_KEY_MAX_CHARS: Final = 64
METADATA_VALUE_MAX_CHARS: Final = 512
WINDOW: Final = r"^[1-9][0-9]{0,6}[hms]$"
WINDOW_DEFAULT: Final = "24h"

_WINDOW: Final = re.compile(WINDOW)
_UNIT_S: Final = {"h": 3600, "m": 60, "s": 1}
_LIST: Final = frozenset({"after", "limit"})
_NONE: Final = frozenset[str]()
_AT: Final = re.compile(r" - at `\$\.?(\w*).*`$")
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.*)`")


class _Expiry(msgspec.Struct, forbid_unknown_fields=True):
    anchor: str
    seconds: int


class BatchRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The JSON of a create.

    Attributes:
        rerun_of: a batch whose unsuccessful lines run again; absent members are as in that batch.
    """

    input_file_id: str | None = None
    endpoint: str | None = None
    completion_window: str | None = None
    metadata: (
        dict[str, Annotated[str, msgspec.Meta(max_length=METADATA_VALUE_MAX_CHARS)]] | None
    ) = None
    output_expires_after: _Expiry | None = None
    rerun_of: str | None = None


_REQUEST: Final = msgspec.json.Decoder(BatchRequest)


async def create_batch(services: Services, request: Request) -> Reply:
    """Create a batch; a batch runner executes it."""
    request.query(_NONE)
    require_json(request)
    fields = _read(await read_body(request, BODY_LIMIT_BYTES, fixed=True))
    _check_metadata(fields.metadata)
    spec = await services.files.run(_spec, services, fields, request.caller)
    return _reply(batch_object(await services.files.run(services.files.batches.create, spec)))


async def list_batches(services: Services, request: Request) -> Reply:
    """Return a page of batches, the newest first."""
    query = request.query(_LIST)
    files = services.files
    page = await files.run(
        files.batches.page,
        request.caller,
        after=query.get("after", ""),
        limit=limit_of(query, PAGE_DEFAULT, PAGE_MAX),
    )
    return _reply(list_object(page, batch_object))


async def get_batch(services: Services, request: Request, batch_id: str) -> Reply:
    """Return one batch."""
    request.query(_NONE)
    files = services.files
    return _reply(batch_object(await files.run(files.batches.get, batch_id, request.caller)))


async def cancel_batch(services: Services, request: Request, batch_id: str) -> Reply:
    """Cancel a batch: results of ended lines are kept, the other lines do not run."""
    request.query(_NONE)
    files = services.files
    batch, cancelled = await files.run(files.batches.cancel, batch_id, request.caller)
    if not cancelled:
        raise InvalidParameter(
            f"the batch {batch_id} cannot be cancelled: it is {batch.status}", "batch_id"
        )
    return _reply(batch_object(batch))


def batch_object(batch: BatchRecord) -> dict[str, Any]:
    """Return a batch as OpenAI's API shows it."""
    spec = batch.spec
    errors = [msgspec.to_builtins(error) for error in batch.errors]
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": spec.endpoint,
        "model": spec.model,
        "errors": {"object": "list", "data": errors} if errors else None,
        "input_file_id": spec.input_file_id,
        "completion_window": spec.window,
        "status": batch.status,
        "output_file_id": batch.output_file_id,
        "error_file_id": batch.error_file_id,
        "created_at": batch.created_at,
        **{name: batch.moments.get(name) for name in MOMENTS},
        "request_counts": {
            "total": batch.total,
            "completed": batch.completed,
            "failed": batch.failed,
        },
        "metadata": spec.metadata,
        "rerun_of": spec.rerun_of,
    }


def _read(body: bytes) -> BatchRequest:
    try:
        fields = _REQUEST.decode(body)
        if not body.isascii():
            body.decode()
    except msgspec.ValidationError as error:
        text = str(error)
        unknown = _UNKNOWN.match(text)
        if unknown:
            known = ", ".join(BatchRequest.__struct_fields__)
            message = f"unknown member {unknown[1][:64]!r}"
            raise InvalidParameter(message, unknown[1][:64], hint=f"Known: {known}.") from None
        at = _AT.search(text)
        param = at[1] if at else ""
        raise InvalidParameter(f"{param or 'the body'}: {_AT.sub('', text)}", param) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise not_json(error, body) from None
    return fields


def _spec(services: Services, fields: BatchRequest, caller: Caller) -> BatchSpec:
    """Validate a request, without reading its file. Blocks."""
    before = None if fields.rerun_of is None else _rerun(services, fields, caller)
    if before is not None:
        file_id: str | None = before.spec.input_file_id
        endpoint: str | None = before.spec.endpoint
        window = before.spec.window
    else:
        file_id, endpoint = fields.input_file_id, fields.endpoint
        window = WINDOW_DEFAULT
    if fields.completion_window is not None:
        window = fields.completion_window
    if endpoint is None or file_id is None:
        missing = "endpoint" if endpoint is None else "input_file_id"
        raise InvalidParameter(f"{missing} is missing", missing)
    _check_endpoint(services, endpoint)
    _check_file(services, caller, file_id)
    expiry = fields.output_expires_after
    return BatchSpec(
        endpoint=endpoint,
        input_file_id=file_id,
        window=window,
        window_s=_window_s(window),
        metadata=fields.metadata,
        output_ttl_s=None
        if expiry is None
        else ttl_of(expiry.seconds, expiry.anchor, "output_expires_after"),
        rerun_of=fields.rerun_of,
        failed_file_id=None if before is None else before.error_file_id,
        owner=caller.key_id,
    )


def _rerun(services: Services, fields: BatchRequest, caller: Caller) -> BatchRecord:
    batch_id = fields.rerun_of or ""
    try:
        before = services.files.batches.get(batch_id, caller)
    except BatchNotFound as error:
        raise InvalidParameter(f"rerun_of: {error.message}", "rerun_of", hint=error.hint) from None
    if before.status not in ENDED:
        raise InvalidParameter(
            f"rerun_of: the batch {batch_id} has not ended: it is {before.status}", "rerun_of"
        )
    if before.error_file_id is None:
        none = "no line of it has failed"
        if before.status == FAILED:
            none = "it has failed as a whole and has no error file; make a new batch of its input"
        raise InvalidParameter(
            f"rerun_of: the batch {batch_id} cannot run again: {none}", "rerun_of"
        )
    for name in ("input_file_id", "endpoint"):
        given = getattr(fields, name)
        if given is not None and given != getattr(before.spec, name):
            raise InvalidParameter(
                f"{name} differs from that of the batch {batch_id}, which runs again",
                name,
                hint=f"Leave it out, or give {getattr(before.spec, name)!r}.",
            )
    _check_file(services, caller, before.error_file_id, "rerun_of")
    return before


def _check_endpoint(services: Services, endpoint: str) -> None:
    try:
        model = endpoint_model(endpoint)
        if model is not None:
            services.catalog.get(model)
    except ValueError:
        raise InvalidParameter(
            f"endpoint {endpoint[:128]!r} is not served here",
            "endpoint",
            hint=f"Give {MODEL_ENDPOINT} with the name of a model, or {JOBS_ENDPOINT}.",
        ) from None
    except ModelNotFound as error:
        raise InvalidParameter(f"endpoint: {error.message}", "endpoint", hint=error.hint) from None


def _check_file(
    services: Services, caller: Caller, file_id: str, param: str = "input_file_id"
) -> None:
    wanted: HeadraceError | None = None
    try:
        purpose = services.files.store.get(file_id, caller).purpose
    except FileMissing as error:
        wanted = InvalidParameter(f"{param}: {error.message}", param, hint=error.hint)
    else:
        if param == "input_file_id" and purpose != BATCH:
            wanted = InvalidParameter(
                f"{param}: the file {file_id} has the purpose {purpose!r}, not {BATCH!r}", param
            )
    if wanted is not None:
        raise wanted


def _window_s(text: str) -> int:
    seconds = int(text[:-1]) * _UNIT_S[text[-1]] if _WINDOW.fullmatch(text) else 0
    if not 1 <= seconds <= KEEP_MAX_S:
        raise InvalidParameter(
            f"completion_window {text[:32]!r} cannot be used",
            "completion_window",
            hint="Give a number of hours, minutes or seconds, such as 24h or 90m; at most 720h.",
        )
    return seconds


def _check_metadata(metadata: dict[str, str] | None) -> None:
    if metadata is None:
        return
    if len(metadata) > METADATA_MAX or any(len(key) > METADATA_KEY_MAX_CHARS for key in metadata):
        raise InvalidParameter(
            f"metadata must have at most {METADATA_MAX} pairs, with keys of at most "
            f"{METADATA_KEY_MAX_CHARS} characters",
            "metadata",
        )


def _reply(document: dict[str, Any]) -> Reply:
    return Reply(200, msgspec.json.encode(document), headers=(NO_STORE,))
