"""Checks of this host and of the API's exposure: versions, limits, keys and certificates."""

from __future__ import annotations

import re
import resource
import ssl
import sys
import time
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Final

from packaging.requirements import InvalidRequirement, Requirement

from headrace._version import __version__
from headrace.cli.doctor.check import CheckResult, CheckSkipped, fail, named, ok, skip, warn, worst
from headrace.cli.doctor.deployment import Deployment, error_line
from headrace.config.settings import is_loopback
from headrace.redis import keys

OLDEST_PYTHON: Final = (3, 11)
#: An API process needs a socket per connection, a worker several per model process.
OPEN_FILES: Final = 1024
FILES_FULL: Final = 0.8
SOON_DAYS: Final = 14
_DAY_S: Final = 86_400


def versions(deployment: Deployment) -> CheckResult:
    """`versions`: Headrace supports this Python and the installed packages."""
    python = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < OLDEST_PYTHON:
        return fail(f"Python {python}", "Headrace needs Python >= 3.11")
    try:
        wanted = requires("headrace") or []
    except PackageNotFoundError:
        return ok(f"Headrace {__version__} from its source, Python {python}")
    found = [problem for text in wanted if (problem := _mismatch(text))]
    if found:
        return warn(
            f"packages that Headrace {__version__} does not support: {named(found)}",
            "pip install --upgrade 'headrace[...]' with the extras of this host",
        )
    return ok(f"Headrace {__version__}, Python {python}, supported packages")


def _mismatch(text: str) -> str:
    """Return what is wrong with an installed package; a package that is not installed is fine."""
    try:
        wanted = Requirement(text)
        installed = version(wanted.name)
    except (InvalidRequirement, PackageNotFoundError):
        return ""
    if wanted.specifier.contains(installed, prereleases=True):
        return ""
    return f"{wanted.name} {installed}, requires {wanted.specifier}"


def open_files(deployment: Deployment) -> CheckResult:
    """`open-files`: the processes of this host can open enough files and connections."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    hint = "raise it before they start: ulimit -n 65536, or LimitNOFILE= in systemd"
    found = []
    if most != resource.RLIM_INFINITY and most < OPEN_FILES:
        found.append(warn(f"ulimit -n is {most} here", hint))
    for name, pid in _own_processes(deployment):
        opened, limit = _files_of(pid)
        if limit and opened > FILES_FULL * limit:
            found.append(warn(f"{name} has {opened} of {limit} files open", hint))
        elif limit and limit < OPEN_FILES:
            found.append(warn(f"{name} can open only {limit} files", hint))
    return worst(found, ok(f"ulimit -n is {most}"))


def _own_processes(deployment: Deployment) -> list[tuple[str, int]]:
    try:
        return [(seen.node, report.pid) for seen, report in deployment.alive if seen.here]
    except CheckSkipped:
        return []


def _files_of(pid: int) -> tuple[int, int]:
    """Return the number of open files of a process and its limit; 0 without permission."""
    try:
        limits = Path(f"/proc/{pid}/limits").read_text()
        opened = sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return 0, 0
    found = re.search(r"^Max open files\s+(\d+)", limits, re.MULTILINE)
    return opened, int(found[1]) if found else 0


def exposure(deployment: Deployment) -> CheckResult:
    """`exposure`: an API that other hosts can reach requires keys and uses TLS."""
    settings = deployment.settings
    where = settings.public_host
    if is_loopback(where):
        return ok(f"the API listens on {where}: only this machine can reach it")
    if not settings.asks_for_keys:
        return fail(
            f"anybody who can reach {where} can use the API: it does not require keys",
            "set auth: on, or remove auth, and create keys: headrace keys create",
        )
    found = []
    if not settings.tls:
        found.append(
            warn(
                f"keys and inputs to {where} are not encrypted",
                "set tls_cert_file, or use a proxy with TLS (docs/security.md)",
            )
        )
    if not _keys_exist(deployment):
        found.append(warn("the API requires keys, but there are no keys", "headrace keys create"))
    return worst(found, ok(f"the API on {where} requires keys and uses TLS"))


def _keys_exist(deployment: Deployment) -> bool:
    try:
        return bool(deployment.redis.zcard(keys.API_KEYS))
    except CheckSkipped:
        return True


def certificate(deployment: Deployment) -> CheckResult:
    """`certificate`: the API's certificate is valid for some time."""
    settings = deployment.settings
    file, key = settings.tls_cert_file, settings.tls_key_file
    if file is None:
        if key is not None:
            return fail("tls_key_file is set, but tls_cert_file is not", "set both")
        return skip("the API does not use TLS")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(file, key)
        ends_s = expiry_s(file)
    except (OSError, ValueError) as error:
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


def expiry_s(file: Path) -> float:
    """Return when the first certificate of a PEM file expires, in seconds since 1970.

    Raises:
        ValueError: the file has no valid certificate.
    """
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    text = file.read_text("ascii", "replace")
    body = text.partition(begin)[2].partition(end)[0]
    der = ssl.PEM_cert_to_DER_cert(f"{begin}{body}{end}")
    # Certificate > tbsCertificate > [version,] serial, algorithm, issuer, then validity.
    tbs = _parts(_parts(der)[0][1])[0][1]
    fields = [field for field in _parts(tbs) if field[0] != 0xA0]
    tag, ends = _parts(fields[3][1])[1]
    text = ends.decode("ascii")
    form = "%y%m%d%H%M%SZ" if tag == 0x17 else "%Y%m%d%H%M%SZ"
    return datetime.strptime(text, form).replace(tzinfo=UTC).timestamp()


def _parts(der: bytes) -> list[tuple[int, bytes]]:
    """Return the tag and the content of each element of a DER sequence.

    Raises:
        ValueError: the data is truncated.
    """
    found, at = [], 0
    while at < len(der):
        tag, length, at = der[at], der[at + 1], at + 2
        if length & 0x80:
            size = length & 0x7F
            length, at = int.from_bytes(der[at : at + size], "big"), at + size
        if at + length > len(der):
            raise ValueError("the certificate is truncated")
        found.append((tag, der[at : at + length]))
        at += length
    return found
