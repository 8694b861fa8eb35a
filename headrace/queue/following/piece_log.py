"""The logs of streaming jobs, as an API process reads them: by place, and when one has grown.

A publication only means that a log is worth reading, so a lost one costs READ_ALL_S. A client's
place in a log is two numbers, so any process can serve it. docs/architecture/streaming.md has the
way of a piece.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple, Self

import msgspec
from typing_extensions import override

from headrace.queue.asyncio_tasks import RunningTasks, cancel_and_wait, wait_at_most
from headrace.queue.coalescer import Coalescer
from headrace.queue.following.subscription import Subscription
from headrace.queue.job_queue import JobQueue
from headrace.redis import keys
from headrace.redis.scripts import jobs as job_scripts

#: Seconds after which a log is read although nothing was published.
READ_ALL_S: Final = 1.0
#: The most entries of one log that a reader gets at once, and the most bytes; at least one entry.
#: They bound what this process holds for a client that reads slowly.
READ_MAX_ENTRIES: Final = 256
READ_MAX_BYTES: Final = 256 * 1024
#: Seconds for which a model's channel is kept after its last client, if that client asked for it.
KEEP_S: Final = 60.0
#: How many logs one call reads.
READ_MAX_LOGS: Final = 64

_PIECES: Final = msgspec.json.Decoder(list[msgspec.Raw])


class Place(NamedTuple):
    """How far a client has read a log.

    Redis can lose the newest pieces in a crash or a failover. Another run of the handler then takes
    their indexes, so an index alone names no piece.

    Attributes:
        piece: the index of the last piece that the client has, from 1; 0 for none.
        run: the number of the run that has yielded it; "" if the client does not know it.
    """

    piece: int = 0
    run: str = ""

    @override
    def __str__(self) -> str:
        return f"{self.piece}.{self.run}" if self.run else str(self.piece)

    @classmethod
    def read(cls, text: str) -> Place:
        """Return the place that `str` wrote, or that of a plain index."""
        piece, _, run = text.partition(".")
        return cls(int(piece), run)


class LogEntry(NamedTuple):
    """An entry of a log.

    Attributes:
        place: that of a client which has read it. Indexes count from 1.
        pieces: JSON of each piece; empty for a restart mark, which takes one index.
        head: JSON of the `ResponseDetails` of a response that begins with it; b"" for none.
    """

    place: Place
    pieces: list[msgspec.Raw]
    head: bytes = b""

    @property
    def last(self) -> int:
        """The index of its last piece, or of the restart mark."""
        return self.place.piece

    @property
    def first(self) -> int:
        """The index of its first piece, or of the restart mark."""
        return self.last - max(1, len(self.pieces)) + 1


class LogRead(NamedTuple):
    """What a read of a log has returned.

    Attributes:
        place: that of the client, with its run. If the log has lost it, the beginning of the log.
        lost: the log has lost the place of the client, so what the client has does not count.
        entries: the next ones behind that place.
    """

    place: Place
    lost: bool
    entries: list[LogEntry]


class Pieces(NamedTuple):
    """New pieces, up to this place; `head` as in a `LogEntry`."""

    place: Place
    pieces: list[msgspec.Raw]
    head: bytes = b""


class Restarted(NamedTuple):
    """The job runs again from its beginning: the pieces that the client has no longer count.

    The new pieces are behind this place. If the log has lost the client's place, it is the
    beginning of the log.
    """

    place: Place


class Missing(NamedTuple):
    """The pieces from this index up to this place are not in the log any more."""

    first: int
    place: Place


LogEvent = Pieces | Restarted | Missing


class LogFollower:
    """One client that follows one log. Inside its context, publications wake it.

    Attributes:
        place: how far the client has the log.
        keeps: the channel of its model is kept for KEEP_S, as the next client may come soon.
        early: it came before the channel was subscribed to, so a publication may be missed.
    """

    __slots__ = ("_event", "_has_pieces", "_log", "early", "job_id", "keeps", "model", "place")

    def __init__(
        self, log: PieceLog, model: str, job_id: str, after: Place, *, keeps: bool
    ) -> None:
        self.model = model
        self.job_id = job_id
        self.keeps = keeps
        self.early = False
        self.place = after
        # Whether the client has pieces, from now or from an earlier stream.
        self._has_pieces = after.piece > 0
        self._log = log
        self._event = asyncio.Event()

    def __enter__(self) -> Self:
        self._log.add(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._log.remove(self)

    def wake(self) -> None:
        """Wake the client."""
        self._event.set()

    @property
    def may_have_pieces(self) -> bool:
        """Whether the log of a job that has ended is worth reading."""
        return self.early or self._log.has_published(self.model)

    async def read(self) -> list[LogEvent]:
        """Return what the log has behind `place`, which moves; nothing if it has not grown.

        Raises:
            BrokerError: Redis does not answer.
        """
        while True:
            # Pieces that are published from now on may not be in the reply.
            self._event.clear()
            read = await self._log.read(self.job_id, self.place)
            events = self._events(read)
            if events or not read.entries:
                return events

    def _events(self, read: LogRead) -> list[LogEvent]:
        self.place, restarts, entries = read
        marks = [n for n, entry in enumerate(entries) if not entry.pieces]
        if marks:
            # What an earlier attempt wrote counts no more.
            mark, *entries = entries[marks[-1] :]
            self.place, restarts = mark.place, True
        events: list[LogEvent] = []
        if restarts:
            if self._has_pieces:
                events.append(Restarted(self.place))
            self._has_pieces = False
        pieces: list[msgspec.Raw] = []
        head = b""
        for entry in entries:
            if entry.first > self.place.piece + 1:
                if pieces:
                    events.append(Pieces(self.place, pieces, head))
                    pieces, head = [], b""
                before = Place(entry.first - 1, entry.place.run)
                events.append(Missing(self.place.piece + 1, before))
                self.place = before
            head = head or entry.head
            pieces += entry.pieces[self.place.piece - entry.first + 1 :]
            self.place = entry.place
        if pieces:
            events.append(Pieces(self.place, pieces, head))
            self._has_pieces = True
        return events

    async def published(self) -> None:
        """Wait for a publication since the last `read`, a new subscription, or a `wake`."""
        await self._event.wait()

    async def woken(self, seconds: float) -> None:
        """Wait until the log may have grown since the last `read`, or the time has passed."""
        await wait_at_most(min(seconds, READ_ALL_S), self._event)


class PieceLog:
    """The logs that clients of one API process follow."""

    def __init__(self, subscription: Subscription, queue: JobQueue) -> None:
        self._queue = queue
        self._subscription = subscription
        subscription.add(self._read_publication, on_reconnect=self._wake_all)
        self._reads = Coalescer[tuple[str, int, str], LogRead](
            self._read_many, max_items=READ_MAX_LOGS
        )
        #: Model -> job -> the clients that follow it.
        self._followers: dict[str, dict[str, set[LogFollower]]] = {}
        #: The models of which something was published, and those whose channel is kept.
        self._published: set[str] = set()
        self._kept: dict[str, asyncio.TimerHandle] = {}
        # Each writes before it waits, so that the order is kept.
        self._subscribing = RunningTasks()

    async def stop(self) -> None:
        """Read nothing more."""
        for timer in self._kept.values():
            timer.cancel()
        await cancel_and_wait(*self._subscribing)
        await self._reads.close()

    def follow(self, model: str, job_id: str, after: Place, *, keeps: bool = False) -> LogFollower:
        """Return a context within which a client follows a job's log, from a place on."""
        return LogFollower(self, model, job_id, after, keeps=keeps)

    def has_published(self, model: str) -> bool:
        """Return whether any log of a model has grown since its channel is subscribed to."""
        return model in self._published

    async def read(self, job_id: str, after: Place) -> LogRead:
        """Read one log, together with all that are read at the same time.

        Raises:
            BrokerError: Redis does not answer.
        """
        return await self._reads.add((job_id, *after))

    def add(self, follower: LogFollower) -> None:
        """Begin to wake a client."""
        jobs = self._followers.get(follower.model)
        if jobs is None:
            jobs = self._followers[follower.model] = {}
            follower.early = True
            self._subscribing.begin(self._subscribe(follower.model))
        jobs.setdefault(follower.job_id, set()).add(follower)

    def remove(self, follower: LogFollower) -> None:
        """Wake a client no longer."""
        jobs = self._followers[follower.model]
        jobs[follower.job_id].discard(follower)
        if not jobs[follower.job_id]:
            del jobs[follower.job_id]
        if jobs or follower.model in self._kept:
            return
        if follower.keeps:
            loop = asyncio.get_running_loop()
            self._kept[follower.model] = loop.call_later(KEEP_S, self._leave, follower.model)
        else:
            self._leave(follower.model)

    def _leave(self, model: str) -> None:
        self._kept.pop(model, None)
        if self._followers[model]:
            return
        del self._followers[model]
        self._published.discard(model)
        self._subscribing.begin(
            self._subscription.unsubscribe(self._read_publication, keys.piece_channel(model))
        )

    async def _subscribe(self, model: str) -> None:
        channel = keys.piece_channel(model)
        await self._subscription.subscribe(self._read_publication, channel)
        await self._subscription.confirmed(channel)
        # Earlier publications were lost.
        self._wake(self._followers.get(model, {}))

    async def _read_many(self, logs: list[tuple[str, int, str]]) -> Sequence[LogRead]:
        read = job_scripts.read_pieces(READ_MAX_ENTRIES, READ_MAX_BYTES, logs)
        reply = await self._queue.call(read)
        return [_log_read(after, flat) for (_, after, _), flat in zip(logs, reply, strict=True)]

    def _read_publication(self, channel: str, data: bytes) -> None:
        model = channel.removeprefix(keys.piece_channel)
        jobs = self._followers.get(model)
        if jobs is None:
            return
        self._published.add(model)
        for job_id in data.decode().split(" "):
            for follower in jobs.get(job_id, ()):
                follower.wake()

    def _wake_all(self) -> None:
        for jobs in self._followers.values():
            self._wake(jobs)

    @staticmethod
    def _wake(jobs: dict[str, set[LogFollower]]) -> None:
        for followers in jobs.values():
            for follower in followers:
                follower.wake()


def _log_read(after: int, flat: Sequence[bytes]) -> LogRead:
    """Read the reply of pieces/read_pieces.lua for one log behind an index."""
    lost, run, *rest = flat
    values = iter(rest)
    entries = [
        LogEntry(
            Place.read(name.decode().replace("-", ".")), _PIECES.decode(text) if text else [], head
        )
        for name, text, head in zip(values, values, values, strict=True)
    ]
    return LogRead(Place() if lost else Place(after, run.decode()), bool(lost), entries)
