"""HTTP without TLS."""

from __future__ import annotations

import ssl
from typing import Final

#: For `verify` of a client that speaks to no TLS: by itself each one reads all certificates of the
#: system, which are 40 ms of CPU. This one knows none, so that it would trust nobody.
PLAIN: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
