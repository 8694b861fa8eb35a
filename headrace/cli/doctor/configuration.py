"""Checks of the settings, the models file and its files, and the API's exposure."""

from __future__ import annotations

import importlib
import os
import re
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import msgspec

from headrace.cli.doctor.check import Check, CheckResult, Verdict, fail, ok, skip, warn
from headrace.cli.doctor.deployment import Deployment
from headrace.cli.shared.exit_codes import ExitCode
from headrace.cli.shared.output import error_line
from headrace.config.environment import server_root, with_server_path
from headrace.config.extensions import POINTS, found, loaded, parts, settings_types
from headrace.config.model.handler_reference import (
    HandlerKind,
    HandlerReference,
    parse_handler,
    source_problem,
)
from headrace.config.settings import ENV_CONFIG, is_loopback
from headrace.errors import ConfigError
from headrace.redis import keys
from headrace.text import count, named, size

_PROGRAM: Final = "from headrace.cli.doctor.configuration import print_found; print_found()"
_LIMIT_S: Final = 60
_HINT: Final = "install what it needs here, or remove its distribution"


class _Seen(msgspec.Struct):
    summaries: dict[str, str]
    problems: dict[str, str]


def extensions(deployment: Deployment) -> CheckResult:
    """`extensions`: each extension can be imported, with its parts that this host can run."""
    # In a process of its own, as parts import what servers import.
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], env=with_server_path(deployment.environ),
        capture_output=True, text=True, timeout=_LIMIT_S, check=False,
    )  # fmt: skip
    try:
        seen = msgspec.json.decode(done.stdout, type=_Seen)
    except msgspec.DecodeError:
        lines = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        return fail(f"extensions end the process that imports them: {lines[-1][:200]}", _HINT)
    problems = [(f"{name}: {problem}", _HINT) for name, problem in seen.problems.items()]
    listed = [(f"{name}: {summary}", "") for name, summary in seen.summaries.items()]
    if problems:
        sentence = "; ".join(text for text, _ in problems)
        return CheckResult(Verdict.WARN, sentence, _HINT, parts=(*problems, *listed))
    sentence = "; ".join(text for text, _ in listed) or "none is installed"
    return CheckResult(Verdict.OK, sentence, parts=tuple(listed))


def print_found() -> None:
    """Import all parts of all extensions, and print what was found as JSON."""
    for point, (module, kind) in POINTS.items():
        try:
            part = getattr(importlib.import_module(module), kind)
        except ImportError:
            continue  # this host cannot run the process that asks there
        parts(point, part)
    settings_types()
    extension_checks()
    for name, extension in found().extensions.items():
        for command, of_it in extension.commands.items():
            loaded(name, f"command `{command}`", of_it.load)
    summaries = {name: extension.summary for name, extension in found().extensions.items()}
    sys.stdout.buffer.write(msgspec.json.encode(_Seen(summaries, found().problems)))


def extension_checks() -> list[Check]:
    """Return the checks that extensions add."""
    return [check for checks in parts("checks", tuple).values() for check in checks]


_SAFETENSORS_HEAD: Final = 8
#: First bytes of files that torch.save writes, now and before version 1.6.
_TORCH_MAGIC: Final = (b"PK\x03\x04", b"\x80\x02", b"\x80\x04")
#: The packages that the built-in handlers import; `_EXTRAS` has the extra that brings them.
NEEDS: Final = {
    "echo": (),
    "digits": ("torch", "safetensors", "PIL"),
    "image_classifier": ("torch", "safetensors", "PIL"),
    "image_segmenter": ("torch", "safetensors", "PIL"),
    "object_detector": ("torch", "safetensors", "PIL"),
    "text_classifier": ("torch", "safetensors"),
    "language_model": ("torch", "transformers", "tokenizers", "jinja2"),
    "text_embedding": ("torch", "transformers", "tokenizers"),
    "tensor_model": ("torch", "numpy"),
}
_EXTRAS: Final = {"language_model": "generation", "text_embedding": "generation"}
#: OpenSSL's X509_V_FLAG_NO_CHECK_TIME, which the ssl module does not name.
_NO_CHECK_TIME: Final = 0x200000
SOON_DAYS: Final = 14
ENV_FILE: Final = ".env"
_COMPOSE_FILES: Final = ("*compose*.y*ml", "deploy/*compose*.y*ml")
_ASSIGNED: Final = re.compile(r"^\s*(?:export\s+)?(HEADRACE_\w+)\s*=", re.MULTILINE)
_INTERPOLATED: Final = re.compile(r"\$\{?(HEADRACE_\w+)")
_DAY_S: Final = 86_400


def settings(deployment: Deployment) -> CheckResult:
    """`settings`: the settings file and the variables are valid."""
    try:
        deployment.read_settings()
    except ConfigError as error:
        lines = error.message.splitlines()
        return fail(
            f"{len(lines)} invalid: {'; '.join(lines[:3])}",
            error.hint or "docs/configuration.md lists all settings", ExitCode.USAGE,
        )  # fmt: skip
    file = deployment.environ.get(ENV_CONFIG)
    return ok(f"from {file} and the environment" if file else "from the environment")


def env_file(deployment: Deployment) -> CheckResult:
    """`env-file`: no setting is left in `.env`, which only Docker Compose reads, for itself."""
    try:
        text = Path(ENV_FILE).read_text(errors="replace")
    except FileNotFoundError:
        return ok(f"no {ENV_FILE} in this folder")
    except OSError as error:
        return skip(f"{ENV_FILE} cannot be read: {error.strerror}")
    given = dict.fromkeys(_ASSIGNED.findall(text))
    used = {
        name
        for pattern in _COMPOSE_FILES
        for file in Path().glob(pattern)
        for name in _INTERPOLATED.findall(file.read_text(errors="replace"))
    }
    unread = [name for name in given if name not in used and name not in deployment.environ]
    if unread:
        return warn(
            f"nothing reads {named(unread)} in {ENV_FILE}",
            "with Docker Compose, write settings into settings.env; else export them",
        )
    return ok(f"no setting in {ENV_FILE} is without effect")


def models_file(deployment: Deployment) -> CheckResult:
    """`models-file`: the file exists and is valid."""
    path = deployment.settings.models_file
    try:
        catalog = deployment.read_catalog()
    except ConfigError as error:
        lines = error.message.splitlines()
        more = f" (the first of {len(lines)} mistakes)" if len(lines) > 1 else ""
        return fail(f"{lines[0]}{more}", f"headrace check-config {path}", ExitCode.USAGE)
    models, pipelines = len(catalog.models), len(catalog.pipelines)
    return ok(f"{path}: {count(models, 'model')}, {count(pipelines, 'pipeline')}")


def handlers(deployment: Deployment) -> Iterator[CheckResult]:
    """`handlers`: the code of each model exists. The code is not run."""
    for model in deployment.catalog.models.values():
        if model.source is not None:  # `headrace check-config` reads sources
            continue
        spec = parse_handler(model.handler)
        if spec.kind is HandlerKind.BUILTIN:
            missing = [name for name in NEEDS[spec.target] if find_spec(name) is None]
            if missing:
                extra = _EXTRAS.get(spec.target, "torch")
                yield warn(
                    f"{model.name}: {named(missing)} not installed on this host",
                    f"install it on the workers' hosts: pip install 'headrace[worker,{extra}]'",
                )
        elif problem := _handler_problem(spec, deployment.catalog.base_dir):
            yield fail(
                f"{model.name}: {problem}",
                "correct `handler` in the models file, or install its package on the workers' "
                "hosts",
            )
    yield ok(f"the handlers of {count(len(deployment.catalog.models), 'model')} exist")


def _handler_problem(spec: HandlerReference, base_dir: Path) -> str | None:
    if spec.kind is HandlerKind.EXTENSION:  # only its process knows where it may be
        return None
    if spec.kind is HandlerKind.FILE:
        file: Path | None = spec.file(base_dir)
    else:
        try:
            file = _module_file(spec.target)
        except ModuleNotFoundError as error:
            return str(error)
    return source_problem(file, spec.name) if file is not None else None


def _module_file(dotted: str) -> Path | None:
    """Return a module's file without importing its packages; raise ModuleNotFoundError for none."""
    ours = [str(server_root())]
    users = [*(entry for entry in sys.path if entry not in ours), os.getcwd()]
    # As in a model process: the user's module wins, also in a folder with the name of one of ours.
    spec = _module_spec(dotted, users) or _module_spec(dotted, ours)
    if spec is None:
        raise ModuleNotFoundError(f"no module {dotted} on this host")
    origin = spec.origin
    return Path(origin) if origin is not None and origin.endswith(".py") else None


def _module_spec(dotted: str, path: Sequence[str]) -> ModuleSpec | None:
    spec = None
    for depth in range(1, dotted.count(".") + 2):
        spec = PathFinder.find_spec(".".join(dotted.split(".")[:depth]), path)
        if spec is None:
            return None
        path = list(spec.submodule_search_locations or ())
    return spec


def weights(deployment: Deployment) -> Iterator[CheckResult]:
    """`weights`: the models' weight files exist, are readable and look complete."""
    files, total = 0, 0
    for model in deployment.catalog.models.values():
        if model.weights is None or model.source is not None:
            continue
        problem, length = _weights_problem(Path(str(model.weights)))
        files, total = files + 1, total + length
        if problem:
            yield fail(
                f"{model.name}: {problem}",
                "provide the file, or correct `weights` in the models file; every worker needs it",
            )
    yield ok(f"{count(files, 'file')}, {size(total)}") if files else skip("no model has weights")


def _weights_problem(path: Path) -> tuple[str, int]:
    """Return what is wrong with a file or folder of weights (empty if nothing), and its length."""
    try:
        if path.is_dir():
            return ("" if any(path.iterdir()) else f"{path} is empty"), 0
        with path.open("rb") as file:
            head, length = file.read(_SAFETENSORS_HEAD), os.fstat(file.fileno()).st_size
    except OSError as error:
        return f"{path}: {error.strerror}", 0
    if not length:
        return f"{path} is empty", 0
    if head.startswith(b"version https://"[:_SAFETENSORS_HEAD]):
        return f"{path} is a Git LFS pointer, not the file: git lfs pull", length
    if path.suffix == ".safetensors" and not 0 < int.from_bytes(head, "little") < length:
        return f"{path} is not a complete safetensors file", length
    if path.suffix in (".pt", ".pth") and not head.startswith(_TORCH_MAGIC):
        return f"{path} was not written by torch.save", length
    return "", length


def exposure(deployment: Deployment) -> Iterator[CheckResult]:
    """`exposure`: an API that other hosts can reach requires keys and uses TLS."""
    settings = deployment.settings
    where = settings.public_host
    if is_loopback(where):
        yield ok(f"the API listens on {where}: only this machine can reach it")
        return
    if not settings.asks_for_keys:
        yield fail(
            f"anybody who can reach {where} can use the API: it does not require keys",
            "set auth: on, or remove auth, and create keys: headrace keys create",
        )
        return
    if not settings.tls:
        yield warn(
            f"keys and inputs to {where} are not encrypted",
            "set tls_cert_file, or use a proxy with TLS (docs/security.md)",
        )
    if deployment.has_redis and not deployment.redis.zcard(keys.API_KEYS):
        yield warn("the API requires keys, but there are no keys", "headrace keys create")
    yield ok(f"the API on {where} requires keys and uses TLS")


def certificate(deployment: Deployment) -> CheckResult:
    """`certificate`: the API's certificate is valid for some time."""
    settings = deployment.settings
    file, key = settings.tls_cert_file, settings.tls_key_file
    if file is None:
        if key is not None:
            return fail("tls_key_file is set, but tls_cert_file is not", "set both")
        return skip("the API does not use TLS")
    try:
        ends_s = _expiry_s(file, key)
    except OSError as error:
        return fail(
            f"{file} cannot be used: {error_line(error)}",
            "tls_cert_file needs the certificate and its chain in PEM, tls_key_file the key",
        )
    days = (ends_s - time.time()) / _DAY_S
    until = f"{datetime.fromtimestamp(ends_s, UTC):%Y-%m-%d}"
    hint = "write a new one to the same files: the API reads it within 10 s"
    if days < 0:
        return fail(f"{file} expired on {until}", hint)
    if days < SOON_DAYS:
        return warn(f"{file} expires on {until}, in {days:.0f} days", hint)
    return ok(f"{file} is valid until {until}")


def _expiry_s(file: Path, key: Path | None) -> float:
    """Return when the first certificate of a file expires, in seconds since 1970.

    The ssl module decodes only the certificate of a peer, so a client accepts it from a server,
    both in memory.

    Raises:
        OSError: the certificate or its key cannot be used; ssl.SSLError is one.
    """
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(file, key)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.load_verify_locations(file)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    peer = client.wrap_bio(to_client, to_server)
    for end in (peer, server.wrap_bio(to_server, to_client, server_side=True), peer):
        with suppress(ssl.SSLWantReadError):
            end.do_handshake()
    return ssl.cert_time_to_seconds(str((peer.getpeercert() or {})["notAfter"]))
