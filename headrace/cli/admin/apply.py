"""`headrace apply`: makes a models file the declared state of a running deployment."""

from __future__ import annotations

import getpass
import socket

from headrace.cli.shared import output
from headrace.config.settings import Settings
from headrace.registry.catalog import read_declared
from headrace.registry.store import registry_at
from headrace.server.embedded_redis import redis_url_here
from headrace.text import count


def apply_file(settings: Settings, *, dry_run: bool, prune: bool) -> None:
    """Write what differs from the models file of the settings to the registry, and print it.

    Raises:
        ConfigError: the file has mistakes, or there is no Redis here.
        Conflict: others change its models again and again at this moment.
        BrokerError: Redis does not answer.
    """
    file = settings.models_file
    declared = read_declared(file, settings)
    by = f"headrace apply ({getpass.getuser()}@{socket.gethostname()})"
    with registry_at(redis_url_here(settings)) as store:
        if dry_run:
            changes = declared.changes(store.read(), prune=prune)
        else:
            changes = store.apply(declared, by, prune=prune)
    for change in changes:
        output.line(f"{change.name}: {change.what}")
    if dry_run:
        output.message("nothing was changed: --dry-run")
    else:
        output.message(f"{file}: {count(len(changes), 'model')} changed")
