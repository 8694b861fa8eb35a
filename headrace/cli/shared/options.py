"""Arguments and options that several commands share, their checks, and shell completion."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer
from typer import BadParameter
from typer.core import TyperArgument, TyperCommand
from typing_extensions import override

from headrace.config.suggestions import value_problem
from headrace.errors import HeadraceError, InvalidId
from headrace.jobs.ids import check_id
from headrace.jobs.options import METADATA_MAX_BYTES, JobOptions

if TYPE_CHECKING:
    from headrace import Client

_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


class NumbersCommand(TyperCommand):
    """A command whose errors about numbers name what to give."""

    @override
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except BadParameter as error:
            if message := _message(error):
                error.message = message
            raise


def parsed_seconds(text: str) -> int | None:
    """Return the seconds of a duration (`90s`, `15m`, `2h`, `3d`); None for any other text."""
    match = re.fullmatch(r"(\d+)([smhd])", text)
    return None if match is None else int(match[1]) * _UNITS_S[match[2]]


def _message(error: BadParameter) -> str:
    """Return the message for a value that is no number, or beyond its limit; else ""."""
    problems: Any = getattr(error.__cause__, "errors", list)()
    if not problems:
        return ""
    kind, given = problems[0]["type"], problems[0]["input"]
    limits = problems[0].get("ctx", {})
    if given == "nan":
        return "nan is not a number"
    if "ge" in limits:
        return f"{given} is too small; give at least {limits['ge']:g}"
    if "le" in limits:
        return f"{given} is too large; give at most {limits['le']:g}"
    if kind not in ("int_parsing", "int_from_float", "float_parsing"):
        return ""
    whole = "a whole number" if kind.startswith("int") else "a number"
    name = error.param.metavar if error.param is not None else ""
    if name != "SECONDS":
        return f"{str(given)[:64]!r} is not {whole}"
    seconds = parsed_seconds(str(given)) or 20
    return f"{str(given)[:64]!r} is not {whole}; give seconds without a unit, such as {seconds}"


LIMIT: Final = 20
#: The options of a job that have another name on the command line.
_FLAGS: Final = {"timeout": "--job-timeout", "webhook_events": "--webhook-event"}
#: A shell must not hang when the user presses Tab.
COMPLETION_TIMEOUT_S: Final = 0.5
COMPLETED_MAX: Final = 100


# typer 0.29 shows the type of an argument, as in `ID <list[str]>`, and has no switch for it.
TyperArgument.display_type_rich = lambda *_, **__: None  # type: ignore[method-assign]


def client_of(url: str | None, **options: Any) -> Client:
    """Return a client for a server. It is imported here, because it takes a tenth of a second."""
    from headrace import Client

    return Client(url, **options)


def option(usage: str, help: str, default: Any = None, **others: Any) -> Any:
    """Return an option, as the default of a command's parameter or in an `Annotated` type.

    Args:
        usage: the flags and the name of the value, as in `--output -o FILE`.
        help: the text of `--help`; it names the default, if there is one.
        default: the default; `...` if the option is required, and in an `Annotated` type.
    """
    words = usage.split()
    flags = [word for word in words if word.startswith("-")]
    value = words[-1] if len(words) > len(flags) else None
    others = {"metavar": value, "help": help, "show_default": False, **others}
    return typer.Option(default, *flags, **others)


def flag(usage: str, help: str, **others: Any) -> Any:
    """Return an option without a value that is off by default."""
    return option(usage, help, False, **others)


def argument(name: str, help: str, default: Any = None, **others: Any) -> Any:
    """Return an argument, as `option` returns an option."""
    return typer.Argument(default, metavar=name, help=help, **others)


def group(help: str) -> typer.Typer:
    """Return a group of commands that does nothing itself."""
    return typer.Typer(help=help, no_args_is_help=True, rich_markup_mode=None)


def complete_model(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the models whose names begin with `incomplete`."""
    return _completed(ctx, incomplete, lambda client: [model.name for model in client.models()])


def complete_dead_letter(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the model's newest dead letters whose ids begin with `incomplete`."""
    model = str(ctx.params.get("model") or "")
    return _completed(
        ctx,
        incomplete,
        lambda client: [dead.id for dead in client.dead_letters(model, limit=COMPLETED_MAX)],
    )


def _completed(
    ctx: typer.Context, incomplete: str, names: Callable[[Client], Iterable[str]]
) -> list[str]:
    """Return the names that begin with `incomplete`; none without an answer in time."""
    try:
        with client_of(ctx.params.get("url"), timeout_s=COMPLETION_TIMEOUT_S, retry_s=0) as client:
            return [name for name in names(client) if name.startswith(incomplete)]
    except HeadraceError:
        return []


Url = Annotated[
    str | None,
    option(
        "--url URL",
        "URL of the server (default: HEADRACE_URL, else http://127.0.0.1:8080).",
        ...,
        envvar="HEADRACE_URL",
        show_envvar=False,
    ),
]
Json = Annotated[bool, option("--json", "Print only JSON, one value per line.", ...)]
Wait = Annotated[bool, option("--wait -w", "Wait until the jobs have ended.", ...)]
Timeout = Annotated[
    float | None,
    option(
        "--timeout SECONDS",
        "Wait at most SECONDS in total; implies --wait (default: no limit).",
        ...,
        min=0,
    ),
]
ContentType = Annotated[
    str | None,
    option("--content-type TYPE", "Media type of the inputs (default: from name or content).", ...),
]
Version = Annotated[
    str | None,
    option("--version VERSION", "Version of the model that must run the jobs (default: any).", ...),
]
MaxRetries = Annotated[
    int | None,
    option("--max-retries N", "Retries after a transient error (default: the model's).", ...),
]
Param = Annotated[
    list[str] | None,
    option("--param NAME=VALUE", "Value of a parameter of the model; repeatable.", ...),
]
Limit = Annotated[
    int, option("--limit N", f"Print at most N; 0 prints all (default: {LIMIT}).", ..., min=0)
]
Yes = Annotated[
    bool,
    option(
        "--yes -y", "Do not ask for confirmation; without a terminal the command never asks.", ...
    ),
]
JobId = Annotated[str, argument("ID", "Job id.", ...)]
JobIds = Annotated[list[str], argument("ID", "Job ids; - reads ids from standard input.", ...)]
Model = Annotated[str, argument("MODEL", "Name of the model.", ..., autocompletion=complete_model)]


def retry(condition: str, seconds: int) -> Any:
    """Return `--retry`: how long a command retries while the server is in that condition."""
    text = f"Retry for SECONDS while the server {condition} (default: {seconds})."
    return option("--retry SECONDS", text, seconds, min=0)


def refuse_before_subcommand(ctx: typer.Context) -> None:
    """Refuse the options of a group's own command that are given before a subcommand.

    An ignored --url would send a purge to the wrong server.

    Raises:
        typer.BadParameter: an option is given there.
    """
    for parameter in ctx.command.params:
        source = ctx.get_parameter_source(parameter.name or "")
        if source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(
                f"put it after {ctx.invoked_subcommand}", param_hint=parameter.opts[0]
            )


def checked_id(job_id: str | None) -> str | None:
    """Return a job's id after checking it; raise typer.BadParameter if it is not a valid id."""
    if job_id is not None:
        try:
            check_id(job_id)
        except InvalidId as error:
            raise typer.BadParameter(error.message_with_hint, param_hint="--id") from None
    return job_id


def checked_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are set, checked once for many; raise BadParameter if refused."""
    set_options = {name: value for name, value in options.items() if value is not None}
    for name, value in set_options.items():
        try:
            msgspec.convert({name: value}, JobOptions)
        except msgspec.ValidationError as error:
            flag = _FLAGS.get(name, f"--{name.replace('_', '-')}")
            message = value_problem(value, error, JobOptions)
            raise typer.BadParameter(message, param_hint=flag) from None
    return set_options


def parameters(given: list[str] | None) -> dict[str, Any]:
    """Return the values of --param as text; raise BadParameter for one without `=`, or twice."""
    found: dict[str, Any] = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise typer.BadParameter(f"{text}: expected NAME=VALUE", param_hint="--param")
        if name in found:
            raise typer.BadParameter(f"{name} is given twice", param_hint="--param")
        found[name] = value
    return found


def json_object(text: str | None) -> dict[str, Any] | None:
    """Parse the JSON object of --metadata; raise BadParameter for other or large JSON."""
    if text is None:
        return None
    try:
        found = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise typer.BadParameter(
            f"{text}: not a JSON object: {error}", param_hint="--metadata"
        ) from None
    size = len(msgspec.json.encode(found))
    if size > METADATA_MAX_BYTES:
        raise typer.BadParameter(
            f"{size} bytes as JSON; the limit is {METADATA_MAX_BYTES}", param_hint="--metadata"
        )
    return found
