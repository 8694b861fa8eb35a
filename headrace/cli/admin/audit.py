"""`headrace audit`: prints who changed what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.cli.shared import options, output
from headrace.cli.shared.options import client_of, option

if TYPE_CHECKING:
    from headrace.schema.deployment import AuditEntry

_COLUMNS: Final = ("AT", "BY", "ACTION", "TARGET", "")


def audit(
    by: str | None = option("--by KEY", "Only changes by this API key, by its id."),
    target: str | None = option("--target NAME", "Only changes of this queue, model or worker."),
    limit: int = option("--limit N", "Maximum number of changes; 0 for all.", 50, min=0),
    as_json: options.Json = False,
    url: options.Url = None,
) -> None:
    """Print who changed what, the newest first."""
    with client_of(url) as client:
        entries = list(client.audit(by=by, target=target, limit=limit or None))
    output.listing(entries, _COLUMNS, _row, as_json=as_json, empty="no changes")


def _row(entry: AuditEntry) -> tuple[str, ...]:
    at = entry.at.isoformat(timespec="seconds")
    return at, entry.by, entry.action, entry.target, output.short_line(entry.detail)
