"""What this extension adds: a function for each point, which imports as late as it can.

A process that no setting or model gives anything to do here imports this module and no other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace.config.extensions import Command, Extension

if TYPE_CHECKING:
    from api.extension import ApiPart, Surface
    from api.services import Part, Services
    from handlers.extension import HandlerPart
    from headrace.config.model.handler_reference import HandlerReference
    from headrace.config.settings import Settings
    from headrace.handler import Handler
    from headrace.models.extension import ModelsPart
    from headrace.observability.extension import LogFiles, LogsPart
    from headrace.observability.worker_report import Figures
    from workers.extension import Observer, WorkerPart

_NAME: Final = "torchserve"
#: The options of the command are TorchServe's, and argparse reads them as TorchServe does.
_FREE: Final = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "help_option_names": [],
}
_SEE: Final = "see docs/torchserve.md."
#: Paths of TorchServe that the native API does not have, and what takes their place.
_IN_PLACE: Final = {
    r"/(predictions|explanations)/|/(invocations|wfpredict/)": (
        f"Use POST /api/v1/models/{{model}}/jobs?wait=30; {_SEE}"
    ),
    r"/ping(/|$)": f"Use GET /ready, or GET /live for the process alone; {_SEE}",
    r"/models(/|$)": f"In place of TorchServe's /models use GET /api/v1/models; {_SEE}",
}


def _late(path: str) -> Callable[..., Any]:
    """Return a function of a module here, which a call imports."""
    module, _, name = path.partition(":")

    def call(*arguments: Any) -> Any:
        return getattr(import_module(f".{module}", __package__), name)(*arguments)

    return call


def _api() -> ApiPart:
    from api.extension import ApiPart

    return ApiPart(parts=_grpc, surface=_surface, hint=_hint)


def _grpc(services: Services) -> Sequence[Part]:
    file = services.settings.of(_NAME, Path)
    if file is None:
        return ()
    from extensions.torchserve.config.settings import read_config

    config = read_config(file)
    if not config.grpc_inference_port and not config.grpc_management_port:
        return ()
    from api.grpc import need_grpc

    need_grpc("config.properties: a port of gRPC")
    from extensions.torchserve.grpc.service import servers

    return servers(services, config)


def _surface(services: Services) -> Surface | None:
    file = services.settings.of(_NAME, Path)
    if file is None:
        return None
    from extensions.torchserve.api.app import build

    return build(services, file)


def _hint(_: str, path: str) -> str | None:
    return next((hint for form, hint in _IN_PLACE.items() if re.match(form, path)), None)


def _workers() -> WorkerPart:
    from workers.extension import WorkerPart

    return WorkerPart(observer=_observer, pieces_extend_timeout=True)


def _observer(settings: Settings, figures: Callable[[], Figures]) -> Observer | None:
    file = settings.of(_NAME, Path)
    if file is None:
        return None
    from extensions.torchserve.workers.metrics import build

    return build(file, settings.log_format, figures)


def _handlers() -> HandlerPart:
    from extensions.torchserve.handlers import __path__ as folders
    from handlers.extension import HandlerPart

    folder = Path(folders[0])
    return HandlerPart(load=_load, folder=folder, leading=("handler.py", "entry.py", "process.py"))


def _load(reference: HandlerReference, folder: Path) -> Handler:
    from extensions.torchserve.config.manifest import read_manifest, read_settings
    from extensions.torchserve.config.model_config import is_continuous

    if is_continuous(read_settings(folder, read_manifest(folder))):
        from extensions.torchserve.handlers.continuous import ContinuousHandler

        return ContinuousHandler(reference)
    from extensions.torchserve.handlers.handler import TorchServeHandler

    return TorchServeHandler(reference)


def _models() -> ModelsPart:
    from headrace.models.extension import ModelsPart

    return ModelsPart(
        described_by="MAR-INF/MANIFEST.json",
        read=_late("config.archive:read"),
        check=_late("config.archive:check"),
        handler_problem=_late("config.archive:handler_problem"),
        defaults=_defaults,
        pipelines={".war": _late("config.workflow:read_workflow")},
    )


def _defaults() -> Mapping[str, Any]:
    from extensions.torchserve.config.archive import DEFAULTS

    return DEFAULTS


def _logs() -> LogsPart:
    from headrace.observability.extension import LogsPart

    return LogsPart(line=_late("logs.lines:log_line"), files=_log_files)


def _log_files(file: Path | None, log_format: str) -> LogFiles | None:
    if file is None:
        return None
    from extensions.torchserve.config.settings import read_config
    from extensions.torchserve.logs.files import log_files_of

    return log_files_of(read_config(file), log_format)


def _command() -> Callable[..., Any]:
    from extensions.torchserve.cli.torchserve import torchserve

    return torchserve


EXTENSION: Final = Extension(
    name=_NAME,
    summary="TorchServe's URLs, handlers, archives, logs, metrics and command",
    api=_api,
    workers=_workers,
    handlers=_handlers,
    models=_models,
    logs=_logs,
    commands={"torchserve": Command(load=_command, context=_FREE)},
    settings=lambda: Path,
    file_hints={
        "handle": "has TorchServe's function `handle`, but no class; see docs/torchserve.md",
    },
    variables=tuple(f"HEADRACE_TORCHSERVE_{key}_KEY" for key in ("MANAGEMENT", "INFERENCE", "API")),
)
