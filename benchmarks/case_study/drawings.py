"""The forms of the drawing's models, for docs/case-study.md.

`python -m benchmarks.case_study.drawings [--write]` compares the forms by `headrace optimize`,
sweeps workers and batches of the detector by `headrace bench --sweep`, with each form that is
faster, and lets `headrace tune` look for the best options.
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import httpx2
import msgspec
import yaml

from benchmarks.case_study.__main__ import LOAD_TIMEOUT_S, NONE, cost
from benchmarks.common.tables import DOC, Table, write_tables
from extensions.tuning.optimize.report import Comparison, Variant
from extensions.tuning.tune.deployment import PrivateDeployment
from extensions.tuning.tune.report import TuneReport
from extensions.tuning.tune.space import Candidate
from headrace.config.model.optimize import OPTIMIZED

PAGE: Final = DOC.with_name("case-study.md")
EXAMPLE: Final = DOC.parents[1] / "examples" / "animated_drawings"
MODELS: Final = EXAMPLE / "models.yaml"
DETECTOR, POSE = "drawn_humanoid_detector", "drawn_humanoid_pose_estimator"
FORMS: Final = "openvino,openvino:bfloat16,onnxruntime,eager:bfloat16,aot,compile"
#: The forms that the sweep serves, by their names in the table.
SWEPT: Final[dict[str, dict[str, Any] | None]] = {
    "float": None,
    "eager bfloat16": {"backend": "eager", "precision": "bfloat16"},
    "aot": {"backend": "aot"},
    "onnxruntime": {"backend": "onnxruntime"},
    "openvino bfloat16": {"backend": "openvino", "precision": "bfloat16"},
    "openvino int8": {
        "backend": "openvino",
        "precision": "int8",
        "calibrate": str(EXAMPLE / "drawings"),
    },
}
CLIENTS: Final = 10
PARTS: Final = ("forms", "sweep", "tune")


def headrace(*arguments: str, builds: Path, ends: Sequence[int] = (0,), **variables: str) -> None:
    """Run a command with a state directory in which the builds are.

    Raises:
        RuntimeError: it ended with another code than `ends`.
    """
    environ = {**os.environ, "HEADRACE_STATE_DIR": str(builds.parent), **variables}
    done = subprocess.run(
        [sys.executable, "-m", "headrace", *arguments], check=False, stdout=subprocess.DEVNULL,
        env=environ,
    )  # fmt: skip
    if done.returncode not in ends:
        raise RuntimeError(f"headrace {arguments[0]} has ended with {done.returncode}")


def compared(model: str, folder: Path, builds: Path, options: Sequence[str]) -> Comparison:
    """Measure the forms of a model, in turns.

    With one thread: on a busy machine, two that wait for each other show the other programs.
    """
    document = folder / f"{model}.json"
    headrace(
        "optimize", model, "--models", str(MODELS), "--input", str(EXAMPLE / "drawings"),
        "--json", str(document), *options, builds=builds, OMP_NUM_THREADS="1",
    )  # fmt: skip
    return msgspec.json.decode(document.read_bytes(), type=Comparison)


def forms(comparison: Comparison) -> Table:
    """Return the table of the forms of a model; times are ratios to float of the same rounds."""
    eager = comparison.variants[0]
    sizes = [time.size for time in eager.times]
    heads = [text for size in sizes for text in (f"ms of {size}", f"times of {size}")]
    table = Table(comparison.model, *heads, "error", "used")
    for variant in comparison.variants:
        wanted = variant.optimize
        name = f"{wanted.backend} {wanted.precision}".removeprefix("eager ")
        times = {time.size: time.inference_ms for time in variant.times}
        cells = []
        for time in eager.times:
            own = times.get(time.size)
            cells += [f"{own:.1f}", f"{time.inference_ms / own:.2f}"] if own else [NONE, NONE]
        table.add(name, *cells, f"{variant.error:.1g}" if times else NONE, used(variant))
    return table


def used(variant: Variant) -> str:
    """Return whether a worker uses a form, or why it does not, in short."""
    reason = variant.refused.partition(":")[0].partition(";")[0]
    return f"no: {reason}" if variant.refused else "yes"


def swept(
    folder: Path, builds: Path, requests: int, workers: list[int], batches: list[int]
) -> dict[str, list[dict[str, str]]]:
    """Sweep workers and batches of the detector, with each form on a server of its own.

    A form that the worker refuses is left out.
    """
    mode = {
        "workers": workers, "batch_delay": 10, "batch_size": batches,
        "input": str(EXAMPLE / "drawings/hat.jpg"), "requests": requests, "concurrency": CLIENTS,
        "processors": ["cpu"],
    }  # fmt: skip
    suite = folder / "sweep.yaml"
    suite.write_text(yaml.safe_dump({DETECTOR: {"eager_mode": mode}}))
    written = yaml.safe_load(MODELS.read_text())["models"][DETECTOR]
    rows_by_form = {}
    for name, optimize in SWEPT.items():
        deployment = PrivateDeployment(
            DETECTOR, {}, {**written, "timeout_s": 120, "optimize": optimize}, MODELS,
            folder / "up", builds, LOAD_TIMEOUT_S, os.environ,
        )  # fmt: skip
        try:
            deployment.use(Candidate(label=name, options={}))
            if optimize and not (variant := variant_of(deployment.url)).startswith(name):
                print(f"leaves out {name}: {variant}", flush=True)
                continue
            output = folder / name.replace(" ", "-")
            # 1 is a load that does not count; the table has what was measured.
            headrace(
                "bench", "run", DETECTOR, "--sweep", str(suite), "--output", str(output),
                "--url", deployment.url, builds=builds, ends=(0, 1),
            )  # fmt: skip
        finally:
            deployment.close()
        with (output / "ab_report.csv").open() as file:
            rows_by_form[name] = list(csv.DictReader(file))
    return rows_by_form


def variant_of(url: str) -> str:
    """Return which form the worker of the detector runs, in words."""
    document = httpx2.get(f"{url}/api/v1/models/{DETECTOR}").json()
    return str(document["workers"][0]["variant"])


def sweep_table(rows_by_form: dict[str, list[dict[str, str]]]) -> Table:
    """Return the table of the sweep: a row for workers and batch, a column for each form."""
    table = Table("workers, batch", *rows_by_form)
    by_case = {
        name: {(int(row["Workers"]), int(row["Batch size"])): row for row in rows}
        for name, rows in rows_by_form.items()
    }
    for case in sorted({case for cases in by_case.values() for case in cases}):
        rows = [cases.get(case) for cases in by_case.values()]
        cells = (
            f"{float(row['TS throughput']):.0f}, {float(row['TS latency P99']):.0f}"
            if row
            else NONE
            for row in rows
        )
        table.add(f"{case[0]}, {case[1]}", *cells)
    return table


def costs(rows_by_form: dict[str, list[dict[str, str]]]) -> Table:
    """Return what 1,000 drawings cost in the fastest case of each form."""
    table = Table("form", "workers, batch", "drawings a second", "p99 ms", "cost of 1,000")
    for name, rows in rows_by_form.items():
        best = max(rows, key=lambda row: float(row["TS throughput"]))
        rate, late = float(best["TS throughput"]), float(best["TS latency P99"])
        case = f"{best['Workers']}, {best['Batch size']}"
        table.add(name, case, f"{rate:.0f}", f"{late:.0f}", cost(rate))
    return table


def tuned(folder: Path, builds: Path, objective: str, budget: str) -> Table:
    """Let `headrace tune` search, and return what it has found."""
    headrace(
        "tune", DETECTOR, "--models", str(MODELS), "--slo", objective, "--budget", budget,
        "--input", str(EXAMPLE / "drawings"), "--output", str(folder), builds=builds,
        ends=(0, 1, 5),
    )  # fmt: skip
    report = msgspec.json.decode((folder / "report.json").read_bytes(), type=TuneReport)
    return tune_table(report)


def tune_table(report: TuneReport) -> Table:
    """Return what `headrace tune` confirmed; without a confirmation, what its trials measured."""
    objective = report.objective
    within = f"p{objective.percentile:g} within {objective.latency_ms:g} ms"
    table = Table(within, "drawings a second", "cost of 1,000")
    print(report.verdict, flush=True)
    if report.confirmation is None:
        rates = [(trial.candidate.label, trial.rate, "") for trial in report.trials if trial.rate]
    else:
        rates = [
            (one.candidate.label, one.rate, f" ({one.low:.0f} to {one.high:.0f})")
            for one in (report.confirmation.present, *report.confirmation.others)
        ]
    for label, rate, interval in rates:
        table.add(label or "the present options", f"{rate:.0f}{interval}", cost(rate))
    return table


def numbers(text: str) -> list[int]:
    """Return the numbers of a list with commas."""
    return [int(part) for part in text.split(",")]


def main() -> None:
    """Measure the parts, print their tables, and write them into the page with --write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=PARTS, help=f"of {', '.join(PARTS)}")
    parser.add_argument("--write", action="store_true", help=f"put them into docs/{PAGE.name}")
    parser.add_argument("--forms", default=FORMS, help="of the comparison")
    parser.add_argument("--requests", type=int, default=300, help="of each case of the sweep")
    parser.add_argument("--workers", type=numbers, default=[1, 2, 4], help="of the sweep")
    parser.add_argument("--batches", type=numbers, default=[1, 2, 4, 8], help="of the sweep")
    parser.add_argument("--slo", default="p95=200ms", help="of headrace tune")
    parser.add_argument("--budget", default="8m", help="of headrace tune")
    parser.add_argument("--state", type=Path, help="keep the builds in this folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        builds = (options.state or folder / "state") / OPTIMIZED
        builds.mkdir(parents=True, exist_ok=True)

        def measure(part: str) -> list[Table]:
            if part == "forms":
                how = ("--variants", options.forms, "--sizes", "1,8")
                return [forms(compared(model, folder, builds, how)) for model in (DETECTOR, POSE)]
            if part == "sweep":
                rows_by_form = swept(
                    folder, builds, options.requests, options.workers, options.batches
                )
                return [sweep_table(rows_by_form), costs(rows_by_form)]
            return [tuned(folder / "tune", builds, options.slo, options.budget)]

        for part in options.parts:
            how = {"forms": "one thread; ", "sweep": f"{options.requests} requests a cell; "}
            about = (
                f"{how.get(part, '')}load average before {os.getloadavg()[0]:.1f}, by other "
                f"programs. `python -m benchmarks.case_study.drawings {part} --write` repeats it."
            )
            tables = measure(part)
            if options.write:
                write_tables(f"drawings-{part}", about, *tables, doc=PAGE)


if __name__ == "__main__":
    main()
