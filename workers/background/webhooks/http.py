"""Sends one webhook over HTTP, to an address that it has looked at itself.

The name is looked up once, every address is judged, and the connection is made to one of those that
were found good, under the name that the URL has (Host, SNI, certificate): a name that is answered
otherwise a moment later changes nothing. Redirects are not followed; proxies are not asked.
"""

from __future__ import annotations

import asyncio
import email.utils
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, NamedTuple

import httpx2

from headrace.config.settings import Settings
from headrace.errors import ConfigError, InvalidRequest
from headrace.webhooks.allowed_addresses import Address, may_reach, read_address, read_networks
from headrace.webhooks.endpoint import Endpoint, read_target

logger = logging.getLogger(__name__)

#: So much of an answer is read, so that the receiver is not cut off in it; nobody looks at it.
BODY_MAX_BYTES: Final = 16 * 1024
BODY_MAX_S: Final = 1.0
#: A receiver's word on when to come again is believed up to this.
RETRY_AFTER_MAX_S: Final = 86_400.0
ERROR_MAX_CHARS: Final = 200

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


class WebhookResponse(NamedTuple):
    """What became of one try.

    Attributes:
        status: what was answered; 0 where nothing was.
        error: what was wrong; "" where it has arrived.
        final: another try would not help.
        retry_after_s: how long the receiver has asked to be left alone.
        answers: the receiver is in order.
    """

    status: int = 0
    error: str = ""
    final: bool = False
    retry_after_s: float = 0.0
    answers: bool = False


class _Refused(Exception):
    """Nothing is sent there."""


async def look_up(host: str, port: int) -> Sequence[str]:
    """The addresses of a name, as the system's resolver has them."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class WebhookSender:
    """Sends webhooks; used by one event loop.

    Args:
        settings: the deployment's.
        resolve: in place of the system's resolver.

    Raises:
        ConfigError: webhook_ca_file cannot be read.
    """

    def __init__(self, settings: Settings, resolve: Resolve = look_up) -> None:
        self._allow_http = settings.webhook_allow_http
        self._allowed = read_networks(settings.webhook_allow_networks)
        self._timeout_s = settings.webhook_timeout_s
        self._resolve = resolve
        # Neither proxies nor credentials of the environment.
        context = httpx2.create_ssl_context(trust_env=False)
        if settings.webhook_ca_file is not None:
            try:
                context.load_verify_locations(settings.webhook_ca_file)
            except OSError as error:
                raise ConfigError(
                    f"webhook_ca_file {settings.webhook_ca_file} cannot be read: {error}",
                    hint="Name a file of certificates in PEM.",
                ) from error
        self._http = httpx2.AsyncClient(
            verify=context,
            trust_env=False,
            follow_redirects=False,
            timeout=httpx2.Timeout(
                settings.webhook_timeout_s, connect=settings.webhook_connect_timeout_s
            ),
            # What was looked up for one try is not for the next.
            limits=httpx2.Limits(max_keepalive_connections=0),
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def send(self, url: str, headers: Mapping[str, str], body: bytes) -> WebhookResponse:
        """Try once; whatever goes wrong is in what it gives."""
        try:
            async with asyncio.timeout(self._timeout_s):
                target = read_target(url, allow_http=self._allow_http)
                found = await self._addresses(target)
                answer = await self._to_one_of(found, target, headers, body)
        except TimeoutError:
            return WebhookResponse(error=f"no answer within {self._timeout_s:g} s")
        except (_Refused, InvalidRequest) as error:
            return WebhookResponse(error=str(error), final=True, answers=True)
        except (OSError, UnicodeError) as error:
            return WebhookResponse(error=_short(f"the name cannot be looked up: {error}"))
        except httpx2.RemoteProtocolError:
            # The library's words repeat what was answered, which whoever chose the URL could read.
            return WebhookResponse(error="what it answered cannot be read as HTTP")
        except httpx2.HTTPError as error:
            return WebhookResponse(error=_short(f"{type(error).__name__}: {error}"))
        except Exception as error:
            # Nobody has foreseen it; such as a URL of which httpx2 thinks otherwise.
            logger.exception("a webhook cannot be sent", extra={"webhook": headers["webhook-id"]})
            return WebhookResponse(error=_short(f"it cannot be sent: {error}"))
        outcome = _outcome(answer)
        await _let_go(answer)
        return outcome

    async def _addresses(self, target: Endpoint) -> Sequence[Address]:
        """The addresses of a host that may be connected to."""
        if target.literal is not None:
            found = [target.literal]
        else:
            found = [read_address(text) for text in await self._resolve(target.host, target.port)]
        good = [address for address in found if may_reach(address, self._allowed)]
        if not good:
            raise _Refused(
                f"{target.host[:64]} is in a private or reserved network; "
                "webhook_allow_networks does not allow it"
            )
        return good

    async def _to_one_of(
        self,
        addresses: Sequence[Address],
        target: Endpoint,
        headers: Mapping[str, str],
        body: bytes,
    ) -> httpx2.Response:
        *others, last = addresses
        for address in others:
            try:
                return await self._post(address, target, headers, body)
            except (httpx2.ConnectError, httpx2.ConnectTimeout):
                continue
        return await self._post(last, target, headers, body)

    async def _post(
        self, address: Address, target: Endpoint, headers: Mapping[str, str], body: bytes
    ) -> httpx2.Response:
        """Send, and read the head of the answer."""
        host = f"[{address}]" if address.version == 6 else str(address)
        # A certificate is for the name, or for the address where the URL has one.
        named = target.literal is None or target.host.endswith("localhost")
        request = self._http.build_request(
            "POST",
            f"{target.scheme}://{host}:{target.port}{target.path}",
            headers={**headers, "host": target.authority},
            content=body,
            extensions={"sni_hostname": target.host.rstrip(".")} if named else {},
        )
        return await self._http.send(request, stream=True)


async def _let_go(answer: httpx2.Response) -> None:
    """Read the beginning of an answer, whose status is known already, and close."""
    left = BODY_MAX_BYTES
    try:
        async with asyncio.timeout(BODY_MAX_S):
            async for piece in answer.aiter_raw():
                left -= len(piece)
                if left <= 0:
                    break
    except (httpx2.HTTPError, TimeoutError):
        pass
    finally:
        await answer.aclose()


def _outcome(answer: httpx2.Response) -> WebhookResponse:
    status = answer.status_code
    if 200 <= status < 300:
        return WebhookResponse(status, answers=True)
    if status == 410:
        return WebhookResponse(
            status, "answered 410: it wants no more of these", final=True, answers=True
        )
    wait_s = 0.0
    if status in (429, 503):
        wait_s = _retry_after_s(answer.headers.get("retry-after", ""))
    error = f"answered {status}"
    if 300 <= status < 400:
        error += ", and redirects are not followed: name the final address"
    return WebhookResponse(status, error, retry_after_s=wait_s, answers=status < 500)


def _retry_after_s(text: str) -> float:
    """Seconds that a header Retry-After asks for, in either form; 0 for anything else."""
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(text).timestamp() - time.time()
        except (ValueError, OverflowError):
            return 0.0
    # Also where it is no number.
    return min(seconds, RETRY_AFTER_MAX_S) if seconds > 0 else 0.0


def _short(text: str) -> str:
    return text[:ERROR_MAX_CHARS]
