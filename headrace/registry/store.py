"""Read and change the registry in Redis."""

from __future__ import annotations

import contextlib
import logging
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from headrace.config.traffic import known_parts
from headrace.errors import ConfigError, Conflict, HeadraceError
from headrace.jobs.job import Time, iso
from headrace.redis import keys
from headrace.redis.clock import US_PER_S
from headrace.redis.connection import connect
from headrace.redis.script_client import AsyncScriptClient, ScriptClient
from headrace.redis.scripts import Arg, Command, script
from headrace.registry.model import (
    Change,
    DeclaredModels,
    RegisteredModel,
    Registry,
    Revision,
)

#: How often a models file is applied again after another process changed the same model.
APPLY_TRIES: Final = 5
#: How many changes the log keeps.
LOG_MAX: Final = 1000

#: Reads the revision; `revision_of` reads its reply.
READ_REVISION: Final[Command] = ("HMGET", keys.REGISTRY, "generation", "change")
_READ: Final[tuple[Command, ...]] = (
    ("HMGET", keys.REGISTRY, "generation", "change", "file", "declared"),
    ("HGETALL", keys.MODELS),
)


class LoggedChange(msgspec.Struct, kw_only=True):
    """One change, as the log has it."""

    model: str
    what: str
    by: str
    at: Time


class ProblemLog:
    """Logs why the registry cannot be read: the same problem once, until it is over.

    Args:
        logger: the logger of the process that reads it.
        text: what does not work meanwhile.
    """

    def __init__(self, logger: logging.Logger, text: str) -> None:
        self._logger = logger
        self._text = text
        self._last = ""

    def report(self, error: Exception) -> None:
        """Log an error of a try, unless the try before had the same."""
        if repr(error) == self._last:
            return
        self._last = repr(error)
        if isinstance(error, HeadraceError):
            why = f"{error.message}; {error.hint}" if error.hint else error.message
            self._logger.warning("%s: %s", self._text, why)
        else:
            self._logger.error("%s", self._text, exc_info=error)

    def clear(self) -> None:
        """Note that a try has succeeded."""
        self._last = ""


class RegistryStore:
    """The registry over a blocking client; any thread may use it.

    All methods raise a BrokerError if Redis does not answer. Those that read models raise a
    ConfigError if one is not readable.
    """

    def __init__(self, client: ScriptClient) -> None:
        self._client = client

    def read(self) -> Registry:
        """Return all registered models."""
        return _registry(self._client.read_all(_READ))

    def revision(self) -> Revision:
        """Return which state the registry has."""
        (found,) = self._client.read_all([READ_REVISION])
        return revision_of(found)

    def write(
        self,
        registry: Registry,
        changes: Sequence[Change],
        by: str,
        *,
        applied: DeclaredModels | None = None,
    ) -> int:
        """Write changes, all of them or none; return the new generation.

        Args:
            registry: the state from which the changes were made.
            changes: what to write.
            by: who makes them, for the log.
            applied: the models file that they apply.

        Raises:
            Conflict: one of the models was changed meanwhile; the message names the author.
            ValueError: two changes are of one model.
        """
        answer = self._client.call(_change(registry, changes, by, applied))
        return _generation(answer)

    def apply(self, declared: DeclaredModels, by: str, *, prune: bool) -> list[Change]:
        """Make a models file the declared state; return what that has changed.

        It begins again from the new state if one of the models is changed at the same time.

        Raises:
            Conflict: that happened APPLY_TRIES times.
        """
        for _ in range(APPLY_TRIES - 1):
            with contextlib.suppress(Conflict):
                return self._apply(declared, by, prune=prune)
        return self._apply(declared, by, prune=prune)

    def _apply(self, declared: DeclaredModels, by: str, *, prune: bool) -> list[Change]:
        registry = self.read()
        changes = declared.changes(registry, prune=prune)
        self.write(registry, changes, by, applied=declared)
        return changes

    def log(self, count: int = 100) -> list[LoggedChange]:
        """Return the newest changes, the last one first."""
        return _log(self._client.execute("XREVRANGE", keys.MODEL_LOG, "+", "-", "COUNT", count))


class AsyncRegistryStore:
    """The same over an asyncio client; see `RegistryStore`."""

    def __init__(self, client: AsyncScriptClient) -> None:
        self._client = client

    async def read(self) -> Registry:
        """Return all registered models."""
        return _registry(await self._client.read_all(_READ))

    async def revision(self) -> Revision:
        """Return which state the registry has."""
        (found,) = await self._client.read_all([READ_REVISION])
        return revision_of(found)

    async def write(
        self,
        registry: Registry,
        changes: Sequence[Change],
        by: str,
        *,
        applied: DeclaredModels | None = None,
    ) -> int:
        """Write changes, all of them or none; see `RegistryStore.write`.

        Raises:
            Conflict: one of the models was changed meanwhile; the message names the author.
            ValueError: two changes are of one model.
        """
        return _generation(await self._client.call(_change(registry, changes, by, applied)))

    async def apply_new(self, declared: DeclaredModels, by: str) -> list[Change]:
        """Apply a models file with `prune`, unless it was applied last; see `RegistryStore.apply`.

        Raises:
            Conflict: one of its models was changed at the same time, APPLY_TRIES times.
        """
        for _ in range(APPLY_TRIES - 1):
            with contextlib.suppress(Conflict):
                return await self._apply_new(declared, by)
        return await self._apply_new(declared, by)

    async def _apply_new(self, declared: DeclaredModels, by: str) -> list[Change]:
        registry = await self.read()
        if registry.file == declared.digest:
            return []
        changes = declared.changes(registry, prune=True)
        await self.write(registry, changes, by, applied=declared)
        return changes

    async def log_end(self) -> str:
        """Return the id of the newest change in the log; "0-0" if it is empty."""
        newest: Command = ("XREVRANGE", keys.MODEL_LOG, "+", "-", "COUNT", 1)
        (entries,) = await self._client.read_all([newest])
        return _text(entries[0][0]) if entries else "0-0"

    async def log_after(self, last: str, count: int = 100) -> list[tuple[str, LoggedChange]]:
        """Return the changes after the one with this id, with their ids, the oldest first."""
        next_: Command = ("XRANGE", keys.MODEL_LOG, f"({last}", "+", "COUNT", count)
        (entries,) = await self._client.read_all([next_])
        return _entries(entries)

    async def log(self, count: int = 100) -> list[LoggedChange]:
        """Return the newest changes, the last one first."""
        newest: Command = ("XREVRANGE", keys.MODEL_LOG, "+", "-", "COUNT", count)
        (entries,) = await self._client.read_all([newest])
        return _log(entries)


@contextlib.contextmanager
def registry_at(redis_url: str) -> Iterator[RegistryStore]:
    """Open the registry in this Redis, with a connection of its own."""
    client = connect(redis_url)
    try:
        yield RegistryStore(ScriptClient(client))
    finally:
        client.close()


def revision_of(reply: Sequence[bytes | None]) -> Revision:
    """Return the revision that the reply to `READ_REVISION` has.

    Raises:
        ConfigError: it is not readable.
    """
    generation, change = (_text(part) for part in reply)
    if generation and not generation.isdecimal():
        raise ConfigError(f"{keys.REGISTRY} in Redis has the generation {generation[:64]!r}")
    return Revision(int(generation or 0), change)


def _registry(replies: Sequence[Any]) -> Registry:
    # The generation is read first: if a change comes between, its publication brings a new read.
    (*revision, file, declared), stored = replies
    generation, change = revision_of(revision)
    models = {_text(name): _decode(name, value) for name, value in sorted(_pairs(stored).items())}
    versions = msgspec.json.decode(declared or b"{}", type=dict[str, str])
    return Registry(generation, _text(file), models, change, versions)


def _text(value: bytes | None) -> str:
    return (value or b"").decode(errors="replace")


def _pairs(stored: Any) -> Mapping[bytes, bytes]:
    if isinstance(stored, Mapping):
        return stored
    return dict(zip(stored[::2], stored[1::2], strict=True))


def _decode(field: bytes, value: bytes) -> RegisteredModel:
    try:
        fields = msgspec.msgpack.decode(value.partition(b" ")[2])
        if isinstance(fields, dict) and "traffic" in fields:
            fields["traffic"] = known_parts(fields["traffic"])
        model = msgspec.convert(fields, RegisteredModel)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        problem = str(error)
    else:
        if model.versions and model.name == _text(field):
            return model
        problem = "it has no versions, or another name"
    name = _text(field)[:64]
    raise ConfigError(
        f"the registered model {name!r} is not readable ({keys.MODELS} in Redis): {problem}",
        hint=f"If a newer Headrace has written it, update this one. Else remove it with "
        f"`redis-cli HDEL {keys.MODELS} {name}`, and register it again.",
    )


def _change(
    registry: Registry, changes: Sequence[Change], by: str, applied: DeclaredModels | None
) -> Command:
    if len({change.name for change in changes}) < len(changes):
        # They were made from one state, so the last one would undo the others.
        raise ValueError("two changes are of one model")
    file, declared = "", b""
    if applied is not None:
        versions = {name: version for name, (version, _) in applied.models.items()}
        file, declared = applied.digest, msgspec.json.encode(versions)
    args: list[Arg] = [file, declared, LOG_MAX, secrets.token_hex(8)]
    now_s = time.time()
    for change in changes:
        before = change.before.generation if change.before is not None else 0
        value = b""
        if change.after is not None:
            # Above all that were ever given, so that a model that is removed and added again
            # is not taken for the earlier one.
            generation = max(before, registry.generation) + 1
            model = msgspec.structs.replace(
                change.after, generation=generation, by=by, at_s=now_s, what=change.what
            )
            value = b"%d %b" % (generation, msgspec.msgpack.encode(model))
        at = iso(int(now_s * US_PER_S))
        entry = LoggedChange(model=change.name, what=change.what, by=by, at=at)
        args += [change.name, str(before), value, msgspec.json.encode(entry)]
    return script("registry/change").call([], *args)


def _generation(answer: Sequence[Any]) -> int:
    if answer[0] >= 0:
        return int(answer[0])
    _, name, value = answer
    name = name.decode()
    if not value:
        raise Conflict(
            f"the model {name} was removed meanwhile",
            hint="read the models again, and repeat the change if it still makes sense",
        )
    model = _decode(name.encode(), value)
    raise Conflict(
        f"the model {name} was changed meanwhile, to generation {model.generation}, by {model.by} "
        f"at {iso(int(model.at_s * US_PER_S))}: {model.what}",
        hint="read the model again, and repeat the change if it still makes sense",
    )


def _log(entries: Any) -> list[LoggedChange]:
    return [change for _, change in _entries(entries)]


def _entries(entries: Any) -> list[tuple[str, LoggedChange]]:
    found = []
    for entry_id, fields in entries:
        values = list(fields.values()) if isinstance(fields, Mapping) else fields[1::2]
        with contextlib.suppress(msgspec.MsgspecError):  # of another version
            change = msgspec.json.decode(values[0], type=LoggedChange)
            found.append((_text(entry_id), change))
    return found
