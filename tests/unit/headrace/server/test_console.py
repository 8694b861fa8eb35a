from __future__ import annotations

import io

from headrace.server.supervisor.console import Console


def test_hidden_lines_of_one_name_are_not_shown() -> None:
    stream = io.StringIO()
    console = Console(stream, ["redis", "api"], colour=False, hidden={"redis": [b"bye bye"]})
    console.feed("redis", b"1:M ready to exit, bye ")
    console.feed("redis", b"bye...\nout of memory\n")
    console.feed("api", b"bye bye\n")
    assert stream.getvalue() == "redis | out of memory\napi   | bye bye\n"
