"""Checks of the settings, the models file and its files, the payload store and the disks."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import sys
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from headrace.cli.doctor.check import (
    CheckResult,
    CheckSkipped,
    fail,
    named,
    ok,
    size,
    skip,
    warn,
    worst,
)
from headrace.cli.doctor.deployment import Deployment, error_line
from headrace.cli.doctor.redis_durability import DISK_LOW, DISK_OUT, FULL, free_space
from headrace.cli.shared.exit_codes import ExitCode
from headrace.cli.shared.output import count
from headrace.config.handler_reference import (
    HandlerKind,
    HandlerReference,
    parse_handler,
    source_problem,
)
from headrace.config.model_catalog import ModelConfig
from headrace.config.paths import server_root
from headrace.config.settings import ENV_CONFIG
from headrace.errors import ConfigError, HeadraceError
from headrace.payloads.index import PayloadIndex
from headrace.payloads.s3_client import Bucket, s3_client
from headrace.redis import keys

_SAFETENSORS_HEAD: Final = 8
#: First bytes of files that torch.save writes, now and before version 1.6.
_TORCH_MAGIC: Final = (b"PK\x03\x04", b"\x80\x02", b"\x80\x04")
#: The packages that the built-in handlers import.
_NEEDS: Final = {
    "echo": (),
    "digits": ("torch", "safetensors", "PIL"),
    "image_classifier": ("torch", "safetensors", "PIL"),
}


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


def handlers(deployment: Deployment) -> CheckResult:
    """`handlers`: the code of each model exists. The code is not run."""
    found = []
    for model in deployment.catalog.models.values():
        spec = parse_handler(model.handler)
        if spec.kind is HandlerKind.BUILTIN:
            missing = [name for name in _NEEDS[spec.target] if find_spec(name) is None]
            if missing:
                hint = "install it on the workers' hosts: pip install 'headrace[worker,torch]'"
                text = f"{model.name}: {named(missing)} not installed on this host"
                found.append(warn(text, hint))
            continue
        problem = _handler_problem(spec, deployment.catalog.base_dir)
        if problem:
            hint = (
                "correct `handler` in the models file, or install its package on the workers' hosts"
            )
            found.append(fail(f"{model.name}: {problem}", hint))
    return worst(
        found, ok(f"the handlers of {count(len(deployment.catalog.models), 'model')} exist")
    )


def _handler_problem(spec: HandlerReference, base_dir: Path) -> str | None:
    if spec.kind is HandlerKind.FILE:
        file: Path | None = spec.file(base_dir)
    else:
        try:
            file = _module_file(spec.target)
        except ModuleNotFoundError as error:
            return str(error)
    return source_problem(file, spec.name) if file is not None else None


def _module_file(dotted: str) -> Path | None:
    """Return the file of a module without importing its packages.

    Raises:
        ModuleNotFoundError: the module does not exist.
    """
    path: list[str] | None = [*sys.path, os.getcwd(), str(server_root())]
    spec = None
    for depth in range(1, dotted.count(".") + 2):
        name = ".".join(dotted.split(".")[:depth])
        spec = PathFinder.find_spec(name, path)
        if spec is None:
            raise ModuleNotFoundError(f"no module {name} on this host")
        path = list(spec.submodule_search_locations or ())
    origin = None if spec is None else spec.origin
    return Path(origin) if origin is not None and origin.endswith(".py") else None


def weights(deployment: Deployment) -> CheckResult:
    """`weights`: the models' weight files exist, are readable and look complete."""
    models = [model for model in deployment.catalog.models.values() if model.weights is not None]
    found, total = [], 0
    for model in models:
        problem, length = _weights_problem(model)
        total += length
        if problem:
            hint = (
                "provide the file, or correct `weights` in the models file; every worker needs it"
            )
            found.append(fail(f"{model.name}: {problem}", hint))
    if not models:
        return skip("no model has weights")
    return worst(found, ok(f"{count(len(models), 'file')}, {size(total)}"))


def _weights_problem(model: ModelConfig) -> tuple[str, int]:
    path = Path(str(model.weights))
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


def payload_store(deployment: Deployment) -> CheckResult:
    """`payload-store`: large inputs and results can be stored."""
    chosen = deployment.settings.payload_store
    if chosen == "file":
        return _folder_store(deployment)
    if chosen == "s3":
        return _s3_store(deployment)
    used = int(deployment.redis.hget(keys.PAYLOAD_SIZES, "") or 0)
    most = PayloadIndex(deployment.redis, deployment.settings.max_payload_memory_bytes).max_bytes()
    text = f"in Redis: {size(used)} of {size(most)}"
    if used > FULL * most:
        return warn(text, "long inputs are refused with 507 at the bound: use payload_store file")
    return ok(text)


def _folder_store(deployment: Deployment) -> CheckResult:
    folder = deployment.settings.payload_dir
    if folder is None:
        return fail("payload_store is file, but payload_dir is not set", "set payload_dir")
    hint = "use a folder that the API and every worker can write to as the same user"
    if not folder.is_dir():
        return fail(f"payload_dir {folder} does not exist", hint)
    probe = folder / f".doctor-{secrets.token_hex(6)}"
    try:
        with open(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(b"x")
            file.flush()
            os.fsync(file.fileno())
        probe.unlink()
    except OSError as error:
        return fail(f"payload_dir {folder} cannot be written: {error.strerror}", hint)
    if folder.stat().st_mode & stat.S_IWOTH:
        return warn(f"payload_dir {folder} is writable for all users", f"chmod 700 {folder}")
    return free_space(folder, "payloads")


def _s3_store(deployment: Deployment) -> CheckResult:
    settings = deployment.settings
    if settings.payload_bucket is None:
        return fail("payload_store is s3, but payload_bucket is not set", "set payload_bucket")
    client = s3_client(settings.payload_endpoint_url, 1, tries=1)
    name = f"{settings.payload_prefix}doctor-{secrets.token_hex(6)}"
    bucket = Bucket(settings.payload_bucket, client)
    try:
        bucket.write(name, b"x")
        bucket.delete(name)
    except HeadraceError as error:
        cause = f" ({error_line(error.__cause__)})" if error.__cause__ is not None else ""
        return fail(
            f"bucket {settings.payload_bucket} cannot be written: {error.message}{cause}",
            "correct payload_bucket, payload_endpoint_url, or boto's credentials",
        )
    return ok(f"bucket {settings.payload_bucket} can be written")


def state_dir(deployment: Deployment) -> CheckResult:
    """`state-dir`: `headrace up` can store its data, and other users cannot read it."""
    folder = deployment.state_dir
    if not folder.exists():
        raise CheckSkipped(f"{folder} does not exist; `headrace up` creates it")
    hint = "use another folder with --state-dir, or make the user of `headrace up` its owner"
    if not folder.is_dir():
        return fail(f"{folder} is not a folder", hint)
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        return fail(f"{folder} is not writable for this user", hint)
    if folder.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        return warn(f"{folder} is open to other users; it contains Redis' password",
                    f"chmod 700 {folder}")  # fmt: skip
    return ok(f"{folder}")


def disks(deployment: Deployment) -> CheckResult:
    """`disks`: the disks of this host and of the workers' hosts have free space."""
    found = [free_space(deployment.state_dir, "the state directory")]
    hosts = {}
    with contextlib.suppress(CheckSkipped):
        hosts = {r.figures.host.name: r.figures.host for _, r in deployment.alive if r.figures.host}
    for host in hosts.values():
        if not host.disk_bytes:
            continue
        share = host.disk_available_bytes / host.disk_bytes
        text = f"{size(host.disk_available_bytes)} free on {host.name}"
        if share < DISK_LOW:
            kind = fail if share < DISK_OUT else warn
            found.append(kind(text, "free disk space: see docs/operations.md"))
    return worst([one for one in found if one.verdict != "ok"], found[0])
