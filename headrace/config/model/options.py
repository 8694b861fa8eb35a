"""The keys of a model in the models file: their limits and descriptions, and how they are read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from headrace.config.inputs.input_schema import InputSection, OutputSection, read_keys
from headrace.config.inputs.parameters import (
    WITHHELD_HEADERS,
    HeaderName,
    Parameter,
    ParameterName,
    read_parameters,
)
from headrace.config.model.handler_reference import parse_handler
from headrace.config.model.optimize import Optimize, optimize_problem
from headrace.config.model.shared import RETRY_BACKOFF_MAX_S, RETRY_BACKOFF_S, Label
from headrace.config.model.traffic import Traffic, read_traffic
from headrace.config.suggestions import listing
from headrace.config.values import shown
from headrace.config.yaml_file import Document, read_fields
from headrace.errors import ConfigError
from headrace.jobs.ids import VERSION, VERSION_GRAMMAR

DEFAULT_TIMEOUT_S: Final = 60.0
DEFAULT_VERSION: Final = "1.0"
#: Options for the number of model processes in each worker.
PER_WORKER: Final = ("replicas", "min_replicas", "max_replicas")

_DAY_S: Final = 86_400
_VERSION: Final = re.compile(VERSION)
_BatchSize = Annotated[int, Meta(ge=1, le=4096)]
#: Up to a day; 0 is allowed or not.
_Seconds = Annotated[float, Meta(ge=0, le=_DAY_S)]
_Limit = Annotated[float, Meta(gt=0, le=_DAY_S)]


#: The types of a declared tensor, by numpy's names.
TensorType = Literal[
    "float16",
    "float32",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "bool",
]


class TensorSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One tensor of a model.

    Attributes:
        name: its name in inputs and results.
        dtype: the type of its values.
        shape: the sizes of its dimensions, the batch first. A name, or -1, is any size.
    """

    name: Annotated[str, Meta(min_length=1, max_length=256)]
    dtype: TensorType
    shape: Annotated[
        list[Annotated[int, Meta(ge=-1)] | Annotated[str, Meta(min_length=1, max_length=256)]],
        Meta(min_length=1, max_length=16),
    ]


class Tensors(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The tensors that a model takes and returns.

    Attributes:
        inputs: what it takes, in the order of its arguments.
        outputs: what it returns, in its order.
    """

    inputs: Annotated[list[TensorSpec], Meta(min_length=1, max_length=256)]
    outputs: Annotated[list[TensorSpec], Meta(min_length=1, max_length=256)]


class ProfileOption(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which batches are profiled without a request.

    Attributes:
        every: after each so many batches of a model process, the next ones are profiled.
        batches: how many batches one trace has.
    """

    every: Annotated[int, Meta(ge=1, le=1_000_000_000)]
    batches: Annotated[int, Meta(ge=1, le=100)] = 5


class ModelOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model of the models file.

    The schema of the file takes the descriptions from here.

    Attributes:
        handler: the handler: a built-in (echo, digits, image_classifier, image_segmenter,
            object_detector, text_classifier, language_model,
            text_embedding, tensor_model), path/to/file.py,
            path/to/file.py:Class or package.module:Class. A relative path refers to this file's
            folder, or to the model's own with source.
        source: a folder, an archive (.mar, .zip, .tar.gz, .tgz) or a file (.pt, .pt2, .onnx) with
            the model. It is a path, a name in the model store, or a URL (file, https, s3).
        sha256: the digest of the archive or file, which is checked.
        weights: weights file for the handler; a relative path refers to this file's folder, or to
            the model's own with source. Default: the handler's own weights, if it has any.
        weights_only: read .pt, .pth and .bin files as weights only; false: a pickled module in
            them is loaded too, which runs its code.
        tensors: the inputs and outputs of a model without a handler, if its file does not name
            them.
        version: shown with each job, and jobs may ask for it; write it in quotes.
        device: its device: cpu, cuda, cuda:N; auto: the worker's GPU if it has one, else the CPU.
        device_ids: the numbers of the GPUs on their host that may run the model; a CPU may too.
        labels: only workers with all of these labels (worker_labels, a setting) serve the model.
        replicas: model processes in each worker; auto: half of its cores, or 1 on a GPU. With
            max_replicas, those that it starts with.
        min_replicas: the fewest model processes in each worker, with max_replicas; 0 with load:
            on_demand only.
        max_replicas: the most model processes in each worker, which then starts and ends some by
            demand.
        scale_down_s: with max_replicas, seconds after which a model process without a batch ends.
        total_replicas: model processes in the whole deployment, which the workers share; replicas
            does not count then.
        memory_mb: the memory that one replica needs, in MiB. Default: what the last load took.
        load: eager: a worker loads the model when it starts; on_demand: at the first job.
        idle_unload_s: seconds without jobs after which a model with load on_demand is unloaded; 0:
            only when another model needs its room.
        weight: its share of the device's time, relative to the other models.
        max_batch_size: the most inputs of one batch.
        max_batch_delay_ms: how long a free device may wait for a fuller batch, in milliseconds,
            from when the batch could have started.
        allowed_batch_sizes: the batch sizes of the model: a batch is filled up to the next size
            with copies of its last input. The largest is max_batch_size.
        max_batch_cost: the most that the inputs of a batch may cost together, in the unit of cost.
            An input that costs more runs alone.
        cost: the cost of an input: its bytes, the pixels in its image's header, its tokens,
            estimated as a quarter of its bytes, or the rows of its tensors.
        batch_key: only inputs with the same value share a batch: content_type, or a JSON pointer
            into the input, such as /language.
        max_yield_s: seconds that a waiting job yields to better priorities. Then one such job in
            ten is served before them. 0: it always yields.
        max_queue_depth: the most jobs that wait in one queue; further ones get 429. The queue of
            each version counts alone.
        schedule: the order in which jobs of one priority run: arrival or tokens. tokens is fair
            between API keys by tokens; offline jobs run by their deadlines first. See
            docs/generation.md.
        max_queued_tokens: with schedule: tokens, the most tokens of jobs that have not ended, as
            estimated; further jobs get 429. The queue of each version counts alone.
        timeout_s: seconds that a job may run; the job's own timeout overrides it.
        expires_s: seconds after its submit within which a job must have started; the job's own
            expires overrides it.
        min_timeout_s: the shortest timeout of a job, in seconds.
        max_restarts_per_minute: how many killed or dead model processes one worker restarts in a
            minute; further ones wait.
        max_retries: retries after a retryable error; the job's own overrides it.
        retry_backoff_s: the longest wait before the first retry, in seconds; each retry doubles it,
            and the wait is random from 0. The job's own overrides it.
        retry_backoff_max_s: the longest wait before any retry; the job's own overrides it.
        load_timeout_s: seconds after which a model process that still loads is killed.
        max_jobs: a model process is recycled after this many jobs.
        max_memory_mb: a model process that uses more memory, in MiB, is recycled.
        recycle_overlap: a recycled process serves until the next is loaded; false: it ends first.
        channels_last: whether image_classifier uses the channels-last memory format; auto: on a
            CPU, if it gives the same answers and is not slower.
        optimize: the form in which the model's module runs. It is built once, and its outputs and
            its time are compared with those of the module.
        events: whether Celery's monitors, such as Flower, get events of the jobs; sampled: of all
            up to events_per_s (a setting), else of a sample.
        malloc_tuning: on a CPU with glibc, keep the memory of activations mapped between batches.
        preprocess_threads: threads that share a batch's preprocess; auto: measured at the load.
        preprocess_processes: processes that share a batch's preprocess; 0: it runs in the model
            process, in preprocess_threads; auto: measured at the load.
        parameters: the values that a client may send with an input, by name; the handler reads
            them as context.parameters.
        headers: the headers of a request that the handler reads as context.headers, in lower case.
        options: any values; the handler reads them as context.options.
        inputs: what the model takes: an input that does not fit is refused, and the documentation
            page shows it.
        outputs: what the model returns, for the documentation page.
        traffic: which versions run the jobs that name none.
        profile: profile some batches of each model process from time to time; docs/bench.md.
    """

    handler: Annotated[str, Meta(min_length=1)] | None = None
    source: Annotated[str, Meta(min_length=1, max_length=4096)] | None = None
    sha256: Annotated[str, Meta(pattern="^(sha256:)?[0-9a-f]{64}$")] | None = None
    weights: Annotated[str, Meta(min_length=1)] | None = None
    weights_only: bool = True
    tensors: Tensors | None = None
    version: Annotated[
        str, Meta(min_length=1, max_length=64, extra_json_schema={"pattern": VERSION})
    ] = DEFAULT_VERSION
    device: Annotated[str, Meta(pattern="^(auto|cpu|cuda(:[0-9]+)?)$")] = "auto"
    device_ids: (
        Annotated[list[Annotated[int, Meta(ge=0, le=1023)]], Meta(min_length=1, max_length=64)]
        | None
    ) = None
    labels: Annotated[list[Label], Meta(max_length=32)] = msgspec.field(default_factory=list)
    replicas: Annotated[int, Meta(ge=0, le=256)] | Literal["auto"] = 1
    min_replicas: Annotated[int, Meta(ge=0, le=256)] = 1
    max_replicas: Annotated[int, Meta(ge=1, le=256)] | None = None
    scale_down_s: _Limit = 60.0
    total_replicas: Annotated[int, Meta(ge=0, le=4096)] | None = None
    memory_mb: Annotated[int, Meta(ge=1, le=100_000_000)] | None = None
    load: Literal["eager", "on_demand"] = "eager"
    idle_unload_s: _Seconds = 300.0
    weight: Annotated[float, Meta(ge=0.001, le=1000)] = 1.0
    max_batch_size: _BatchSize = 32
    max_batch_delay_ms: Annotated[float, Meta(ge=0, le=60_000)] = 10.0
    allowed_batch_sizes: Annotated[list[_BatchSize], Meta(min_length=1, max_length=256)] | None = (
        None
    )
    max_batch_cost: Annotated[int, Meta(ge=1, le=1_000_000_000_000)] | None = None
    cost: Literal["bytes", "pixels", "tokens", "rows"] = "bytes"
    batch_key: Annotated[str, Meta(pattern="^(content_type|(/[^/]*)+)$", max_length=256)] | None = (
        None
    )
    max_yield_s: Annotated[float, Meta(ge=0, le=30 * _DAY_S)] = 600.0
    max_queue_depth: Annotated[int, Meta(ge=1, le=100_000_000)] = 10_000
    schedule: Literal["arrival", "tokens"] = "arrival"
    max_queued_tokens: Annotated[int, Meta(ge=1, le=1_000_000_000_000)] | None = None
    timeout_s: _Limit = DEFAULT_TIMEOUT_S
    expires_s: _Limit | None = None
    min_timeout_s: _Seconds = 0.1
    max_restarts_per_minute: Annotated[int, Meta(ge=1, le=1_000)] = 10
    max_retries: Annotated[int, Meta(ge=0, le=100)] | None = None
    retry_backoff_s: _Seconds = RETRY_BACKOFF_S
    retry_backoff_max_s: _Seconds = RETRY_BACKOFF_MAX_S
    load_timeout_s: _Limit = 600.0
    max_jobs: Annotated[int, Meta(ge=1, le=1_000_000_000)] | None = None
    max_memory_mb: Annotated[int, Meta(ge=1, le=100_000_000)] | None = None
    recycle_overlap: bool = True
    channels_last: bool | Literal["auto"] = "auto"
    optimize: Optimize | None = None
    events: bool | Literal["sampled"] = "sampled"
    malloc_tuning: bool = True
    preprocess_threads: Annotated[int, Meta(ge=1, le=64)] | Literal["auto"] = "auto"
    preprocess_processes: Annotated[int, Meta(ge=0, le=64)] | Literal["auto"] = "auto"
    parameters: dict[ParameterName, Parameter] = msgspec.field(default_factory=dict)
    headers: Annotated[list[HeaderName], Meta(max_length=32)] = msgspec.field(default_factory=list)
    options: dict[str, Any] = msgspec.field(default_factory=dict)
    inputs: InputSection | None = None
    outputs: OutputSection | None = None
    traffic: Traffic | None = None
    profile: ProfileOption | None = None


def read_options(
    document: Document, keys: tuple[str, ...], struct: type[msgspec.Struct], folder: Path
) -> dict[str, Any]:
    """Return the valid options of the model at these keys; report the mistakes in the others.

    Paths of schemas refer to `folder`.
    """
    values = read_keys(document, keys, struct, folder, leave=("parameters", "traffic", "optimize"))
    section = document.at(keys)
    if isinstance(section, dict):
        _read_sections(document, keys, section, values)
    for key, text in (*_value_problems(values), *option_problems(values)):
        document.report((*keys, key), text)
    return values


def _read_sections(
    document: Document, keys: tuple[str, ...], section: Mapping[Any, Any], values: dict[str, Any]
) -> None:
    if "parameters" in section:
        values["parameters"] = read_parameters(document, (*keys, "parameters"))
    if section.get("traffic") is not None:
        try:
            values["traffic"] = read_traffic(section["traffic"])
        except ValueError as error:
            document.report((*keys, "traffic"), str(error))
    if section.get("optimize") is not None:
        values["optimize"] = Optimize(**read_fields(document, (*keys, "optimize"), Optimize))


def _value_problems(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the keys of values that are wrong by themselves, with what is wrong."""
    if withheld := WITHHELD_HEADERS.intersection(values.get("headers", ())):
        text = f"no handler gets {listing(withheld)}, which may hold secrets or belong to a proxy"
        yield "headers", f"{text}; remove it"
    version = values.get("version", "")
    if version and not _VERSION.fullmatch(version):
        yield "version", f"{shown(version)} is part of a queue's name: it has {VERSION_GRAMMAR}"
    if values.get("handler") is not None:
        try:
            parse_handler(values["handler"])
        except ConfigError as error:
            yield "handler", error.message_with_hint
    for key in ("handler", "weights"):
        try:
            Path(values.get(key) or "").expanduser()
        except RuntimeError:
            home = values[key].partition("/")[0]
            yield key, f"{shown(home)} is no user's folder on this host; write the folder's path"
    # They are sent to the model process as msgpack.
    try:
        msgspec.msgpack.encode(values.get("options"))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        text = "it contains itself" if isinstance(error, RecursionError) else str(error)
        yield "options", f"not plain data: {text}"


def option_problems(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the keys of options that do not go together, with what is wrong."""
    yield from _batch_problems(values)
    yield from _replica_problems(values)
    if "max_queued_tokens" in values and values.get("schedule") != "tokens":
        yield "max_queued_tokens", "it needs `schedule: tokens`; add that key"
    wanted = values.get("optimize")
    if isinstance(wanted, Optimize) and (text := optimize_problem(wanted)):
        yield "optimize", text


def _batch_problems(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    sizes, limit = values.get("allowed_batch_sizes"), values.get("max_batch_size")
    if sizes is not None and len(set(sizes)) < len(sizes):
        yield "allowed_batch_sizes", "a size is given twice; remove one"
    if sizes is not None and limit is not None and max(sizes) != limit:
        yield (
            "allowed_batch_sizes",
            f"the largest is {max(sizes)}, but max_batch_size is {limit}; make them the same, "
            "or leave max_batch_size out",
        )
    if "cost" in values and "max_batch_cost" not in values:
        yield "cost", "it needs max_batch_cost; add that key"


def _replica_problems(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    max_replicas = values.get("max_replicas")
    if max_replicas is None:
        for key in ("min_replicas", "scale_down_s"):
            if values.get(key) is not None:
                yield key, "it needs max_replicas; add that key"
        return
    if values.get("total_replicas") is not None:
        yield "max_replicas", "it does not go with total_replicas; leave one of them out"
    if values.get("min_replicas") == 0 and values.get("load") != "on_demand":
        yield "min_replicas", "0 needs `load: on_demand`; add that key, or give 1 or more"
    for key in ("min_replicas", "replicas"):
        replicas = values.get(key)
        if isinstance(replicas, int) and replicas > max_replicas:
            text = f"it is {replicas}, more than max_replicas, {max_replicas}"
            yield key, f"{text}; change one of them"
