"""A lone request: checks that a target answers, and that a server has nothing left to do."""

from __future__ import annotations

import http.client
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import quote, urlsplit

from extensions.tuning.bench.load.targets import (
    BytesTensor,
    Target,
    reader,
    target_for,
    triton_tensor,
)
from headrace.client.http.retries import decoded, error_of, job_error, problem_of
from headrace.client.models import Job
from headrace.client.sansio import HttpResponse
from headrace.errors import HeadraceError, JobError, ServerUnreachable, UnexpectedAnswer

_FIRST: Final = 3
#: An answer within this of the first ones, or this many times as long, is as fast as they were.
_SLOWER_S: Final = 0.05
_SLOWER: Final = 3.0
_IDLE_MAX_S: Final = 120.0
_PAUSE_S: Final = 0.2
#: Answers of a server that still has too much to do.
_BUSY: Final = frozenset({429, 503})


class NotIdle(HeadraceError, title="Not idle"):
    """The server did not become idle between two loads."""


class Probe:
    """Sends a lone request.

    Its methods raise ServerUnreachable if the server does not answer, and another HeadraceError if
    it refuses the request or no request has a result.
    """

    def __init__(self, target: Target, timeout_s: float) -> None:
        self._target = target
        self._timeout_s = timeout_s
        self._read = reader(target.protocol)
        self._first_s = 0.0

    def lone_latency_s(self) -> float:
        """Return the shortest time of a few lone requests; the first call measures it."""
        if not self._first_s:
            found, failed = list[float](), list[JobError]()
            for _ in range(_FIRST):
                try:
                    found.append(self._latency_s())
                except JobError as error:
                    failed.append(error)
            if not found:
                raise self._all_failed(failed)
            self._first_s = min(found)
        return self._first_s

    def wait_until_idle(self) -> None:
        """Return when a lone request is answered as fast as the first ones were.

        Raises:
            NotIdle: the server stays busy.
        """
        limit_s = max(_SLOWER * self.lone_latency_s(), self.lone_latency_s() + _SLOWER_S)
        deadline = time.monotonic() + max(_IDLE_MAX_S, self._timeout_s)
        failed = list[JobError]()
        while time.monotonic() < deadline:
            try:
                if self._latency_s() <= limit_s:
                    return
            except JobError as error:
                failed.append(error)
                if len(failed) == _FIRST:
                    raise self._all_failed(failed) from None
            except HeadraceError as error:
                if error.status not in _BUSY:
                    raise
            time.sleep(_PAUSE_S)
        raise NotIdle(
            f"{self._target.url} does not become idle: a lone request takes more than "
            f"{limit_s * 1000:.0f} ms, as it did not at first",
            hint="measure while nothing else uses the server",
        )

    def described(self) -> dict[str, Any]:
        """Return the model as Headrace's API describes it; empty for other servers."""
        if self._target.protocol != "headrace":
            return {}
        answer = self._get(f"/api/v1/models/{quote(self._target.model, '')}")
        # A key that may only submit jobs cannot read the model.
        return decoded(answer, dict[str, Any]) if answer.status == http.HTTPStatus.OK else {}

    def metadata(self) -> dict[str, Any]:
        """Return the model as Triton describes it."""
        model, version = quote(self._target.model, ""), quote(self._target.version, "")
        answer = self._get(f"/v2/models/{model}" + (f"/versions/{version}" if version else ""))
        if answer.status != http.HTTPStatus.OK:
            raise self._error(answer)
        return decoded(answer, dict[str, Any])

    def _get(self, path: str) -> HttpResponse:
        start = f"GET {urlsplit(self._target.url).path}{path} HTTP/1.1\r\n".encode()
        with self._connected() as connection:
            connection.sendall(start + self._target.headers + b"\r\n")
            return _answer(connection)

    def _latency_s(self) -> float:
        started = time.monotonic()
        with self._connected() as connection:
            self._exchange(connection, started)
        return time.monotonic() - started

    def _exchange(self, connection: socket.socket, started: float) -> None:
        request = self._target.requests[0]
        while True:
            connection.sendall(request)
            found = _answer(connection)
            answer = self._read(found.status, found.body)
            if not answer.again:
                break
            if time.monotonic() - started > self._timeout_s:
                raise ServerUnreachable(
                    f"{self._target.model}: a lone request has no result after "
                    f"{self._timeout_s:g} s",
                    hint="see `headrace models`, or use a longer --timeout",
                )
            request = f"GET {answer.again} HTTP/1.1\r\n".encode() + self._target.headers + b"\r\n"
        if answer.error:
            raise self._error(found)

    def _all_failed(self, failed: list[JobError]) -> JobError:
        return JobError(
            f"{self._target.model}: all {len(failed)} lone requests failed, the first with "
            f"{failed[0].message}",
            hint=f"find the cause with `headrace try {self._target.model} FILE`",
        )

    @contextmanager
    def _connected(self) -> Iterator[socket.socket]:
        host, port, secure = self._target.address
        try:
            connection = socket.create_connection((host, port), self._timeout_s + 5)
            if secure:
                trusted = ssl.create_default_context(cafile=self._target.ca_file or None)
                connection = trusted.wrap_socket(connection, server_hostname=host)
            with connection:
                yield connection
        except (OSError, http.client.HTTPException) as error:
            raise ServerUnreachable(
                f"{self._target.url} does not answer: {str(error) or type(error).__name__}"
            ) from error

    def _error(self, answer: HttpResponse) -> HeadraceError:
        if self._target.protocol == "headrace":
            if answer.status == http.HTTPStatus.OK:
                return job_error(decoded(answer, Job))
            return error_of(answer, problem_of(answer))
        shown = answer.body[:300].decode("utf-8", "replace").strip()
        error = UnexpectedAnswer(f"{self._target.url} answered {answer.status}: {shown}")
        error.status = answer.status
        return error


def _answer(connection: socket.socket) -> HttpResponse:
    response = http.client.HTTPResponse(connection, method="POST")
    with response:
        response.begin()
        body = response.read()
        headers = {name.lower(): value for name, value in response.getheaders()}
        return HttpResponse(response.status, headers, body)


def tensor_of(url: str, model: str, version: str, ca_file: str = "") -> BytesTensor | None:
    """Return the only BYTES input of a model on Triton; None if it has none.

    Raises:
        ServerUnreachable: the server does not answer.
        HeadraceError: it refuses the request.
    """
    target = target_for("triton", url, model, [], version=version, ca_file=ca_file)
    return triton_tensor(Probe(target, 30.0).metadata())
