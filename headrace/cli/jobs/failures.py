"""`headrace jobs --group error` and `headrace retry`: why jobs failed, and their retry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import typer

from headrace.cli.shared import options, output
from headrace.cli.shared.exit_codes import ExitCode
from headrace.cli.shared.options import argument, client_of
from headrace.text import ago

if TYPE_CHECKING:
    from headrace import Client
    from headrace.schema.failures import FailuresOfGroup

#: The value of `--group` that lists groups.
BY_ERROR: Final = "error"
#: The options of `headrace jobs` that a list of groups has.
_SEARCHED: Final = ("model", "since", "error", "group")
_COLUMNS: Final = (">COUNT", "MODEL", "ERROR", "WHERE", "FIRST", "LAST", "GROUP", "MESSAGE")
MESSAGE_MAX_CHARS: Final = 100
_LEFT_REASONS: Final = {
    "gone": "deleted or retried meanwhile",
    "alive": "not retried: its message is still in a list",
    "no-message": "not retried: its message is no longer kept",
    "elsewhere": "not retried: the queue of its version is unknown",
}


def list_failures(
    client: Client, search: Mapping[str, Any], limit: int, *, as_json: bool
) -> ExitCode:
    """Print why jobs failed, a line for each reason."""
    others = [name for name, value in search.items() if value and name not in _SEARCHED]
    if others:
        raise typer.BadParameter(f"--group {BY_ERROR} cannot be combined with --{others[0]}")
    groups = client.failures(
        search["model"], since=search["since"], error=search["error"], limit=limit or None
    )
    output.listing(groups, _COLUMNS, _row, as_json=as_json, empty="no failures")
    return ExitCode.DONE


def retry(
    groups: list[str] = argument(
        "GROUP", "Names of groups, from `headrace jobs --group error`.", ...
    ),
    as_json: options.Json = False,
    url: options.Url = None,
) -> None:
    """Retry all failed jobs of a group; each job keeps its id and its input."""
    code = ExitCode.DONE
    with client_of(url) as client:
        for group in groups:
            done = client.retry_failures(group)
            value = {"group": group, "retried": done.retried, "left": done.left}
            output.item(value, f"{group}  {done.retried:,} retried", as_json=as_json)
            for job_id, reason in done.left.items():
                output.message(f"{job_id}: {_LEFT_REASONS.get(reason, reason)}")
                code = ExitCode.FAILED
    raise typer.Exit(code)


def _row(group: FailuresOfGroup) -> tuple[str, ...]:
    return (
        f"{group.count:,}",
        group.model,
        group.exception or group.type,
        group.where or "",
        ago(group.first_at),
        ago(group.last_at),
        group.group,
        output.short_line(group.message)[:MESSAGE_MAX_CHARS],
    )
