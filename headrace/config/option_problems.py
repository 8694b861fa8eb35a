"""Options of a model that are right alone and do not go together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from headrace.config.optimize import Optimize, optimize_problem


def option_problems(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the keys of options that do not go together, with what is wrong."""
    yield from _batch_problems(values)
    yield from _replica_problems(values)
    if "max_queued_tokens" in values and values.get("schedule") != "tokens":
        yield "max_queued_tokens", "it needs `schedule: tokens`; add that key"
    wanted = values.get("optimize")
    if isinstance(wanted, Optimize) and (text := optimize_problem(wanted)):
        yield "optimize", text


def _batch_problems(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    sizes, most = values.get("allowed_batch_sizes"), values.get("max_batch_size")
    if sizes is not None and len(set(sizes)) < len(sizes):
        yield "allowed_batch_sizes", "a size is given twice; remove one"
    if sizes is not None and most is not None and max(sizes) != most:
        yield (
            "allowed_batch_sizes",
            f"the largest is {max(sizes)}, but max_batch_size is {most}; make them the same, "
            "or leave max_batch_size out",
        )
    if "cost" in values and "max_batch_cost" not in values:
        yield "cost", "it needs max_batch_cost; add that key"


def _replica_problems(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    most = values.get("max_replicas")
    if most is None:
        for key in ("min_replicas", "scale_down_s"):
            if values.get(key) is not None:
                yield key, "it needs max_replicas; add that key"
        return
    if values.get("total_replicas") is not None:
        yield "max_replicas", "it does not go with total_replicas; leave one of them out"
    if values.get("min_replicas") == 0 and values.get("load") != "on_demand":
        yield "min_replicas", "0 needs `load: on_demand`; add that key, or give 1 or more"
    for key in ("min_replicas", "replicas"):
        given = values.get(key)
        if isinstance(given, int) and given > most:
            yield key, f"it is {given}, more than max_replicas, {most}; change one of them"
