"""HTTP without TLS."""

from __future__ import annotations

import ssl
from typing import Final

#: For `verify` of a client that uses no TLS. By default each client reads all certificates of the
#: system, which takes 40 ms of CPU. This context has none, so it would trust no server.
PLAIN: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
