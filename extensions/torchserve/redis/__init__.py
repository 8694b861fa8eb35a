"""The scripts and the keys of TorchServe's metrics and sequences."""

from __future__ import annotations

from typing import Final

from extensions.torchserve.redis import keys
from headrace.redis.scripts import ScriptFolder

SCRIPTS: Final = ScriptFolder(__name__, keys)
#: Return the script of a name: `metrics` or `sequences`.
script: Final = SCRIPTS.script
