"""The models: `GET /api/v1/models` and `/api/v1/models/{model}`."""

from __future__ import annotations

from typing import Any

from api.components.model_status import ModelStatus
from api.http.messages import Reply, Request, json_reply
from api.services import Services
from headrace.config.model_catalog import ModelConfig
from headrace.config.pipelines import PipelineConfig


async def list_models(services: Services, _: Request) -> Reply:
    """List every registered model; a model without a worker accepts jobs too."""
    statuses = await services.model_statuses.statuses()
    models = services.catalog.served
    return json_reply({"models": [_summary(model, statuses[model.name]) for model in models]})


async def get_model(services: Services, _: Request, model: str) -> Reply:
    """Return the public part of a model's configuration, and each worker that serves it."""
    config = services.catalog.get(model)
    status = (await services.model_statuses.statuses())[config.name]
    pipeline = services.catalog.pipelines.get(config.name)
    own = _configuration(config) if pipeline is None else _pipeline(config, pipeline)
    return json_reply({**_summary(config, status), **own, **_workers(status)})


def _summary(model: ModelConfig, status: ModelStatus) -> dict[str, Any]:
    return {
        "name": model.name,
        "version": model.version,
        "queue": model.queue,
        "state": status.state,
        "ready_replicas": status.ready,
    }


def _configuration(model: ModelConfig) -> dict[str, Any]:
    # Without weights and options, which may hold paths of the server and secrets.
    return {
        "handler": model.handler,
        "device": model.device,
        "replicas": model.replicas,
        "weight": model.weight,
        "max_batch_size": model.max_batch_size,
        "max_batch_delay_ms": model.max_batch_delay_ms,
        "allowed_batch_sizes": model.allowed_batch_sizes,
        "max_batch_cost": model.max_batch_cost,
        "cost": model.cost,
        "batch_key": model.batch_key,
        "max_queue_depth": model.max_queue_depth,
        "timeout_s": model.timeout_s,
        "min_timeout_s": model.min_timeout_s,
        "max_restarts_per_minute": model.max_restarts_per_minute,
        "max_retries": model.max_retries,
        "retry_backoff_s": model.retry_backoff_s,
        "retry_backoff_max_s": model.retry_backoff_max_s,
    }


def _pipeline(config: ModelConfig, pipeline: PipelineConfig) -> dict[str, Any]:
    return {
        **_configuration(config),
        "max_running": pipeline.max_running,
        "max_items": pipeline.max_items,
        "stages": [
            {"name": stage.name, "model": stage.model, "from": list(stage.sources)}
            for stage in pipeline.stages
        ],
        "result": list(pipeline.result),
    }


def _workers(status: ModelStatus) -> dict[str, Any]:
    return {
        "error": status.error or None,
        "workers": [
            {
                "worker": served.worker,
                "node": served.state.node,
                "pid": served.pid,
                "device": served.state.device,
                "state": served.state.state,
                "replicas": served.state.replicas,
                "ready_replicas": served.state.ready,
                "model_pids": served.state.pids,
                "error": served.state.error or None,
            }
            for served in status.workers
        ],
    }
