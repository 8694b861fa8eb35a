"""TorchServe's package `ts` outside of model processes: for `ts.launcher` and tests of handlers.

Its modules are those that Headrace's model processes have.
"""

import sys

from headrace.config.paths import server_root

_root = server_root()
if str(_root) not in sys.path:
    # The modules import `handlers`.
    sys.path.append(str(_root))
__path__ = [str(_root / "handlers/torchserve/shim/ts")]

from ts.version import __version__  # noqa: E402

__all__ = ["__version__"]
