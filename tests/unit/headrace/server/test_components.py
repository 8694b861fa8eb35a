"""What the components of a deployment get from their supervisor."""

from __future__ import annotations

from headrace.config.settings import load_settings
from headrace.server.components import environment


def test_options_of_the_command_line_reach_every_component() -> None:
    given = {"host": "::1", "port": 9000, "api_processes": 3, "worker_labels": ("zone=b",)}
    environ = environment(load_settings(None, {}, given), "redis://127.0.0.1:1/0", {})
    again = load_settings(
        None, {n: v for n, v in environ.items() if n != "HEADRACE_USER_ENVIRONMENT"}, {}
    )
    assert {name: getattr(again, name) for name in given} == given
    assert again.redis_url == "redis://127.0.0.1:1/0"
