"""Models on a GPU behind the queue, against the bare loop: `python -m benchmarks.gpu`.

ResNet-50, and with torchvision Mask R-CNN, in float and half. The bare loop and the queue are
measured in turn, on the same machine. `--forms` measures others too: ResNet-50 in half with CUDA
graphs, with TensorRT, and with JPEGs that are decoded on the GPU. `--write` puts the table into
docs/performance.md, `--out` into a file, row by row. `--device cpu` tries the same code with tiny
models; its figures mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.common.line_process import LineProcess, line_process
from benchmarks.common.tables import DOC
from benchmarks.gpu.load import Latencies, model_name, p99, run_load, served
from benchmarks.gpu.workloads import (
    FORMS,
    SEED_FORMS,
    Workload,
    obstacle,
    photographs,
    workloads,
)
from tests.harness.processes.gpu import cuda_names, gpus, used_mib
from workers.replicas.devices import model_environ, tuned

BEGIN: Final = "<!-- gpu:begin -->"
END: Final = "<!-- gpu:end -->"
COLUMNS: Final = (
    "model", "form", "batch", "clients", "bare loop, images/s", "behind the queue",
    "share (lowest to highest pair)", "model p99, ms", "client p99, ms",
)  # fmt: skip
HEAD: Final = f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}"
IMAGES: Final = 64
#: A short load before the first pair, which opens connections and loads the model.
WARM_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure, and how long."""

    device: str
    batches: tuple[int, ...]
    clients: tuple[int, ...]
    seconds: float
    pairs: int
    forms: tuple[str, ...] = SEED_FORMS

    @property
    def environ(self) -> dict[str, str]:
        """The environment of the processes: one GPU, as for a worker's."""
        visible = "" if self.device == "cpu" else gpus()[0].cuda_visible_devices
        return {"CUDA_VISIBLE_DEVICES": visible}

    @property
    def tiny(self) -> bool:
        """Whether the models are tiny."""
        return self.device == "cpu"


def measured(plan: Plan, workload: Workload, bare: LineProcess, url: str) -> Iterator[str]:
    """Yield the rows of a workload."""
    images = photographs(IMAGES, workload.width, workload.height)
    for form, batch in product(workload.forms(plan.forms), plan.batches):
        name = model_name(form, batch)
        command = f"run {form} {batch} "
        variant = bare.request(f"load {form} {batch}").strip()
        shown = f"{form} (refused: eager)" if variant.startswith("eager;") else form
        bare.request(f"{command}{WARM_S}")
        for clients in plan.clients:
            run_load(url, name, images, clients, WARM_S, Latencies())
            seen, pairs = Latencies(), []
            for _ in range(plan.pairs):
                alone = float(bare.request(f"{command}{plan.seconds}"))
                pairs.append((alone, run_load(url, name, images, clients, plan.seconds, seen)))
            shares = [queued / alone for alone, queued in pairs]
            yield (
                f"| {workload.name} | {shown} | {batch} | {clients} "
                f"| {median(alone for alone, _ in pairs):,.1f} "
                f"| {median(queued for _, queued in pairs):,.1f} "
                f"| {median(shares):.2f} ({min(shares):.2f} to {max(shares):.2f}) "
                f"| {p99(list(seen.batches_ms.values())):.2f} | {p99(seen.client_ms):.2f} |"
            )


def rows(plan: Plan) -> Iterator[str]:
    """Yield the lines of the table: the machine, the header, and the rows."""
    torch_device = "cpu" if plan.tiny else "cuda:0"
    # The loop has the threads and the memory of a model process behind the queue.
    processes = len(plan.forms) * len(plan.batches)
    environ = tuned(model_environ({**os.environ, **plan.environ}, processes), torch_device)
    for n, workload in enumerate(workloads(tiny=plan.tiny)):
        arguments = (torch_device, "tiny" if plan.tiny else "full", workload.name)
        with ExitStack() as stack:
            before = 0.0 if plan.tiny else used_mib(gpus()[0])
            bare = stack.enter_context(
                line_process("benchmarks.gpu.bare", *arguments, environ=environ)
            )
            about = json.loads(bare.request("context"))
            if not n:
                context = 0.0 if plan.tiny else used_mib(gpus()[0]) - before
                yield described(plan, about, context)
                yield HEAD
            device = "cpu" if plan.tiny else "auto"
            url = stack.enter_context(
                served(workload, device, workload.forms(plan.forms), plan.batches, plan.environ)
            )
            yield from measured(plan, workload, bare, url)


def described(plan: Plan, about: dict[str, str], context_mib: float) -> str:
    """Return the line above the table."""
    torch = f"torch {about['torch']}"
    if about["cuda"]:
        torch += f", CUDA {about['cuda']};\n{context_mib:,.0f} MiB of context per process"
    return (
        f"Measured {datetime.now(UTC).date().isoformat()} on {about['name']}, {os.cpu_count()} "
        f"cores, {torch}; {plan.pairs} pairs of {plan.seconds:g} s each.\n"
    )


def written(text: str, table: str) -> str:
    """Return the document with a new table between the two marks."""
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{DOC} has no {BEGIN} with an {END} behind it")
    return f"{head}{BEGIN}\n{table}\n{END}{tail}"


def parsed() -> tuple[Plan, argparse.Namespace]:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 10])
    parser.add_argument("--seconds", type=float, default=1.5, help="length of each half of a pair")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument(
        "--forms", nargs="+", choices=[*FORMS, "all"], default=list(SEED_FORMS),
        help="how the models run; all: each form that can run here",
    )  # fmt: skip
    parser.add_argument("--write", action="store_true", help="put it into docs/performance.md")
    parser.add_argument("--out", type=Path, help="a file that gets the table, row by row")
    given = parser.parse_args()
    if given.device == "cuda" and not (cuda_names() and gpus()):
        parser.exit(3, "there is no CUDA device; --device cpu tries the code without one\n")
    if given.device == "cpu" and given.write:
        parser.error("--write is for a GPU's figures")
    obstacles = {name: obstacle(name, given.device) for name in FORMS}
    forms = [name for name in FORMS if not obstacles[name]] if "all" in given.forms else given.forms
    if lacking := [obstacles[name] for name in forms if obstacles[name]]:
        parser.exit(3, f"{', '.join(lacking)}\n")
    plan = Plan(
        given.device, tuple(given.batches), tuple(given.clients), given.seconds, given.pairs,
        tuple(forms),
    )  # fmt: skip
    return plan, given


def main() -> None:
    """Measure, and print the table."""
    plan, given = parsed()
    lines = []
    for line in rows(plan):
        lines.append(line)
        print(line, flush=True)
        if given.out is not None:
            given.out.write_text("\n".join(lines) + "\n", "utf-8")
    if given.write:
        DOC.write_text(written(DOC.read_text("utf-8"), "\n".join(lines)), "utf-8")


if __name__ == "__main__":
    main()
