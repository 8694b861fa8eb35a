"""The scripts of files and batches, and the keys of these and of responses."""

from __future__ import annotations

from typing import Final

from extensions.openai.redis import keys
from headrace.redis.scripts import ScriptFolder

SCRIPTS: Final = ScriptFolder(__name__, keys)
#: Return the script of a name such as `files/begin`.
script: Final = SCRIPTS.script
