"""The short runs of `tests.chaos.streams` and `tests.chaos.generations`."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.chaos import generations, streams


def drawn_seed() -> int:
    return int(os.environ.get("SEED") or random.randrange(2**32))


def test_clients_lose_no_piece_over_kills_of_api_processes(tmp_path: Path) -> None:
    streams.run(tmp_path, drawn_seed(), pieces=40_000, kills=6, clients=32)


@pytest.mark.timeout(900)
def test_kills_do_not_change_a_text_and_one_bad_prompt_fails_alone(tmp_path: Path) -> None:
    generations.run(tmp_path, drawn_seed(), kills=3, prompts=60, crowded=1)
