"""Passes requests for profiles to model processes, and saves what they answer.

A thread of its own talks to Redis. A worker takes a request only if a model process of that version
is ready.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec
from redis.exceptions import RedisError

from headrace.errors import BrokerError
from headrace.observability import profiles
from headrace.observability.profiles import ProfileRequest, of_model
from headrace.redis.connection import connect
from headrace.redis.script_client import ScriptClient
from headrace.redis.scripts import Command
from workers.models.served_model import ServedModel
from workers.protocol.frames import Phase, Profiled
from workers.replicas.replica import Replica
from workers.threads import BackgroundThreads

logger = logging.getLogger(__name__)

#: The phases in which a process answers.
_SERVING: Final = (Phase.READY, Phase.DRAINING)
#: How long a stop waits for profiles that are being saved.
_CLOSE_S: Final = 1.0


class _Scan(NamedTuple):
    """Look for requests of these versions, and take them."""

    ready: frozenset[str]


class _Taken(NamedTuple):
    id: str
    of: str
    asked: ProfileRequest


class _Running(NamedTuple):
    """A profile that a model process makes.

    Attributes:
        pid: of the process; another process takes its place when it ends.
        until: when the worker gives up.
    """

    of: str
    replica: Replica
    pid: int
    until: float


class Profiles:
    """The profiles of a worker."""

    def __init__(self, redis_url: str, owner: str) -> None:
        self._redis_url = redis_url
        self._owner = owner
        self._seen = b""
        self._running: dict[str, _Running] = {}
        self._threads = BackgroundThreads[_Scan | Command, _Taken](self._work, "headrace-profiles")

    def fileno(self) -> int:
        """Return the descriptor for a selector: readable when a request was taken."""
        return self._threads.fileno()

    def changed(self, newest: bytes | None, models: Iterable[ServedModel]) -> None:
        """Look for requests if `newest`, the third part of READ_CHANGES, is not as before."""
        if not newest or newest == self._seen:
            return
        ready = frozenset(
            of_model(model.config.name, model.config.version)
            for model in models
            if _free(model) is not None
        )
        if ready:
            self._seen = newest
            self._threads.submit(_Scan(ready))

    def start(self, models: Iterable[ServedModel], now: float) -> None:
        """Send the requests that were taken to model processes."""
        for taken in self._threads.take_results():
            free = (
                replica
                for model in models
                if of_model(model.config.name, model.config.version) == taken.of
                and (replica := _free(model)) is not None
            )
            replica = next(free, None)
            if replica is None:
                self._save(taken.id, {}, "the model process has just ended; repeat the request")
                continue
            asked = taken.asked
            replica.profile(taken.id, asked.kind, asked.batches, asked.seconds)
            until = now + asked.seconds + profiles.WRITE_S
            self._running[taken.id] = _Running(taken.of, replica, replica.pid, until)

    def ended(self, model: ServedModel, profile: Profiled) -> None:
        """Save what a model process has answered."""
        if profile.id:
            self._running.pop(profile.id, None)
            self._save(profile.id, profile.files, profile.error)
            return
        option = model.config.profile
        made = ProfileRequest(batches=option.batches if option is not None else 1)
        new = f"{profiles.AUTOMATIC}{secrets.token_hex(8)}"
        of = of_model(model.config.name, model.config.version)
        self._threads.submit(profiles.save(new, profile.files, automatic=(made, of)))

    def check(self, now: float) -> None:
        """Give up profiles whose process has ended or does not answer."""
        for profile_id, running in list(self._running.items()):
            lost = running.replica.pid != running.pid or running.replica.state not in _SERVING
            if lost or now >= running.until:
                del self._running[profile_id]
                why = (
                    "the model process ended while it was profiled"
                    if lost
                    else "the model process did not answer in time"
                )
                self._save(profile_id, {}, f"{why}; its worker's log has more")

    def close(self) -> None:
        """End the thread."""
        for profile_id in self._running:
            self._save(profile_id, {}, "the worker was stopped while the model was profiled")
        self._threads.close(_CLOSE_S)

    def _save(self, profile_id: str, files: dict[str, bytes], error: str) -> None:
        self._threads.submit(profiles.save(profile_id, files, error))

    def _work(self, task: _Scan | Command) -> None:
        try:
            client = connect(self._redis_url)
            try:
                store = ScriptClient(client)
                if isinstance(task, _Scan):
                    self._take(store, task.ready)
                else:
                    store.call(task)
            finally:
                client.close()
        except (BrokerError, RedisError, OSError) as error:
            # A client that waits for the profile gets an error at its time limit.
            logger.warning("a profile is not read or saved: %s", error)

    def _take(self, store: ScriptClient, ready: frozenset[str]) -> None:
        for name in store.execute(*profiles.READ_IDS):
            profile_id = name.decode()
            state = store.execute(*profiles.read_state(profile_id))
            of = (state[1] or b"").decode()
            if state[0] != b"requested" or of not in ready:
                continue
            reply = store.call(profiles.take(profile_id, self._owner))
            if reply:
                asked = msgspec.json.decode(reply[0], type=ProfileRequest)
                self._threads.deliver(_Taken(profile_id, of, asked))


def _free(model: ServedModel) -> Replica | None:
    """Return a replica that can be profiled."""
    return next((replica for replica in model.lasting if replica.state is Phase.READY), None)
