"""Serves a model of a running server with other options, or a model for a while."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final

import yaml

from extensions.tuning.bench.reservation import reserved
from headrace.client.sync_client import Client
from headrace.errors import HeadraceError, ModelNotFound, last_line
from headrace.schema.registry import Registration

_WAIT_S: Final = 30.0
#: The version of a model that is registered for a while; TorchServe's default.
_VERSION: Final = "1.0"


class NotServed(HeadraceError, title="Not served"):
    """The model cannot be served with these options; the message has the reason."""


def changed_options(client: Client, model: str) -> dict[str, Any]:
    """Return the options of the default version that were changed over the API.

    Raises:
        ModelNotFound: the model is not registered.
    """
    versions = client.model_versions(model).versions
    return next((dict(one.changed) for one in versions if one.default), {})


def apply_options(client: Client, model: str, options: Mapping[str, Any], timeout_s: float) -> None:
    """Set options of a model in the registry, and wait until the workers serve it.

    Raises:
        NotServed: they cannot load it, or not in time.
        InvalidRequest, Forbidden: the server refuses an option.
    """
    deadline = time.monotonic() + timeout_s
    done = client.set_model_options(model, dict(options), wait=min(_WAIT_S, timeout_s))
    _until_served(client, model, options, done, deadline, timeout_s)


@contextmanager
def temporary_model(
    client: Client, prefix: str, options: Mapping[str, Any], timeout_s: float, holder: str
) -> Iterator[str]:
    """Register a model, yield its name when it is served, and remove it at the end.

    The name is new, so that no other model is replaced or removed.

    Args:
        holder: the command, in words; `take_back` removes the model if it was killed.

    Raises:
        NotServed: they cannot load it, or not in time.
        InvalidRequest, Forbidden: the server refuses the model.
    """
    name = f"{prefix}-{secrets.token_hex(4)}"
    deadline = time.monotonic() + timeout_s
    wait = min(_WAIT_S, timeout_s)
    with reserved(client.session.url, name, holder) as reservation:
        reservation.registers()
        try:
            done = client.register_model(name, _VERSION, dict(options), wait=wait)
            _until_served(client, name, options, done, deadline, timeout_s)
            yield name
        finally:
            with suppress(ModelNotFound):
                client.remove_model(name, wait=_WAIT_S)
            reservation.restored()


def revert_command(model: str, before: Mapping[str, Any], keys: Iterable[str], url: str) -> str:
    """Return the command that takes options back to what they were."""
    values = [f"{key}={_argument(before[key]) if key in before else ''}" for key in keys]
    return " ".join(["headrace models set", model, *values, "--url", url])


def _argument(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=10_000).split("\n...")[0].strip()
    return f"'{text}'" if set(text) & set(" {}[]'\"") else text


def _until_served(
    client: Client,
    model: str,
    options: Mapping[str, Any],
    done: Registration,
    deadline: float,
    timeout_s: float,
) -> None:
    """Wait until the workers serve a change, which has been made."""
    while done.state == "pending" and time.monotonic() < deadline:
        # The same options again change nothing, and wait for the same state.
        done = client.set_model_options(model, dict(options), wait=min(_WAIT_S, timeout_s))
    if done.state != "ready":
        reason = last_line(done.error or "") or f"it is not loaded after {timeout_s:g} s"
        raise NotServed(f"the workers cannot serve {model} with these options: {reason}")
