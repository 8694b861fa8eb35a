"""Every example, run as its first lines say, against one `headrace up` on their own models file."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import runpy
import struct
import subprocess
import sys
import wave
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import nbformat
import pytest
from nbclient import NotebookClient
from PIL import Image

from examples.digits_dataset import held_out
from headrace import Client, errors
from headrace.server.ports import free_port
from tests.harness.http.plain_http import PLAIN
from tests.harness.servers.up import ROOT, RunningUp, clean_environment, running_up
from tests.harness.wait import wait_until

EXAMPLES = ROOT / "examples"
ExampleHere = Callable[..., subprocess.CompletedProcess[str]]
DIGITS = sorted((EXAMPLES / "digits").glob("*.png"))


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningUp]:
    folder = tmp_path_factory.mktemp("examples")
    with running_up(
        folder, models=EXAMPLES / "models.yaml", background=True, runner=True
    ) as running:
        wait_until(lambda: running.request("GET", "/ready?models=all")[0] == 200, "loaded", 90)
        yield running


@pytest.fixture
def url(up: RunningUp) -> str:
    return f"http://127.0.0.1:{up.port}"


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    with Client(url) as made:
        yield made


def example(url: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=ROOT, env=clean_environment(HEADRACE_URL=url),
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip


@pytest.fixture
def example_here(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> ExampleHere:
    """An example that imports much, run in this process, which has that already."""

    def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        given = list(map(str, arguments))
        monkeypatch.setattr(sys, "argv", given)
        monkeypatch.setenv("HEADRACE_URL", url)
        capsys.readouterr()
        status = 0
        try:
            runpy.run_path(given[0], run_name="__main__")
        except SystemExit as ended:
            status = int(ended.code or 0)
        return subprocess.CompletedProcess(given, status, *capsys.readouterr())

    return run


@contextmanager
def app(url: str, log: Path, *arguments: str | Path) -> Iterator[None]:
    """A web app of the examples, until the context ends."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, *map(str, arguments)], cwd=ROOT, stdout=out, stderr=out,
            env=clean_environment(HEADRACE_URL=url),
        )  # fmt: skip
    try:
        yield
    except BaseException:
        print(log.read_text())  # noqa: T201 - pytest shows it with the failure
        raise
    finally:
        process.terminate()
        process.wait(60)


def answer(http: httpx2.Client, path: str, *statuses: int) -> httpx2.Response:
    """The answer to a GET, once it comes with one of these statuses."""

    def look() -> httpx2.Response | None:
        try:
            found = http.get(path)
        except httpx2.TransportError:
            return None
        return found if found.status_code in statuses else None

    found = wait_until(look, f"{path} is answered with {statuses}", 60)
    assert found is not None
    return found


def page(images: list[bytes], columns: int) -> bytes:
    """The digits in lines on one canvas, each where nobody would measure it."""
    places = [(20 + n % columns * 90 + n % 3 * 5, 15 + n // columns * 100 + n % 2 * 6)
              for n in range(len(images))]  # fmt: skip
    canvas = Image.new("L", (columns * 90 + 40, -(-len(images) // columns) * 100 + 20), 255)
    for image, place in zip(images, places, strict=True):
        with Image.open(io.BytesIO(image)) as digit:
            canvas.paste(digit, place)
    file = io.BytesIO()
    canvas.save(file, "PNG")
    return file.getvalue()


def test_a_pipeline_reads_a_page_of_digits(client: Client, tmp_path: Path) -> None:
    samples = held_out()[:60]
    files = []
    for n in range(0, 60, 20):
        files.append(tmp_path / f"{n}.png")
        files[-1].write_bytes(page([image for image, _ in samples[n : n + 20]], 5))
    named = []
    for result in client.map("read_page", files):
        assert len(result.value["find"]["crops"]) == 20
        named += [found["digit"] for found in result.value["digits"]]
    right = sum(a == label for a, (_, label) in zip(named, samples, strict=True))
    assert right >= 58, f"{right} of 60 are right"
    job = client.submit("read_page", files[0], id="one-page")
    client.result(job)
    stages = client.status(job).stages
    assert [(one["name"], one["done"]) for one in stages] == [("find", 1), ("digits", 20)]
    with pytest.raises(errors.InputError, match="stage find: this is not an image"):
        client.result(client.submit("read_page", b"no page"))


def test_the_index_names_every_example() -> None:
    index = (EXAMPLES / "README.md").read_text()
    named = set(re.findall(r"\]\(([\w./]+)\)", index))
    present = {p.name for p in EXAMPLES.iterdir() if p.suffix in (".py", ".ipynb", ".yaml")}
    assert present <= named
    for name in named:
        assert (EXAMPLES / name).exists(), name


def test_the_flask_app_enqueues_and_polls(url: str, tmp_path: Path) -> None:
    port = free_port()
    with (
        app(url, tmp_path / "log", EXAMPLES / "flask_app.py", "--port", str(port)),
        httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=30, verify=PLAIN) as http,
    ):
        assert answer(http, "/digits/no-such-job", 404).json()["code"] == "job-not-found"
        assert http.post("/digits").status_code == 400
        for path in DIGITS[:3]:
            made = http.post("/digits", files={"image": (path.name, path.read_bytes())})
            assert made.status_code == 202, made.text
            found = answer(http, made.json()["poll"], 200).json()
            assert (found["name"], found["digit"]) == (path.name, int(path.name[0]))
        made = http.post("/digits", files={"image": ("bad.png", b"no image")})
        assert "not an image" in answer(http, made.json()["poll"], 422).json()["error"]


def test_the_fastapi_app_waits_without_blocking(url: str, tmp_path: Path) -> None:
    port = str(free_port())
    command = ["-m", "uvicorn", "--app-dir", "examples", "fastapi_app:app", "--port", port]
    with (
        app(url, tmp_path / "log", *command),
        httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=30, verify=PLAIN) as http,
    ):
        answer(http, "/docs", 200)
        for text, expected in [("the parcel never arrived", False), ("xkjh qwpz vvgh jkl", True)]:
            made = http.post("/texts", params={"text": text})
            assert made.status_code == 202, made.text
            found = http.get(made.json()["poll"], params={"wait_s": 20}).json()
            assert (found["status"], found["gibberish"]) == ("done", expected)
        short = http.post("/texts", params={"text": "hm"}).json()["poll"]
        assert http.get(short, params={"wait_s": 20}).status_code == 422
        assert http.get("/texts/no-such-job").status_code == 404


def test_the_stock_celery_producer_reads_every_digit(up: RunningUp, url: str) -> None:
    source = (EXAMPLES / "celery_producer.py").read_text()
    assert not re.search(r"^\s*(from|import) (headrace|api|workers)", source, re.MULTILINE)
    password = (up.state_dir / "redis.password").read_text().strip()
    redis_url = up.record()["urls"]["broker"].replace("***", password)
    done = example(url, EXAMPLES / "celery_producer.py", redis_url, *DIGITS)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == len(DIGITS)
    for path, line in zip(DIGITS, lines, strict=True):
        assert line.startswith(f"{path.name}: {path.name[0]} (")


def test_the_folder_script_writes_a_line_for_each_file(url: str, tmp_path: Path) -> None:
    folder, output = tmp_path / "in", tmp_path / "out.csv"
    (folder / "deep").mkdir(parents=True)
    for path in DIGITS[:4]:
        (folder / "deep" / path.name).write_bytes(path.read_bytes())
    (folder / "broken.png").write_bytes(b"no image")
    for _ in range(2):
        # The second run finds the jobs of the first.
        done = example(url, EXAMPLES / "classify_folder.py", folder, output)
        assert done.returncode == 1, done.stderr
        assert "5 files, 1 failed" in done.stdout
        rows = list(csv.DictReader(io.StringIO(output.read_text())))
        assert [row["file"] for row in rows] == ["broken.png"] + [
            f"deep/{path.name}" for path in DIGITS[:4]
        ]
        assert rows[0]["status"] == "failed"
        for row, path in zip(rows[1:], DIGITS, strict=False):
            assert json.loads(row["result"])["digit"] == int(path.name[0])
    unreachable = example(
        f"http://127.0.0.1:{free_port()}", EXAMPLES / "classify_folder.py", folder, output
    )
    assert unreachable.returncode == 1
    assert "headrace up" in unreachable.stderr


def test_the_batch_through_openais_sdk_names_what_failed(
    example_here: ExampleHere, tmp_path: Path
) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    for path in DIGITS[:3]:
        (folder / path.name).write_bytes(path.read_bytes())
    done = example_here(EXAMPLES / "openai_batch.py", folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["completed: 3 of 3, 0 failed"] + [
        f"{path.name} {path.name[0]}" for path in DIGITS[:3]
    ]
    (folder / "broken.png").write_bytes(b"no image")
    done = example_here(EXAMPLES / "openai_batch.py", folder)
    assert done.returncode == 1, done.stderr
    assert done.stdout.count("completed: 3 of 4, 1 failed") == 1
    # The broken one alone runs again, and fails again.
    assert done.stdout.splitlines()[-1] == "completed: 0 of 1, 1 failed"
    assert done.stderr.startswith("broken.png ")


def test_the_text_model_tells_text_from_gibberish(
    client: Client, example_here: ExampleHere
) -> None:
    texts = {
        "please call me when the order has been sent": False,
        "The function returns the index of the item": False,
        "zxcvb qwrtp lkjhg mnbvc": True,
        "ghj ghjk fdgh tzuio wertz": True,
    }
    for result in client.map("gibberish", texts):
        assert result.value["gibberish"] == texts[result.input], result
    with pytest.raises(errors.InputError, match="letters"):
        client.result(client.submit("gibberish", "hm"))
    with pytest.raises(errors.InputError, match="send text"):
        client.result(client.submit("gibberish", {"not": "text"}))
    measured = example_here(EXAMPLES / "gibberish.py")
    (share,) = re.findall(r"correct on ([\d.]+)% of \d+ held-out", measured.stdout)
    assert float(share) > 90


def recording(hz: float, rate: int, width: int, channels: int, seconds: float = 1.2) -> bytes:
    """A WAV file of one tone."""
    out = io.BytesIO()
    frames = []
    for at in range(int(rate * seconds)):
        level = math.sin(2 * math.pi * hz * at / rate) * 0.6
        if width == 1:
            frame = bytes([int(128 + level * 127)])
        else:
            frame = struct.pack("<i", int(level * (2**31 - 1)))[4 - width :]
        frames.append(frame * channels)
    with wave.open(out, "wb") as sound:
        sound.setparams((channels, width, rate, 0, "NONE", "not compressed"))
        sound.writeframes(b"".join(frames))
    return out.getvalue()


def test_the_handler_with_its_own_preprocessing_names_the_tone(client: Client) -> None:
    recordings: dict[bytes, str] = {
        recording(440.0, 44_100, 2, 2): "A4",
        recording(261.63, 8_000, 1, 1): "C4",
        recording(82.41, 48_000, 3, 1): "E2",
        recording(1174.66, 22_050, 4, 2): "D6",
    }
    for result in client.map("tone", recordings):
        assert result.value["note"] == recordings[result.input]
    broken: dict[bytes | str, str] = {
        b"no sound": "not a WAV file",
        "text": "send the bytes",
        recording(440, 8_000, 2, 1, seconds=0.05): "a tenth of a second",
        recording(0, 8_000, 2, 1): "recording is silent",
    }
    for bad in client.map("tone", broken, return_errors=True):
        assert isinstance(bad.error, errors.InputError)
        assert broken[bad.input] in bad.error.message


def test_the_handler_that_reports_says_how_far_it_has_come(client: Client) -> None:
    for rounds in (200, 2_000, 10_000):
        events = list(client.events(client.submit("pi", {"rounds": rounds})))
        told = [event.progress for event in events if event.progress is not None]
        # One that is over before the API has looked at it says how it ended, and no more.
        if told:
            break
    assert all(progress.total == rounds for progress in told)
    assert told[0].message.startswith("pi is about 3.")
    ended = events[-1].job
    assert ended is not None
    assert abs(ended.value["pi"] - 3.14) < 0.1
    with pytest.raises(errors.InputError, match="rounds"):
        client.result(client.submit("pi", {"rounds": 0}))


NOTEBOOKS = {
    "digits.ipynb": (f"{len(DIGITS)} of {len(DIGITS)} right", "not an image", "<table>"),
    "offline_run.ipynb": (
        f"{len(DIGITS)} of {len(DIGITS)} right",
        "image/png",
        "median ",
        "jupyter.widget-view",
        "<table border",
    ),
}


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_the_notebook_runs_and_is_stored_without_outputs(
    url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    read: Any = nbformat.read
    notebook = read(EXAMPLES / name, as_version=4)
    assert not [cell for cell in notebook.cells if cell.get("outputs")]
    folders = dict.fromkeys(
        ("JUPYTER_RUNTIME_DIR", "IPYTHONDIR", "OUTPUT", "MPLCONFIGDIR"), tmp_path
    )
    own = {variable: str(folder) for variable, folder in folders.items()}
    for variable, value in clean_environment(HEADRACE_URL=url, **own).items():
        monkeypatch.setenv(variable, value)
    NotebookClient(notebook, timeout=90, resources={"metadata": {"path": str(EXAMPLES)}}).execute()
    shown = json.dumps([cell.get("outputs") for cell in notebook.cells])
    for words in NOTEBOOKS[name]:
        assert words in shown
