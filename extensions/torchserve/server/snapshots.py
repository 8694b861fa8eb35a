"""The snapshots of a server of `headrace torchserve`: its models, written after each change."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import msgspec
import redis.exceptions

from extensions.torchserve.config.launch import Launch
from extensions.torchserve.config.model_config import TOO_SMALL, WEIGHTS_ONLY
from extensions.torchserve.config.snapshot import (
    HANDLER,
    LAST_NAME,
    Kind,
    SnapshotModel,
    last_written,
    write_snapshot,
)
from headrace.config.model.options import ModelOptions
from headrace.errors import HeadraceError
from headrace.redis import keys
from headrace.redis.connection import connect
from headrace.registry.model import Registry
from headrace.registry.store import RegistryStore, registry_at

#: How often the registry is looked at, in case the publication of a change was lost.
LOOK_S: Final = 0.3


def snapshot_models(registry: Registry) -> list[SnapshotModel]:
    """Return the registered models as a snapshot has them.

    Models without an archive are left out, as TorchServe has none, and those of workflows.
    """
    return [
        SnapshotModel(
            name,
            version,
            str(one.options["source"]),
            version == model.default_version,
            snapshot_settings(one.options),
        )
        for name, model in registry.models.items()
        for version, one in model.versions.items()
        if one.options.get("source") and one.declared is None
    ]


def snapshot_settings(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers of a version by TorchServe's names."""
    defaults = {item.name: item.default for item in msgspec.structs.fields(ModelOptions)}
    value = {**defaults, **options}
    low, high = value["total_replicas"], value["total_replicas"]
    if low is None:
        low = value["replicas"] if isinstance(value["replicas"], int) else 1
        high = value["max_replicas"] or low
    return {
        "minWorkers": low,
        "maxWorkers": high,
        "batchSize": value["max_batch_size"],
        "maxBatchDelay": int(value["max_batch_delay_ms"]),
        "responseTimeout": max(1, round(value["timeout_s"])),
        "startupTimeout": max(1, round(value["load_timeout_s"])),
        "runtimeType": "python",
        **(options.get("options") or {}).get(TOO_SMALL, {}),
        **({HANDLER: value["handler"]} if value["handler"] else {}),
        **({} if value["weights_only"] else {WEIGHTS_ONLY: False}),
    }


class Snapshots:
    """Writes a snapshot at the start, after each change of the registry, and at the stop."""

    def __init__(self, launch: Launch, state_dir: Path, report: Callable[[str], None]) -> None:
        self._launch = launch
        self._state_dir = state_dir
        self._last = state_dir / LAST_NAME
        self._folder = launch.config.snapshot_folder
        self._report = report
        self._registry = Registry()
        self._started = False
        self._ended = threading.Event()

    def is_older(self, registry: Registry) -> bool:
        """Return whether the registry was changed after the snapshot that the start is from.

        It was not if the server was stopped in order, or has run without snapshots since.
        """
        file, generation = self._launch.file, self._launch.revision.partition(" ")[0]
        was_last = file is not None and last_written(self._state_dir)[0] == file.name
        return was_last and generation.isdecimal() and registry.generation > int(generation)

    def begin(self) -> None:
        """Have no client wait for a snapshot until the first one of this run is written."""
        name, generation = last_written(self._state_dir)
        if generation is not None:
            self._last.write_text(name)

    def start(self, redis_url: str) -> None:
        """Write the first one, and follow the registry in a thread."""
        self._last.unlink(missing_ok=True)
        if self._folder is None:
            return
        with registry_at(redis_url) as store:
            self._registry = store.read()
        self._write("startup")
        self._started = True
        threading.Thread(
            target=self._follow, args=(redis_url,), name="headrace-snapshots", daemon=True
        ).start()

    def leave(self) -> None:
        """Stop to follow the registry, before Redis ends."""
        self._ended.set()

    def stop(self) -> None:
        """Write the last one, with the models as they were last seen."""
        if self._started:
            self._write("shutdown")

    def _follow(self, redis_url: str) -> None:
        while not self._ended.wait(LOOK_S):
            # Redis may be away; the next turn finds the changes.
            with (
                contextlib.suppress(HeadraceError, redis.exceptions.RedisError, OSError),
                registry_at(redis_url) as store,
                connect(redis_url) as client,
                client.pubsub() as changes,
            ):
                changes.subscribe(keys.MODEL_CHANGES)
                while not self._ended.is_set():
                    self._look(store)
                    changes.get_message(timeout=LOOK_S)

    def _look(self, store: RegistryStore) -> None:
        if store.revision() != self._registry.revision:
            self._registry = store.read()
            self._write("snapshot")

    def _write(self, kind: Kind) -> None:
        folder, revision = self._folder, self._registry.revision
        if folder is None:
            return
        try:
            path = write_snapshot(
                folder,
                kind,
                datetime.now().astimezone(),
                self._launch.values,
                snapshot_models(self._registry),
                f"{revision.generation} {revision.change}",
            )
            # A reader finds it whole.
            written = self._last.with_name(f".{LAST_NAME}.new")
            written.write_text(f"{path.name} {revision.generation}")
            written.replace(self._last)
        except OSError as error:
            self._report(f"no snapshot is written to {folder}: {error.strerror}")
