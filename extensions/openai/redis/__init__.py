"""The scripts and the keys of files, batches and responses."""

from __future__ import annotations

from typing import Final

from extensions.openai.redis import keys
from headrace.redis.scripts import ScriptFolder

SCRIPTS: Final = ScriptFolder(__name__, keys)
#: Return the script of a name such as `files/begin`.
script: Final = SCRIPTS.script
