"""TorchServe's package `ts` outside of model processes: for `ts.launcher` and tests of handlers.

Its modules are those that Headrace's model processes have. `main` is the command `torchserve`.
"""

import sys

from headrace.config.environment import server_root

_root = server_root()
if str(_root) not in sys.path:
    # The modules import `handlers` and `extensions`.
    sys.path.append(str(_root))
__path__ = [str(_root / "extensions/torchserve/handlers/shim/ts")]

from ts.version import __version__  # noqa: E402

__all__ = ["__version__", "main"]


def main() -> None:
    """Run the command `torchserve`."""
    from extensions.torchserve.cli.torchserve import main as run

    run()
