"""What masks cost: tokens a second of answers with a JSON schema, without one, and beside them.

    python benchmarks/generation/structured.py

The included model writes answers of the same length in one batch, in this process. The order of a
round is turned each time, and the row of each kind is the median of its rounds.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from statistics import median
from typing import Any, Final

from handlers.language_model import LanguageModel
from headrace.handler import Context

TOKENS: Final = 200
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
#: How many of the clients have the schema.
KINDS: Final = {"without a schema": 0, "one of them has it": 1, "with a schema": CLIENTS}


def tokens_per_second(model: LanguageModel, with_schema: int) -> float:
    """Run one answer per client; return their tokens a second, prompts included."""
    asked: list[dict[str, Any]] = [
        {"prompt": f"Python {n}", "max_tokens": TOKENS, "seed": n} for n in range(CLIENTS)
    ]
    for n, one in enumerate(asked):
        one |= {"structured": {"json": SCHEMA}} if n < with_schema else {"ignore_eos": True}
    for n, one in enumerate(model.preprocess(asked)):
        model.add(f"job{n}", one)
    count, running, started = 0, CLIENTS, time.perf_counter()
    while running:
        for piece in model.step():
            if piece.error is not None:
                raise piece.error
            count += len(piece.tokens)
            running -= piece.finish is not None
    if count != CLIENTS * TOKENS:
        raise RuntimeError(f"{count:,} tokens came instead of {CLIENTS * TOKENS:,}")
    return count / (time.perf_counter() - started)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    model = LanguageModel()
    model.initialize(Context("m", "1", "cpu", Path("/"), options={}, max_batch_size=CLIENTS))
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    kinds = list(KINDS)
    for kind in kinds:
        tokens_per_second(model, KINDS[kind])  # it compiles the schema
    for _ in range(rounds):
        for kind in kinds:
            found[kind].append(tokens_per_second(model, KINDS[kind]))
        kinds = kinds[1:] + kinds[:1]
    model.engine.close()
    base = median(found["without a schema"])
    for kind, values in found.items():
        print(f"{kind:20} {median(values):8,.0f} tokens a second, {median(values) / base:.2f}")


if __name__ == "__main__":
    main()
