"""What a worker knows of the jobs in a generator's process: room, waits, and whom to suspect."""

from __future__ import annotations

from headrace.jobs.message import Message
from workers.jobs.leased_job import NEVER, Batch, LeasedJob
from workers.protocol.frames import Joins, Phase, RunBatch
from workers.replicas.replica import Replica


class Frames:
    """Keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[RunBatch] = []

    def send(self, frame: RunBatch) -> None:
        self.sent.append(frame)


def joins(frames: Frames) -> list[Joins | None]:
    return [frame.joins for frame in frames.sent]


def replica(online: int, offline: int) -> tuple[Replica, Frames]:
    frames = Frames()
    found = Replica({}, {}, state=Phase.READY, continuous=True)
    found.frames = frames  # type: ignore[assignment]
    found.room_reported(0, online, offline)
    return found, frames


def batch(seq: int, *, step: int = 0, now: float = 100.0) -> Batch:
    job = LeasedJob(f"job{seq}", str(seq), None, 0, now, now, 1)
    job.step, job.overdue_at = step, now + 600
    return Batch([job], "idle", now, now + 60, seq=seq)


def test_each_job_that_is_sent_takes_room_of_both_classes() -> None:
    found, _ = replica(3, 2)
    found.run(batch(1))
    assert found.joins(offline=True)
    found.run(batch(2, step=9))
    assert not found.joins(offline=True)
    assert found.joins(offline=False)
    # The process has received one of the two.
    found.room_reported(1, 4, 2)
    assert (found.room, found.offline_room) == (3, 1)


def test_the_process_is_told_which_jobs_are_offline_and_how_long_they_yield() -> None:
    found, frames = replica(4, 4)
    found.run(batch(1))
    found.run(batch(2, step=9))
    assert joins(frames) == [Joins([], [], None, False), Joins([], [], 600.0, False)]


def test_the_process_is_told_which_jobs_have_no_log() -> None:
    found, frames = replica(4, 4)
    one = batch(1)
    one.jobs[0].message = Message(
        "job1", "m", b"1", None, None, None, False, None, 0, "job1", None, None, quiet=True
    )
    found.run(one)
    assert joins(frames) == [Joins([], [], None, True)]


def test_the_clock_of_a_timeout_stands_still_while_a_job_waits() -> None:
    found, _ = replica(4, 4)
    found.run(one := batch(1))
    found.waiting_reported(1, True, 130.0)
    assert one.deadline == NEVER
    found.waiting_reported(1, True, 140.0)
    found.waiting_reported(1, False, 1000.0)
    assert one.deadline == 1030.0
    found.waiting_reported(1, False, 1010.0)
    assert one.deadline == 1030.0
    found.waiting_reported(7, True, 1010.0)  # it has ended meanwhile


def test_a_job_that_waits_is_not_suspected() -> None:
    found, _ = replica(4, 4)
    for seq in (1, 2, 3):
        found.run(batch(seq))
    found.room_reported(3, 1, 0)
    found.waiting_reported(2, True, 110.0)
    begun, untouched = found.take_batches()
    assert [one.seq for one in begun] == [1, 3]
    assert [one.seq for one in untouched] == [2]


def test_of_those_that_run_the_newest_is_suspected() -> None:
    found, _ = replica(4, 4)
    for seq in (1, 2):
        found.run(batch(seq))
    found.room_reported(2, 2, 0)
    found.waiting_reported(1, True, 110.0)
    found.run(batch(3))
    begun, untouched = found.take_batches()
    assert [one.seq for one in begun] == [3]
    assert [one.seq for one in untouched] == [1, 2]
