"""`/v1/batches`, by OpenAI's conventions: create, list, retrieve, cancel."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal, cast

import msgspec
from msgspec import Meta

from api.http.bodies import read_body, require_json
from api.http.messages import Reply, Request, json_reply
from api.services import Services
from api.submission.decoding import JsonDecoder, read_query
from extensions.openai.api.files import ANCHOR, FileService, Page, PageQuery, ends_of, ttl_of
from extensions.openai.batches.files import BATCH, KEEP_MAX_S
from extensions.openai.batches.store import (
    ENDED,
    FAILED,
    JOBS_ENDPOINT,
    MODEL_ENDPOINT,
    OPENAI_ENDPOINTS,
    STATUSES,
    VERSION_ENDPOINT,
    BatchRecord,
    BatchSpec,
    LineError,
    endpoint_model,
)
from headrace.access.api_key import Caller
from headrace.errors import (
    BatchNotFound,
    FileMissing,
    InvalidParameter,
    ModelNotFound,
)
from headrace.jobs.job import Count

PAGE_DEFAULT: Final = 20
PAGE_MAX: Final = 100
BODY_LIMIT_BYTES: Final = 256 * 1024
WINDOW: Final = re.compile("^[1-9][0-9]{0,6}[hms]$")
WINDOW_DEFAULT: Final = "24h"

_UNIT_S: Final = {"h": 3600, "m": 60, "s": 1}


_Endpoint = Annotated[
    str,
    Meta(
        description=f"`{MODEL_ENDPOINT}` of a model, `{VERSION_ENDPOINT}` of its version, "
        f"`{JOBS_ENDPOINT}`, or `{'`, `'.join(OPENAI_ENDPOINTS)}`: the `url` of each line."
    ),
]
_Metadata = Annotated[
    dict[
        Annotated[str, Meta(max_length=64)],
        Annotated[str, Meta(max_length=512)],
    ],
    Meta(max_length=16, description="The client's own data, returned with the batch."),
]


class BatchesQuery(PageQuery, kw_only=True):
    """The query of a list of batches."""

    limit: Annotated[int, Meta(ge=1, le=PAGE_MAX)] = PAGE_DEFAULT


class BatchExpiry(msgspec.Struct, forbid_unknown_fields=True):
    """How long the output of a batch is kept."""

    anchor: Annotated[str, Meta(extra_json_schema={"const": ANCHOR})]
    seconds: Annotated[int, Meta(extra_json_schema={"minimum": 1, "maximum": KEEP_MAX_S})]


class BatchRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The JSON of a create."""

    input_file_id: str | None = None
    endpoint: _Endpoint | None = None
    completion_window: Annotated[
        str | None,
        Meta(
            description=f"Hours, minutes or seconds, at most {KEEP_MAX_S // 3600}h; "
            f"{WINDOW_DEFAULT} by default.",
            extra_json_schema={"pattern": WINDOW.pattern},
        ),
    ] = None
    metadata: _Metadata | None = None
    output_expires_after: BatchExpiry | None = None
    rerun_of: Annotated[
        str | None,
        Meta(
            description="An ended batch, whose unsuccessful lines run again; absent members are "
            "as in it."
        ),
    ] = None


class BatchErrors(msgspec.Struct, kw_only=True):
    """Why a batch failed."""

    object: Literal["list"] = "list"
    data: list[LineError]


class BatchCounts(msgspec.Struct):
    """How many lines a batch has, and how many have ended."""

    total: Count
    completed: Count
    failed: Count


class Batch(msgspec.Struct, kw_only=True):
    """A batch, as OpenAI's API shows it."""

    id: str
    object: Literal["batch"] = "batch"
    endpoint: _Endpoint
    model: Annotated[str | None, Meta(description="Null if each line names its own.")]
    errors: BatchErrors | None
    input_file_id: str
    completion_window: str
    status: Annotated[str, Meta(extra_json_schema={"enum": [*STATUSES]})]
    output_file_id: Annotated[str | None, Meta(description="After its end.")]
    error_file_id: str | None
    created_at: Count
    in_progress_at: Count | None = None
    expires_at: Count | None = None
    finalizing_at: Count | None = None
    completed_at: Count | None = None
    failed_at: Count | None = None
    expired_at: Count | None = None
    cancelling_at: Count | None = None
    cancelled_at: Count | None = None
    request_counts: BatchCounts
    metadata: _Metadata | None
    rerun_of: Annotated[str | None, Meta(description="The batch whose failed lines it runs.")]


class Batches(Page, kw_only=True):
    """A page of batches."""

    data: list[Batch]


_REQUEST: Final = JsonDecoder(BatchRequest)


async def create_batch(services: Services, request: Request) -> Reply:
    """Create a batch; a batch runner executes it."""
    request.query()
    require_json(request)
    fields = _REQUEST.decode(await read_body(request, BODY_LIMIT_BYTES, fixed=True))
    files = services.of(FileService)
    spec = await files.run(_spec, services, fields, request.caller)
    return json_reply(batch_object(await files.run(files.batches.create, spec)))


async def list_batches(services: Services, request: Request) -> Reply:
    """Return a page of batches, the newest first."""
    query = read_query(request, BatchesQuery)
    files = services.of(FileService)
    page = await files.run(files.batches.page, request.caller, after=query.after, limit=query.limit)
    return json_reply(Batches(data=[batch_object(one) for one in page.items], **ends_of(page)))


async def get_batch(services: Services, request: Request, batch_id: str) -> Reply:
    """Return one batch."""
    request.query()
    files = services.of(FileService)
    return json_reply(batch_object(await files.run(files.batches.get, batch_id, request.caller)))


async def cancel_batch(services: Services, request: Request, batch_id: str) -> Reply:
    """Cancel a batch: results of ended lines are kept, the other lines do not run."""
    request.query()
    files = services.of(FileService)
    batch, cancelled = await files.run(files.batches.cancel, batch_id, request.caller)
    if not cancelled:
        raise InvalidParameter(
            f"the batch {batch_id} cannot be cancelled: it is {batch.status}", "batch_id"
        )
    return json_reply(batch_object(batch))


def batch_object(batch: BatchRecord) -> Batch:
    """Return a batch as OpenAI's API shows it."""
    spec = batch.spec
    return Batch(
        id=batch.id,
        endpoint=spec.endpoint,
        model=spec.model,
        errors=BatchErrors(data=batch.errors) if batch.errors else None,
        input_file_id=spec.input_file_id,
        completion_window=spec.window,
        status=batch.status,
        output_file_id=batch.output_file_id,
        error_file_id=batch.error_file_id,
        created_at=batch.created_at,
        **cast("dict[str, Any]", batch.moments),
        request_counts=BatchCounts(batch.total, batch.completed, batch.failed),
        metadata=spec.metadata,
        rerun_of=spec.rerun_of,
    )


def _spec(services: Services, fields: BatchRequest, caller: Caller) -> BatchSpec:
    """Validate a request, without reading its file. Blocks."""
    before = None if fields.rerun_of is None else _rerun(services, fields.rerun_of, fields, caller)
    file_id, endpoint, window = fields.input_file_id, fields.endpoint, WINDOW_DEFAULT
    if before is not None:
        spec = before.spec
        file_id, endpoint, window = spec.input_file_id, spec.endpoint, spec.window
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


def _rerun(services: Services, batch_id: str, fields: BatchRequest, caller: Caller) -> BatchRecord:
    """Return the batch whose failed lines run again."""
    try:
        before = services.of(FileService).batches.get(batch_id, caller)
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
        model, _ = endpoint_model(endpoint)
        if model is not None:
            services.catalog.get(model)
    except ValueError:
        raise InvalidParameter(
            f"endpoint {endpoint[:128]!r} is not served here",
            "endpoint",
            hint=f"Give {MODEL_ENDPOINT} with the name of a model, {JOBS_ENDPOINT}, or one of "
            f"{', '.join(OPENAI_ENDPOINTS)}.",
        ) from None
    except ModelNotFound as error:
        raise InvalidParameter(f"endpoint: {error.message}", "endpoint", hint=error.hint) from None


def _check_file(
    services: Services, caller: Caller, file_id: str, param: str = "input_file_id"
) -> None:
    try:
        purpose = services.of(FileService).store.get(file_id, caller).purpose
    except FileMissing as error:
        raise InvalidParameter(f"{param}: {error.message}", param, hint=error.hint) from None
    if param == "input_file_id" and purpose != BATCH:
        raise InvalidParameter(
            f"{param}: the file {file_id} has the purpose {purpose!r}, not {BATCH!r}", param
        )


def _window_s(text: str) -> int:
    seconds = int(text[:-1]) * _UNIT_S[text[-1]] if WINDOW.fullmatch(text) else 0
    if not 1 <= seconds <= KEEP_MAX_S:
        raise InvalidParameter(
            f"completion_window {text[:32]!r} cannot be used",
            "completion_window",
            hint="Give a number of hours, minutes or seconds, such as 24h or 90m; at most 720h.",
        )
    return seconds
