"""What the models file can say of one model: the keys, their bounds and what they mean."""

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
            description="What serves the model: a built-in (echo, digits, image_classifier), "
            "path/to/file.py, path/to/file.py:Class or package.module:Class. "
            "A relative path is taken from this file's folder.",
        ),
    ]
    weights: (
        Annotated[
            str,
            Meta(
                min_length=1,
                description="Weights file for the handler; a relative path is taken from this "
                "file's folder. Left out: what the handler brings, if anything.",
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
            description="Its share of the device's time, against the other models that want it.",
        ),
    ] = 1.0
    max_batch_size: Annotated[
        int, Meta(ge=1, le=4096, description="The most inputs that run together.")
    ] = 32
    max_batch_delay_ms: Annotated[
        float,
        Meta(
            ge=0,
            le=60_000,
            description="The longest that the oldest input is held for company, in milliseconds.",
        ),
    ] = 5.0
    allowed_batch_sizes: (
        Annotated[
            list[Annotated[int, Meta(ge=1, le=4096)]],
            Meta(
                min_length=1,
                max_length=256,
                description="The sizes that the model is run with: a batch is filled up to the "
                "next one by copies of its last input. The largest is max_batch_size.",
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
                "of cost; an input that is above it by itself runs alone.",
            ),
        ]
        | None
    ) = None
    cost: Annotated[
        Literal["bytes", "pixels", "tokens"],
        Meta(
            description="What an input costs: its bytes; the pixels that its image's header "
            "names; or its tokens, taken as a quarter of its bytes."
        ),
    ] = "bytes"
    batch_key: (
        Annotated[
            str,
            Meta(
                pattern="^(content_type|(/[^/]*)+)$",
                max_length=256,
                description="Only inputs that are alike in this run together: content_type, or "
                "a JSON pointer into the input, such as /language.",
            ),
        ]
        | None
    ) = None
    max_yield_s: Annotated[
        float,
        Meta(
            ge=0,
            le=2_592_000,
            description="Seconds that a waiting job yields to those of better priorities; then it "
            "is served before them, one such job in ten. 0: it yields for ever.",
        ),
    ] = 600.0
    max_queue_depth: Annotated[
        int,
        Meta(ge=1, le=100_000_000, description="Jobs that may wait; one more is answered 429."),
    ] = 10_000
    timeout_s: Annotated[
        float,
        Meta(gt=0, le=86_400, description="Seconds that a job may run; a job's own wins."),
    ] = DEFAULT_TIMEOUT_S
    min_timeout_s: Annotated[
        float,
        Meta(
            ge=0,
            le=86_400,
            description="Seconds that every job may run, however short its own timeout.",
        ),
    ] = 0.1
    max_restarts_per_minute: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000,
            description="How often in a minute model processes that were killed or died are "
            "started anew in one worker; after that they wait.",
        ),
    ] = 10
    max_retries: (
        Annotated[
            int,
            Meta(ge=0, le=100, description="Retries after a retryable error; a job's own wins."),
        ]
        | None
    ) = None
    retry_backoff_s: Annotated[
        float,
        Meta(
            ge=0,
            le=86_400,
            description="A first retry comes after 0 to so many seconds, by chance; each one more "
            "doubles the bound. A job's own wins.",
        ),
    ] = RETRY_BACKOFF_S
    retry_backoff_max_s: Annotated[
        float,
        Meta(ge=0, le=86_400, description="The bound is never more than this; a job's own wins."),
    ] = RETRY_BACKOFF_MAX_S
    load_timeout_s: Annotated[
        float,
        Meta(
            gt=0,
            le=86_400,
            description="Seconds that a model process may load and warm up; then it is killed.",
        ),
    ] = 600.0
    max_jobs: (
        Annotated[
            int,
            Meta(ge=1, le=1_000_000_000, description="A model process is recycled after so many."),
        ]
        | None
    ) = None
    max_memory_mb: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=100_000_000,
                description="A model process that takes more, in MiB, is recycled.",
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
                description="Whether image_classifier keeps activations with their channels last; "
                "auto: on a CPU, where it gives the same answers and is not slower.",
            ),
        ]
        | Literal["auto"]
    ) = "auto"
    events: (
        Annotated[
            bool,
            Meta(
                description="Whether Celery's monitors, such as Flower, are told of the jobs; "
                "sampled: of up to events_per_s a second (a setting) and of a sample beyond.",
            ),
        ]
        | Literal["sampled"]
    ) = "sampled"
    malloc_tuning: Annotated[
        bool,
        Meta(
            description="On a CPU under glibc, keep the memory of activations mapped between "
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
        Meta(description="Free; given to the handler as context.options."),
    ] = msgspec.field(default_factory=dict)
