"""The keys of files and batches, besides the record of a file and its parts.

headrace/redis/keys.py has these two, because the payloads of the core are the parts.
"""

from __future__ import annotations

from typing import Final

from headrace.redis.keys import Prefix

#: Longer than a file is kept, and than a batch runs and is then kept.
FILES_TTL_S: Final = 62 * 86_400

#: zset, FILES_TTL_S from the last: ids of finished files.
FILES: Final = "hr:files"
#: zset, FILES_TTL_S from the last: ids of the finished files of one API key.
files_of: Final = Prefix("hr:files:of:")
#: hash: the record, fields in `BatchField`; until its window has passed, then as long as a file.
batch: Final = Prefix("hr:batch:")
#: zset, FILES_TTL_S from the last: ids of batches, in order.
BATCHES: Final = "hr:batches"
#: zset, FILES_TTL_S from the last: ids of the batches of one API key, in order.
batches_of: Final = Prefix("hr:batches:of:")
#: zset, FILES_TTL_S from the last: batch that has not ended -> until when a runner has leased it.
OPEN_BATCHES: Final = "hr:batches:open"
#: zset, WORKER_TTL_S: "<owner> <host> <pid>" of a runner -> when it was last seen, in seconds.
RUNNERS: Final = "hr:runners"
