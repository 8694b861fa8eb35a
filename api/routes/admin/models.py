"""The models: `GET /api/v1/models`, `/api/v1/models/{model}` and `…/demand`."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from api.components.demand import read_demand
from api.components.model_status import ModelStateName, ServingWorker
from api.http.messages import Reply, Request, json_reply
from api.services import Services
from headrace.config.inputs.input_schema import InputSection, OutputSection
from headrace.config.inputs.parameters import Parameter
from headrace.config.model.catalog import ModelConfig
from headrace.config.model.traffic import Traffic
from headrace.jobs.ids import ModelName
from headrace.jobs.job import Amount, Count

_Error = Annotated[
    str | None,
    Meta(
        description="The traceback of a failed load, or why lost processes are not restarted yet."
    ),
]


class Model(msgspec.Struct, kw_only=True):
    """A model or a pipeline."""

    name: ModelName
    version: str
    queue: Annotated[str, Meta(description="The `queue=` of a Celery client.")]
    state: Annotated[
        ModelStateName,
        Meta(description="The best of its workers; for a pipeline the worst of its models."),
    ]
    ready_replicas: Count
    versions: Annotated[
        list[str],
        Meta(description="That jobs may ask for: the declared one, and those of the workers."),
    ]


class Models(msgspec.Struct):
    """Every registered model."""

    models: list[Model]


class ModelWorker(msgspec.Struct):
    """A worker that serves a model."""

    worker: Annotated[str, Meta(description="The name of the worker, unique for each start.")]
    node: Annotated[str, Meta(description="Its Celery node name.")]
    pid: int
    version: Annotated[
        str, Meta(description="The model's version in this worker; empty if it is unknown.")
    ]
    device: str
    state: Annotated[str, Meta(description="The model's state in this worker.")]
    labels: Annotated[list[str], Meta(description="Those of the worker (`worker_labels`).")]
    replicas: Count
    ready_replicas: Count
    threads: Annotated[Count, Meta(description="Of each process; 0: not known.")]
    cpus: Annotated[
        list[str], Meta(description="The CPUs of each process that is pinned, such as `0-3`.")
    ]
    memory_mb: Annotated[
        Count, Meta(description="What one replica took at its last load, in MiB; 0: not measured.")
    ]
    variant: Annotated[
        str,
        Meta(
            description="Which variant of its module runs, in words; empty without `optimize`.",
            examples=[
                "openvino int8, faster than eager: 4.31 times as fast (4.20 to 4.39) for a batch "
                "of 8"
            ],
        ),
    ]
    preprocess: Annotated[
        str,
        Meta(
            description="Where `preprocess` runs, and why; empty until the model is loaded, and for"
            " generators.",
            examples=["2 threads: a batch of 8 takes 9.8 ms with 1 thread, 6.1 ms with 2 threads"],
        ),
    ]
    model_pids: list[int]
    error: _Error


class ModelStage(msgspec.Struct):
    """A stage of a pipeline, its model, and the sources of its input."""

    name: str
    model: ModelName
    sources: list[str] = msgspec.field(name="from")


class DeclaredValue(msgspec.Struct, kw_only=True):
    """What a model takes, or what it returns."""

    schema: Annotated[
        dict[str, Any] | None,
        Meta(description="The JSON Schema of JSON values; null: JSON is not taken."),
    ]
    content_types: Annotated[
        list[str], Meta(description="The content types of bytes, such as `image/png` or `image/*`.")
    ]
    example: Annotated[Any, Meta(description="A value in JSON.")] = UNSET
    enforce: Annotated[
        bool | UnsetType, Meta(description="Of outputs: a job fails whose result does not fit.")
    ] = UNSET


class ModelDetail(Model, kw_only=True):
    """A model with its configuration and its workers."""

    # Without weights and options, which may hold paths of the server and secrets.
    handler: str
    device: str
    labels: Annotated[list[str], Meta(description="Only workers with all of these serve it.")]
    replicas: Annotated[
        Count | Literal["auto"], Meta(description="`auto`: each worker decides by its cores.")
    ]
    min_replicas: Annotated[
        Count, Meta(description="The fewest processes of a worker, with `max_replicas`.")
    ]
    max_replicas: Annotated[
        Count | None,
        Meta(description="The most processes of a worker, by demand; null: it has `replicas`."),
    ]
    scale_down_s: Annotated[
        Amount, Meta(description="With `max_replicas`: seconds that a process may be idle.")
    ]
    total_replicas: Annotated[
        Count | None, Meta(description="Shared by all workers; null: each has `replicas`.")
    ]
    weight: Amount
    max_batch_size: Count
    max_batch_delay_ms: Amount
    allowed_batch_sizes: list[Count] | None
    max_batch_cost: Count | None
    cost: str
    batch_key: str | None
    max_queue_depth: Count
    schedule: str
    max_queued_tokens: Count | None
    timeout_s: float | None
    min_timeout_s: Amount
    max_restarts_per_minute: Count
    max_retries: int | None
    retry_backoff_s: Amount
    retry_backoff_max_s: Amount
    parameters: Annotated[
        dict[str, Parameter], Meta(description="What a client may send with an input, by name.")
    ]
    headers: Annotated[
        list[str], Meta(description="The headers of a submit that reach the handler.")
    ]
    error: _Error
    unserved: Annotated[str | None, Meta(description="Why no worker can host it; null: one can.")]
    workers: list[ModelWorker]
    inputs: Annotated[
        DeclaredValue | None, Meta(description="What it takes; null: anything is accepted.")
    ]
    outputs: DeclaredValue | None
    traffic: Annotated[
        Traffic | None,
        Meta(description="Where jobs go that name no version; null: to the default version."),
    ]
    max_running: Count | UnsetType = UNSET
    max_items: Count | UnsetType = UNSET
    stages: list[ModelStage] | UnsetType = UNSET
    result: list[str] | UnsetType = UNSET


_CONFIGURED: Final = (
    set(ModelDetail.__struct_fields__)
    .intersection(ModelConfig.__struct_fields__)
    .difference(("inputs", "outputs", "replicas"))
)


async def list_models(services: Services, _: Request) -> Reply:
    """List every registered model; a model without a worker accepts jobs too."""
    statuses = await services.model_statuses.statuses()
    models = [
        Model(
            name=model.name,
            version=model.version,
            queue=model.queue,
            state=statuses[model.name].state,
            ready_replicas=statuses[model.name].ready,
            versions=services.model_statuses.versions(model),
        )
        for model in services.catalog.served
    ]
    return json_reply(Models(models))


async def get_model(services: Services, _: Request, model: str) -> Reply:
    """Return the public part of a model's configuration, and each worker that serves it."""
    config = services.catalog.get(model)
    status = (await services.model_statuses.statuses())[config.name]
    detail = ModelDetail(
        **{name: getattr(config, name) for name in _CONFIGURED},
        replicas="auto" if config.auto_replicas else config.replicas,
        queue=config.queue,
        state=status.state,
        ready_replicas=status.ready,
        versions=services.model_statuses.versions(config),
        error=status.error or None,
        unserved=services.model_statuses.why_unfit(config),
        workers=[_worker(served) for served in status.workers],
        inputs=_declared(config.inputs),
        outputs=_declared(config.outputs),
    )
    pipeline = services.catalog.pipelines.get(config.name)
    if pipeline is not None:
        detail.max_running, detail.max_items = pipeline.max_running, pipeline.max_items
        detail.stages = [
            ModelStage(stage.name, stage.model, list(stage.sources)) for stage in pipeline.stages
        ]
        detail.result = list(pipeline.result)
    return json_reply(detail)


async def get_demand(services: Services, _: Request, model: str) -> Reply:
    """Return how much work a model has now, for an autoscaler."""
    config = services.catalog.get(model)
    await services.model_statuses.refresh()
    ready = services.model_statuses.ready_replicas(config.name)
    return json_reply(await read_demand(services.queue, config.name, ready))


def _declared(section: InputSection | None) -> DeclaredValue | None:
    if section is None:
        return None
    return DeclaredValue(
        schema=section.json_schema,
        content_types=section.content_types or [],
        example=section.example,
        enforce=section.enforce if isinstance(section, OutputSection) else UNSET,
    )


def _worker(served: ServingWorker) -> ModelWorker:
    state = served.state
    return ModelWorker(
        worker=served.worker,
        node=state.node,
        pid=served.pid,
        version=state.version,
        device=state.device,
        state=state.state,
        labels=served.labels,
        replicas=state.replicas,
        ready_replicas=state.ready,
        threads=state.threads,
        cpus=state.cpus,
        memory_mb=state.memory_mib,
        variant=state.variant,
        preprocess=state.preprocess,
        model_pids=state.pids,
        error=state.error or None,
    )
