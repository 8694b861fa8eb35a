"""Sends a webhook over HTTP, to an address that was checked.

The host is looked up once, and every address is checked. The connection goes to an allowed address
under the URL's name (Host, SNI, certificate), so a later change of the name has no effect.
Redirects are not followed, and proxies are not used.
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

#: How much of a response's body is read, so that the receiver is not cut off. It is not used.
BODY_MAX_BYTES: Final = 16 * 1024
BODY_MAX_S: Final = 1.0
#: How many names are looked up at once for an API key: a look-up that hangs holds a thread.
LOOK_UPS_MAX: Final = 16
#: The longest Retry-After that is followed, in seconds. The receiver's other webhooks wait too.
RETRY_AFTER_MAX_S: Final = 3600.0
ERROR_MAX_CHARS: Final = 200

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


class WebhookResponse(NamedTuple):
    """The outcome of an attempt.

    Attributes:
        status: the status of the response; 0 without a response.
        error: what was wrong; "" if the webhook has arrived.
        final: another attempt would not help.
        answers: the receiver works, whatever it replied.
    """

    status: int = 0
    error: str = ""
    final: bool = False
    retry_after_s: float = 0.0
    answers: bool = False


class _Refused(Exception):
    """The URL leads to addresses that are not allowed."""


async def look_up(host: str, port: int) -> Sequence[str]:
    """Return the addresses of a name, from the system's resolver."""
    entries = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in entries))


class WebhookSender:
    """Sends webhooks, for an event loop; `resolve` replaces the system's resolver.

    Raises:
        ConfigError: webhook_ca_file cannot be read.
    """

    def __init__(self, settings: Settings, resolve: Resolve = look_up) -> None:
        self._allow_http = settings.webhook_allow_http
        self._allowed = read_networks(settings.webhook_allow_networks)
        self._timeout_s = settings.webhook_timeout_s
        self._resolve = resolve
        self._look_ups: dict[str, asyncio.Semaphore] = {}
        # The environment's proxies and credentials are ignored.
        context = httpx2.create_ssl_context(trust_env=False)
        if settings.webhook_ca_file is not None:
            try:
                context.load_verify_locations(settings.webhook_ca_file)
            except OSError as error:
                raise ConfigError(
                    f"webhook_ca_file {settings.webhook_ca_file} cannot be read: {error}",
                    hint="Set it to a file of certificates in PEM.",
                ) from error
        self._http = httpx2.AsyncClient(
            verify=context,
            trust_env=False,
            follow_redirects=False,
            timeout=httpx2.Timeout(
                settings.webhook_timeout_s, connect=settings.webhook_connect_timeout_s
            ),
            # Each attempt looks the host up again.
            limits=httpx2.Limits(max_keepalive_connections=0),
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def send(
        self, url: str, headers: Mapping[str, str], body: bytes, *, owner: str = ""
    ) -> WebhookResponse:
        """Make an attempt. Every failure is in the returned response."""
        try:
            async with asyncio.timeout(self._timeout_s):
                target = read_target(url, allow_http=self._allow_http)
                addresses = await self._addresses(target, owner)
                answer = await self._post_to_first(addresses, target, headers, body)
        except TimeoutError:
            return WebhookResponse(error=f"no answer within {self._timeout_s:g} s")
        except (_Refused, InvalidRequest) as error:
            return WebhookResponse(error=str(error), final=True, answers=True)
        except (OSError, UnicodeError) as error:
            return WebhookResponse(error=_short(f"the name cannot be looked up: {error}"))
        except httpx2.RemoteProtocolError:
            # The library's text quotes the response, which the owner of the URL could then read.
            return WebhookResponse(error="the response is not valid HTTP")
        except httpx2.HTTPError as error:
            return WebhookResponse(error=_short(f"{type(error).__name__}: {error}"))
        except Exception as error:
            # Unexpected, such as a URL that httpx2 rejects.
            logger.exception("webhook cannot be sent", extra={"webhook": headers["webhook-id"]})
            return WebhookResponse(error=_short(f"it cannot be sent: {error}"))
        outcome = _outcome(answer)
        await _drain(answer)
        return outcome

    async def _addresses(self, target: Endpoint, owner: str) -> Sequence[Address]:
        if target.literal is not None:
            addresses = [target.literal]
        else:
            addresses = [read_address(text) for text in await self._look_up(target, owner)]
        good = [address for address in addresses if may_reach(address, self._allowed)]
        if not good:
            raise _Refused(
                f"{target.host[:64]} is in a private or reserved network; "
                "webhook_allow_networks does not allow it"
            )
        return good

    async def _look_up(self, target: Endpoint, owner: str) -> Sequence[str]:
        """Return the addresses of a name; a key has LOOK_UPS_MAX look-ups at once.

        A look-up whose attempt has given up still holds its thread, and its place.
        """
        places = self._look_ups.setdefault(owner, asyncio.Semaphore(LOOK_UPS_MAX))
        await places.acquire()
        look_up = asyncio.ensure_future(self._resolve(target.host, target.port))

        def over(ended: asyncio.Future[Sequence[str]]) -> None:
            places.release()
            if not ended.cancelled():
                # Else asyncio logs an error of an attempt that has given up.
                ended.exception()

        look_up.add_done_callback(over)
        return await asyncio.shield(look_up)

    async def _post_to_first(
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
        """Send the request, and read the head of the response."""
        host = f"[{address}]" if address.version == 6 else str(address)
        # A certificate is for the URL's name, or for its address if it has no name.
        named = target.literal is None or target.host.endswith("localhost")
        request = self._http.build_request(
            "POST",
            f"{target.scheme}://{host}:{target.port}{target.path}",
            headers={**headers, "host": target.authority},
            content=body,
            extensions={"sni_hostname": target.host.rstrip(".")} if named else {},
        )
        return await self._http.send(request, stream=True)


async def _drain(answer: httpx2.Response) -> None:
    """Read the beginning of a response's body, and close it."""
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
            status, "answered 410: the endpoint is gone", final=True, answers=True
        )
    wait_s = 0.0
    if status in (429, 503):
        wait_s = _retry_after_s(answer.headers.get("retry-after", ""))
    error = f"answered {status}"
    if 300 <= status < 400:
        error += ": redirects are not followed; set the final URL"
    return WebhookResponse(status, error, retry_after_s=wait_s, answers=status < 500)


def _retry_after_s(text: str) -> float:
    """Return the seconds of a Retry-After header, in either form; 0 for anything else."""
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(text).timestamp() - time.time()
        except (ValueError, OverflowError):
            return 0.0
    # NaN is not above 0 either.
    return min(seconds, RETRY_AFTER_MAX_S) if seconds > 0 else 0.0


def _short(text: str) -> str:
    return text[:ERROR_MAX_CHARS]
