"""Secrets in files, as Docker and Kubernetes mount them: `NAME_FILE` names the file with `NAME`."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Final

from headrace.config.extensions import found
from headrace.errors import ConfigError

_SUFFIX: Final = "_FILE"
_SECRETS: Final = (
    "HEADRACE_REDIS_URL", "HEADRACE_WEBHOOK_SECRETS", "HEADRACE_API_KEY", "FLOWER_BASIC_AUTH",
)  # fmt: skip


def read_secret_files(environ: MutableMapping[str, str]) -> None:
    """Replace each `NAME_FILE` by `NAME` as `secret_of`, for this process and its children."""
    named = [
        name.removesuffix(_SUFFIX)
        for name in environ
        if name.endswith(_SUFFIX) and name.startswith(("HEADRACE_", "FLOWER_"))
    ]
    secrets = [name for name in named if name in _SECRETS]
    if len(secrets) < len(named):
        others = {name for extension in found().extensions.values() for name in extension.variables}
        secrets = [name for name in named if name in _SECRETS or name in others]
    for name in secrets:
        environ[name] = secret_of(environ, name)
        del environ[name + _SUFFIX]


def secret_of(environ: Mapping[str, str], name: str) -> str:
    """Return a secret from its variable, or from the file that `NAME_FILE` names; "" for none.

    Raises:
        ConfigError: the file cannot be read or is empty, or both variables are set.
    """
    value, file = environ.get(name, ""), environ.get(name + _SUFFIX, "")
    if not file:
        return value
    if value:
        raise ConfigError(f"{name} and {name}{_SUFFIX} are both set", hint="unset one of them")
    try:
        value = Path(file).read_text("utf-8").strip()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{name}{_SUFFIX}: {file} cannot be read: {error}") from error
    if not value:
        raise ConfigError(f"{name}{_SUFFIX}: {file} is empty", hint=f"write the {name} into it")
    return value
