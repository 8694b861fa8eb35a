"""`make demo`: start the whole system, send it images and a question, show the answers.

The demo works like any client: it sends requests over HTTP and polls for the results. The twelve
images were not used for training; each file name begins with the true digit. Then a small language
model answers a question, word by word.
"""

from __future__ import annotations

import argparse
import http.client
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

FOLDER = Path(__file__).resolve().parent / "digits"
HOST = "127.0.0.1"
WRITER = "python_docs"
QUESTION = "What does json.loads do?"
START_TIMEOUT_S = 120
JOB_TIMEOUT_S = 60
POLL_S = 0.02
# Eight pixels wide; a line of text shows two rows of pixels.
PICTURE_SIDE_PX = 8
INK_BELOW = 128


@dataclass
class Answer:
    """The result for one image."""

    file: Path
    job: dict[str, Any]

    @property
    def expected(self) -> int:
        """Return the true digit, from the file's name."""
        return int(self.file.name.partition("_")[0])

    @property
    def digit(self) -> int | None:
        """Return the model's answer; None if the job failed."""
        result = self.job.get("result")
        return result["digit"] if isinstance(result, dict) else None

    @property
    def is_right(self) -> bool:
        """Return whether the answer is the true digit."""
        return self.digit == self.expected


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Run Headrace, classify real images and ask a language model.",
        epilog="Other options, such as --no-flower, are passed to headrace up.",
    )
    parser.add_argument("--port", type=int, default=8080, help="port of the API")
    parser.add_argument("--state-dir", type=Path, default=Path(".headrace"))
    parser.add_argument(
        "--exit",
        action="store_true",
        help="stop after the demo; exit status 1 if an answer is wrong",
    )
    options, others = parser.parse_known_args()
    up = start(options.port, options.state_dir, others)
    stop_with(up)
    try:
        wait_ready(up, options.port, options.state_dir)
        answers = classify(options.port)
        print(table(answers, colour=sys.stdout.isatty()), flush=True)
        wrong = sum(not answer.is_right for answer in answers)
        show_answer(options.port)
        if options.exit:
            return 1 if wrong else 0
        print(what_next(options.port, options.state_dir, answers[0]), flush=True)
        return up.wait()
    except DemoError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    finally:
        if up.poll() is None:
            up.terminate()
        up.wait()


class DemoError(Exception):
    """The demo cannot continue; the message is the reason."""


def start(port: int, state_dir: Path, others: list[str]) -> subprocess.Popen[bytes]:
    """Start `headrace up` in its own session, so that Ctrl-C reaches only this process."""
    up = ["-m", "headrace", "up", "--port", str(port), "--state-dir", str(state_dir), *others]
    tied = ["-m", "headrace.server.supervisor.exec_child", "--signal", "TERM", "--", sys.executable]
    return subprocess.Popen([sys.executable, *tied, *up], start_new_session=True)


def stop_with(up: subprocess.Popen[bytes]) -> None:
    """Forward Ctrl-C and SIGTERM as SIGTERM; a second signal stops `headrace up` faster.

    SIGTERM, because a process that a script starts with `&` ignores SIGINT, like its children.
    """

    def pass_on(_signum: int, _frame: object) -> None:
        with suppress(ProcessLookupError):
            up.terminate()

    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, pass_on)


def wait_ready(up: subprocess.Popen[bytes], port: int, state_dir: Path) -> None:
    """Wait until our own `headrace up` has loaded the model."""

    def ready() -> bool:
        if up.poll() is not None:
            raise DemoError(f"headrace up ended with status {up.returncode}; see its output")
        record = json.loads((state_dir / "headrace.json").read_text())
        if record["pids"]["headrace"] != up.pid:
            return False
        _, state = request(port, "GET", "/ready")
        model = state.get("models", {}).get("digits", {})
        if model.get("error"):
            raise DemoError(f"the model digits did not load: {model['error']}")
        return bool(model.get("ready_replicas"))

    wait_for(ready, "the model digits is ready", START_TIMEOUT_S)


def classify(port: int) -> list[Answer]:
    """Send every image, then poll for the answers."""
    files = sorted(FOLDER.glob("*.png"))
    with ThreadPoolExecutor(len(files)) as pool:
        jobs = list(pool.map(lambda file: submit(port, file), files))
        ended = pool.map(lambda job: poll(port, job["urls"]["self"]), jobs)
        return [Answer(file, job) for file, job in zip(files, ended, strict=True)]


def submit(port: int, file: Path) -> dict[str, Any]:
    path = "/api/v1/models/digits/jobs"
    status, job = request(port, "POST", path, file.read_bytes(), {"Content-Type": "image/png"})
    if status != 202:
        raise DemoError(f"POST {path} was answered {status}: {job}")
    return job


def poll(port: int, path: str) -> dict[str, Any]:
    last: dict[str, Any] = {}

    def ended() -> bool:
        _, job = request(port, "GET", path)
        last.update(job)
        return job.get("finished_at") is not None

    wait_for(ended, f"{path} has ended", JOB_TIMEOUT_S)
    return last


def show_answer(port: int) -> None:
    """Print the language model's answer while it comes, if the models file has the model."""
    if WRITER not in request(port, "GET", "/ready")[1]["models"]:
        return
    message = {"role": "user", "content": QUESTION}
    body = json.dumps({"messages": [message], "max_tokens": 100}).encode()
    path = f"/api/v1/models/{WRITER}/jobs"
    status, job = request(port, "POST", path, body, {"Content-Type": "application/json"})
    if status != 202:
        raise DemoError(f"POST {path} was answered {status}: {job}")
    print(f"\n{WRITER}, loaded at its first job: {QUESTION}\n", flush=True)
    connection = http.client.HTTPConnection(HOST, port, timeout=START_TIMEOUT_S)
    try:
        connection.request("GET", f"{job['urls']['self']}/stream?format=text")
        response = connection.getresponse()
        while text := response.read1():
            print(text.decode(), end="", flush=True)
    finally:
        connection.close()
    print(flush=True)
    ended = poll(port, job["urls"]["self"])
    if ended["status"] != "succeeded":
        raise DemoError(f"the model {WRITER}: {row(Answer(Path(QUESTION), ended))}")


def request(
    port: int,
    method: str,
    path: str,
    body: bytes | None = None,
    headers: dict[str, str] | None = None,
) -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection(HOST, port, timeout=30)
    try:
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def wait_for(condition: Callable[[], bool], what: str, timeout_s: float) -> None:
    deadline_s = time.monotonic() + timeout_s
    while True:
        # Before the server has started, connections are refused and files are missing.
        with suppress(OSError, ValueError, KeyError, http.client.HTTPException):
            if condition():
                return
        if time.monotonic() > deadline_s:
            raise DemoError(f"not within {timeout_s:g} s: {what}")
        time.sleep(POLL_S)


def table(answers: list[Answer], *, colour: bool) -> str:
    """Print a row per picture with the answer and its times."""
    head = f"{'image':<11}{'answer':>7}{'expected':>10}{'probability':>13}"
    head += f"{'queue ms':>10}{'batch':>7}{'total ms':>10}"
    lines = ["", head, "-" * len(head)]
    for answer in answers:
        picture = draw(answer.file, colour=colour)
        texts = [""] * len(picture)
        texts[len(picture) // 2 - 1] = row(answer)
        lines += [f"{drawn}   {text}".rstrip() for drawn, text in zip(picture, texts, strict=True)]
        lines.append("")
    right = sum(answer.is_right for answer in answers)
    lines.append(f"{right} of {len(answers)} right")
    return "\n".join(lines)


def row(answer: Answer) -> str:
    job = answer.job
    if not isinstance(job.get("result"), dict):
        error = job.get("error") or {}
        return f"{job.get('status')}: {error.get('message', '')}"
    timings = job["timings"]
    text = f"{answer.digit:>7}{answer.expected:>10}{job['result']['probability']:>13.3f}"
    text += f"{timings['queued']:>10.1f}{job['batch_size']:>7}{timings['total']:>10.1f}"
    return text if answer.is_right else f"{text}   WRONG"


def draw(file: Path, *, colour: bool) -> list[str]:
    """Return a picture as lines of half blocks, two rows of pixels per line."""
    side = PICTURE_SIDE_PX
    with Image.open(file) as image:
        small = image.convert("L").resize((side, side), Image.Resampling.BOX)
        grey = small.tobytes()
    lines = []
    for top in range(0, side, 2):
        pairs = [(grey[top * side + x], grey[(top + 1) * side + x]) for x in range(side)]
        lines.append("".join(half_block(upper, lower, colour=colour) for upper, lower in pairs))
    return lines


def half_block(upper: int, lower: int, *, colour: bool) -> str:
    if colour:
        # 232 to 255 are the terminal's greys, from dark to light.
        front, back = (232 + tone * 23 // 255 for tone in (upper, lower))
        return f"\x1b[38;5;{front}m\x1b[48;5;{back}m▀\x1b[0m"
    return " ▄▀█"[2 * (upper < INK_BELOW) + (lower < INK_BELOW)]


def what_next(port: int, state_dir: Path, answer: Answer) -> str:
    record = json.loads((state_dir / "headrace.json").read_text())
    urls = record["urls"]
    api = urls["api"]
    file = (
        answer.file.relative_to(Path.cwd())
        if answer.file.is_relative_to(Path.cwd())
        else answer.file
    )
    flower = f"\n  Flower  {urls['flower']}" if "flower" in urls else ""
    return f"""
Headrace runs until Ctrl-C.

  API     {api}  (documentation: {api}/docs)
  broker  {urls["broker"]}{flower}

Try next, in another terminal:

  curl -s -T {file} {api}/api/v1/models/digits/jobs
  curl -s {api}{answer.job["urls"]["self"]}
  curl -s -H 'Prefer: wait=10' -T {file} {api}/api/v1/models/digits/jobs
  curl -s {api}/api/v1/queues
  curl -s {api}/ready

Your own model: docs/handlers.md
"""


if __name__ == "__main__":
    sys.exit(main())
