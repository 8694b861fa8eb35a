"""What this extension adds."""

from __future__ import annotations

from typing import Any, Final

from headrace.config.extensions import Command, Extension


def _api() -> object:
    from extensions.openai.api.part import PART

    return PART


def _server() -> object:
    from extensions.openai.server.part import PART

    return PART


def _runner() -> Any:
    from extensions.openai.cli.runner import runner

    return runner


def _checks() -> object:
    from extensions.openai.cli.doctor import CHECKS

    return CHECKS


EXTENSION: Final = Extension(
    name="openai",
    summary="OpenAI's API: chat, completions, embeddings, responses, files and batches",
    commands={"runner": Command(load=_runner)},
    api=_api,
    server=_server,
    checks=_checks,
)
