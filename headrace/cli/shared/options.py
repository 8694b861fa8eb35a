"""Arguments and options that several client commands have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec
import typer

from headrace.cli.shared.completion import complete_model
from headrace.errors import InvalidId
from headrace.jobs.ids import check_id
from headrace.jobs.job import METADATA_MAX_BYTES, JobOptions

LIMIT: Final = 20
#: What `--retry` of a command that submits bears.
FULL_OR_AWAY: Final = "a server that is away, or a queue that is full,"

UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url", envvar="HEADRACE_URL", show_envvar=False, metavar="URL",
        help="The server; HEADRACE_URL names it too [http://127.0.0.1:8080].",
    ),
]  # fmt: skip
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print JSON, one value a line, and nothing else.")
]
WaitOption = Annotated[bool, typer.Option("--wait", "-w", help="Wait until the jobs have ended.")]
TimeoutOption = Annotated[
    float | None,
    typer.Option(
        "--timeout", min=0, metavar="SECONDS",
        help="Wait for so long in all, and no longer; implies --wait [without end].",
    ),
]  # fmt: skip
IdsArgument = Annotated[
    list[str], typer.Argument(metavar="ID", help="The jobs; - reads ids from standard input.")
]
ModelArgument = Annotated[
    str, typer.Argument(metavar="MODEL", help="The model.", autocompletion=complete_model)
]
LimitOption = Annotated[
    int,
    typer.Option(
        "--limit", min=0, metavar="N", show_default=False,
        help=f"So many at the most; 0 for all that are listed [{LIMIT}].",
    ),
]  # fmt: skip
YesOption = Annotated[
    bool, typer.Option("--yes", "-y", help="Do not ask; without a terminal nobody is asked.")
]


def retry_option(bears: str, seconds: int) -> Any:
    """`--retry`: what a command bears for so many seconds, unless it is told another time."""
    return typer.Option(
        "--retry", min=0, metavar="SECONDS", show_default=False,
        help=f"Bear {bears} so long [{seconds}].",
    )  # fmt: skip


#: The options that are called otherwise on the command line.
_FLAGS: Final = {"timeout": "--job-timeout", "webhook_events": "--webhook-event"}


def checked_id(job_id: str | None) -> str | None:
    """The id that a job is to have.

    Raises:
        typer.BadParameter: no job can have it.
    """
    if job_id is not None:
        try:
            check_id(job_id)
        except InvalidId as error:
            raise typer.BadParameter(f"{error.message}. {error.hint}", param_hint="--id") from None
    return job_id


def checked_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """A job's options, before each of any number of jobs is refused for the same one.

    Raises:
        typer.BadParameter: the server takes no such value.
    """
    given = {name: value for name, value in options.items() if value is not None}
    for name, value in given.items():
        try:
            msgspec.convert({name: value}, JobOptions)
        except msgspec.ValidationError as error:
            flag = _FLAGS.get(name, f"--{name.replace('_', '-')}")
            said = str(error).partition(" - at ")[0]
            raise typer.BadParameter(
                f"{value}: {said[:1].lower()}{said[1:]}", param_hint=flag
            ) from None
    return given


def json_object(text: str | None) -> dict[str, Any] | None:
    """The object of --metadata.

    Raises:
        typer.BadParameter: it is none, or larger than a job's may be.
    """
    if text is None:
        return None
    try:
        found = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise typer.BadParameter(
            f"{text}: no JSON object: {error}", param_hint="--metadata"
        ) from None
    size = len(msgspec.json.encode(found))
    if size > METADATA_MAX_BYTES:
        raise typer.BadParameter(
            f"{size} bytes as JSON, more than {METADATA_MAX_BYTES}", param_hint="--metadata"
        )
    return found
