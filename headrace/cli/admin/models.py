"""`headrace models`: lists the models, or shows one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.cli.shared import output

if TYPE_CHECKING:
    from headrace.client.models import Model

_SUMMARY: Final = ("name", "version", "queue", "state", "ready_replicas")


def list_models(url: str | None, *, as_json: bool) -> None:
    """Print every registered model."""
    from headrace import Client

    with Client(url) as client:
        models = list(client.models())
    if as_json:
        for model in models:
            output.json_line({name: getattr(model, name) for name in _SUMMARY})
        return
    output.table(
        ("MODEL", "VERSION", "STATE", ">REPLICAS", "QUEUE"),
        [(m.name, m.version, m.state, str(m.ready_replicas), m.queue) for m in models],
    )


def show_model(url: str | None, name: str, *, as_json: bool) -> None:
    """Print one model with its configuration and its workers."""
    from headrace import Client

    with Client(url) as client:
        model = client.model(name)
    if as_json:
        output.json_line(model)
        return
    output.pairs(_facts(model))
    if model.error:
        output.line("")
        output.line(model.error.rstrip())


def _facts(model: Model) -> list[tuple[str, str]]:
    hidden = ("workers", "error")
    facts = [
        (name.replace("_", " "), f"{value:g}" if isinstance(value, float) else str(value))
        for name in model.__struct_fields__
        if name not in hidden and (value := getattr(model, name)) is not None
    ]
    facts += [
        ("worker", f"{worker.get('node')}, {worker.get('device')}: {worker.get('state')}")
        for worker in model.workers or ()
    ]
    return facts
