"""The scripts in pipelines/: what each call is sent. Each replies 1, or 0 if the job is lost."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.redis.scripts import Command, script


def save_stages(job_id: str, token: str, stages_json: bytes, freed: Iterable[str]) -> Command:
    """Save the stages of a pipeline's job, and free the results of the stage jobs `freed`."""
    return script("pipelines/save_stages").call([], job_id, token, stages_json, *freed)


def clear(job_id: str, token: str, stage_ids: Iterable[str]) -> Command:
    """Delete the records and results of a pipeline's stage jobs."""
    return script("pipelines/clear").call([], job_id, token, *stage_ids)


def hand_over(old_entry: str, new_entry: str) -> Command:
    """Make the stored result of one job that of another; both are entries of the payload index."""
    return script("pipelines/hand_over").call([], old_entry, new_entry)
