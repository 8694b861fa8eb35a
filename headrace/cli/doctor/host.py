"""This host, and how the API shows itself to others: versions, limits, keys and certificates."""

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
from headrace.cli.doctor.deployment import Deployment, sentence
from headrace.config.settings import is_loopback
from headrace.redis import keys

OLDEST_PYTHON: Final = (3, 11)
#: An API process holds a socket per connection, a worker several per model process.
OPEN_FILES: Final = 1024
FILES_FULL: Final = 0.8
SOON_DAYS: Final = 14
_DAY_S: Final = 86_400


def versions(site: Deployment) -> CheckResult:
    """`versions`: Python, and what Headrace is installed with, are those that it is made for."""
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
            f"installed beside what Headrace {__version__} is made for: {named(found)}",
            "pip install --upgrade 'headrace[...]' with the extras that this host needs",
        )
    return ok(f"Headrace {__version__}, Python {python}, and its packages fit")


def _mismatch(text: str) -> str:
    """What is wrong with an installed package; an extra that is not installed is not wrong."""
    try:
        wanted = Requirement(text)
        installed = version(wanted.name)
    except (InvalidRequirement, PackageNotFoundError):
        return ""
    if wanted.specifier.contains(installed, prereleases=True):
        return ""
    return f"{wanted.name} {installed}, wants {wanted.specifier}"


def open_files(site: Deployment) -> CheckResult:
    """`open-files`: the processes of this host may hold the connections that they need."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    hint = "raise it where they are started: ulimit -n 65536, or LimitNOFILE= of systemd"
    found = []
    if most != resource.RLIM_INFINITY and most < OPEN_FILES:
        found.append(warn(f"ulimit -n is {most} here", hint))
    for name, pid in _own_processes(site):
        opened, limit = _files_of(pid)
        if limit and opened > FILES_FULL * limit:
            found.append(warn(f"{name} has {opened} of {limit} files open", hint))
        elif limit and limit < OPEN_FILES:
            found.append(warn(f"{name} may open {limit} files", hint))
    return worst(found, ok(f"ulimit -n is {most}"))


def _own_processes(site: Deployment) -> list[tuple[str, int]]:
    try:
        return [(seen.node, report.pid) for seen, report in site.alive if seen.here]
    except CheckSkipped:
        return []


def _files_of(pid: int) -> tuple[int, int]:
    """Open files of a process, and how many it may have; 0 where we may not see it."""
    try:
        limits = Path(f"/proc/{pid}/limits").read_text()
        opened = sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return 0, 0
    found = re.search(r"^Max open files\s+(\d+)", limits, re.MULTILINE)
    return opened, int(found[1]) if found else 0


def exposure(site: Deployment) -> CheckResult:
    """`exposure`: whom the API lets in, where others than this machine reach it."""
    settings = site.settings
    where = settings.public_host
    if is_loopback(where):
        return ok(f"the API listens on {where}: this machine alone reaches it")
    if not settings.asks_for_keys:
        return fail(
            f"anybody who reaches {where} may use the API: no keys are asked for",
            "set auth: on (or leave it out), and make keys: headrace keys create",
        )
    found = []
    if not settings.tls:
        found.append(
            warn(
                f"keys and inputs travel to {where} in the clear",
                "set tls_cert_file, or put a proxy with TLS before it (docs/security.md)",
            )
        )
    if not _keys_exist(site):
        found.append(
            warn("keys are asked for, and there are none: nobody gets in", "headrace keys create")
        )
    return worst(found, ok(f"keys are asked for on {where}, over TLS"))


def _keys_exist(site: Deployment) -> bool:
    try:
        return bool(site.redis.zcard(keys.API_KEYS))
    except CheckSkipped:
        return True


def certificate(site: Deployment) -> CheckResult:
    """`certificate`: the API's can be used, and for some time yet."""
    settings = site.settings
    file, key = settings.tls_cert_file, settings.tls_key_file
    if file is None:
        if key is not None:
            return fail("tls_key_file is set, and tls_cert_file is not", "set both")
        return skip("the API speaks no TLS")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(file, key)
        ends_s = expiry_s(file)
    except (OSError, ValueError) as error:
        return fail(
            f"{file} cannot be used: {sentence(error)}",
            "tls_cert_file is the certificate and its chain in PEM, tls_key_file its key",
        )
    days = (ends_s - time.time()) / _DAY_S
    until = f"{datetime.fromtimestamp(ends_s, UTC):%Y-%m-%d}"
    hint = "put a new one into the same files: the API reads it within 10 s"
    if days < 0:
        return fail(f"{file} has expired on {until}", hint)
    if days < SOON_DAYS:
        return warn(f"{file} expires on {until}, in {days:.0f} days", hint)
    return ok(f"{file} is good until {until}")


def expiry_s(file: Path) -> float:
    """When the first certificate of a PEM file ends, in seconds since 1970.

    Raises:
        ValueError: it holds none that can be read.
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
    """What DER holds, one after the other: tag and content.

    Raises:
        ValueError: it is cut short.
    """
    found, at = [], 0
    while at < len(der):
        tag, length, at = der[at], der[at + 1], at + 2
        if length & 0x80:
            size = length & 0x7F
            length, at = int.from_bytes(der[at : at + size], "big"), at + size
        if at + length > len(der):
            raise ValueError("the certificate is cut short")
        found.append((tag, der[at : at + length]))
        at += length
    return found
