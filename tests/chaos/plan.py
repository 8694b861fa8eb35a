"""What a run under kills does, drawn from its seed: the jobs, how each must end, and the kills."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.harness.handlers.trouble.chaotic import GROWN
from tests.harness.workers.worker import HANDLERS

CHAOTIC = HANDLERS / "trouble/chaotic.py"
BATCH = {"fast": 32, "slow": 16, "rough": 4}
NEVER_RETRIES = 1
#: Longer inputs and results lie in the payload store.
INLINE_BYTES = 2048

#: So often a job may be lost while it runs alone. It is more than the default, since our kills hit
#: such jobs too, and are not to hit one that is well so often.
MAX_DELIVERIES = 6

#: Inputs that take their process with them, each time that they are run.
MARKED = frozenset({"hang", "segfault", "exit"})
#: What lies among the dead letters at the end.
BURIED = frozenset({"never", "segfault", "exit"})
#: How often a job of that kind is run without any kill, where that is not once.
RUNS = {"transient": 2, "never": NEVER_RETRIES + 1}
LOST = "replica-lost"
_FAILS = {
    "bad": "input-error",
    "raise": "handler-error",
    "never": "transient-error",
    "hang": "timeout",
    "segfault": LOST,
    "exit": LOST,
}
#: What is mixed into each model's jobs, as shares of them; the rest is plain.
_SHARES = {
    "fast": {"large": 0.03, "grow": 0.02, "bad": 0.02, "raise": 0.004},
    "slow": {"transient": 0.01, "never": 0.003, "bad": 0.02, "large": 0.02},
    "rough": {"bad": 0.02, "raise": 0.01},
}
_MODEL_SHARES = {"fast": 0.6, "slow": 0.3, "rough": 0.1}
_CANCELLED, _STOCK = 0.03, 0.03
#: One deck of kills; more of them are more decks, shuffled apart.
ALL = "redis, worker, api"
_DECK = (
    "model",
    "worker",
    "stop",
    "model",
    "api",
    "redis",
    "model",
    "redis, worker",
    "model",
    ALL,
    "api",
)


@dataclass(frozen=True, slots=True)
class Planned:
    """One job.

    Attributes:
        cancel: it is cancelled at some time, and may end as that.
        stock: a stock Celery client sends it.
    """

    n: int
    model: str
    kind: str
    priority: int
    cancel: bool = False
    stock: bool = False

    @property
    def id(self) -> str:
        return f"chaos-{self.n}"

    @property
    def input(self) -> dict[str, Any]:
        pad = {"pad": "x" * (2 * INLINE_BYTES)} if self.kind == "large" else {}
        return {"n": self.n, "do": self.kind, **pad}

    @property
    def runs(self) -> int:
        return RUNS.get(self.kind, 1)

    def complaint(self, status: str, value: Any, error: str | None) -> str:
        """What is wrong with that end of it; empty where nothing is."""
        if status == "cancelled" and self.cancel:
            return ""
        code = _FAILS.get(self.kind)
        if self.kind == "hang" and error == LOST:
            right = status == "failed"  # it runs alone for so long that kills may hit it each time
        elif code is not None:
            right = (status, error) == ("failed", code)
        else:
            right = status == "succeeded" and value == {
                "n": self.n,
                "length": 2 * INLINE_BYTES if self.kind == "large" else 0,
                "grown": "y" * GROWN if self.kind == "grow" else "",
            }
        return "" if right else f"{self} ended as {status}, {error or str(value)[:80]}"


@dataclass(frozen=True, slots=True)
class Kill:
    """One kill.

    Attributes:
        at: the share of the jobs that have ended by then.
        what: model, worker, api, redis or several; of `ALL` each process. `stop` kills nothing: it
            suspends a worker until others have its jobs.
        draw: 0 to 1; chooses the victim, and how long Redis stays away.
    """

    at: float
    what: str
    draw: float


def models(folder: Path, timeout_s: float) -> dict[str, dict[str, Any]]:
    """The models file's content.

    Args:
        folder: where the logs and marks are to lie.
        timeout_s: how long an input may hang.
    """
    marks = folder / "marks"
    marks.mkdir()
    return {
        model: {
            "handler": f"{CHAOTIC}:{'Overlapping' if model == 'slow' else 'InTurn'}",
            "max_batch_size": size,
            "retry_backoff_s": 0.2,
            "max_restarts_per_minute": 1000,
            "timeout_s": timeout_s if model == "rough" else 60,
            "options": {
                "log": str(folder / f"{model}.log"),
                "marks": str(marks),
                "pause_s": 0.02 if model == "slow" else 0.0,
            },
        }
        for model, size in BATCH.items()
    }


def draw_jobs(chance: random.Random, count: int, hangs: int, poison: int) -> list[Planned]:
    """The jobs, in the order of their submission.

    Args:
        chance: the seed's.
        count: how many.
        hangs: how many of them hang.
        poison: how many of them take their process with them.
    """
    kinds = []
    for model, share in _MODEL_SHARES.items():
        room = round(count * share)
        marked = ["hang"] * hangs + ["segfault", "exit"] * (poison // 2) if model == "rough" else []
        mixed = [kind for kind, part in _SHARES[model].items() for _ in range(round(room * part))]
        kinds += [(model, kind) for kind in (marked + mixed + ["plain"] * room)[:room]]
    chance.shuffle(kinds)
    return [_planned(chance, n, model, kind) for n, (model, kind) in enumerate(kinds)]


def _planned(chance: random.Random, n: int, model: str, kind: str) -> Planned:
    priority, draw = chance.randrange(10), chance.random()
    plain = kind == "plain"
    return Planned(
        n, model, kind, priority,
        cancel=plain and draw < _CANCELLED,
        stock=kind in ("plain", "bad", "transient") and draw > 1 - _STOCK,
    )  # fmt: skip


def draw_kills(chance: random.Random, count: int) -> list[Kill]:
    """The kills, by when they come; the last tenth of the jobs is left in peace."""
    whats = [_DECK[at % len(_DECK)] for at in range(count)]
    chance.shuffle(whats)
    times = sorted(chance.uniform(0.02, 0.9) for _ in whats)
    return [Kill(at, what, chance.random()) for at, what in zip(times, whats, strict=True)]
