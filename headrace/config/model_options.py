"""The keys of a model in the models file, with their limits and descriptions."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

DEFAULT_TIMEOUT_S: Final = 60.0
RETRY_BACKOFF_S: Final = 1.0
RETRY_BACKOFF_MAX_S: Final = 60.0


class ModelOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model of the models file."""

    handler: Annotated[
        str,
        Meta(
            min_length=1,
            description="The handler: a built-in (echo, digits, image_classifier), "
            "path/to/file.py, path/to/file.py:Class or package.module:Class. "
            "A relative path refers to this file's folder.",
        ),
    ]
    weights: (
        Annotated[
            str,
            Meta(
                min_length=1,
                description="Weights file for the handler; a relative path refers to this file's "
                "folder. Default: the handler's own weights, if it has any.",
            ),
        ]
        | None
    ) = None
    version: Annotated[
        str,
        Meta(min_length=1, max_length=64, description="Shown with each job; write it in quotes."),
    ] = "1.0"
    device: Annotated[
        str,
        Meta(
            pattern="^(auto|cpu|cuda(:[0-9]+)?)$",
            description="auto: the worker's GPU if it has one, else the CPU. cpu, cuda or cuda:N.",
        ),
    ] = "auto"
    replicas: Annotated[int, Meta(ge=1, le=256, description="Model processes in each worker.")] = 1
    weight: Annotated[
        float,
        Meta(
            ge=0.001,
            le=1000,
            description="Its share of the device's time, relative to the other models.",
        ),
    ] = 1.0
    max_batch_size: Annotated[
        int, Meta(ge=1, le=4096, description="The most inputs of one batch.")
    ] = 32
    max_batch_delay_ms: Annotated[
        float,
        Meta(
            ge=0,
            le=60_000,
            description="How long the oldest input may wait for a fuller batch, in milliseconds.",
        ),
    ] = 5.0
    allowed_batch_sizes: (
        Annotated[
            list[Annotated[int, Meta(ge=1, le=4096)]],
            Meta(
                min_length=1,
                max_length=256,
                description="The batch sizes of the model: a batch is filled up to the next size "
                "with copies of its last input. The largest is max_batch_size.",
            ),
        ]
        | None
    ) = None
    max_batch_cost: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=1_000_000_000_000,
                description="The most that the inputs of a batch may cost together, in the unit "
                "of cost. An input that costs more runs alone.",
            ),
        ]
        | None
    ) = None
    cost: Annotated[
        Literal["bytes", "pixels", "tokens"],
        Meta(
            description="The cost of an input: its bytes, the pixels in its image's header, or its "
            "tokens, estimated as a quarter of its bytes."
        ),
    ] = "bytes"
    batch_key: (
        Annotated[
            str,
            Meta(
                pattern="^(content_type|(/[^/]*)+)$",
                max_length=256,
                description="Only inputs with the same value share a batch: content_type, or a "
                "JSON pointer into the input, such as /language.",
            ),
        ]
        | None
    ) = None
    max_yield_s: Annotated[
        float,
        Meta(
            ge=0,
            le=2_592_000,
            description="Seconds that a waiting job yields to better priorities. Then one such "
            "job in ten is served before them. 0: it always yields.",
        ),
    ] = 600.0
    max_queue_depth: Annotated[
        int,
        Meta(ge=1, le=100_000_000, description="The most jobs that wait; further ones get 429."),
    ] = 10_000
    timeout_s: Annotated[
        float,
        Meta(
            gt=0,
            le=86_400,
            description="Seconds that a job may run; the job's own timeout overrides it.",
        ),
    ] = DEFAULT_TIMEOUT_S
    min_timeout_s: Annotated[
        float,
        Meta(
            ge=0,
            le=86_400,
            description="The shortest timeout of a job, in seconds.",
        ),
    ] = 0.1
    max_restarts_per_minute: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000,
            description="How many killed or dead model processes one worker restarts in a minute; "
            "further ones wait.",
        ),
    ] = 10
    max_retries: (
        Annotated[
            int,
            Meta(
                ge=0,
                le=100,
                description="Retries after a retryable error; the job's own overrides it.",
            ),
        ]
        | None
    ) = None
    retry_backoff_s: Annotated[
        float,
        Meta(
            ge=0,
            le=86_400,
            description="The longest wait before the first retry, in seconds; each retry doubles "
            "it, and the wait is random from 0. The job's own overrides it.",
        ),
    ] = RETRY_BACKOFF_S
    retry_backoff_max_s: Annotated[
        float,
        Meta(
            ge=0,
            le=86_400,
            description="The longest wait before any retry; the job's own overrides it.",
        ),
    ] = RETRY_BACKOFF_MAX_S
    load_timeout_s: Annotated[
        float,
        Meta(
            gt=0,
            le=86_400,
            description="Seconds after which a model process that still loads is killed.",
        ),
    ] = 600.0
    max_jobs: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=1_000_000_000,
                description="A model process is recycled after this many jobs.",
            ),
        ]
        | None
    ) = None
    max_memory_mb: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=100_000_000,
                description="A model process that uses more memory, in MiB, is recycled.",
            ),
        ]
        | None
    ) = None
    recycle_overlap: Annotated[
        bool,
        Meta(
            description="A recycled process serves until the next is loaded; false: it ends first.",
        ),
    ] = True
    channels_last: (
        Annotated[
            bool,
            Meta(
                description="Whether image_classifier uses the channels-last memory format; auto: "
                "on a CPU, if it gives the same answers and is not slower.",
            ),
        ]
        | Literal["auto"]
    ) = "auto"
    events: (
        Annotated[
            bool,
            Meta(
                description="Whether Celery's monitors, such as Flower, get events of the jobs; "
                "sampled: of all up to events_per_s (a setting), else of a sample.",
            ),
        ]
        | Literal["sampled"]
    ) = "sampled"
    malloc_tuning: Annotated[
        bool,
        Meta(
            description="On a CPU with glibc, keep the memory of activations mapped between "
            "batches.",
        ),
    ] = True
    preprocess_threads: Annotated[
        int,
        Meta(ge=1, le=64, description="Threads that share a batch's preprocess."),
    ] = 1
    preprocess_processes: Annotated[
        int,
        Meta(
            ge=0,
            le=64,
            description="Processes that share a batch's preprocess; 0: it runs in the model "
            "process, in preprocess_threads.",
        ),
    ] = 0
    options: Annotated[
        dict[str, Any],
        Meta(description="Any values; the handler reads them as context.options."),
    ] = msgspec.field(default_factory=dict)
