"""Sequences of requests (`sequenceBatching`): their ids, and the limits of their model.

Redis has the state of all sequences (sequences.lua), so all API processes count the same
ones. The model process does not see when a limit ends a sequence.

The end of a job writes nothing there: the script reads the records of the jobs that had not ended
at its last look. So no process has to be alive for a sequence to end. A zset has the earliest end
of each sequence, so that few are looked at. A job without a record counts for 30 s, as its submit
follows. A request that is refused after that is taken back.
"""

from __future__ import annotations

import contextlib
from typing import Any, Final

import msgspec

from api.services import Services
from api.submission.job_request import ValidatedRequest
from extensions.torchserve.api.parts import config_of
from extensions.torchserve.api.replies import Kind, TorchServeError
from extensions.torchserve.config.model_config import CONTINUOUS, REGISTRATION, SEQUENCES
from extensions.torchserve.config.sequences import SequenceKeys, SequenceLimits
from extensions.torchserve.redis import script
from headrace.config.model.catalog import ModelConfig
from headrace.errors import BrokerError, QueueFull
from headrace.jobs.job import Job
from headrace.redis.keys import VERSION_SEPARATOR
from headrace.redis.script_client import AsyncScriptClient
from headrace.redis.scripts import Arg
from headrace.response import split_details

_US_PER_MS: Final = 1000


async def take_request(services: Services, validated: ValidatedRequest) -> ValidatedRequest:
    """Count a request in its sequence; return it with the id of the sequence that it begins.

    Raises:
        TorchServeError: the limits of its model do not allow it.
        BrokerError: Redis does not answer, or refuses.
    """
    model, details = validated.model, validated.details
    if not model.options.get(SEQUENCES) or details is None:
        return validated
    keys, job_id = SequenceKeys.of(config_of(services)), validated.identity.job_id
    headers = keys.begun(msgspec.json.decode(details.headers), job_id)
    limits = SequenceLimits.of_option(model.options[SEQUENCES])
    if limits is not None:
        await _take(services, model, limits, keys.id_of(headers), job_id)
    details = msgspec.structs.replace(details, headers=msgspec.json.encode(headers))
    return msgspec.structs.replace(validated, details=details)


async def _take(
    services: Services, model: ModelConfig, limits: SequenceLimits, sequence: str, job_id: str
) -> None:
    word, count = await _call(
        services, "take", model, sequence, job_id,
        limits.most, limits.waiting, limits.idle_ms * _US_PER_MS, limits.timeout_ms * _US_PER_MS,
        int(bool(model.options.get(CONTINUOUS))),
    )  # fmt: skip
    if word == b"taken":
        return
    services.counters.refused(model.name, QueueFull.code)
    if word == b"many":
        raise TorchServeError(
            Kind.UNAVAILABLE,
            f"model {model.name} has as many sequences as maxNumSequence allows: {count}. Try "
            f"again when one has ended: each does after {limits.idle_ms} ms without a request "
            "(sequenceMaxIdleMSec)",
        )
    raise TorchServeError(
        Kind.UNAVAILABLE,
        f"the sequence {sequence[:64]!r} of model {model.name} has {count} requests that "
        f"have not ended, and maxSequenceJobQueueSize lets {limits.waiting} wait. Send the next "
        "one when one of them has its answer",
    )


async def drop_request(services: Services, validated: ValidatedRequest) -> None:
    """Take back that a request was counted, as it became no job."""
    if not _has_limits(validated.model) or validated.details is None:
        return
    headers = msgspec.json.decode(validated.details.headers)
    sequence = SequenceKeys.of(config_of(services)).id_of(headers)
    # Without an answer of Redis it counts for some seconds more.
    with contextlib.suppress(BrokerError):
        await _call(services, "drop", validated.model, sequence, validated.identity.job_id)


async def end_sequences(services: Services, model: ModelConfig, job: Job) -> None:
    """End the sequences that a reply names in its header `ts_request_sequence_end`."""
    if not _has_limits(model):
        return
    kind = job.result_type if job.stored is None else job.stored.content_type
    keys = SequenceKeys.of(config_of(services))
    # Without an answer of Redis they end later, by their silence.
    with contextlib.suppress(BrokerError):
        for sequence in keys.ended_by(split_details(kind)[1].headers):
            await _call(services, "end", model, sequence, "")


def _has_limits(model: ModelConfig) -> bool:
    return SequenceLimits.of_option(model.options.get(SEQUENCES)) is not None


async def _call(
    services: Services, what: str, model: ModelConfig, sequence: str, job_id: str, *limits: Arg
) -> Any:
    # After another registration a model has no sequences.
    version = f"{model.version} {model.options.get(REGISTRATION, '')}".rstrip()
    of = f"{model.name}{VERSION_SEPARATOR}{version}"
    call = script("sequences").call([], what, of, sequence, job_id, *limits)
    return await AsyncScriptClient(services.client).call(call)
