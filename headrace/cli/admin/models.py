"""`headrace models`: lists the models, shows one, and changes the registered ones."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperGroup
from typing_extensions import override

from headrace.cli.shared import options, output
from headrace.cli.shared.exit_codes import ExitCode
from headrace.cli.shared.options import argument, client_of, flag, option
from headrace.errors import InvalidRequest
from headrace.text import count

if TYPE_CHECKING:
    from headrace.client.models import Model
    from headrace.schema.registry import ModelDifference, ModelTraffic, Registration

#: The fields of a model that are not shown as one value.
_APART: Final = frozenset(
    {"workers", "error", "inputs", "outputs", "parameters", "headers", "traffic"}
)
_COLUMNS: Final = ("MODEL", "VERSION", "STATE", ">REPLICAS", "QUEUE")
_DIFFERENCES: Final = ("MODEL", "VERSION", "OPTION", "IN THE FILE", "PRESENT")
_CHANGES: Final = ("AT", "MODEL", "BY", "CHANGE")
#: The fields of a model in the JSON list.
_SUMMARY: Final = ("name", "version", "queue", "state", "ready_replicas", "versions")


class _ModelsGroup(TyperGroup):
    """`headrace models MODEL` is `headrace models show MODEL`."""

    @override
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        at = 0
        while at < len(args) and args[at].startswith("-"):
            at += 2 if args[at] == "--url" else 1
        if at < len(args) and args[at] not in self.commands:
            args.insert(0, "show")
        return super().parse_args(ctx, args)

    @override
    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        (model,) = (one for one in self.commands["show"].params if one.name == "model")
        names = [] if incomplete.startswith("-") else model.shell_complete(ctx, incomplete)
        return [*names, *super().shell_complete(ctx, incomplete)]


models_group: Final = typer.Typer(cls=_ModelsGroup, rich_markup_mode=None)

ModelArgument = Annotated[
    str, argument("MODEL", "The model.", ..., autocompletion=options.complete_model)
]
OptionsArgument = Annotated[
    list[str], argument("KEY=VALUE", "Options as in the models file, with values in YAML.", ...)
]
WaitSeconds = Annotated[
    float | None,
    option("--wait SECONDS", "Wait until the workers serve it, or cannot load it.", ..., min=0),
]
OfVersion = Annotated[
    str, option("--version VERSION", "The version (default: the default version).", ...)
]


@models_group.callback(invoke_without_command=True)
def models(ctx: typer.Context, as_json: options.Json = False, url: options.Url = None) -> None:
    """List the models. With a MODEL, show it. With a command, add, change or remove one."""
    if ctx.invoked_subcommand is not None:
        options.refuse_before_subcommand(ctx)
        return
    with client_of(url) as client:
        found = client.models()
    output.listing(found, _COLUMNS, _row, as_json=as_json, fields=_SUMMARY)


@models_group.command()
def show(model: ModelArgument, as_json: options.Json = False, url: options.Url = None) -> None:
    """Show the configuration and the workers of one model."""
    with client_of(url) as client:
        shown = client.model(model)
        copied = bool(shown.traffic and shown.traffic.get("shadow")) and not as_json
        traffic = client.model_traffic(model) if copied else None
    if as_json:
        output.json_line(shown)
        return
    output.pairs([*_facts(shown), *(_shadow(traffic) if traffic is not None else [])])
    if shown.error:
        output.line("")
        output.line(shown.error.rstrip())


@models_group.command()
def add(
    model: ModelArgument,
    given: OptionsArgument,
    version: str = option("--version VERSION", "The version (default: 1.0).", "1.0"),
    wait: WaitSeconds = None,
    as_json: options.Json = False,
    url: options.Url = None,
) -> None:
    """Register a version of a model, or replace it; the server must allow it with model_api."""
    with client_of(url) as client:
        _print(client.register_model(model, version, _options(given), wait=wait), as_json=as_json)


@models_group.command("set")
def set_options(
    model: ModelArgument,
    given: OptionsArgument,
    version: OfVersion = "",
    wait: WaitSeconds = None,
    as_json: options.Json = False,
    url: options.Url = None,
) -> None:
    """Set options of a version, such as max_batch_size=16; KEY= takes a change back."""
    with client_of(url) as client:
        done = client.set_model_options(model, _options(given), version=version, wait=wait)
    _print(done, as_json=as_json)


@models_group.command()
def scale(
    model: ModelArgument,
    replicas: str | None = argument("REPLICAS", "Model processes in each worker, or auto.", None),
    version: OfVersion = "",
    total: bool = flag("--total", "Processes of all workers together (total_replicas)."),
    least: int | None = option("--min N", "The fewest by demand (min_replicas).", None, min=1),
    most: int | None = option("--max N", "The most by demand (max_replicas).", None, min=1),
    wait: WaitSeconds = None,
    as_json: options.Json = False,
    url: options.Url = None,
) -> None:
    """Set how many model processes each worker runs, or with --total all workers together."""
    given = {
        "total_replicas" if total else "replicas": replicas and _replicas(replicas, total=total),
        "min_replicas": least,
        "max_replicas": most,
    }
    numbers = {key: number for key, number in given.items() if number is not None}
    if not numbers or (total and replicas is None):
        raise InvalidRequest("the number of processes is missing", hint="Give it, or --max N.")
    with client_of(url) as client:
        done = client.set_model_options(model, numbers, version=version, wait=wait)
    _print(done, as_json=as_json)


@models_group.command()
def reload(
    model: ModelArgument,
    version: OfVersion = "",
    wait: WaitSeconds = None,
    as_json: options.Json = False,
    url: options.Url = None,
) -> None:
    """Start new model processes; the old ones serve until these are ready."""
    with client_of(url) as client:
        _print(client.reload_model(model, version=version, wait=wait), as_json=as_json)


@models_group.command()
def promote(
    model: ModelArgument,
    version: str = argument("VERSION", "The new default version.", ...),
    wait: WaitSeconds = None,
    as_json: options.Json = False,
    url: options.Url = None,
) -> None:
    """Make a version the default one: it runs the jobs that name no version."""
    with client_of(url) as client:
        _print(client.promote_model(model, version, wait=wait), as_json=as_json)


@models_group.command()
def route(
    model: ModelArgument,
    given: list[str] = argument("VERSION=WEIGHT", "Shares, such as 1.0=90 2.0=10.", None),
    sticky: str | None = option(
        "--sticky header:NAME|metadata:KEY|none",
        "One user, by this header or key, sees one version.",
        None,
    ),
    shadow: str | None = option(
        "--shadow VERSION|none", "Copy the jobs to this version and compare the results.", None
    ),
    shadow_percent: float | None = option(
        "--shadow-percent N",
        "Percentage of the jobs to copy (default: 100).",
        None,
        min=0,
        max=100,
    ),
    clear: bool = option(
        "--clear", "Return to the models file's traffic, or the default version.", False
    ),
    wait: float | None = option(
        "--wait SECONDS", "Wait until the workers serve these, or cannot load one.", None, min=0
    ),
    as_json: options.Json = False,
    url: options.Url = None,
) -> None:
    """Share the jobs that name no version among versions; without options show the shares."""
    weights = _weights(given or ())
    changes = bool(weights) or any(one is not None for one in (sticky, shadow, shadow_percent))
    if clear and changes:
        raise InvalidRequest("--clear goes with nothing else", hint="Give either.")
    with client_of(url) as client:
        found = client.clear_traffic(model, wait=wait) if clear else client.model_traffic(model)
        if changes:
            # Options that are not given do not change.
            copied = found.shadow if shadow is None else shadow
            found = client.route_model(
                model,
                weights or found.weights,
                sticky=found.sticky if sticky is None else _sticky(sticky),
                shadow=None if copied == "none" else copied,
                shadow_percent=found.shadow_percent if shadow_percent is None else shadow_percent,
                generation=found.generation,
                wait=wait,
            )
    if as_json:
        output.json_line(found)
    else:
        output.pairs(_shares(found))
    _end(found.state, found.error)


@models_group.command()
def remove(
    model: ModelArgument,
    version: str = option("--version VERSION", "Remove only this version.", ""),
    wait: float | None = option(
        "--wait SECONDS", "Wait until no worker serves it any more.", None, min=0
    ),
    url: options.Url = None,
) -> None:
    """Remove a model, or one of its versions; jobs that wait stay in their queue."""
    with client_of(url) as client:
        state = client.remove_model(model, version=version, wait=wait)
    output.message(f"{model} {version}".rstrip() + ": removed")
    if state == "pending":
        output.message("a worker still serves it, until its last batches have ended")
        raise typer.Exit(ExitCode.TIMED_OUT)


@models_group.command()
def versions(model: ModelArgument, as_json: options.Json = False, url: options.Url = None) -> None:
    """Show the registered versions of a model, and what differs from the models file."""
    with client_of(url) as client:
        _print(client.model_versions(model), as_json=as_json)


@models_group.command()
def changes(
    limit: int = option("--limit N", "Number of changes (default: 20).", 20, min=1, max=1000),
    as_json: options.Json = False,
    url: options.Url = None,
) -> None:
    """List the newest changes of the registered models, with their authors."""
    with client_of(url) as client:
        found = client.model_changes(limit=limit)
    output.listing(
        found,
        _CHANGES,
        lambda one: (f"{one.at:%Y-%m-%d %H:%M:%S}", one.model, one.by, one.what),
        as_json=as_json,
    )


@models_group.command()
def diff(as_json: options.Json = False, url: options.Url = None) -> None:
    """List where the registered models differ from the models file."""
    with client_of(url) as client:
        found = client.model_differences()
    output.listing(
        found,
        _DIFFERENCES,
        _difference,
        as_json=as_json,
        empty="the registered models are as the models file has them",
    )


def _difference(one: ModelDifference) -> tuple[str, ...]:
    if one.option is None:
        return (one.model, one.version, "", "not in the file", "")
    if one.option == "version":
        return (one.model, one.version, "", "in the file", "removed")
    values = (
        "" if value is None else output.short_line(output.json_text(value))
        for value in (one.declared, one.present)
    )
    return (one.model, one.version, one.option, *values)


def _weights(given: Iterable[str]) -> dict[str, float]:
    found = {}
    for text in given:
        version, _, weight = text.rpartition("=")
        try:
            found[version] = float(weight)
        except ValueError:
            version = ""
        if not version:
            raise InvalidRequest(
                f"{text[:64]!r} is no share of a version",
                hint="Give VERSION=WEIGHT, such as 2.0=10.",
            )
    return found


def _sticky(text: str) -> dict[str, str] | None:
    if text == "none":
        return None
    kind, _, name = text.partition(":")
    if kind not in ("header", "metadata") or not name:
        raise InvalidRequest(
            f"--sticky {text[:64]!r} is not known",
            hint="Give header:NAME, such as header:X-User, metadata:KEY, or none.",
        )
    return {kind: name}


def _shadow(found: ModelTraffic) -> list[tuple[str, str]]:
    if found.shadow is None:
        return []
    results = ", ".join(f"{count} {name}" for name, count in found.shadow_results.items())
    return [
        ("shadow", f"{found.shadow}, {found.shadow_percent:g}% of the jobs"),
        ("shadow results", results),
    ]


def _shares(found: ModelTraffic) -> list[tuple[str, str]]:
    total = sum(found.weights.values())
    shares = [
        ("version", f"{name}, {weight:g} ({weight / total:.0%})")
        for name, weight in found.weights.items()
    ]
    facts = [("model", found.name), *(shares or [("version", f"{found.default_version}, all")])]
    facts += [("sticky", f"{kind} {name}") for kind, name in (found.sticky or {}).items()]
    if shares or found.shadow is not None:
        facts += [*_shadow(found), ("set by", "the models file" if found.declared else "the API")]
    return facts


def _replicas(text: str, *, total: bool) -> int | str:
    """Return the number of replicas, or "auto"; raise InvalidRequest for other text."""
    if text == "auto" and not total:
        return text
    if not text.isascii() or not text.isdecimal():
        known = "a number of 0 or more" + ("" if total else ", or auto")
        raise InvalidRequest(f"REPLICAS: {text[:64]!r} is no number", hint=f"Give {known}.")
    return int(text)


def _options(given: Iterable[str]) -> dict[str, Any]:
    import yaml

    found: dict[str, Any] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise InvalidRequest(
                f"{text[:64]!r} is no option", hint="Give KEY=VALUE, such as replicas=2."
            )
        try:
            found[key] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise InvalidRequest(
                f"{key}: {value[:64]!r} is not YAML", hint="Put the value in quotes."
            ) from None
    return found


def _print(done: Registration, *, as_json: bool) -> None:
    """Print a model after a change; raise Exit if the change was waited for, and is not served."""
    if as_json:
        output.json_line(done)
    else:
        output.pairs(
            [
                ("model", done.name),
                ("generation", str(done.generation)),
                ("last change", f"{done.change} (by {done.changed_by})"),
                *(("version", _version(one)) for one in done.versions),
            ]
        )
    _end(done.state, done.error)


def _end(state: str, error: str | None) -> None:
    """Report what a change with --wait has come to; raise Exit if the workers do not serve it."""
    if state == "failed":
        output.message(f"the workers cannot load it:\n{(error or '').rstrip()}")
        raise typer.Exit(ExitCode.FAILED)
    if state == "pending":
        output.message("not every worker serves it yet; `headrace models MODEL` shows the workers")
        raise typer.Exit(ExitCode.TIMED_OUT)


def _version(one: Any) -> str:
    words = [one.version, *(["default"] if one.default else [])]
    words.append("from the models file" if one.declared else "added over the API")
    given = ", ".join(f"{key}={output.json_text(one.changed[key])}" for key in sorted(one.changed))
    if given:
        words[-1] += f" with {given}" if not one.declared else f"; over the API: {given}"
    return ", ".join(words) + (f"; {one.unserved}" if one.unserved else "")


def _row(model: Model) -> tuple[str, ...]:
    versions = ", ".join(model.versions or [model.version])
    return (model.name, versions, model.state, str(model.ready_replicas), model.queue)


def _declared(name: str, declared: dict[str, Any]) -> list[tuple[str, str]]:
    facts = []
    if declared.get("content_types"):
        facts.append((name, ", ".join(declared["content_types"])))
    if declared.get("schema") is not None:
        facts.append((name, output.json_text(declared["schema"])))
    if "example" in declared:
        # An example of bytes is base64; its beginning is enough.
        facts.append(("example", output.short_line(output.json_text(declared["example"]))))
    return facts


def _facts(model: Model) -> list[tuple[str, str]]:
    facts = [
        (name.replace("_", " "), _in_words(value))
        for name in model.__struct_fields__
        if name not in _APART and (value := getattr(model, name)) not in (None, [])
    ]
    facts += [
        (f"parameter {name}", output.json_text(declared))
        for name, declared in (model.parameters or {}).items()
    ]
    if model.traffic:
        facts.append(("traffic", output.json_text(model.traffic)))
    if model.headers:
        facts.append(("headers", ", ".join(model.headers)))
    for name in ("inputs", "outputs"):
        facts += _declared(name, getattr(model, name) or {})
    for worker in model.workers or ():
        version = f", version {worker['version']}" if worker.get("version") else ""
        labels = f" ({', '.join(worker['labels'])})" if worker.get("labels") else ""
        text = (
            f"{worker.get('node')}{labels}{version}, {worker.get('device')}: {worker.get('state')}"
        )
        facts.append(("worker", f"{text}{_placement(worker)}"))
    return facts


def _placement(worker: dict[str, Any]) -> str:
    """Return how the model processes of a worker are placed, as far as it reports that."""
    parts = [count(worker.get("replicas", 0), "replica")]
    if worker.get("threads"):
        parts[0] += f" of {count(worker['threads'], 'thread')}"
    if worker.get("cpus"):
        parts.append(f"on CPUs {' and '.join(worker['cpus'])}")
    if worker.get("memory_mb"):
        parts.append(f"{worker['memory_mb']} MiB each")
    if worker.get("variant"):
        parts.append(str(worker["variant"]))
    if worker.get("preprocess"):
        parts.append(f"preprocess in {worker['preprocess']}")
    return "; " + ", ".join(parts)


def _in_words(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
