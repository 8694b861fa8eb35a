"""Jobs as runs of jobs/submit.lua's arguments, and its answer read."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from headrace.access.api_key import EVERYBODY, Caller
from headrace.config.model.catalog import ModelConfig
from headrace.errors import BrokerUnavailable, Conflict, InvalidRequest, QueueFull, TokensUsed
from headrace.jobs.ids import new_ids
from headrace.jobs.message import InputSource, decode_message
from headrace.jobs.options import JobOptions
from headrace.jobs.trace_context import Trace
from headrace.queue.submission import (
    Extras,
    JobSubmission,
    Receipt,
    SubmitKind,
    read_receipts,
    submission,
    submit_arguments,
)
from headrace.redis.keys import DEFAULT_TTL_S, NO_WAITER
from headrace.redis.scripts import Arg
from tests.harness.clients.messages import write_message

MODELS = [ModelConfig(name=name, handler="echo", max_queue_depth=5) for name in ("a", "b")]


def job(job_id: str, model: ModelConfig = MODELS[0], **given: Any) -> JobSubmission:
    kind = SubmitKind(
        model,
        60,
        JobOptions(**given.pop("options", {})),
        given.pop("waiter", ""),
        given.pop("caller", EVERYBODY),
    )
    request_hash = given.pop("request_hash", "")
    return submission(
        kind, job_id, b"1", now_s=0, request_hash=request_hash, extras=Extras(**given)
    )


def runs(arguments: list[Arg]) -> list[tuple[list[Arg], list[str]]]:
    """Per run its head with its fields, and the ids of its jobs."""
    found, at = [], 0
    while at < len(arguments):
        width, count = arguments[at + 7], arguments[at + 9]
        assert isinstance(width, int)
        assert isinstance(count, int)
        first = at + 10 + count + 1
        jobs = arguments[first - 1]
        assert isinstance(jobs, int)
        end = first + width * jobs
        found.append((arguments[at : first - 1], list(map(str, arguments[first:end:width]))))
        at = end
    return found


def test_neighbours_of_one_kind_are_one_run() -> None:
    ids = new_ids(9)
    jobs = [
        job(ids[0]),
        job(ids[1], options={"timeout": 3.0}),
        job(ids[2], options={"max_retries": 1}),
        job(ids[3], MODELS[1]),
        job(ids[4]),
        job(ids[5], request_hash="x"),
        job(ids[6], request_hash="y"),
        job(ids[7], options={"metadata": {"a": 1}}),
        job(ids[8], source=InputSource(ref="redis:1")),
    ]
    found = runs(submit_arguments(jobs))
    parts = [ids[:3], ids[3:4], ids[4:5], ids[5:7], ids[7:8], ids[8:9]]
    assert [of for _, of in found] == parts
    fields: list[Arg] = ["m", "a", "v", MODELS[0].version, "l", 60]
    assert found[0][0] == ["headrace.a", "0", 5, 0, 0, 1, "", 2, 0, 6, *fields]
    assert found[3][0] == ["headrace.a", "0", 5, 0, 0, 1, "", 3, 0, 6, *fields]
    assert found[4][0] == ["headrace.a", "0", 5, 0, 0, 1, "", 2, 0, 8, *fields, "md", b'{"a":1}']
    assert found[5][0] == ["headrace.a", "0", 5, 0, 0, 1, "", 2, 0, 8, *fields, "ir", "redis:1"]


def test_neighbours_of_one_trace_are_one_run() -> None:
    ids, traces = new_ids(6), [Trace(f"00-{digit * 32}-{'1' * 16}-01") for digit in "ab"]
    jobs = [
        job(ids[0]),
        job(ids[1], trace=traces[0]),
        job(ids[2], trace=traces[0]),
        job(ids[3], trace=traces[1]),
        job(ids[4], trace=traces[1], options={"metadata": {}}, waiter=NO_WAITER),
        job(ids[5]),
    ]
    found = runs(submit_arguments(jobs))
    assert [of for _, of in found] == [ids[:1], ids[1:3], ids[3:4], ids[4:5], ids[5:]]
    plain, first, second, quiet, again = (head for head, _ in found)
    assert plain == again
    assert first == [*plain[:9], 8, *plain[10:], "tr", "a" * 32]
    assert second[-2:] == quiet[-2:] == ["tr", "b" * 32]


def test_options_that_the_queue_acts_on_part_runs() -> None:
    ids = new_ids(4)
    jobs = [
        job(ids[0], options={"priority": 4, "countdown": 1.5, "expires": 2.5}),
        job(ids[1], options={"priority": 3, "countdown": 1.5, "expires": 2.5}),
        job(ids[2], options={"priority": 3, "result_ttl": 7}),
        job(ids[3], options={"priority": 3, "result_ttl": 7}, waiter="api"),
    ]
    heads = [head for head, _ in runs(submit_arguments(jobs))]
    assert [head[:5] for head in heads] == [
        ["headrace.a", "3", 5, 1_500_000, 2_500_000],
        ["headrace.a", "3", 5, 0, 0],
        ["headrace.a", "3", 5, 0, 0],
    ]
    assert [head[14:] for head in heads] == [["l", 60], ["l", 7], ["l", 7, "w", "api"]]


def test_a_model_can_have_a_limit_for_the_start_of_jobs_without_their_own() -> None:
    model = ModelConfig(name="a", handler="echo", max_queue_depth=5, expires_s=0.5)
    jobs = [
        job(new_ids(1)[0], model),
        job(new_ids(1)[0], model, waiter=NO_WAITER),
        job(new_ids(1)[0], model, options={"expires": 3}),
    ]
    heads = [head for head, _ in runs(submit_arguments(jobs))]
    assert [head[4] for head in heads] == [500_000, 500_000, 3_000_000]


def test_a_record_says_how_long_it_is_kept_only_where_others_are_not() -> None:
    day = {"priority": 3, "result_ttl": DEFAULT_TTL_S}
    [(head, _)] = runs(submit_arguments([job(new_ids(1)[0], options=day)]))
    assert head[8:] == [0, 4, "m", "a", "v", MODELS[0].version]


def test_quiet_jobs_are_a_run_that_is_not_listed() -> None:
    ids = new_ids(3)
    jobs = [job(ids[0]), *(job(one, waiter=NO_WAITER) for one in ids[1:])]
    found = runs(submit_arguments(jobs))
    assert [of for _, of in found] == [ids[:1], ids[1:]]
    assert [head[5] for head, _ in found] == [1, 0]
    assert found[1][0][-2:] == ["w", NO_WAITER]


def test_a_quiet_job_has_a_short_message() -> None:
    text, model = '{"x":"é % \\u00e9"}'.encode(), MODELS[0]
    for options in (JobOptions(), JobOptions(priority=9, max_retries=2, timeout=5.5, countdown=3)):
        kind = SubmitKind(model, 60, options, NO_WAITER)
        made = submission(kind, "a.b", text, now_s=0, request_hash="h")
        wanted = write_message(
            "a.b", model.name, model.queue, text, options,
            timeout_s=options.timeout or model.timeout_s, quiet=True,
        )  # fmt: skip
        assert made.own == ("a.b", wanted, "h")
        read = decode_message(wanted)
        assert (read.input, read.quiet, read.max_retries) == (text, True, options.max_retries)
    with pytest.raises(InvalidRequest, match="not UTF-8"):
        submission(SubmitKind(model, 60), "a.b", b'"\xff"', now_s=0)


def test_jobs_with_tokens_are_one_run_each_with_its_own_tokens() -> None:
    model = ModelConfig(
        name="t", handler="echo", schedule="tokens", max_queued_tokens=900,
        options={"max_tokens": 50},
    )  # fmt: skip
    prompts = [b'"four by four!!!!"', b'{"prompt":"12345678","max_tokens":7}']
    for waiter in ("", NO_WAITER):
        kind = SubmitKind(model, 60, waiter=waiter)
        jobs = [
            submission(kind, str(n), text, now_s=0, request_hash=h)
            for n, (text, h) in enumerate(zip(prompts, ("", "h"), strict=True))
        ]
        ((head, ids),) = runs(submit_arguments(jobs))
        assert (ids, head[7], head[8]) == (["0", "1"], 4, 900)
        assert [job.own[2:] for job in jobs] == [("", "55 ~ -"), ("h", "16 ~ -")]


def test_offline_jobs_with_tokens_have_their_deadline_and_prefix() -> None:
    model = ModelConfig(name="t", handler="echo", schedule="tokens")
    text = b'{"messages":[{"role":"system","content":"Be kind."},{"role":"user","content":"%d"}]}'

    def field(n: int, deadline_s: float | None = None, now_s: float = 1000, **options: Any) -> str:
        kind = SubmitKind(model, 60, JobOptions(priority=9, **options))
        extras = Extras(deadline_s=deadline_s)
        made = submission(kind, "a", text % n, now_s=now_s, extras=extras)
        return str(made.own[3])

    tokens, deadline, prefix = field(1).split()
    # The end of the second day.
    assert (tokens, deadline) == ("21", "0000172800")
    assert field(1, now_s=86_399).split()[1] == "0000172800"
    assert field(1, now_s=86_400).split()[1] == "0000259200"
    assert field(2).split()[2] == prefix != "-", "they have the same system prompt"
    assert field(1, 1500.9).split()[1] == "0000001500"
    assert field(1, expires=60).split()[1] == "0000001060"
    assert field(1, 1500, expires=60).split()[1] == "0000001060"
    assert field(1, 1020, expires=60).split()[1] == "0000001020"


def test_a_refusal_for_tokens_has_the_wait_that_the_script_expects() -> None:
    jobs = [job(job_id) for job_id in new_ids(3)]
    answer = [b"17", 1, 7, b"2500000", 900, 2, 7, 0, 900, 3, 7, b"99000000000", 900]
    found: list[set[int]] = [set(), set(), set()]
    for _ in range(200):
        for waits, one in zip(found, read_receipts(jobs, answer), strict=True):
            assert isinstance(one, QueueFull)
            assert "900 tokens" in one.message
            waits.add(one.retry_after_s)
    assert found[:2] == [{3}, {1}]
    # Clients that are refused together get different ones, and none of these is too early.
    assert min(found[2]) >= 3600
    assert max(found[2]) <= 4500
    assert len(found[2]) > 50


def test_a_refusal_for_the_tokens_of_a_key_names_the_command_that_makes_another_one() -> None:
    model = msgspec.structs.replace(MODELS[0], schedule="tokens")
    caller = Caller("b2", sees_all=False, tokens_per_minute=900)
    (one,) = read_receipts([job("x", model, caller=caller)], [b"17", 1, 8, b"2500000", 40])
    assert isinstance(one, TokensUsed)
    assert "API key b2 has 40 left of its 900 tokens a minute" in one.message
    assert f"Try again in {one.retry_after_s} s, or" in str(one.hint)
    assert "`headrace keys create --tokens-per-minute`" in str(one.hint)


def test_jobs_of_two_api_keys_are_two_runs_and_say_whose_they_are() -> None:
    plain = Caller("a1", sees_all=False, in_flight=7)
    manager = Caller("b2", sees_all=True, tokens_per_minute=9000)
    ids = new_ids(4)
    jobs = [job(i, caller=c) for i, c in zip(ids, (plain, plain, manager, EVERYBODY), strict=True)]
    found = runs(submit_arguments(jobs))
    assert [of for _, of in found] == [ids[:2], ids[2:3], ids[3:]]
    assert [head[6] for head, _ in found] == ["a1 7 0 0", "b2 0 1 9000", ""]
    assert [head[-2:] for head, _ in found] == [["ky", "a1"], ["ky", "b2"], ["l", 60]]


def test_an_answer_is_read_at_the_place_of_its_job() -> None:
    jobs = [job(job_id) for job_id in new_ids(6)]
    answer = [b"17", 2, 2, b"9", 0, 3, 3, b"8", 0, 5, 0, b"17", 5, 6, 4, b"17", 0]
    first, known, conflict, fourth, full, broken = read_receipts(jobs, answer)
    assert first == fourth == Receipt(17, repeated=False)
    assert known == Receipt(9, repeated=True)
    assert isinstance(conflict, Conflict)
    assert jobs[2].id in conflict.message
    assert isinstance(full, QueueFull)
    assert "holds 5 jobs" in full.message
    assert isinstance(broken, BrokerUnavailable)
    assert read_receipts(jobs[:1], [b"17"]) == [Receipt(17, repeated=False)]
