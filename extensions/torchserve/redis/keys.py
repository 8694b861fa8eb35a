"""The keys of TorchServe's metrics and sequences."""

from __future__ import annotations

from typing import Final

from headrace.redis.keys import Prefix

#: Longer than most jobs wait and run.
SEQUENCES_TTL_S: Final = 86_400
#: The metrics of a host that is gone are shown for so long.
METRICS_TTL_S: Final = 86_400

#: hash <host> <model>, METRICS_TTL_S: TorchServe's metrics of a model, as one host counts them; of
#: no model without a name (extensions/torchserve/metrics/totals.py).
metrics: Final = Prefix("hr:ts:")
#: zset, METRICS_TTL_S: "<host> <model>" -> when its metrics were written last.
METRICS: Final = "hr:ts"
#: hash <model>@<version>, SEQUENCES_TTL_S and the idle time from the last request: sequence of
#: TorchServe -> its state; see sequences.lua.
sequences: Final = Prefix("hr:sequences:")
#: zset, the same name and TTL: sequence -> when to look whether it has ended.
sequence_ends: Final = Prefix("hr:sequences:ends:")
