"""Read and change the registry in Redis."""

from __future__ import annotations

import contextlib
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec, TypeAlias, TypeVar, cast

import msgspec

from headrace.config.model.traffic import known_parts
from headrace.errors import ConfigError, Conflict, HeadraceError
from headrace.jobs.job import Time, iso
from headrace.redis import keys
from headrace.redis.clock import US_PER_S
from headrace.redis.connection import connect
from headrace.redis.script_client import AsyncScriptClient, ScriptClient
from headrace.redis.scripts import Arg, Command, fields_of, script
from headrace.registry.model import (
    Change,
    DeclaredModels,
    RegisteredModel,
    Registry,
    Revision,
)

P = ParamSpec("P")
T = TypeVar("T")

#: How often a models file is applied again after another process changed the same model.
APPLY_TRIES: Final = 5
#: How many changes the log keeps.
LOG_MAX: Final = 1000

#: Reads the revision; `revision_of` reads its reply.
READ_REVISION: Final[Command] = ("HMGET", keys.REGISTRY, "generation", "change")
_READ: Final[list[Command]] = [
    ("HMGET", keys.REGISTRY, "generation", "change", "file", "declared"),
    ("HGETALL", keys.MODELS),
]


class LoggedChange(msgspec.Struct, kw_only=True):
    """One change, as the log has it."""

    model: str
    what: str
    by: str
    at: Time


class ProblemLog:
    """Logs why the registry cannot be read: the same problem once, until it is over.

    Args:
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
            self._logger.warning("%s: %s", self._text, error.message_with_hint)
        else:
            self._logger.error("%s", self._text, exc_info=error)

    def clear(self) -> None:
        """Note that a try has succeeded."""
        self._last = ""


#: A plan does no I/O: it yields a call of a script, or a list of commands that only read, and is
#: sent the replies. So one plan serves both stores.
_Plan: TypeAlias = Generator[Command | list[Command], Any, T]


def _read() -> _Plan[Registry]:
    """Return all registered models."""
    return _registry((yield _READ))


def _revision() -> _Plan[Revision]:
    """Return which state the registry has."""
    (reply,) = yield [READ_REVISION]
    return revision_of(reply)


def _write(
    registry: Registry,
    changes: Sequence[Change],
    by: str,
    *,
    applied: DeclaredModels | None = None,
) -> _Plan[int]:
    """Write changes that were made from `registry`, all of them or none; return the new generation.

    Raises:
        Conflict: one of the models was changed meanwhile; the message names the author.
        ValueError: two changes are of one model.
    """
    return _generation((yield _change(registry, changes, by, applied)))


def _apply(
    declared: DeclaredModels, by: str, *, prune: bool, again: bool = True
) -> _Plan[list[Change]]:
    """Make a models file the declared state; return what that has changed.

    It begins again from the new state if one of the models is changed at the same time. Without
    `again` it does nothing if the file was the last one that was applied.

    Raises:
        Conflict: one of its models was changed at the same time, APPLY_TRIES times.
    """
    for _ in range(APPLY_TRIES - 1):
        with contextlib.suppress(Conflict):
            return (yield from _apply_once(declared, by, prune=prune, again=again))
    return (yield from _apply_once(declared, by, prune=prune, again=again))


def _apply_once(
    declared: DeclaredModels, by: str, *, prune: bool, again: bool
) -> _Plan[list[Change]]:
    registry = yield from _read()
    if registry.file == declared.digest and not again:
        return []
    changes = declared.changes(registry, prune=prune)
    yield from _write(registry, changes, by, applied=declared)
    return changes


def _log(count: int = 100) -> _Plan[list[LoggedChange]]:
    """Return the newest changes, the last one first."""
    (entries,) = yield [("XREVRANGE", keys.MODEL_LOG, "+", "-", "COUNT", count)]
    return [change for _, change in _entries(entries)]


def _log_before(end: str, count: int = 100) -> _Plan[list[tuple[str, LoggedChange]]]:
    """Return the newest changes from an entry back ("+" for all), with their ids."""
    (entries,) = yield [("XREVRANGE", keys.MODEL_LOG, end, "-", "COUNT", count)]
    return _entries(entries)


def _log_end() -> _Plan[str]:
    """Return the id of the newest change in the log; "0-0" if it is empty."""
    (entries,) = yield [("XREVRANGE", keys.MODEL_LOG, "+", "-", "COUNT", 1)]
    return _text(entries[0][0]) if entries else "0-0"


def _log_after(last: str, count: int = 100) -> _Plan[list[tuple[str, LoggedChange]]]:
    """Return the changes after the one with this id, with their ids, the oldest first."""
    (entries,) = yield [("XRANGE", keys.MODEL_LOG, f"({last}", "+", "COUNT", count)]
    return _entries(entries)


def _blocking(plan: Callable[P, _Plan[T]]) -> Callable[Concatenate[RegistryStore, P], T]:
    """Return a plan as a method."""

    @wraps(plan)
    def call(self: RegistryStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        steps, reply = plan(*args, **kwargs), None
        while True:
            try:
                step = steps.send(reply)
            except StopIteration as end:
                return cast("T", end.value)
            client = self.client
            reply = client.read_all(step) if isinstance(step, list) else client.call(step)

    return call


def _awaiting(
    plan: Callable[P, _Plan[T]],
) -> Callable[Concatenate[AsyncRegistryStore, P], Awaitable[T]]:
    """Return a plan as a method."""

    @wraps(plan)
    async def call(self: AsyncRegistryStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        steps, reply = plan(*args, **kwargs), None
        while True:
            try:
                step = steps.send(reply)
            except StopIteration as end:
                return cast("T", end.value)
            client = self.client
            reply = await (client.read_all(step) if isinstance(step, list) else client.call(step))

    return call


@dataclass(frozen=True, slots=True)
class RegistryStore:
    """The registry over a blocking client; any thread may use it.

    All methods raise a BrokerError if Redis does not answer. Those that read models raise a
    ConfigError if one is not readable.
    """

    client: ScriptClient

    read = _blocking(_read)
    revision = _blocking(_revision)
    write = _blocking(_write)
    apply = _blocking(_apply)
    log = _blocking(_log)


@dataclass(frozen=True, slots=True)
class AsyncRegistryStore:
    """The same over an asyncio client; see `RegistryStore`."""

    client: AsyncScriptClient

    read = _awaiting(_read)
    revision = _awaiting(_revision)
    write = _awaiting(_write)
    apply = _awaiting(_apply)
    log = _awaiting(_log)
    log_end = _awaiting(_log_end)
    log_after = _awaiting(_log_after)
    log_before = _awaiting(_log_before)


@contextlib.contextmanager
def registry_at(redis_url: str) -> Iterator[RegistryStore]:
    """Open the registry in this Redis, with a connection of its own."""
    client = connect(redis_url)
    try:
        yield RegistryStore(ScriptClient(client))
    finally:
        client.close()


def revision_of(reply: Sequence[bytes | None]) -> Revision:
    """Return the revision in the reply to `READ_REVISION`; raise ConfigError if it has none."""
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
    return fields_of(stored)


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


def _entries(entries: Any) -> list[tuple[str, LoggedChange]]:
    changes = []
    for entry_id, fields in entries:
        values = list(fields.values()) if isinstance(fields, Mapping) else fields[1::2]
        with contextlib.suppress(msgspec.MsgspecError):  # of another version
            change = msgspec.json.decode(values[0], type=LoggedChange)
            changes.append((_text(entry_id), change))
    return changes
