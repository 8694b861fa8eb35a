"""Serve and measure each step: `python -m benchmarks.case_study [--write] [--quick]`."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.common.tables import DOC, Table, write_tables
from extensions.tuning.bench.measurement import Load, read_measurement
from extensions.tuning.tune.deployment import PrivateDeployment
from extensions.tuning.tune.space import Candidate
from headrace.config.model.optimize import OPTIMIZED

STUDY: Final = DOC.with_name("performance-guide.md")
CLIENTS: Final = (1, 10)
#: What two cores cost for an hour in this study, in any unit.
PRICE_PER_HOUR: Final = 0.10
#: The client's objective: p99 in milliseconds.
OBJECTIVES_MS: Final = (100, 300, 1000)
LOAD_TIMEOUT_S: Final = 300
NONE: Final = "-"
#: A load of so many requests, for tests: the machine's speed does not decide how many there are.
QUICK: Final = ("--requests", "10", "--warm-up", "0", "--duration", "3600")


@dataclass(frozen=True, slots=True)
class Step:
    """One step: what changes, and in which options; they are kept in the steps after it."""

    name: str
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Row:
    """What a step gave, for each number of clients."""

    name: str
    loads: Mapping[int, Load]


def detector_steps(photos: Path, *, quick: bool) -> list[Step]:
    """Return the steps of the detector."""
    detector = Path(__file__).with_name("detector.py")
    side, small = (64, True) if quick else (512, False)
    mine = {"side": side, "small": small}
    int8 = {"backend": "openvino", "precision": "int8", "calibrate": str(photos)}
    steps = [
        Step("as first written: image after image", {
            "handler": f"{detector}:Detector", "timeout_s": 120,
            "max_batch_size": 8, "channels_last": False, "options": {**mine, "per_image": True},
        }),
        Step("a real batch: `torch.stack`", {"options": mine}),
        Step("`channels_last: true`", {"channels_last": True}),
        Step("`optimize: {backend: openvino}`", {"optimize": {"backend": "openvino"}}),
        Step("`optimize: {backend: openvino, precision: int8}`", {"optimize": int8}),
        Step("`overlap = True` in the handler", {"handler": f"{detector}:Overlapping"}),
        Step("`replicas: 2`, a thread each", {"replicas": 2}),
    ]  # fmt: skip
    return [steps[0], steps[1]] if quick else steps


def classifier_steps(photos: Path, *, quick: bool) -> list[Step]:
    """Return the steps of the classifier."""
    int8 = {"backend": "openvino", "precision": "int8", "calibrate": str(photos)}
    module = "handlers.resnet:resnet18" if quick else "handlers.resnet:resnet50"
    steps = [
        Step("batches of one", {
            "handler": "image_classifier", "max_batch_size": 1, "channels_last": False,
            "timeout_s": 120, "options": {"model": module},
        }),
        Step("`max_batch_size: 8`", {"max_batch_size": 8}),
        Step("`channels_last: auto`", {"channels_last": "auto"}),
        Step("`optimize: {backend: openvino}`", {"optimize": {"backend": "openvino"}}),
        Step("`optimize: {backend: openvino, precision: int8}`", {"optimize": int8}),
        Step("`replicas: 2`, a thread each", {"replicas": 2}),
    ]  # fmt: skip
    return steps[:2] if quick else steps


@contextmanager
def serving(folder: Path, model: str) -> Iterator[PrivateDeployment]:
    """Return a server that is started again with the options of each step."""
    deployment = PrivateDeployment(
        model, {}, {}, folder / "models.yaml", folder / model, folder / model / OPTIMIZED,
        LOAD_TIMEOUT_S, os.environ,
    )  # fmt: skip
    try:
        yield deployment
    finally:
        deployment.close()


def measured(
    folder: Path,
    deployment: PrivateDeployment,
    model: str,
    photos: Path,
    options: dict[str, Any],
    length: Sequence[str],
) -> dict[int, Load]:
    """Serve the model with these options, and measure it with each number of clients.

    Raises:
        RuntimeError: `headrace bench` has failed.
    """
    deployment.use(Candidate(label=model, options=options))
    document = folder / "load.json"
    found = {}
    for clients in CLIENTS:
        done = subprocess.run(
            [
                sys.executable, "-m", "headrace", "bench", "run", model, "--input", str(photos),
                "--scenario", f"closed:{clients}", *length,
                "--url", deployment.url, "--json", str(document),
            ],
            check=False, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        # 1 is a load that does not count; the generator may have been late.
        if done.returncode not in (0, 1):
            raise RuntimeError(f"headrace bench has ended with {done.returncode}")
        found[clients] = read_measurement(document).loads[0]
    return found


def walk(
    folder: Path, model: str, photos: Path, steps: list[Step], length: Sequence[str]
) -> list[Row]:
    """Measure the steps, each with the options of all steps before it.

    Args:
        folder: for the files of the servers.
        model: a name for the model.
        photos: the folder of its inputs.
        length: the options of `headrace bench` that end a load.
    """
    options: dict[str, Any] = {}
    rows = []
    with serving(folder, model) as deployment:
        for step in steps:
            options = {**options, **step.options}
            rows.append(
                Row(step.name, measured(folder, deployment, model, photos, options, length))
            )
            print(rows[-1].name, *(f"{load.rate:.1f}/s" for load in rows[-1].loads.values()))
    return rows


def grid(folder: Path, photos: Path, length: Sequence[str], *, quick: bool) -> list[Row]:
    """Measure the detector with each batch size and precision."""
    base: dict[str, Any] = {}
    for step in detector_steps(photos, quick=quick)[:3]:
        base |= step.options
    int8 = {"backend": "openvino", "precision": "int8", "calibrate": str(photos)}
    precisions = {"float": {"backend": "openvino"}, "int8": int8}
    rows = []
    with serving(folder, "detector") as deployment:
        for size in (1, 4, 8):
            for name, optimize in ({"float": None} if quick else precisions).items():
                options = {**base, "max_batch_size": size, "optimize": optimize}
                loads = measured(folder, deployment, "detector", photos, options, length)
                rows.append(Row(f"batch {size}, {name}", loads))
                print(rows[-1].name, *(f"{load.rate:.1f}/s" for load in loads.values()))
    return rows


def table(name: str, rows: list[Row]) -> Table:
    """Return the table of some rows; the ratio is to the first.

    A load without a rate has had no result in time, so it has no figures.
    """
    heads = [
        f"{what}, {n} client{'s' * (n > 1)}" for n in CLIENTS for what in ("images/s", "p99 ms")
    ]
    made = Table(name, *heads, "times", "cost of 1,000")
    most = CLIENTS[-1]
    first = rows[0].loads[most].rate
    for row in rows:
        cells = [
            cell
            for load in row.loads.values()
            for cell in (
                (f"{load.rate:.1f}", f"{load.latency.p99:,.0f}") if load.rate else (NONE, NONE)
            )
        ]
        rate = row.loads[most].rate
        times = f"{rate / first:.1f}" if rate and first else NONE
        made.add(row.name, *cells, times, cost(rate))
    return made


def cost(rate: float) -> str:
    """Return what 1,000 results cost at this rate."""
    return f"{PRICE_PER_HOUR / 3600 * 1000 / rate:.4f}" if rate else NONE


def answers(rows: list[Row]) -> Table:
    """Return the cheapest of the settings that meet each objective."""
    made = Table("the detector within", "setting", "clients", "images/s", "cost of 1,000")
    loads = [(load.rate, n, row.name) for row in rows for n, load in row.loads.items()]
    late = {(row.name, n): load.latency.p99 for row in rows for n, load in row.loads.items()}
    for objective in OBJECTIVES_MS:
        within = [one for one in loads if one[0] and late[one[2], one[1]] <= objective]
        name = f"p99 {objective} ms"
        if not within:
            made.add(name, "none", "", "", "")
            continue
        rate, clients, setting = max(within)
        made.add(name, setting, str(clients), f"{rate:.1f}", cost(rate))
    return made


def main() -> None:
    """Measure everything, print the tables, and write them into the page with --write."""
    # Imported here, as it takes a second, and tests of the steps do not need it.
    import sklearn.datasets

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"put them into docs/{STUDY.name}")
    parser.add_argument(
        "--quick", action="store_true", help="small models; the figures say nothing"
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="of each load")
    options = parser.parse_args()
    length = QUICK if options.quick else ("--duration", str(options.seconds))
    with tempfile.TemporaryDirectory() as name:
        folder, photos = Path(name), Path(name) / "photos"
        photos.mkdir()
        for photo in (Path(sklearn.datasets.__file__).parent / "images").glob("*.jpg"):
            shutil.copy(photo, photos)
        quick = options.quick
        detector = walk(folder, "detector", photos, detector_steps(photos, quick=quick), length)
        sizes = grid(folder, photos, length, quick=quick)
        steps = classifier_steps(photos, quick=quick)
        classifier = walk(folder, "classifier", photos, steps, length)
    tables = [
        table("detector", detector), table("detector, openvino", sizes),
        answers([*detector, *sizes]), table("classifier", classifier),
    ]  # fmt: skip
    if options.write:
        about = "two photos of 640 x 427, by `python -m benchmarks.case_study --write`."
        write_tables("case-study", about, *tables, doc=STUDY)


if __name__ == "__main__":
    main()
