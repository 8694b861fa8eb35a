"""The version of TorchServe whose handlers run."""

from typing import Final

__version__: Final = "0.12.0"
