"""Check the API's certificate at start, and reload it when its files change."""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path
from typing import Final

from headrace.config.settings import Settings
from headrace.errors import ConfigError

logger = logging.getLogger("api")

#: Seconds between two checks of the files.
CHECK_S: Final = 10.0


def check_certificate(settings: Settings) -> None:
    """Refuse to start with a certificate that cannot be used.

    Raises:
        ConfigError: a file is missing or not valid, or the key does not belong to the certificate.
    """
    certificate, key = settings.tls_cert_file, settings.tls_key_file
    if certificate is None:
        if key is not None:
            raise ConfigError("tls_key_file is set, but tls_cert_file is not", hint="Set both.")
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
    """Reload the files whenever they change, until cancelled.

    New connections use the new certificate; open connections continue. Files that cannot be used,
    for example because only one of them is written yet, are ignored until they can.
    """
    files = [certificate] if key is None else [certificate, key]
    known = _stamps(files)
    while True:
        await asyncio.sleep(CHECK_S)
        stamps = _stamps(files)
        if stamps == known or None in stamps:
            continue
        try:
            # Loaded separately first: half a change would pair an old certificate with a new key.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
            context.load_cert_chain(certificate, key)
        except (OSError, ssl.SSLError) as error:
            logger.warning("changed certificate %s not usable yet: %s", certificate, error)
        else:
            known = stamps
            logger.info("certificate %s reloaded", certificate)


def _stamps(files: list[Path]) -> list[tuple[int, int] | None]:
    """Return the time of change and the inode of each file; None for a missing file."""
    stamps: list[tuple[int, int] | None] = []
    for file in files:
        try:
            status = file.stat()
        except OSError:
            stamps.append(None)
        else:
            stamps.append((status.st_mtime_ns, status.st_ino))
    return stamps
