"""The limits of a request that has several jobs, checked before the first of them is made."""

from __future__ import annotations

from typing import Final

import msgspec

from api.services import Services
from extensions.openai.schema.inputs import RequestInputs
from extensions.openai.schema.requests import GenerationRequest, OpenAIRequest
from headrace.access.api_key import Caller
from headrace.config.model.catalog import ModelConfig
from headrace.errors import HeadraceError, InvalidParameter, PayloadTooLarge
from headrace.jobs.options import JobOptions
from headrace.jobs.tokens import estimate

#: The most jobs of one request.
JOBS_MAX: Final = 2048
_FEWER: Final = "Send fewer choices or texts in one request."
_OTHER_KEY: Final = (
    "Or use a key with a higher {}, which an operator creates with `headrace keys create --{}`."
)


async def admit_jobs(
    services: Services,
    caller: Caller,
    model: ModelConfig,
    asked: OpenAIRequest,
    inputs: RequestInputs,
    options: JobOptions,
    *,
    keyed: bool,
) -> None:
    """Check that the jobs of a request are within all limits, and spend the rate for all of them.

    Args:
        keyed: it has an idempotency key. Its jobs stay when it is refused, so that each repeat adds
            fewer jobs and fewer tokens.

    Raises:
        InvalidParameter, PayloadTooLarge: they never fit.
        RateLimited: the rate does not allow all of them now.
        BrokerError: Redis does not answer.
    """
    if len(inputs) == 1:
        return
    try:
        _check_size(asked, inputs, options, services.settings.body_limit_bytes)
        if not keyed:
            check_in_flight(asked, len(inputs), caller)
            check_tokens(asked, inputs, model, caller, services.settings.inline_limit_bytes)
        if isinstance(asked, GenerationRequest) and asked.stream:
            _check_streams(asked, len(inputs), services)
        if services.authenticator is not None:
            _check_rate(asked, len(inputs), caller)
            # The request itself was one.
            await services.authenticator.rates.spend_all(caller, len(inputs) - 1)
    except HeadraceError as error:
        services.counters.refused(model.name, error.code)
        raise


def _never_fits(asked: OpenAIRequest, message: str, advice: str = "") -> InvalidParameter:
    return InvalidParameter(message, asked.several, hint=f"{_FEWER} {advice}".strip())


def _check_size(
    asked: OpenAIRequest, inputs: RequestInputs, options: JobOptions, limit_bytes: int
) -> None:
    count = len(inputs)
    if count > JOBS_MAX:
        raise _never_fits(asked, f"this request has {count} jobs, and the limit is {JOBS_MAX}")
    metadata = options.metadata
    own_bytes = 0 if metadata is None else len(msgspec.json.encode(metadata))
    size = inputs.total_bytes + count * own_bytes
    if size > limit_bytes:
        raise PayloadTooLarge(
            f"the {count} jobs of this request have {size} bytes together; the limit is "
            f"{limit_bytes}",
            hint=f"{_FEWER} Or raise body_limit_bytes (HEADRACE_BODY_LIMIT_BYTES).",
        )


def check_in_flight(asked: OpenAIRequest, count: int, caller: Caller) -> None:
    """Check that an API key may have all jobs of a request in flight together.

    Raises:
        InvalidParameter: it may not, so that each try would be refused (429).
    """
    if caller.in_flight and count > caller.in_flight:
        raise _never_fits(
            asked,
            f"this request has {count} jobs, and API key {caller.key_id} may have "
            f"{caller.in_flight} in flight",
            _OTHER_KEY.format("limit", "in-flight"),
        )


def check_tokens(
    asked: OpenAIRequest,
    inputs: RequestInputs,
    model: ModelConfig,
    caller: Caller,
    inline_limit_bytes: int,
) -> None:
    """Check that the jobs of a request fit into one minute's tokens of their API key together.

    A job alone always fits once none of the tokens is used.

    Raises:
        InvalidParameter: they do not, so that each try would be refused (429).
    """
    limit = caller.tokens_per_minute
    if not limit or len(inputs) == 1 or not model.counts_tokens:
        return
    needed = 0
    for text in inputs.first_answers():
        stored_bytes = len(text) if len(text) > inline_limit_bytes else None
        needed += estimate(text, stored_bytes, model.options, model.handler, limit)[0]
    needed *= inputs.choices
    if needed > limit:
        raise _never_fits(
            asked,
            f"the {len(inputs)} jobs of this request need about {needed} tokens together, and "
            f"API key {caller.key_id} has {limit} tokens a minute",
            f"Or send each one alone. {_OTHER_KEY.format('limit', 'tokens-per-minute')}",
        )


def _check_streams(asked: OpenAIRequest, count: int, services: Services) -> None:
    most = services.stream_limit.most(keyed=services.authenticator is not None)
    if count > most:
        raise _never_fits(
            asked,
            f"this stream has {count} answers, each counts as an event stream, and {most} may be "
            "open",
            "Or leave stream out.",
        )


def _check_rate(asked: OpenAIRequest, count: int, caller: Caller) -> None:
    most = caller.rate_burst
    if caller.rate and count > most:
        raise _never_fits(
            asked,
            f"this request has {count} jobs, and API key {caller.key_id} may make {most} at once, "
            f"as its rate is {caller.rate:g} a second",
            _OTHER_KEY.format("rate", "rate"),
        )
