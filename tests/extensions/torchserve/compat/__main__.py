"""Send scenarios to a server and print its answers.

`python -m tests.extensions.torchserve.compat [theirs|ours] NAME…`


All scenarios without a name. The log of the server goes to the error output. It is for looking at
the real TorchServe by hand.
"""

# ruff: noqa: T201
from __future__ import annotations

import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

from tests.extensions.torchserve.compat.archives import NOOP_2, build, build_all, build_broken
from tests.extensions.torchserve.compat.cases import guarded, restored
from tests.extensions.torchserve.compat.cases.guarded import GUARDED
from tests.extensions.torchserve.compat.cases.restored import RESTORED
from tests.extensions.torchserve.compat.cases.table import CONFIG, Scenario
from tests.extensions.torchserve.compat.compare import registered
from tests.extensions.torchserve.compat.servers import (
    ARCHIVER,
    Answer,
    Server,
    missing,
    ours,
    theirs,
)
from tests.extensions.torchserve.compat.test_same import FLAGS, SCENARIOS

SHOWN = 700
#: Headers that every answer has.
USUAL = ("x-request-id", "pragma", "cache-control", "expires", "content-length", "connection")


def show(answer: Answer) -> None:
    own = {name: value for name, value in answer.headers if name.lower() not in USUAL}
    print(f"    {answer.status} {own or ''}")
    for line in answer.body[:SHOWN].decode(errors="backslashreplace").splitlines():
        print(f"      {line}")


def main() -> None:
    side, *names = sys.argv[1:] or ["theirs"]
    with tempfile.TemporaryDirectory(prefix="compat") as folder:
        store = Path(folder)
        archiver = None if missing() else ARCHIVER
        build_all(store, archiver=archiver)
        build(NOOP_2, store, archiver)
        build_broken(store)
        start = theirs if side == "theirs" else ours
        chosen = [one for _, one in SCENARIOS if not names or one.name in names]
        if chosen:
            with start(store, ["noop.mar"], CONFIG, *FLAGS) as server:
                look(server, chosen, registers=True)
        chosen = [one for one in GUARDED if not names or one.name in names]
        if chosen:
            with start(store, guarded.MODELS, guarded.CONFIG) as server:
                look(server, chosen, registers=False)
        chosen = [one for one in RESTORED if not names or one.name in names]
        if chosen:
            with start(store, [], restored.CONFIG, "--disable-token-auth") as server:
                server.wait_loaded(restored.LOADED)
                look(server, chosen, registers=False)


def look(server: Server, scenarios: list[Scenario], *, registers: bool) -> None:
    for scenario in scenarios:
        began = time.monotonic()
        print(f"== {scenario}")
        with registered(server, scenario.models) if registers else nullcontext():
            for ask in scenario.asks:
                print(f"  {ask}")
                for answer in server.ask(ask):
                    show(answer)
        print(f"== {scenario} took {time.monotonic() - began:.1f} s")
    print(server.log, file=sys.stderr)


if __name__ == "__main__":
    main()
