"""The parsers of calls: each format, whole and cut at every character."""

from __future__ import annotations

import json
from typing import Any

import pytest

from handlers.generation.calls import (
    HERMES,
    LLAMA,
    MISTRAL,
    MISTRAL_NAMED,
    CallFormat,
    CallParser,
)

NAMES = {"weather", "time.now"}
PARIS, UTC = '{"city": "Pa\\"r}is", "days": [1, {"a": null}]}', '{"zone":"UTC"}'
TWO = [("weather", PARIS), ("time.now", UTC)]


def read(form: CallFormat, *parts: str, most: int | None = None) -> tuple[str, list[Any]]:
    """The text and the calls of an answer that comes in parts."""
    parser = CallParser(form, NAMES, most)
    text, calls = "", list[Any]()
    for piece in [*map(parser.read, parts), parser.read("", last=True)]:
        text += piece["text"]
        for one in piece.get("tool_calls", ()):
            if "name" in one:
                assert one["index"] == len(calls)
                calls.append([one["name"], ""])
            calls[one["index"]][1] += one["arguments"]
    assert parser.count >= len(calls)
    return text, [tuple(one) for one in calls]


HERMES_ARGUMENTS_FIRST = f'<tool_call>{{"arguments": {UTC}, "name": "weather"}}</tool_call>'
ANSWERS: list[tuple[CallFormat, str, str, list[Any]]] = [
    *((form, form.calls(TWO[:1]), "", TWO[:1]) for form in (HERMES, LLAMA, MISTRAL, MISTRAL_NAMED)),
    *((form, form.calls(TWO), "", TWO) for form in (HERMES, LLAMA, MISTRAL, MISTRAL_NAMED)),
    (HERMES, f"I look.\n\n{HERMES.calls(TWO)}\nDone {{}}", "I look.", TWO),
    (LLAMA, f"I look. <|python_tag|>{LLAMA.calls(TWO)} and so on", "I look.", TWO),
    (MISTRAL, f" I look. {MISTRAL.calls(TWO)} ", " I look.", TWO),
    (MISTRAL, f"I look.{MISTRAL_NAMED.calls(TWO)}", "I look.", TWO),
    (MISTRAL, f"[TOOL_CALLS]weather[CALL_ID]a1B2c3D4e[ARGS]{UTC}", "", [("weather", UTC)]),
    (MISTRAL, f"[TOOL_CALLS]weather{UTC}", "", [("weather", UTC)]),
    (HERMES, HERMES_ARGUMENTS_FIRST, "", [("weather", UTC)]),
    (HERMES, '<tool_call>{"name": "weather"}</tool_call>', "", [("weather", "{}")]),
    (
        HERMES, f'<tool_call>{{"name": "weather", "arguments": {json.dumps(UTC)}}}</tool_call>',
        "", [("weather", UTC)],
    ),
    # The end of the tokens.
    (HERMES, '<tool_call>\n{"name": "weather", "arguments": {"ci', "", [("weather", '{"ci')]),
    # No calls.
    *(
        (form, text, text, [])
        for form in (HERMES, LLAMA, MISTRAL)
        for text in (
            "", " ", "zip\n", " a <tool b { } <tool_cal", f"{form.mark} ",
            f'a \n{form.mark}\n{{"name": "unknown", "arguments": {{}}}}\n b ',
            f'{form.mark}{{"name": "weather", "arguments": 1}} b',
            f'{form.mark}{{"name": weather, "arguments": {{}}}} b', f'{form.mark}{{"name": "wea',
            f'{form.mark}{{"city": {{"name": "weather", "arguments": {{}}}}}}',
            f"{form.mark}{form.mark}", f"{form.mark}:-) {form.mark[:5]}",
        )
    ),
    (LLAMA, '\n{"city": "Paris", "more": "', '\n{"city": "Paris", "more": "', []),
    (LLAMA, f"see {LLAMA.calls(TWO)}", f"see {LLAMA.calls(TWO)}", []),
    (MISTRAL, "[TOOL_CALLS]nothing to call {a}", "[TOOL_CALLS]nothing to call {a}", []),
    # A bad call before a good one.
    (
        HERMES, f"<tool_call>?</tool_call>{HERMES.calls(TWO)}", "<tool_call>?</tool_call>", TWO
    ),
]  # fmt: skip


@pytest.mark.parametrize(("form", "answer", "text", "calls"), ANSWERS)
def test_calls_are_found_however_the_text_comes(
    form: CallFormat, answer: str, text: str, calls: list[Any]
) -> None:
    assert read(form, answer) == (text, calls)
    assert read(form, *answer) == (text, calls)
    for at in range(len(answer)):
        assert read(form, answer[:at], answer[at:]) == (text, calls), answer[:at]


@pytest.mark.parametrize(("form", "answer"), [(form, answer) for form, answer, *_ in ANSWERS])
def test_another_process_goes_on_where_one_stopped(form: CallFormat, answer: str) -> None:
    for at in range(len(answer)):
        first, second = CallParser(form, NAMES), CallParser(form, NAMES)
        for char in answer[:at]:
            first.read(char)
        second.read(answer[:at])
        rest = answer[at:]
        assert first.read(rest, last=True) == second.read(rest, last=True), answer[:at]
        assert first.count == second.count


def test_a_call_streams_its_name_and_then_its_arguments() -> None:
    parser = CallParser(HERMES, NAMES)
    pieces = [parser.read(char) for char in f"a {HERMES.calls(TWO)}"]
    found = [one for piece in pieces for one in piece.get("tool_calls", ())]
    assert found[:2] == [
        {"index": 0, "name": "weather", "arguments": "{"}, {"index": 0, "arguments": '"'},
    ]  # fmt: skip
    assert len(found) == len(PARIS) + len(UTC)
    assert pieces[0] == {"text": "a"}


def test_further_calls_are_left_out_if_only_one_counts() -> None:
    for form in (HERMES, LLAMA, MISTRAL, MISTRAL_NAMED):
        assert read(form, *form.calls(TWO), most=1) == ("", TWO[:1])


def test_calls_are_complete_while_none_that_counts_has_begun() -> None:
    for form in (HERMES, LLAMA, MISTRAL, MISTRAL_NAMED):
        one, two = form.calls(TWO[:1]), form.calls(TWO)
        first = two.index(PARIS) + len(PARIS)
        second = two.index("time.now") + 2
        for most, found in ((None, False), (1, True)):
            for answer, complete in (
                (two[: first - 1], False), (two[:first], True), (one, True), (two[:second], found),
                (two[: two.index(UTC) + 3], found), (two, True),
            ):  # fmt: skip
                parser = CallParser(form, NAMES, most)
                parser.read(answer)
                assert parser.complete == complete, answer


def test_an_answer_of_calls_alone_has_no_text() -> None:
    for form in (HERMES, LLAMA, MISTRAL, MISTRAL_NAMED):
        answer = form.calls(TWO)
        for count in range(len(answer) + 1):
            parser = CallParser(form, NAMES, calls_only=True)
            assert not parser.read(answer[:count])["text"]
            assert not parser.read("", last=True)["text"]


def test_long_answers_are_read_in_time_that_grows_with_them() -> None:
    # A quadratic parser would take minutes.
    marks = "<tool_call>" * 50_000
    assert read(HERMES, *marks)[0] == marks
    opened = '<tool_call>{"name": "' + '{"' * 100_000
    assert read(HERMES, *opened)[0] == opened
