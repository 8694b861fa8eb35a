"""Who calls the API of a deployment in containers: single jobs, and a load that never ends."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from typing import Any

from tests.harness.wait import wait_until

JOB_TIMEOUT_S = 240
#: The load's pause between two jobs.
PAUSE_S = 0.02


@dataclass
class Caller:
    """A client of the API at a URL."""

    url: str

    def request(
        self, method: str, path: str, body: bytes | None = None,
        content_type: str = "application/json",
    ) -> tuple[int, Any]:  # fmt: skip
        """Status and JSON of an answer."""
        headers = {"Content-Type": content_type}
        asked = urllib.request.Request(f"{self.url}{path}", body, method=method, headers=headers)
        try:
            with urllib.request.urlopen(asked, timeout=60) as response:
                return response.status, json.loads(response.read() or b"null")
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read() or b"null")

    def submit(self, model: str, body: bytes, content_type: str = "application/json") -> str:
        """Submit a job, and again while the API is away or says that it cannot now."""

        def accepted() -> Any:
            status, job = self.request("POST", f"/api/v1/models/{model}/jobs", body, content_type)
            assert status in (202, 503), job
            return status == 202 and job

        return str(wait_until(accepted, f"a job for {model} is accepted", JOB_TIMEOUT_S)["id"])

    def job(self, job_id: str) -> dict[str, Any]:
        """Wait until a job has ended."""

        def ended() -> Any:
            status, job = self.request("GET", f"/api/v1/jobs/{job_id}?wait=10")
            return status == 200 and job["status"] in ("succeeded", "failed") and job

        found = wait_until(ended, f"job {job_id} ends", JOB_TIMEOUT_S)
        assert isinstance(found, dict)
        return found

    def result(self, job_id: str) -> Any:
        """The result of a job, which succeeds."""
        job = self.job(job_id)
        assert job["status"] == "succeeded", job
        return job["result"]


@dataclass
class Load:
    """Somebody who submits numbers to a model that returns them, whatever the API answers.

    Attributes:
        accepted: the jobs that the API has taken, each with its input.
    """

    caller: Caller
    model: str
    accepted: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        number = 0
        while not self._done.wait(PAUSE_S):
            number += 1
            path = f"/api/v1/models/{self.model}/jobs"
            try:
                status, job = self.caller.request("POST", path, str(number).encode())
            except (OSError, ValueError):
                continue
            if status == 202:
                self.accepted[job["id"]] = number

    def wait_more(self, count: int = 40) -> None:
        """Wait until so many more jobs are accepted."""
        wanted = len(self.accepted) + count
        wait_until(lambda: len(self.accepted) >= wanted, "jobs are accepted", JOB_TIMEOUT_S)

    def check(self) -> None:
        """Wait until all accepted jobs have ended, each with its own result."""
        for job_id, number in self.accepted.items():
            assert self.caller.result(job_id) == number

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
