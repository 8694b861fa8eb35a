"""Send scenarios to a server and print its answers: `python -m tests.compat [theirs|ours] NAME…`.

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

from tests.compat import guarded_cases, restored_cases
from tests.compat.archives import NOOP_2, build, build_all, build_broken
from tests.compat.cases import CONFIG, Scenario
from tests.compat.compare import registered
from tests.compat.guarded_cases import GUARDED
from tests.compat.restored_cases import RESTORED
from tests.compat.servers import ARCHIVER, Answer, Server, missing, ours, theirs
from tests.compat.test_same import FLAGS, SCENARIOS

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
            with start(store, guarded_cases.MODELS, guarded_cases.CONFIG) as server:
                look(server, chosen, registers=False)
        chosen = [one for one in RESTORED if not names or one.name in names]
        if chosen:
            with start(store, [], restored_cases.CONFIG, "--disable-token-auth") as server:
                server.wait_loaded(restored_cases.LOADED)
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
