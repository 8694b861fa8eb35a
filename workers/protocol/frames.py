"""Frames between a worker, its model processes and their preprocess processes.

A frame is a 4-byte little-endian length, and then the msgpack array of a class below:
its tag, then its fields. Nothing is pickled.
"""

from __future__ import annotations

import faulthandler
import os
import select
import signal
import socket
import struct
import threading
from enum import StrEnum
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec

#: Set in every model process and inherited by its children; names the worker: its pid, ":", random.
PARENT_VARIABLE: Final = "HEADRACE_MODEL_PARENT"
#: Set likewise; names a start of a model process.
LIFE_VARIABLE: Final = "HEADRACE_MODEL_LIFE"
#: Set in a model process that is pinned to cores: their logical CPUs, separated by commas.
CPUS_VARIABLE: Final = "HEADRACE_MODEL_CPUS"
#: Makes a model process write the stacks of its threads.
TRACE_SIGNAL: Final = signal.SIGUSR2


class Phase(StrEnum):
    """The phase of a model process."""

    LOADING = "loading"
    WARMING = "warming"
    READY = "ready"
    DRAINING = "draining"
    STOPPED = "stopped"
    FAILED = "failed"
    RESTARTING = "restarting"


#: The phases that `load_timeout_s` limits.
STARTING: Final = frozenset({Phase.LOADING, Phase.WARMING})


def write_stacks_to(descriptor: int) -> None:
    """Make this process write the stacks of all threads there at a crash or on `TRACE_SIGNAL`.

    C code writes them, so they are written even while something holds the interpreter.
    """
    faulthandler.enable(descriptor)
    faulthandler.register(TRACE_SIGNAL, descriptor, all_threads=True)


_LENGTH: Final = struct.Struct("<I")
_READ_BYTES: Final = 1 << 18
_encoder: Final = msgspec.msgpack.Encoder()

#: What an end of a socket sends, and what it receives.
Sent = TypeVar("Sent", bound=msgspec.Struct)
Received = TypeVar("Received", bound=msgspec.Struct)
#: Pieces of a job: its batch and id, the place of the first piece from 1, how many, their JSON, and
#: the JSON of their tokens or of the head of the response that begins with them.
PieceRow = tuple[int, str, int, int, bytes, bytes]


class Traces(NamedTuple):
    """The `traceparent` of each job of a batch that has one, and of the batch's span, or ""."""

    jobs: dict[str, str]
    batch: str = ""


class Joins(NamedTuple):
    """What a generator gets with a job.

    Attributes:
        pieces, tokens: JSON arrays of earlier attempts, after which it goes on.
        yields_s: for how long it makes way for online jobs; None for an online job.
        quiet: the job has no log, so its pieces are not sent.
    """

    pieces: list[bytes]
    tokens: list[bytes]
    yields_s: float | None
    quiet: bool


class Init(msgspec.Struct, frozen=True, array_like=True, tag="init"):
    """The first frame: what a process needs to load the handler."""

    config: dict[str, Any]


class RunBatch(msgspec.Struct, frozen=True, array_like=True, tag="batch"):
    """Run a batch.

    Attributes:
        rows: of each job, its id, input and content type, when it expires, and its `InputDetails`
            as text. Values that a job lacks are left out at the end.
        joins: only for a generator.
    """

    seq: int
    rows: list[Any]
    traces: Traces | None = None
    joins: Joins | None = None


class Drop(msgspec.Struct, frozen=True, array_like=True, tag="drop"):
    """The job at this place of a batch was cancelled."""

    seq: int
    place: int


class YieldBatch(msgspec.Struct, frozen=True, array_like=True, tag="yield"):
    """Return a batch if its `inference` has not begun."""

    seq: int


class StartProfile(msgspec.Struct, frozen=True, array_like=True, tag="profile"):
    """Profile the process. For a generator, a batch is a step.

    Attributes:
        id: the id of the profile; "" if the option `profile` starts it.
        kind: trace or stack.
        batches: how many batches a trace has.
        seconds: how long it waits for them, or how long stacks are sampled.
    """

    id: str
    kind: str
    batches: int
    seconds: float


class Stop(msgspec.Struct, frozen=True, array_like=True, tag="stop"):
    """No batch follows."""


class Warming(msgspec.Struct, frozen=True, array_like=True, tag="warming"):
    """The handler is loaded and warms up."""


class Loaded(msgspec.Struct, frozen=True, array_like=True, tag="ready"):
    """The handler is loaded and has run.

    Attributes:
        fits: the batch size that fits into memory; 0 for `max_batch_size`.
        helpers: pids of processes that belong to this process.
        overlap: its handler works on two batches at once.
        continuous: its handler is a generator.
        variant: which variant of its module runs, in words; "" without the option `optimize`.
        preprocess: where `preprocess` runs, and why; "" for a generator.
        yields: its handler can send pieces of a result.
    """

    load_s: float
    fits: int
    helpers: list[int]
    overlap: bool
    continuous: bool
    variant: str
    preprocess: str
    yields: bool = False


class NotLoaded(msgspec.Struct, frozen=True, array_like=True, tag="failed"):
    """The handler cannot be loaded; the process ends."""

    error: str


class Done(msgspec.Struct, frozen=True, array_like=True, tag="done"):
    """A batch has ended.

    Attributes:
        outcomes: of each job, as `workers.model_process.outcomes` writes them.
        times: ms of the three stages, then how long the device waited for the first stage.
        padding: how many inputs were added to reach an allowed batch size.
        fits: how many of the jobs fit into memory together; 0 if all did.
        device_lost: the process has lost its device and ends.
        used: the tokens of a generator's request; None if they are unknown.
    """

    seq: int
    outcomes: list[Any]
    times: list[float]
    padding: int = 0
    fits: int = 0
    device_lost: bool = False
    used: int | None = None


class Began(msgspec.Struct, frozen=True, array_like=True, tag="began"):
    """The process works on this batch too, while another runs."""

    seq: int


class Yielded(msgspec.Struct, frozen=True, array_like=True, tag="yielded"):
    """A batch is returned, in place of `Done`."""

    seq: int


class Pieces(msgspec.Struct, frozen=True, array_like=True, tag="pieces"):
    """Pieces of results."""

    rows: list[PieceRow]


class ItemProgress(msgspec.Struct, frozen=True, array_like=True, tag="progress"):
    """Progress that the handler reports.

    Attributes:
        seq: the batch; 0 from a preprocess process, which has a single batch at a time.
        rows: a job's id and the fields of a `Progress`.
    """

    seq: int
    rows: list[Any]


class Metrics(msgspec.Struct, frozen=True, array_like=True, tag="metrics"):
    """Metrics that the handler reports."""

    rows: list[Any]


class Profiled(msgspec.Struct, frozen=True, array_like=True, tag="profiled"):
    """A profile, by the names of its files, or why it was not made."""

    id: str
    files: dict[str, bytes]
    error: str


class Room(msgspec.Struct, frozen=True, array_like=True, tag="room"):
    """How many jobs a generator has received, and how many online and offline ones may follow."""

    received: int
    online: int
    offline: int


class Waits(msgspec.Struct, frozen=True, array_like=True, tag="waits"):
    """The job of a generator waits for room in the process, or runs on."""

    seq: int
    waits: bool


class TokenFigures(msgspec.Struct, frozen=True, array_like=True, tag="generated"):
    """What a generator does.

    Attributes:
        state: how many requests run, what they take of the budget, and the budget.
        prompt, cached, generated: tokens of requests that have ended since the last such frame.
        counts: of tokens since then, by the time between two of them.
        sum_s: the sum of these times.
    """

    state: tuple[int, int, int]
    prompt: int
    cached: int
    generated: int
    counts: list[int]
    sum_s: float


class PrepareInputs(msgspec.Struct, frozen=True, array_like=True, tag="prepare"):
    """Run `preprocess` in a preprocess process.

    Attributes:
        buffer: the number of the shared memory for its arrays.
        inputs: as `workers.model_process.context.Input`.
        line_fields: the fields of the log lines.
    """

    buffer: int
    inputs: list[Any]
    line_fields: dict[str, Any]
    traces: Traces | None


class SampleStacks(msgspec.Struct, frozen=True, array_like=True, tag="sample"):
    """Write the samples of the process' stacks to a file."""

    path: str
    seconds: float


class Ready(msgspec.Struct, frozen=True, array_like=True, tag="ready"):
    """The preprocess process is loaded."""


class Prepared(msgspec.Struct, frozen=True, array_like=True, tag="prepared"):
    """What `preprocess` returned: the bytes of its arrays, and the rest, packed."""

    size: int
    packed: Any


class Raised(msgspec.Struct, frozen=True, array_like=True, tag="raised"):
    """What `preprocess` raised, as an outcome; and how many buffers the process has."""

    outcome: list[Any]
    buffers: int


ToModel = Init | RunBatch | Drop | YieldBatch | StartProfile | Stop
FromModel = (
    Done | Pieces | ItemProgress | Began | Yielded | Room | Waits | TokenFigures | Metrics
    | Profiled | Warming | Loaded | NotLoaded
)  # fmt: skip
ToPreprocess = Init | PrepareInputs | SampleStacks
FromPreprocess = Prepared | Raised | ItemProgress | Ready | NotLoaded

TO_MODEL: Final[msgspec.msgpack.Decoder[ToModel]] = msgspec.msgpack.Decoder(ToModel)
FROM_MODEL: Final[msgspec.msgpack.Decoder[FromModel]] = msgspec.msgpack.Decoder(FromModel)
TO_PREPROCESS: Final[msgspec.msgpack.Decoder[ToPreprocess]] = msgspec.msgpack.Decoder(ToPreprocess)
FROM_PREPROCESS: Final[msgspec.msgpack.Decoder[FromPreprocess]] = msgspec.msgpack.Decoder(
    FromPreprocess
)


class FrameSocket(Generic[Sent, Received]):
    """An end of a socketpair. Several threads may send; only one may receive.

    Args:
        received: reads what the other end sends.

    Attributes:
        closed: the other end is gone.
    """

    def __init__(self, sock: socket.socket, received: msgspec.msgpack.Decoder[Received]) -> None:
        self.closed = False
        self._sock = sock
        self._decoder = received
        self._buffer = bytearray()
        self._sending = threading.Lock()

    def fileno(self) -> int:
        """Return the descriptor for a selector."""
        return self._sock.fileno()

    def send(self, frame: Sent) -> None:
        """Send a frame; block until it is written. Raise OSError if the other end is gone."""
        payload = _encoder.encode(frame)
        with self._sending:
            self._sock.sendall(_LENGTH.pack(len(payload)) + payload)

    def receive(self) -> list[Received]:
        """Read once, or block if there is nothing; return whole frames, or raise EOFError."""
        try:
            chunk = self._sock.recv(_READ_BYTES)
        except ConnectionResetError:
            chunk = b""
        if not chunk:
            self.closed = True
            raise EOFError("the other end of the frame socket is gone")
        self._buffer += chunk
        frames = []
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                break
            frames.append(self._decoder.decode(bytes(memoryview(self._buffer)[_LENGTH.size : end])))
            del self._buffer[:end]
        return frames

    def readable(self) -> bool:
        """Return whether `receive` would not block."""
        return readable(self._sock.fileno())

    def close_in_children(self) -> None:
        """Close this end in processes that this process forks or starts.

        Otherwise a child that outlives this process hides its end from the other end.
        """
        self._sock.set_inheritable(False)
        os.register_at_fork(after_in_child=self.close)

    def close(self) -> None:
        """Close this end; the other end reads EOF."""
        self._sock.close()


def readable(descriptor: int, wait_s: float = 0.0) -> bool:
    """Return whether a descriptor is readable, or is so within `wait_s` seconds."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(wait_s * 1000))


def batch_tag(owner: str) -> str:
    """Return the first part of the names of a worker's batches."""
    return owner.rpartition("-")[2]


def batch_name(tag: str, seq: int) -> str:
    """Return the name of a batch in logs and traces, which is unique among all workers."""
    return f"{tag}-{seq}"
