"""The API's certificate: looked at before it serves, and read again when its files change."""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path
from typing import Final

from headrace.config.settings import Settings
from headrace.errors import ConfigError

logger = logging.getLogger("api")

#: How often the files are looked at, in seconds.
LOOK_S: Final = 10.0


def check_certificate(settings: Settings) -> None:
    """Refuse to start with a certificate that cannot be used.

    Raises:
        ConfigError: a file is missing or wrong, or the key is not that of the certificate.
    """
    certificate, key = settings.tls_cert_file, settings.tls_key_file
    if certificate is None:
        if key is not None:
            raise ConfigError("tls_key_file is set, and tls_cert_file is not", hint="Set both.")
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        named = f"{certificate}" if key is None else f"{certificate} with the key {key}"
        raise ConfigError(
            f"the certificate {named} cannot be used: {error}",
            hint="tls_cert_file is the certificate and its chain in PEM, tls_key_file its key, "
            "without a passphrase.",
        ) from None


async def renew(context: ssl.SSLContext, certificate: Path, key: Path | None) -> None:
    """Read the files again whenever they have changed, for ever.

    New connections have the new certificate, and those that are open go on. Files that cannot be
    used, as one of them may be written before the other, change nothing until they can.
    """
    files = [certificate] if key is None else [certificate, key]
    known = _stamps(files)
    while True:
        await asyncio.sleep(LOOK_S)
        found = _stamps(files)
        if found == known or None in found:
            continue
        try:
            # Tried apart: half a change would leave the old certificate with the new key.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
            context.load_cert_chain(certificate, key)
        except (OSError, ssl.SSLError) as error:
            logger.warning("the changed certificate %s cannot be used yet: %s", certificate, error)
        else:
            known = found
            logger.info("the certificate %s was read anew", certificate)


def _stamps(files: list[Path]) -> list[tuple[int, int] | None]:
    """When each was written, and how long it is; None for what is not there."""
    found: list[tuple[int, int] | None] = []
    for file in files:
        try:
            status = file.stat()
        except OSError:
            found.append(None)
        else:
            found.append((status.st_mtime_ns, status.st_ino))
    return found
