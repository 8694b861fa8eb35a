"""Runs a `Supervisor` over stand-in children: `python -m tests.harness.processes.supervised FILE`.

The file is JSON: `{"children": [...], "backoff": {...}, "log": path}`. Each child is the fields of
`ChildSpec`; `ready_file` makes it ready once that file exists. Events are appended to the log, one
line each, by us and by the children that `actor` makes.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headrace.errors import HeadraceError
from headrace.server.supervisor.console import Console
from headrace.server.supervisor.supervisor import ChildProcess, ChildSpec, RestartPolicy, Supervisor
from tests.harness.wait import wait_until

ROOT = Path(__file__).resolve().parents[3]


def actor(log: Path, name: str, body: str = "wait()") -> list[str]:
    """A stand-in child: logs `start NAME`, logs `term NAME` on SIGTERM, then ends with status 0.

    `body` may use `say(word)`, `wait()`, `spawn()` (a grandchild in a session of its own), `os`,
    `sys`, `signal`.
    """
    program = f"""
import os, signal, subprocess, sys
def say(word):
    fd = os.open({str(log)!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, f"{{word}} {name} {{os.getpid()}}\\n".encode())
    os.close(fd)
def on_term(*_):
    say("term")
    sys.exit(0)
def wait():
    while True:
        signal.pause()
def spawn():
    program = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()"
    child = subprocess.Popen([sys.executable, "-c", program], start_new_session=True)
    fd = os.open({str(log)!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, f"spawned {name} {{child.pid}}\\n".encode())
    os.close(fd)
signal.signal(signal.SIGTERM, on_term)
say("start")
{body}
"""
    return [sys.executable, "-S", "-c", program]


class Supervised:
    """A supervisor under test, in a process of its own."""

    def __init__(
        self, folder: Path, children: Sequence[Mapping[str, Any]], **backoff: float
    ) -> None:
        self.log = folder / "events"
        self.output = folder / "output"
        self._spec = folder / "spec.json"
        self._spec.write_text(
            json.dumps({"children": list(children), "backoff": backoff, "log": str(self.log)})
        )
        self.process: subprocess.Popen[bytes]

    def start(self) -> None:
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.harness.processes.supervised", str(self._spec)],
                stdout=output, stderr=output, cwd=ROOT, start_new_session=True,
            )  # fmt: skip

    def events(self) -> list[list[str]]:
        """What happened so far: word, name and pid."""
        return (
            [line.split() for line in self.log.read_text().splitlines()]
            if self.log.exists()
            else []
        )

    def words(self) -> list[str]:
        """What happened, without the pids."""
        return [" ".join(event[:2]) for event in self.events()]

    def pids(self, word: str, name: str) -> list[int]:
        return [int(event[2]) for event in self.events() if event[:2] == [word, name]]

    def wait_for(self, what: str, count: int = 1) -> None:
        wait_until(lambda: self.words().count(what) >= count, f"{what} {count} times in {self.log}")

    def text(self) -> str:
        return self.output.read_text(errors="replace")


@contextmanager
def supervised(
    folder: Path, children: Sequence[Mapping[str, Any]], **backoff: float
) -> Iterator[Supervised]:
    """A running supervisor; all that it started is gone afterwards."""
    run = Supervised(folder, children, **backoff)
    run.start()
    try:
        yield run
    except BaseException:
        print(run.text()[-4000:], run.words())  # noqa: T201 - pytest shows it with the failure
        raise
    finally:
        if run.process.poll() is None:
            run.process.kill()
        run.process.wait(60)
        for event in run.events():
            if event[0] in ("start", "spawned") and len(event) == 3:
                kill_if_alive(int(event[2]))


def kill_if_alive(pid: int) -> None:
    try:
        os.kill(pid, 9)
    except ProcessLookupError:
        return


def main() -> int:
    spec = json.loads(Path(sys.argv[1]).read_text())
    log = Path(spec["log"])

    def say(text: str) -> None:
        with log.open("a") as file:
            file.write(text + "\n")

    def build(fields: dict[str, Any]) -> ChildSpec:
        ready_file = fields.pop("ready_file", None)
        if ready_file is not None:
            fields["ready"] = lambda _: Path(ready_file).exists()
        return ChildSpec(
            **fields,
            environment=lambda: {**os.environ, "START_ID": secrets.token_hex(4)},
            on_exit=lambda end: say(f"exit {end.name} {end.environment['START_ID']} {end.status}"),
        )

    def changed(children: Sequence[ChildProcess]) -> None:
        living = [child.spec.name for child in children if child.process is not None]
        (log.parent / "living").write_text(" ".join(living))

    children = [build(fields) for fields in spec["children"]]
    console = Console(sys.stdout, [child.name for child in children], colour=False)
    supervisor = Supervisor(
        children,
        console,
        backoff=RestartPolicy(**spec["backoff"]),
        on_change=changed,
        on_ready=lambda: say("ready all 0"),
    )
    try:
        supervisor.run()
    except HeadraceError as error:
        sys.stdout.write(f"failed: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
