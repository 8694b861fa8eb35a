"""Real Celery workers for tests, and a client that submits and reads through the scripts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import redis
import yaml

from headrace.config.model.catalog import Catalog, load_catalog
from headrace.jobs.ids import new_id
from headrace.jobs.job import Job, job_from_record
from headrace.jobs.options import JobOptions
from headrace.queue.submission import JobSubmission, SubmitKind, submission, submit_arguments
from headrace.redis import keys
from headrace.redis.fields import JobField
from headrace.redis.scripts import script
from tests.harness.processes.forked import Forked
from tests.harness.servers.redis_servers import ANSWER_S, DRIVER
from tests.harness.wait import wait_until

ROOT = Path(__file__).resolve().parents[3]
HANDLERS = Path(__file__).resolve().parents[1] / "handlers"


def write_models(folder: Path, **models: Mapping[str, Any]) -> Path:
    path = folder / "models.yaml"
    path.write_text(
        yaml.safe_dump({"models": {name: dict(model) for name, model in models.items()}})
    )
    return path


def patient(redis_url: str) -> Any:
    """A client of Redis that waits for its answers through a pause of the machine."""
    return redis.Redis.from_url(redis_url, driver_info=DRIVER, socket_timeout=ANSWER_S)


@dataclass
class Worker:
    """One `celery worker` process; its log is kept for the failure message."""

    redis_url: str
    models: Path
    folder: Path
    node: str = "cpu0@test"
    environ: dict[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ("-E",)
    app: str = "workers.celery_app"
    process: subprocess.Popen[bytes] | Forked | None = None
    #: Set by pytest; a benchmark's worker is a program of its own, as a user's is.
    forked: ClassVar[bool] = False

    @property
    def log(self) -> str:
        path = self.folder / f"{self.node}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def says(self, text: str, about: str) -> int:
        """How many lines of its log say this about a job or a model."""
        return sum(text in line and about in line for line in self.log.splitlines())

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self) -> None:
        command = [
            "celery", "-A", self.app, "worker",
            "-n", self.node, "-l", "INFO", "--without-gossip", "--without-mingle", *self.arguments,
        ]  # fmt: skip
        environ = {
            **os.environ,
            "HEADRACE_REDIS_URL": self.redis_url,
            "HEADRACE_MODELS_FILE": str(self.models),
            "PYTHONPATH": str(ROOT),
            **self.environ,
        }
        path = self.folder / f"{self.node}.log"
        if self.forked:
            self.process = Forked(command, environ, self.folder, path)
            return
        with path.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *command],
                env=environ,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
            )

    def states(self) -> dict[str, Any]:
        """What the worker says of its models; empty while it says nothing."""
        with patient(self.redis_url) as client:
            return self._states(client)

    def _states(self, client: Any) -> dict[str, Any]:
        for owner in client.zrange(keys.WORKERS, 0, -1):
            fields = client.hgetall(keys.worker(owner.decode()))
            state = {name.decode(): msgspec.json.decode(value) for name, value in fields.items()}
            if state.get("", {}).get("pid") == self.pid:
                return {name: of for name, of in state.items() if not name.startswith(":")}
        return {}

    def wait_ready(self, *models: str, timeout_s: float = 60) -> None:
        def ready() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, self.log
            states = self._states(client)
            return bool(states) and all(states[model]["state"] == "ready" for model in models)

        with patient(self.redis_url) as client:
            wait_until(ready, f"{self.node} is ready", timeout_s=timeout_s)

    def model_pids(self) -> list[int]:
        return [pid for name, state in self.states().items() if name for pid in state["pids"]]

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(60)

    def stop(self, timeout_s: float = 60) -> int:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout_s)


@contextmanager
def celery_worker(redis_url: str, models: Path, folder: Path, **options: Any) -> Iterator[Worker]:
    """A running worker; it is killed afterwards, and shows its log if the test fails.

    Killed, because an orderly stop takes a second or two: a test that wants one calls `stop`.
    """
    worker = Worker(redis_url, models, folder, **options)
    worker.start()
    try:
        yield worker
    except BaseException:
        print(worker.log[-6000:])  # noqa: T201 - pytest shows it with the failure
        raise
    finally:
        worker.kill()


class Client:
    """Submits and reads jobs of one deployment, synchronously."""

    def __init__(self, redis_url: str, models: Path) -> None:
        self.redis: Any = patient(redis_url)
        self.catalog: Catalog = load_catalog(models)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.redis.close()

    def _call(self, name: str, *arguments: Any) -> list[Any]:
        try:
            reply = self.redis.execute_command(*script(name).call([], *arguments))
        except redis.exceptions.NoScriptError:
            self.redis.execute_command(*script(name).load_command())
            reply = self.redis.execute_command(*script(name).call([], *arguments))
        assert isinstance(reply, list)
        return reply

    def leased(self, *ids: str) -> bool:
        """Return whether workers have all of these jobs, whether they run or wait there."""
        return all(self.redis.hget(keys.job(job_id), JobField.STATE) == b"r" for job_id in ids)

    def submit(self, model: str, *inputs: Any, **options: Any) -> list[str]:
        """Enqueue one job per input; their ids, in order."""
        return self.submit_raw(model, *(json.dumps(value).encode() for value in inputs), **options)

    def submit_raw(self, model: str, *inputs: bytes, **options: Any) -> list[str]:
        """Enqueue one job per input as it is on the wire; their ids, in order."""
        return self._submit(model, [(raw, options) for raw in inputs])

    def submit_beside(self, model: str, *inputs: Any, bad: Any, **options: Any) -> list[str]:
        """Enqueue these inputs together with a bad one, to which alone the options apply.

        Its mates have all the time there is, whatever time they share with it.

        Returns:
            their ids; that of the bad one comes last.
        """
        ours = [(json.dumps(value).encode(), {"timeout": 60.0}) for value in inputs]
        return self._submit(model, [*ours, (json.dumps(bad).encode(), options)])

    def _submit(self, model: str, jobs: Sequence[tuple[bytes, Mapping[str, Any]]]) -> list[str]:
        config = self.catalog.get(model)
        made = [
            submission(
                SubmitKind(config, 600, JobOptions(**options)), new_id(), raw, now_s=time.time()
            )
            for raw, options in jobs
        ]
        self.send(*made)
        return [one.id for one in made]

    def submit_text(self, model: str, text: bytes, **options: Any) -> str:
        """Enqueue one job whose input is this JSON text; its id."""
        kind = SubmitKind(self.catalog.get(model), 600, JobOptions(**options))
        job = submission(kind, new_id(), text, now_s=time.time())
        self.send(job)
        return job.id

    def send(self, *jobs: JobSubmission) -> None:
        """Enqueue jobs, all of which must be taken."""
        for at in range(0, len(jobs), 200):
            answer = self._call("jobs/submit", 0, *submit_arguments(jobs[at : at + 200]))
            assert len(answer) == 1, answer

    def view(self, *ids: str) -> list[Job | None]:
        seen: list[Job | None] = []
        for at in range(0, len(ids), 500):
            for job_id, answer in zip(
                ids[at : at + 500],
                self._call("records/view", 1, *ids[at : at + 500]),
                strict=True,
            ):
                if not isinstance(answer, list):
                    seen.append(None)
                    continue
                flat = [item.decode() for item in answer[0]]
                record = dict(zip(flat[::2], flat[1::2], strict=True))
                seen.append(job_from_record(job_id, record, answer[1].decode(), int(answer[2])))
        return seen

    def job(self, job_id: str) -> Job:
        (job,) = self.view(job_id)
        assert job is not None, f"job {job_id} is unknown"
        return job

    def wait(self, *ids: str, timeout_s: float = 60) -> list[Job]:
        """Wait until all have ended."""
        left = set(ids)

        def ended() -> bool:
            for job in self.view(*left):
                if job is not None and job.state.final:
                    left.discard(job.id)
            return not left

        wait_until(ended, f"{len(ids)} jobs end", timeout_s=timeout_s)
        jobs = self.view(*ids)
        return [job for job in jobs if job is not None]

    def result(self, job_id: str) -> Any:
        raw = self.job(job_id).result_json
        assert raw is not None, f"job {job_id} has no result: {self.job(job_id)}"
        return json.loads(raw)
