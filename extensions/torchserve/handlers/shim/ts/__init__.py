"""The package `ts` for the handlers of TorchServe's archives: the names that they import.

The model process of an archive finds it on `sys.path`; no other process does. What leaves it goes
through `ts.metrics.emission` and `Context.keep_piece`.
"""

from ts.version import __version__

__all__ = ["__version__"]
