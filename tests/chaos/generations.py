"""Answers over kills of their model process: `python -m tests.chaos.generations`.

The model `python_docs` writes answers through the whole system. Its process is killed with
`kill -9` in the middle of each; the text must be that without a kill. It is also killed while
offline answers are put back, as they have made way for online ones. Then many prompts run at the
same time, of which one is too long: it must fail alone.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from headrace.redis.keys import OFFLINE_STEP
from tests.harness.deployments.site import Site, running
from tests.harness.http.events import Reader, reading

SLOTS = 8
MODEL = {
    "handler": "language_model",
    "max_batch_size": SLOTS,
    "max_restarts_per_minute": 1_000,  # it is killed more often than a model may die
}
TOKENS = 300
#: New tokens of an online answer for which offline ones make way.
BRIEF = 40
NAMES = ("zip", "json.loads", "random.choice", "the with statement", "the yield statement", "dict")
#: How many prompts have run for each that is asked for before it is given up.
ATTEMPTS = 3


def question(name: str, **more: Any) -> dict[str, Any]:
    message = {"role": "user", "content": f"What is {name}?"}
    return {"messages": [message], "temperature": 0, **more}


def kill_in_the_middle(site: Site, kills: int, chance: random.Random) -> None:
    """Kill the process in the middle of so many answers, and compare their texts."""
    asked = [question(name, max_tokens=TOKENS, ignore_eos=True) for name in NAMES]
    expected = _results(site, asked)
    done = attempts = 0
    while done < kills:
        attempts += 1
        assert attempts <= ATTEMPTS * kills, f"only {done} of {attempts} were killed in the middle"
        which = attempts % len(asked)
        job_id = site.submit(asked[which])
        with reading(site.stream(job_id)) as reader:
            reader.wait_for("pieces", chance.randint(1, 8))
            (pid,) = site.worker.states()["m"]["pids"]
            os.kill(pid, signal.SIGKILL)
            _whole(reader, expected[which])
        found = site.ended(job_id)
        assert _counted(found["result"]) == _counted(expected[which])
        if found["attempts"] == 2:  # else it had ended before the kill
            done += 1
            if done % 10 == 0:
                _say(f"{done} kills")


def kill_while_put_back(site: Site, kills: int, chance: random.Random) -> None:
    """Kill the process so many times while offline answers wait for their place again.

    They have all slots, so one of them is put back as soon as an online answer has a piece. Nothing
    of any answer may be lost, or come twice.
    """
    offline = [question(NAMES[n % len(NAMES)], max_tokens=TOKENS + n) for n in range(SLOTS)]
    for n, one in enumerate(offline):
        one |= {"ignore_eos": True, **({"temperature": 0.9, "seed": n} if n % 2 else {})}
    online = [question(name, max_tokens=BRIEF, ignore_eos=True) for name in NAMES]
    late, soon = _results(site, offline), _results(site, online)
    done = attempts = 0
    while done < kills:
        attempts += 1
        assert attempts <= ATTEMPTS * kills, f"only {done} kills while an answer was put back"
        with ExitStack() as streams:
            jobs = [site.submit(one, priority=OFFLINE_STEP) for one in offline]
            readers = [streams.enter_context(reading(site.stream(job_id))) for job_id in jobs]
            for reader in readers:
                reader.wait_for("pieces", chance.randint(1, 4))
            which = chance.randrange(len(online))
            first = site.submit(online[which])
            with reading(site.stream(first)) as reader:
                reader.wait_for("pieces", chance.randint(1, 2))
                crowded = not any(one.over for one in readers)
                (pid,) = site.worker.states()["m"]["pids"]
                os.kill(pid, signal.SIGKILL)
                _whole(reader, soon[which])
            for reader, expected in zip(readers, late, strict=True):
                _whole(reader, expected)
        found = [site.ended(job_id) for job_id in (first, *jobs)]
        results = [_counted(one["result"]) for one in found]
        assert results == list(map(_counted, [soon[which], *late]))
        if crowded and found[0]["attempts"] == 2:  # else one had ended before the kill
            done += 1


def _results(site: Site, asked: Sequence[Any]) -> list[Any]:
    """Return the answers without a kill; they run at the same time."""
    jobs = [site.submit(one) for one in asked]
    ended = [site.ended(job_id) for job_id in jobs]
    assert all("result" in data for data in ended), [data for data in ended if "result" not in data]
    return [data["result"] for data in ended]


def _counted(result: Any) -> Any:
    """A result without what follows from the process that made it: what its cache had."""
    return {**result, "usage": {**result["usage"], "cached_tokens": 0}}


def _whole(reader: Reader, expected: Any) -> None:
    """Check that a stream has its whole text once, and one end."""
    ended = reader.wait_for("ended").data
    pieces = [event.data for event in reader.events if event.name == "pieces"]
    assert reader.names == ["pieces"] * len(pieces) + ["ended"], reader.names
    assert "".join(piece for some in pieces for piece in some) == expected["text"]
    found, wanted = _counted(ended["result"]), _counted(expected)
    assert found == wanted, (found, wanted)


def one_is_too_long(site: Site, prompts: int, chance: random.Random) -> None:
    """Run so many prompts at the same time, of which one is too long."""
    kinds = [question(name, max_tokens=5) for name in NAMES]
    texts = [one["text"] for one in _results(site, kinds)]
    values: list[Any] = [kinds[n % len(kinds)] for n in range(prompts)]
    bad = chance.randrange(prompts)
    values[bad] = {"prompt": "for " * 2000}
    for n, job in enumerate(site.client.wait(*site.client.submit("m", *values), timeout_s=600)):
        found = site.shown(job.id)
        if n == bad:
            assert found["error"]["type"] == "input-error"
            assert "context length is 1,024" in found["error"]["message"]
        else:
            assert found["result"]["text"] == texts[n % len(kinds)], found
            assert found["attempts"] == 1


def run(folder: Path, seed: int, *, kills: int, prompts: int, crowded: int) -> None:
    """Run all; raise AssertionError if a text differs, or a prompt fails that should not."""
    chance = random.Random(seed)
    _say(f"--seed {seed}: {kills} kills, {crowded} among many answers, {prompts:,} prompts")
    with running(folder, {"m": MODEL}, OMP_NUM_THREADS="1") as site:
        began = time.monotonic()
        kill_in_the_middle(site, kills, chance)
        _say(f"{time.monotonic() - began:.0f} s: {kills} texts are equal after a kill")
        began = time.monotonic()
        kill_while_put_back(site, crowded, chance)
        _say(f"{time.monotonic() - began:.0f} s: all texts are equal after {crowded} more kills")
        began = time.monotonic()
        one_is_too_long(site, prompts, chance)
        _say(f"{time.monotonic() - began:.0f} s: of {prompts:,} prompts one failed")


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.generations", description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--crowded", type=int, default=20, help="kills while answers are put back")
    parser.add_argument("--prompts", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=None, help="default: a new one")
    given = parser.parse_args()
    seed = random.randrange(2**32) if given.seed is None else given.seed
    with tempfile.TemporaryDirectory(prefix="headrace-generations-") as folder:
        run(Path(folder), seed, kills=given.kills, prompts=given.prompts, crowded=given.crowded)


if __name__ == "__main__":
    main()
