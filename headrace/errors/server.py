"""Errors of the deployment: its configuration, the payload store, Redis, the API."""

from __future__ import annotations

from headrace.errors.base import HeadraceError


class ConfigError(HeadraceError):
    """A setting or a models file is wrong; the message names the key and the file."""

    code = "config-error"
    title = "Configuration error"


class StoreError(HeadraceError):
    """The payload store cannot do what was asked."""

    status = 503


class StoreUnavailable(StoreError):
    """The payload store does not answer; nothing was enqueued."""

    code = "store-unavailable"
    retryable = True
    title = "Payload store unavailable"


class StoreFull(StoreError):
    """The payload store is full. Nothing was enqueued; small inputs are still accepted."""

    code = "payload-storage-full"
    status = 507
    retryable = True
    title = "Payload storage full"


class BrokerError(HeadraceError):
    """Redis cannot do what was asked."""

    status = 503


class BrokerUnavailable(BrokerError):
    """Redis does not answer. A submit can be repeated under the same id."""

    code = "broker-unavailable"
    retryable = True
    title = "Broker unavailable"


class BrokerFull(BrokerError):
    """Redis is at its maxmemory and refuses new jobs. Running jobs still end."""

    code = "broker-full"
    retryable = True
    title = "Broker full"


class BrokerUnsupported(BrokerError):
    """The server is in cluster mode, or older than Redis 6.2."""

    code = "broker-unsupported"
    status = 500
    title = "Broker unsupported"


class ModelsNotReady(HeadraceError):
    """A model has no loaded replica (`/ready?models=all`)."""

    code = "models-not-ready"
    status = 503
    retryable = True
    title = "Models not ready"


class InternalError(HeadraceError):
    """The API has failed. Its log has the details under the answer's `id`."""

    code = "internal-error"
    title = "Internal error"
