"""What masks cost: the speed of answers with a JSON schema, with an expression, and beside them.

    python -m benchmarks.generation.structured [--write]

The included model writes answers of the same length in one batch, in this process. The order of a
round is turned each time. Speeds count CPU time, because other programs may use the cores; each is
compared with that without masks in the same round. `--write` puts the table into
docs/performance.md.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch

from benchmarks.common.tables import Table, write_tables
from handlers.language_model import LanguageModel
from headrace.handler import Context

TOKENS: Final = 100
CLIENTS: Final = 8
#: No answer of so many tokens ends it.
SCHEMA: Final = {
    "type": "array",
    "minItems": 2 * TOKENS,
    "items": {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 20}, "n": {"type": "integer"}},
        "required": ["name", "n"],
        "additionalProperties": False,
    },
}
#: The shapes, and how many of the clients have them; the first kind is that without.
KINDS: Final[dict[str, tuple[dict[str, Any], int]]] = {
    "none": ({}, 0),
    "a JSON schema": ({"json": SCHEMA}, CLIENTS),
    "an expression": ({"regex": "[a-z ]{2500}"}, CLIENTS),
    "a JSON schema, one client of them": ({"json": SCHEMA}, 1),
}


@contextmanager
def loaded() -> Iterator[LanguageModel]:
    """The included model in this process, with one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    model = LanguageModel()
    model.initialize(Context("m", "1", "cpu", Path("/"), options={}, max_batch_size=CLIENTS))
    try:
        yield model
    finally:
        model.engine.close()
        torch.set_num_threads(before)


def tokens_per_second(
    model: LanguageModel, shape: dict[str, Any], with_shape: int, tokens: int
) -> float:
    """Run one answer per client; return their tokens a second of CPU, prompts included."""
    asked: list[dict[str, Any]] = [
        {"prompt": f"Python {n}", "max_tokens": tokens, "seed": n} for n in range(CLIENTS)
    ]
    for n, one in enumerate(asked):
        one |= {"structured": shape} if n < with_shape else {"ignore_eos": True}
    for n, one in enumerate(model.preprocess(asked)):
        model.add(f"job{n}", one)
    count, running, started = 0, CLIENTS, time.process_time()
    while running:
        for piece in model.step():
            if piece.error is not None:
                raise piece.error
            count += len(piece.tokens)
            running -= piece.finish is not None
    if count != CLIENTS * tokens:
        raise RuntimeError(f"{count:,} tokens came instead of {CLIENTS * tokens:,}")
    return count / (time.process_time() - started)


def measure(model: LanguageModel, rounds: int, tokens: int) -> Table:
    """Return the speed of each kind, and its share of that without masks."""
    speeds: dict[str, list[float]] = {kind: [] for kind in KINDS}
    kinds = list(KINDS)
    for kind in kinds:
        tokens_per_second(model, *KINDS[kind], tokens)  # it compiles the shape
    for _ in range(rounds):
        for kind in kinds:
            speeds[kind].append(tokens_per_second(model, *KINDS[kind], tokens))
        kinds = kinds[1:] + kinds[:1]
    table = Table("masks", "tokens/s of CPU", "of that without", "least", "largest")
    for kind, values in speeds.items():
        ratios = [one / base for one, base in zip(values, speeds["none"], strict=True)]
        shares = (f"{share:.2f}" for share in (median(ratios), min(ratios), max(ratios)))
        table.add(kind, f"{median(values):,.0f}", *shares)
    return table


def main(given: Sequence[str] | None = None) -> None:
    """Print the table; write it into the document with --write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write into docs/performance.md")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(given)
    with loaded() as model:
        table = measure(model, options.rounds, TOKENS)
    if options.write:
        about = (
            f"{CLIENTS} clients, answers of {TOKENS} tokens, {options.rounds} rounds, one thread."
        )
        write_tables("generation-masks", about, table)


if __name__ == "__main__":
    main()
