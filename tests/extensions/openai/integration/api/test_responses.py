"""OpenAI's responses through its SDK: whole, streamed, in the background, read again."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from extensions.openai.api import responses
from headrace.redis import keys
from tests.extensions.openai.harness.batches import sdk
from tests.harness.deployments.site import Site
from tests.harness.http.plain_http import PLAIN
from tests.harness.servers.api_server import api_server
from tests.harness.wait import wait_until

LOADS = "Deserialize ``s`` (a ``str``, ``bytes`` or ``bytearray`` instance"


def asked(text: Any = "What is json.loads?", **more: Any) -> dict[str, Any]:
    return {"model": "docs", "input": text, "temperature": 0, "max_output_tokens": 60, **more}


def scripted(**item: Any) -> dict[str, Any]:
    return {"model": "pieces", "input": json.dumps(item)}


def text_of(events: Any) -> str:
    return "".join(one.delta for one in events if one.type == "response.output_text.delta")


def test_a_response_is_read_again(client: Any, site: Site) -> None:
    made = client.responses.create(**asked(metadata={"user": "b"}, user="ann", instructions=None))
    assert made.output_text.startswith(LOADS)
    assert (made.status, made.error, made.incomplete_details) == ("completed", None, None)
    assert (made.metadata, made.user, made.temperature) == ({"user": "b"}, "ann", 0)
    assert made.usage.output_tokens == 40
    assert made.usage.total_tokens == made.usage.input_tokens + 40
    assert client.responses.retrieve(made.id) == made
    assert site.shown(made.id)["result"]["text"] == made.output_text


def test_a_response_fits_the_types_of_the_sdk(site: Site) -> None:
    with openai.OpenAI(
        base_url=f"{site.api.url}/v1", api_key="none", _strict_response_validation=True,
        http_client=openai.DefaultHttpxClient(verify=PLAIN),
    ) as strict:  # fmt: skip
        client: Any = strict
        made = client.responses.create(**asked())
        assert client.responses.retrieve(made.id).output
        assert list(client.responses.create(**asked(stream=True)))
        with client.responses.stream(**asked()) as stream:
            list(stream)
            assert stream.get_final_response().output_text == made.output_text
        likely = asked(include=["message.output_text.logprobs"], top_logprobs=2)
        assert client.responses.create(**likely).top_logprobs == 2
        assert list(client.responses.create(**likely, stream=True))


def test_log_probabilities_of_a_response_come_whole_and_in_events(client: Any) -> None:
    likely = asked(include=["message.output_text.logprobs"], top_logprobs=2)
    made = client.responses.create(**likely)
    whole = made.output[0].content[0].logprobs
    assert "".join(one.token for one in whole) == made.output_text
    assert [len(one.top_logprobs) for one in whole] == [2] * len(whole)
    events = list(client.responses.create(**likely, stream=True))
    parts = [one for one in events if one.type == "response.output_text.delta"]
    tokens = [one.token for part in parts for one in part.logprobs]
    assert tokens == [one.token for one in whole]
    (done,) = [one for one in events if one.type == "response.output_text.done"]
    assert [one.token for one in done.logprobs] == tokens
    more = client.responses.create(**asked("And zip?", previous_response_id=made.id))
    items = client.responses.input_items.list(more.id, order="asc").data
    assert items[1].content[0].logprobs == []
    assert more.output[0].content[0].logprobs == []
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError, match="model pieces returns no logprobs") as no:
            client.responses.create(**scripted(pieces=["a"]), top_logprobs=1, stream=stream)
        assert no.value.param == "top_logprobs"


def test_messages_and_instructions_are_a_chat(client: Any) -> None:
    parts = [{"type": "input_text", "text": "What is "}, {"type": "input_text", "text": "zip?"}]
    made = client.responses.create(**asked([{"role": "user", "content": parts}]))
    chat = client.chat.completions.create(
        model="docs", temperature=0, max_tokens=60,
        messages=[{"role": "user", "content": "What is zip?"}],
    )  # fmt: skip
    assert made.output_text == chat.choices[0].message.content
    again = [
        {"role": "user", "content": "What is zip?"},
        *(one.model_dump(exclude_none=True) for one in made.output),
        {"role": "user", "content": "And json.loads?"},
    ]
    assert client.responses.create(**asked(again)).usage.input_tokens > made.usage.input_tokens


#: What the published schema of a response requires (Open Responses, 2026).
REQUIRED = """
id object created_at completed_at status incomplete_details model previous_response_id instructions
output error tools tool_choice truncation parallel_tool_calls text top_p presence_penalty
frequency_penalty top_logprobs temperature reasoning user usage max_output_tokens max_tool_calls
store background service_tier metadata safety_identifier prompt_cache_key
"""


def test_a_response_has_all_that_its_schema_requires(client: Any, site: Site) -> None:
    made = client.responses.create(**asked(max_output_tokens=2))
    shown = made.to_dict()
    assert not {*REQUIRED.split()} - shown.keys()
    assert (made.temperature, made.top_p, shown["presence_penalty"]) == (0, 1, 0)
    again = client.responses.create(model="docs", input="zip", max_output_tokens=2)
    assert (again.temperature, again.top_p) == (1, 1)


def test_a_conversation_goes_on(client: Any, site: Site) -> None:
    """By its last response, and by references to its items, it is as if it were sent whole."""
    question = {"role": "user", "content": "And json.loads?"}
    first = client.responses.create(**asked("What is zip?", instructions="be brief"))
    (answer,) = first.output
    whole = [{"role": "user", "content": "What is zip?"}, answer.model_dump(), question]
    expected = client.responses.create(**asked(whole))
    second = client.responses.create(**asked([question]), previous_response_id=first.id)
    assert (second.output_text, second.usage) == (expected.output_text, expected.usage)
    assert second.previous_response_id == first.id
    assert client.responses.retrieve(second.id).previous_response_id == first.id
    reference = {"type": "item_reference", "id": answer.id}
    referring = client.responses.create(**asked([whole[0], reference, question], background=True))
    wait_until(lambda: client.responses.retrieve(referring.id).status == "completed", "it ends")
    assert client.responses.retrieve(referring.id).usage == expected.usage
    events = list(
        client.responses.create(**asked("zip?"), previous_response_id=second.id, stream=True)
    )
    third = events[-1].response
    assert third.usage.input_tokens > second.usage.input_tokens

    listed = list(client.responses.input_items.list(third.id, limit=2, order="asc"))
    texts = [one.content[0].text for one in listed]
    assert texts == [
        "What is zip?", first.output_text, "And json.loads?", second.output_text, "zip?"
    ]  # fmt: skip
    assert listed[1].id == answer.id
    assert listed == [*client.responses.input_items.list(third.id, include=[])][::-1]
    # The text is with each response, so it outlives those before.
    client.responses.delete(first.id)
    given = {"type": "item_reference", "id": listed[0].id}
    kept = client.responses.create(**asked([given]), previous_response_id=third.id)
    assert kept.usage.input_tokens > third.usage.input_tokens
    for more in ({"previous_response_id": first.id}, {"input": [reference]}):
        with pytest.raises(openai.BadRequestError, match="there is no") as error:
            client.responses.create(**{**asked(), **more})
        assert error.value.code != "invalid-request"
    job = keys.job(second.id)
    assert 0 < site.client.redis.ttl(job) <= 86_400
    client.responses.delete(second.id)
    assert not site.client.redis.exists(job)


def test_only_what_is_kept_and_complete_can_go_on(client: Any, tmp_path: Path) -> None:
    (tmp_path / "0").touch()
    item = scripted(pieces=["a", "b"], until=str(tmp_path))
    running = client.responses.create(**item, background=True)
    with pytest.raises(openai.BadRequestError, match="has the status"):
        client.responses.create(**asked(), previous_response_id=running.id)
    client.responses.cancel(running.id)
    (tmp_path / "1").touch()
    gone = client.responses.create(**asked(store=False, max_output_tokens=2))
    with pytest.raises(openai.BadRequestError) as error:
        client.responses.create(**asked(), previous_response_id=gone.id)
    assert error.value.code == "previous_response_not_found"
    noise = json.dumps(os.urandom(80_000).hex())
    long = client.responses.create(model="pieces", input=json.dumps({"pieces": ["a"], "x": noise}))
    with pytest.raises(openai.BadRequestError, match="are not kept: they are too long"):
        client.responses.create(**asked(), previous_response_id=long.id)


def test_the_events_of_a_response_are_numbered_alike_each_time(client: Any) -> None:
    events = list(
        client.responses.create(**asked("What is zip?", max_output_tokens=10), stream=True)
    )
    kinds = [one.type for one in events]
    assert kinds[:4] == [
        "response.created", "response.in_progress", "response.output_item.added",
        "response.content_part.added",
    ]  # fmt: skip
    assert kinds[-4:] == [
        "response.output_text.done", "response.content_part.done", "response.output_item.done",
        "response.incomplete",
    ]  # fmt: skip
    text = text_of(events)
    assert events[-4].text == text
    numbers = [one.sequence_number for one in events]
    assert numbers == sorted(set(numbers))
    response_id = events[0].response.id
    at = 0
    for n, one in enumerate(events):
        at += len(getattr(one, "delta", ""))
        rest = list(
            client.responses.retrieve(response_id, stream=True, starting_after=one.sequence_number)
        )
        assert text_of(rest) == text[at:]
        after = [later.sequence_number for later in events[n + 1 :]]
        assert [later.sequence_number for later in rest][-4:] == after[-4:]
        assert all(later.sequence_number > one.sequence_number for later in rest)
    # The response has no such event, so it must have begun again since the client got it.
    with pytest.raises(openai.APIError) as restarted:
        list(client.responses.retrieve(response_id, stream=True, starting_after=10_000))
    raw = httpx2.get(
        f"{client.base_url}responses/{response_id}",
        params={"stream": "true", "starting_after": 10_000},
        verify=PLAIN,
    )
    (line,) = (one for one in raw.text.splitlines() if one.startswith("data: "))
    event = json.loads(line.removeprefix("data: "))
    detail = {name: event[name] for name in ("code", "message", "param")}
    assert event == {
        "type": "error", "sequence_number": 10_001, **detail,
        "error": {"type": restarted.value.type, **detail},
    }  # fmt: skip
    assert (restarted.value.code, restarted.value.message) == (event["code"], event["message"])


def test_a_response_in_the_background_goes_on_alone(
    client: Any, site: Site, tmp_path: Path
) -> None:
    (tmp_path / "0").touch()
    item = scripted(pieces=["a", "b", "c"], until=str(tmp_path))
    with client.responses.create(**item, background=True, stream=True) as stream:
        first = next(one for one in stream if one.type == "response.output_text.delta")
    response_id = first.item_id.replace("msg_", "resp_")
    assert client.responses.retrieve(response_id).status == "in_progress"
    (tmp_path / "1").touch()
    (tmp_path / "2").touch()
    # Another API process goes on where the first one stopped.
    with (
        api_server(site.redis.url, site.api.app.catalog) as other,
        sdk(other.url) as second,
    ):
        client = second
        rest = list(
            client.responses.retrieve(
                response_id, stream=True, starting_after=first.sequence_number
            )
        )
        assert (first.delta, text_of(rest)) == ("a", "bc")
        assert client.responses.retrieve(response_id).output_text == "abc"


def test_a_response_in_the_background_answers_at_once(client: Any) -> None:
    made = client.responses.create(**asked(background=True))
    assert made.status in ("queued", "in_progress", "completed")

    def ended() -> Any:
        found = client.responses.retrieve(made.id)
        return found if found.status == "completed" else None

    assert wait_until(ended, "it ends").output_text.startswith(LOADS)


def test_a_cancelled_response_is_deleted(
    client: Any, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(responses, "_END_S", 0.1)
    (tmp_path / "0").touch()
    item = scripted(pieces=["a", "b"], until=str(tmp_path))
    with client.responses.create(**item, background=True, stream=True) as stream:
        first = next(one for one in stream if one.type == "response.output_text.delta")
        response_id = first.item_id.replace("msg_", "resp_")
        # Before that a cancel would end the job at once. From then on, only the next piece does.
        wait_until((tmp_path / "waits 1").exists, "its handler waits for the second piece")
        assert client.responses.cancel(response_id).status == "cancelled"
        assert site.shown(response_id)["status"] == "running"
        assert client.responses.retrieve(response_id).status == "cancelled"
        with pytest.raises(openai.ConflictError, match="still runs"):
            client.with_options(max_retries=0).responses.delete(response_id)
        monkeypatch.undo()
        (tmp_path / "1").touch()
        last = list(stream)[-1]
    assert (last.type, last.response.status) == ("response.failed", "cancelled")
    assert client.responses.cancel(response_id).status == "cancelled"
    client.responses.delete(response_id)
    with pytest.raises(openai.NotFoundError, match="there is no response"):
        client.responses.retrieve(response_id)


def test_a_response_that_is_not_stored_is_gone(client: Any) -> None:
    whole = client.responses.create(**asked(store=False))
    streamed = list(client.responses.create(**asked(store=False, stream=True)))
    assert text_of(streamed) == whole.output_text
    for response_id in (whole.id, streamed[0].response.id):
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(response_id)


def test_a_job_is_no_response(client: Any, site: Site) -> None:
    job_id = site.submit(1, "echo")
    with pytest.raises(openai.NotFoundError, match="there is no response"):
        client.responses.retrieve(job_id)
    with pytest.raises(openai.NotFoundError, match="there is no response"):
        client.responses.delete(job_id)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("more", "message", "param"),
    [
        ({"input": [{"type": "reasoning"}]}, "type 'reasoning' is not supported", "input"),
        ({"input": [{"role": "user"}]}, "has no content", "input"),
        ({"input": [{"content": "x"}]}, "has no role", "input"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "images are",
            "input",
        ),
        ({"previous_response_id": "resp_1"}, "there is no response", "previous_response_id"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "there is no item", "input"),
        ({"conversation": "conv_1"}, "not supported here", "conversation"),
        ({"background": True, "store": False}, "is stored", "store"),
        ({"max_output_tokens": 5000}, "context length is 1,024", "input"),
        (
            {"text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "a"}}}},
            "text.format.schema: the JSON schema is one for which there are no masks",
            "text.format",
        ),
        ({"model": "echo"}, "model echo is no language model", "model"),
    ],
)
def test_a_bad_request_is_refused(
    client: Any, more: dict[str, Any], message: str, param: str | None, stream: bool
) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        client.responses.create(**{**asked(), **more}, stream=stream)
    assert message in str(error.value)
    assert error.value.param == param


def test_a_failure_in_the_background_is_in_the_response(client: Any) -> None:
    made = client.responses.create(**asked(max_output_tokens=5000, background=True))

    def failed() -> Any:
        found = client.responses.retrieve(made.id)
        return found if found.status == "failed" else None

    found = wait_until(failed, "it fails")
    assert found.error.code == "invalid_prompt"
    assert "context length is 1,024" in found.error.message
    events = list(client.responses.retrieve(made.id, stream=True))
    assert events[-1].type == "response.failed"


def test_a_result_that_is_no_text_is_a_failure(client: Any) -> None:
    made = client.responses.create(model="echo", input="x", background=True)
    events = list(client.responses.retrieve(made.id, stream=True))
    assert events[-1].type == "response.failed"
    found = client.responses.retrieve(made.id)
    assert (found.status, found.output) == ("failed", [])
    assert "no language model" in found.error.message


def test_a_model_that_cannot_go_on_ends_the_stream(client: Any, tmp_path: Path) -> None:
    for n in range(3):
        (tmp_path / str(n)).touch()
    item = scripted(pieces=["a", "b", "c"], kills=2, until=str(tmp_path))
    with pytest.raises(openai.APIError, match="process was lost"):
        list(client.responses.create(**item, stream=True))


def test_a_stream_goes_on_behind_a_restart(client: Any, tmp_path: Path) -> None:
    for n in range(12):
        (tmp_path / str(n)).touch()
    item = scripted(pieces=[*"abcdefghijkl"], kills=2, until=str(tmp_path))
    made = client.responses.create(**item, background=True)
    wait_until(lambda: client.responses.retrieve(made.id).status == "completed", "it ends", 60)
    events = list(client.responses.retrieve(made.id, stream=True))
    assert text_of(events) == "abcdefghijkl"
    last = events[-1].sequence_number
    for after in range(last + 1):
        rest = list(client.responses.retrieve(made.id, stream=True, starting_after=after))
        assert "error" not in [one.type for one in rest]
        assert "abcdefghijkl".endswith(text_of(rest))
        assert [one.sequence_number for one in rest][-1:] == ([last] if after < last else [])


def test_pieces_that_are_not_kept_come_at_the_end(client: Any, site: Site, tmp_path: Path) -> None:
    item = scripted(pieces=["a", "b", "c", "d"], until=str(tmp_path))
    made = client.responses.create(**item, background=True)
    with client.responses.retrieve(made.id, stream=True) as stream:
        for n, piece in enumerate("abcd"):  # each in an entry of its own
            (tmp_path / str(n)).touch()
            assert next(one for one in stream if one.type.endswith("text.delta")).delta == piece
    wait_until(lambda: client.responses.retrieve(made.id).status == "completed", "it ends", 60)
    site.client.redis.xtrim(keys.pieces(made.id), minid="3-0", approximate=False)
    events = list(client.responses.retrieve(made.id, stream=True))
    assert text_of(events) == "abcd"
    numbers = [one.sequence_number for one in events]
    assert numbers == sorted(set(numbers))


@pytest.mark.slow
def test_a_killed_process_does_not_change_the_response(client: Any, site: Site) -> None:
    expected = client.responses.create(**asked(max_output_tokens=300)).output_text
    for _ in range(10):
        with client.responses.create(**asked(max_output_tokens=300), stream=True) as stream:
            events = [next(stream) for _ in range(5)]
            (pid,) = site.worker.states()["docs"]["pids"]
            os.kill(pid, signal.SIGKILL)
            events += stream
        assert text_of(events) == expected
        if site.shown(events[0].response.id)["attempts"] == 2:
            return  # else it had ended before the kill
    raise AssertionError("each of ten responses ended before the process was killed")


def test_a_hang_up_cancels(site: Site, tmp_path: Path) -> None:
    (tmp_path / "0").touch()
    item = {**scripted(pieces=["a", "b"], until=str(tmp_path)), "stream": True}
    with (
        httpx2.Client(base_url=site.api.url, verify=PLAIN, timeout=60) as http,
        http.stream("POST", "/v1/responses", json=item) as answer,
    ):
        lines = (line for line in answer.iter_lines() if line.startswith("data: "))
        response_id = json.loads(next(lines)[6:])["response"]["id"]
    wait_until(
        lambda: (
            site.shown(response_id).get("cancel_requested")
            or site.shown(response_id)["status"] == "cancelled"
        ),
        "it is cancelled",
    )
    (tmp_path / "1").touch()
    site.ended(response_id)
