"""Who may use TorchServe's URLs: the holders of its tokens, and of API keys of Headrace.

Health, metrics and descriptions need no token.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import cast

from api.auth.authenticator import Needs, open_operations
from api.http.messages import Answer, Request
from api.services import Services
from extensions.torchserve.api.descriptions import TokenKind
from extensions.torchserve.api.management.parameters import read_query
from extensions.torchserve.api.parts import config_of
from extensions.torchserve.api.replies import Kind, TorchServeError, json_reply
from extensions.torchserve.config.key_file import KeyKind, present_keys, renew
from headrace.access.api_key import Scope
from headrace.errors import ConfigError, Unauthorized


async def check(services: Services, request: Request, kind: TokenKind) -> None:
    """Refuse a request that may not use an interface.

    Raises:
        TorchServeError: the request has no valid token.
        HeadraceError: it has an API key of Headrace, which may not do this.
    """
    if not kind:
        return
    authenticator = services.authenticator
    disabled = config_of(services).disable_token_authorization
    needs_own = disabled and services.settings.auth == "on"
    if authenticator is not None and (needs_own or _has_own(request)):
        scope = Scope.SUBMIT if kind == "inference" else Scope.MANAGE
        await authenticator.admit(request, scope)
    elif not disabled:
        _check_token(services, request, kind)


def check_native(services: Services, request: Request, needs: Needs | None) -> None:
    """Refuse a request to the native API without a token.

    The token for predictions is for what the scopes `submit` and `read` allow. That for the
    management API is for everything.

    Raises:
        Unauthorized: the request needs a token and has no valid one.
    """
    if needs is None or needs in open_operations(services.settings):
        return
    kinds: tuple[KeyKind, ...] = ("management", "inference")
    error = TorchServeError(Kind.INVALID_KEY, "")
    for kind in kinds[:1] if needs is Scope.MANAGE else kinds:
        try:
            _check_token(services, request, kind)
        except TorchServeError as refused:
            error = refused
        else:
            return
    raise Unauthorized(
        error.message, hint="Send a token of key_file.json, or disable token authorization."
    )


async def new_token(services: Services, request: Request) -> Answer:
    """Replace the token for an interface, and return the new one; it needs the API key."""
    config = config_of(services)
    if config.disable_token_authorization:
        raise TorchServeError(
            Kind.NOT_FOUND, "There is no /token here: token authorization is disabled"
        )
    if services.authenticator is not None and _has_own(request):
        await services.authenticator.admit(request, Scope.MANAGE)
    else:
        _check_token(services, request, "API")
    kind = read_query(request).text("type")
    if kind not in ("management", "inference"):
        raise TorchServeError(
            Kind.INVALID_KEY,
            "The parameter type is missing or unknown: give management or inference",
        )
    try:
        key = renew(config.key_file, cast("KeyKind", kind), config.token_expiration_min)
        return json_reply(key)
    except ConfigError as error:
        raise TorchServeError(Kind.INVALID_KEY, error.message) from None


def _check_token(services: Services, request: Request, kind: KeyKind) -> None:
    """Refuse a request without a valid token of this kind."""
    config = config_of(services)
    name = "API key" if kind == "API" else f"{kind} token"
    where = f"{config.key_file.name} has it"
    text = _bearer(request)
    if not text:
        raise TorchServeError(
            Kind.INVALID_KEY,
            f"The request has no {name}. Send it as `Authorization: Bearer …`; {where}",
        )
    try:
        key = present_keys(config.key_file).of(kind)
    except ConfigError as error:
        text = f"No token can be checked: {error.message_with_hint}"
        raise TorchServeError(Kind.INVALID_KEY, text) from None
    if key is None or not key.is_text(text):
        raise TorchServeError(Kind.INVALID_KEY, f"The {name} is not the present one; {where}")
    if key.expired(datetime.now(UTC)):
        raise TorchServeError(
            Kind.INVALID_KEY,
            f"The {name} has expired. GET /token?type={kind} with the API key makes another one",
        )


def _bearer(request: Request) -> str:
    scheme, _, text = request.header(b"authorization").decode("latin-1").partition(" ")
    return text.strip() if scheme.lower() == "bearer" else ""


def _has_own(request: Request) -> bool:
    return request.has(b"x-api-key") or _bearer(request).startswith("hr_")
