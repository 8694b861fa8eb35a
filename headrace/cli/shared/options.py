"""Arguments and options that several client commands share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec
import typer

from headrace.cli.shared.completion import complete_model
from headrace.errors import InvalidId
from headrace.jobs.ids import check_id
from headrace.jobs.options import METADATA_MAX_BYTES, JobOptions

LIMIT: Final = 20
#: What `--retry` of a command that submits covers.
UNREACHABLE_OR_FULL: Final = "is unreachable or its queue is full"
UNREACHABLE: Final = "is unreachable"

UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url", envvar="HEADRACE_URL", show_envvar=False, metavar="URL",
        help="URL of the server (default: HEADRACE_URL, else http://127.0.0.1:8080).",
    ),
]  # fmt: skip
JsonOption = Annotated[bool, typer.Option("--json", help="Print only JSON, one value per line.")]
WaitOption = Annotated[bool, typer.Option("--wait", "-w", help="Wait until the jobs have ended.")]
TimeoutOption = Annotated[
    float | None,
    typer.Option(
        "--timeout", min=0, metavar="SECONDS",
        help="Wait at most SECONDS in total; implies --wait (default: no limit).",
    ),
]  # fmt: skip
ContentTypeOption = Annotated[
    str | None,
    typer.Option(
        "--content-type",
        metavar="TYPE",
        help="Media type of the inputs (default: from name or content).",
    ),
]
VersionOption = Annotated[
    str | None,
    typer.Option(
        "--version", metavar="VERSION", help="Required version of the model (default: any)."
    ),
]
MaxRetriesOption = Annotated[
    int | None,
    typer.Option(
        "--max-retries",
        metavar="N",
        help="Retries after a transient error (default: the model's).",
    ),
]
IdsArgument = Annotated[
    list[str], typer.Argument(metavar="ID", help="Job ids; - reads ids from standard input.")
]
ModelArgument = Annotated[
    str, typer.Argument(metavar="MODEL", help="Name of the model.", autocompletion=complete_model)
]
LimitOption = Annotated[
    int,
    typer.Option(
        "--limit", min=0, metavar="N", show_default=False,
        help=f"Print at most N; 0 prints all (default: {LIMIT}).",
    ),
]  # fmt: skip
YesOption = Annotated[
    bool,
    typer.Option(
        "--yes",
        "-y",
        help="Do not ask for confirmation; without a terminal the command never asks.",
    ),
]


def retry_option(condition: str, seconds: int) -> Any:
    """Return `--retry`: how long a command retries while the server is in that condition."""
    return typer.Option(
        "--retry", min=0, metavar="SECONDS", show_default=False,
        help=f"Retry for SECONDS while the server {condition} (default: {seconds}).",
    )  # fmt: skip


#: The options that have another name on the command line.
_FLAGS: Final = {"timeout": "--job-timeout", "webhook_events": "--webhook-event"}


def checked_id(job_id: str | None) -> str | None:
    """Return a job's id after checking it.

    Raises:
        typer.BadParameter: it is not a valid id.
    """
    if job_id is not None:
        try:
            check_id(job_id)
        except InvalidId as error:
            raise typer.BadParameter(f"{error.message}. {error.hint}", param_hint="--id") from None
    return job_id


def checked_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are set, checked once before many jobs are submitted.

    Raises:
        typer.BadParameter: the server would refuse a value.
    """
    set_options = {name: value for name, value in options.items() if value is not None}
    for name, value in set_options.items():
        try:
            msgspec.convert({name: value}, JobOptions)
        except msgspec.ValidationError as error:
            flag = _FLAGS.get(name, f"--{name.replace('_', '-')}")
            message = str(error).partition(" - at ")[0]
            raise typer.BadParameter(
                f"{value}: {message[:1].lower()}{message[1:]}", param_hint=flag
            ) from None
    return set_options


def json_object(text: str | None) -> dict[str, Any] | None:
    """Parse the JSON object of --metadata.

    Raises:
        typer.BadParameter: it is not a JSON object, or is larger than METADATA_MAX_BYTES.
    """
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
