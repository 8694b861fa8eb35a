"""A closed-loop HTTP load generator: keep-alive connections on raw sockets, one thread.

wrk is used if it is installed, because it needs little of the two cores that it shares with the
server. The table names the generator.
"""

from __future__ import annotations

import json
import os
import re
import selectors
import shutil
import socket
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

#: The `Prefer` header of a submit that waits for its result.
WAIT = "wait=20"

_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)

WRK_SCRIPT = """
local f = io.open(os.getenv("BODY"), "rb"); wrk.body = f:read("*a"); f:close()
wrk.method = "POST"
wrk.headers["Content-Type"] = os.getenv("CONTENT_TYPE")
if os.getenv("PREFER") ~= "" then wrk.headers["Prefer"] = os.getenv("PREFER") end
if os.getenv("HEADER") ~= "" then wrk.headers[os.getenv("HEADER")] = os.getenv("VALUE") end
local codes = {}
function done(s, l, r)
  local form = "JSON{\\"n\\":%d,\\"s\\":%.4f,\\"p50\\":%.3f,\\"p99\\":%.3f,\\"bad\\":%d}\\n"
  io.write(string.format(form, s.requests, s.duration / 1e6,
    l:percentile(50) / 1e3, l:percentile(99) / 1e3,
    s.errors.status + s.errors.connect + s.errors.read + s.errors.write + s.errors.timeout))
end
"""


@dataclass
class Load:
    """The result of one load; times in ms."""

    rate: float
    p50_ms: float
    p99_ms: float
    bad: int
    requests: int
    codes: Counter[int] = field(default_factory=Counter)


def generator() -> str:
    """Return the generator that `run_load` uses here."""
    return (
        "wrk, one thread" if shutil.which("wrk") else "benchmarks/common/http_load.py, one thread"
    )


def run_load(
    url: str,
    body: bytes,
    connections: int,
    seconds: float,
    prefer: str = "",
    content_type: str = "application/json",
    header: tuple[str, str] = ("", ""),
) -> Load:
    """POST the body in a closed loop over keep-alive connections for `seconds`.

    `header` is one more header, with its value.
    """
    if shutil.which("wrk"):
        return _wrk(url, body, connections, seconds, prefer, content_type, header)
    return spread_load([url], body, connections, seconds, prefer, content_type, header)


def _wrk(
    url: str,
    body: bytes,
    connections: int,
    seconds: float,
    prefer: str,
    content_type: str,
    header: tuple[str, str],
) -> Load:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "post.lua").write_text(WRK_SCRIPT)
        (Path(folder) / "body").write_bytes(body)
        done = subprocess.run(
            ["wrk", "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s", "--timeout", "30s",
             "--latency", "-s", f"{folder}/post.lua", url],
            env={
                **os.environ,
                "BODY": f"{folder}/body", "PREFER": prefer, "CONTENT_TYPE": content_type,
                "HEADER": header[0], "VALUE": header[1],
            },
            capture_output=True, text=True, check=True, timeout=seconds + 60,
        )  # fmt: skip
    found = re.search(r"JSON(\{.*\})", done.stdout)
    if found is None:
        raise RuntimeError(f"cannot read the output of wrk: {done.stdout} {done.stderr}")
    got = json.loads(found.group(1))
    return Load(got["n"] / got["s"], got["p50"], got["p99"], got["bad"], got["n"])


@dataclass
class _Connection:
    sock: socket.socket
    request: bytes
    sent_at: float = 0.0
    buffer: bytearray = field(default_factory=bytearray)


def spread_load(
    urls: Sequence[str],
    body: bytes,
    connections: int,
    seconds: float,
    prefer: str = "",
    content_type: str = "application/json",
    header: tuple[str, str] = ("", ""),
) -> Load:
    """Do the same with the connections spread over several URLs, always without wrk."""
    targets = [urlsplit(url) for url in urls]
    more = f"Prefer: {prefer}\r\n" if prefer else ""
    more += f"{': '.join(header)}\r\n" if header[0] else ""
    selector = selectors.DefaultSelector()
    latencies: list[float] = []
    codes: Counter[int] = Counter()
    clock = time.perf_counter
    for number in range(connections):
        parts = targets[number % len(targets)]
        request = (
            f"POST {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\n"
            f"Content-Type: {content_type}\r\n{more}Content-Length: {len(body)}\r\n\r\n"
        ).encode() + body
        sock = socket.create_connection((parts.hostname or "127.0.0.1", parts.port or 80))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = _Connection(sock, request)
        selector.register(sock, selectors.EVENT_READ, connection)
        connection.sent_at = clock()
        sock.sendall(request)
    started = clock()
    end, outstanding = started + seconds, connections
    while outstanding and clock() < end + 30:
        for key, _ in selector.select(1):
            connection = key.data
            connection.buffer += connection.sock.recv(65536)
            code = _complete(connection.buffer)
            if code is None:
                continue
            now = clock()
            latencies.append(now - connection.sent_at)
            codes[code] += 1
            connection.buffer.clear()
            if now < end:
                connection.sent_at = now
                connection.sock.sendall(connection.request)
            else:
                outstanding -= 1
    for key in list(selector.get_map().values()):
        key.data.sock.close()
    selector.close()
    latencies.sort()
    bad = sum(count for code, count in codes.items() if code >= 400)
    return Load(
        len(latencies) / (clock() - started), _percentile(latencies, 0.5),
        _percentile(latencies, 0.99), bad, len(latencies), codes,
    )  # fmt: skip


def _complete(buffer: bytearray) -> int | None:
    head_end = buffer.find(b"\r\n\r\n")
    if head_end < 0:
        return None
    length = _LENGTH.search(buffer, 0, head_end)
    if length is None or len(buffer) < head_end + 4 + int(length.group(1)):
        return None
    return int(buffer[9:12])


def _percentile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] * 1000 if ordered else 0.0
