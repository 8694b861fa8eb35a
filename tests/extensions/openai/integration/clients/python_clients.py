"""Runs the calls of one client: `python_clients.py NAME URL`, with the Python of `make clients`.

It prints a line for each call; the last line says how many there were.
"""
# mypy: ignore-errors

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import openai
from pydantic import BaseModel, Field

MODEL = "docs"
#: The model has a short answer to it.
TEXT = "Where is Paris?"
#: Each kind of call three times: many more than fit into a batch of the model.
AT_ONCE = 24
CHAT = [{"role": "user", "content": TEXT}]


class City(BaseModel):
    """A city."""

    name: Literal["Paris", "Rome"]
    size: int = Field(ge=1, le=9)


PARAMETERS = City.model_json_schema()
TOOL = {
    "type": "function",
    "function": {"name": "city", "description": "Finds a city.", "parameters": PARAMETERS},
}
NAMED = {"type": "function", "function": {"name": "city"}}
FLAT = {"type": "function", **TOOL["function"]}


def is_city(found: object) -> None:
    if isinstance(found, str):
        found = json.loads(found)
    City.model_validate(found, from_attributes=True)


def arguments_of(chunks: Any) -> str:
    """The arguments of the calls in a stream of a chat."""
    deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
    calls = [call for delta in deltas for call in delta.tool_calls or ()]
    return "".join(call.function.arguments or "" for call in calls)


def openai_python(url: str) -> list[Callable[[], Any]]:
    client = openai.OpenAI(base_url=url, api_key="none")
    chats, responses = client.chat.completions, client.responses

    def plain() -> None:
        assert chats.create(model=MODEL, messages=CHAT).choices[0].message.content

    def streamed() -> None:
        with chats.stream(model=MODEL, messages=CHAT) as stream:
            text = "".join(e.delta for e in stream if e.type == "content.delta")
            assert text == stream.get_final_completion().choices[0].message.content

    def structured() -> None:
        parsed = chats.parse(model=MODEL, messages=CHAT, response_format=City)
        is_city(parsed.choices[0].message.parsed)

    def called() -> None:
        answer = chats.create(model=MODEL, messages=CHAT, tools=[TOOL], tool_choice=NAMED)
        (call,) = answer.choices[0].message.tool_calls
        is_city(call.function.arguments)
        back = [
            *CHAT,
            answer.choices[0].message.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": call.id, "content": "It is sunny."},
        ]
        assert chats.create(model=MODEL, messages=back, tools=[TOOL], tool_choice="none").id

    def streamed_call() -> None:
        chunks = chats.create(
            model=MODEL, messages=CHAT, tools=[TOOL], tool_choice=NAMED, stream=True
        )
        is_city(arguments_of(chunks))

    def conversation() -> None:
        first = responses.create(model=MODEL, input=TEXT)
        second = responses.create(model=MODEL, input="And Rome?", previous_response_id=first.id)
        assert second.output_text
        assert responses.input_items.list(second.id).data

    def response_parsed() -> None:
        is_city(responses.parse(model=MODEL, input=TEXT, text_format=City).output_parsed)

    def response_called() -> None:
        answer = responses.create(
            model=MODEL, input=TEXT, tools=[FLAT], tool_choice={"type": "function", "name": "city"}
        )
        (call,) = (item for item in answer.output if item.type == "function_call")
        is_city(call.arguments)
        output = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
        assert responses.create(model=MODEL, input=[output], previous_response_id=answer.id).id

    kinds = [
        plain, streamed, structured, called, streamed_call, conversation, response_parsed,
        response_called,
    ]  # fmt: skip

    def all_at_once() -> None:
        with ThreadPoolExecutor(AT_ONCE) as threads:
            running = [threads.submit(kinds[n % len(kinds)]) for n in range(AT_ONCE)]
        for one in running:
            one.result()

    return [*kinds, all_at_once]


def instructor(url: str) -> list[Callable[[], Any]]:
    import instructor as library

    client = library.from_openai(openai.OpenAI(base_url=url, api_key="none"))

    def plain() -> None:
        found = client.chat.completions.create(model=MODEL, messages=CHAT, response_model=None)
        assert found.choices[0].message.content

    def streamed() -> None:
        *_, last = client.chat.completions.create_partial(
            model=MODEL, messages=CHAT, response_model=City
        )
        is_city(last.model_dump())

    def in_mode(mode: library.Mode) -> Callable[[], None]:
        def call() -> None:
            client = library.from_openai(openai.OpenAI(base_url=url, api_key="none"), mode=mode)
            is_city(
                client.chat.completions.create(
                    model=MODEL, messages=CHAT, response_model=City, max_retries=0
                )
            )

        return call

    return [plain, streamed, in_mode(library.Mode.TOOLS), in_mode(library.Mode.JSON_SCHEMA)]


def langchain(url: str) -> list[Callable[[], Any]]:
    from langchain_openai import ChatOpenAI

    def calls(responses: bool) -> list[Callable[[], None]]:
        model = ChatOpenAI(model=MODEL, base_url=url, api_key="none", use_responses_api=responses)

        def plain() -> None:
            assert model.invoke(TEXT).content

        def streamed() -> None:
            assert list(model.stream(TEXT))

        def structured() -> None:
            is_city(model.with_structured_output(City, method="json_schema").invoke(TEXT))

        def called() -> None:
            answer = model.bind_tools([TOOL], tool_choice="city").invoke(TEXT)
            is_city(answer.tool_calls[0]["args"])

        return [plain, streamed, structured, called]

    return [*calls(False), *calls(True)]


def llama_index(url: str) -> list[Callable[[], Any]]:
    from llama_index.core.prompts import PromptTemplate
    from llama_index.llms.openai_like import OpenAILike

    def model(**more: Any) -> OpenAILike:
        return OpenAILike(model=MODEL, api_base=url, api_key="none", is_chat_model=True, **more)

    def plain() -> None:
        assert model().complete(TEXT).text

    def streamed() -> None:
        assert list(model().stream_complete(TEXT))

    def structured() -> None:
        found = model(should_use_structured_outputs=True)
        is_city(found.structured_predict(City, PromptTemplate(TEXT)))

    def called() -> None:
        found = model(is_function_calling_model=True)
        forced = {"tool_choice": "required"}
        is_city(found.structured_predict(City, PromptTemplate(TEXT), llm_kwargs=forced))

    return [plain, streamed, structured, called]


def openai_agents(url: str) -> list[Callable[[], Any]]:
    import agents

    agents.set_tracing_disabled(True)

    @agents.function_tool
    def city(name: Literal["Paris", "Rome"]) -> str:
        return f"It is sunny in {name}."

    def calls(kind: type) -> list[Callable[[], None]]:
        def agent(**more: Any) -> agents.Agent:
            # A client of its own for each event loop.
            client = openai.AsyncOpenAI(base_url=url, api_key="none")
            model = kind(model=MODEL, openai_client=client)
            return agents.Agent(name="agent", model=model, **more)

        def run(**more: Any) -> Any:
            return asyncio.run(agents.Runner.run(agent(**more), TEXT))

        def plain() -> None:
            assert run().final_output

        def streamed() -> None:
            async def read() -> None:
                stream = agents.Runner.run_streamed(agent(), TEXT)
                assert [event async for event in stream.stream_events()]
                assert stream.final_output

            asyncio.run(read())

        def structured() -> None:
            is_city(run(output_type=City).final_output)

        forced = agents.ModelSettings(tool_choice="required", parallel_tool_calls=False)

        def check_items(found: Any) -> None:
            items = [type(item).__name__ for item in found.new_items]
            assert items == ["ToolCallItem", "ToolCallOutputItem", "MessageOutputItem"], items

        def called() -> None:
            check_items(run(tools=[city], model_settings=forced))

        def streamed_call() -> None:
            async def read() -> str:
                stream = agents.Runner.run_streamed(
                    agent(tools=[city], model_settings=forced), TEXT
                )
                events = [event.data async for event in stream.stream_events()
                          if event.type == "raw_response_event"]  # fmt: skip
                check_items(stream)
                kind = "response.function_call_arguments.delta"
                return "".join(event.delta for event in events if event.type == kind)

            assert json.loads(asyncio.run(read()))["name"] in ("Paris", "Rome")

        return [plain, streamed, structured, called, streamed_call]

    return [*calls(agents.OpenAIResponsesModel), *calls(agents.OpenAIChatCompletionsModel)]


def pydantic_ai(url: str) -> list[Callable[[], Any]]:
    from pydantic_ai import Agent, NativeOutput, ToolOutput
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    def calls(kind: type) -> list[Callable[[], None]]:
        def agent(output: Any) -> Agent:
            model = kind(MODEL, provider=OpenAIProvider(base_url=url, api_key="none"))
            return Agent(model, output_type=output)

        def run(output: Any) -> Any:
            return agent(output).run_sync(TEXT).output

        def plain() -> None:
            assert run(str)

        def streamed() -> None:
            async def read() -> str:
                async with agent(str).run_stream(TEXT) as stream:
                    return "".join([text async for text in stream.stream_text(delta=True)])

            assert asyncio.run(read())

        def structured() -> None:
            is_city(run(NativeOutput(City)))

        def called() -> None:
            is_city(run(ToolOutput(City)))

        def streamed_call() -> None:
            async def read() -> tuple[list[str], City]:
                async with agent(ToolOutput(City)).run_stream(TEXT) as stream:
                    responses = stream.stream_response(debounce_by=None)
                    seen = [str(response.parts) async for response in responses]
                    return seen, await stream.get_output()

            seen, output = asyncio.run(read())
            assert len(set(seen)) > 1
            is_city(output)

        return [plain, streamed, structured, called, streamed_call]

    return [*calls(OpenAIChatModel), *calls(OpenAIResponsesModel)]


def litellm(url: str) -> list[Callable[[], Any]]:
    import litellm as library

    library.suppress_debug_info = True
    server = {"api_base": url, "api_key": "none"}

    def calls(name: str) -> list[Callable[[], None]]:
        def plain() -> None:
            assert library.completion(model=name, messages=CHAT, **server).choices[0]

        def streamed() -> None:
            assert list(library.completion(model=name, messages=CHAT, stream=True, **server))

        def structured() -> None:
            found = library.completion(model=name, messages=CHAT, response_format=City, **server)
            is_city(found.choices[0].message.content)

        def called() -> None:
            found = library.completion(
                model=name, messages=CHAT, tools=[TOOL], tool_choice=NAMED, **server
            )
            is_city(found.choices[0].message.tool_calls[0].function.arguments)

        def too_long() -> None:
            long = [{"role": "user", "content": "word " * 3000}]
            try:
                library.completion(model=name, messages=long, **server)
            except library.ContextWindowExceededError:
                return
            raise AssertionError("the prompt was not too long")

        return [plain, streamed, structured, called, too_long]

    return [*calls(f"openai/{MODEL}"), *calls(f"hosted_vllm/{MODEL}")]


def litellm_proxy(url: str) -> list[Callable[[], Any]]:
    """Calls of OpenAI's client through LiteLLM's proxy, which `test_clients.py` has started."""
    client = openai.OpenAI(base_url=url, api_key="none")
    chats = client.chat.completions

    def plain() -> None:
        assert chats.create(model=MODEL, messages=CHAT).choices[0].message.content

    def streamed() -> None:
        chunks = chats.create(model=MODEL, messages=CHAT, stream=True)
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)

    def structured() -> None:
        parsed = chats.parse(model=MODEL, messages=CHAT, response_format=City)
        is_city(parsed.choices[0].message.parsed)

    def called() -> None:
        answer = chats.create(model=MODEL, messages=CHAT, tools=[TOOL], tool_choice=NAMED)
        is_city(answer.choices[0].message.tool_calls[0].function.arguments)

    def streamed_call() -> None:
        chunks = chats.create(
            model=MODEL, messages=CHAT, tools=[TOOL], tool_choice=NAMED, stream=True
        )
        is_city(arguments_of(chunks))

    def response() -> None:
        assert client.responses.create(model=MODEL, input=TEXT).output_text

    return [plain, streamed, structured, called, streamed_call, response]


CLIENTS = {
    "openai-python": openai_python, "instructor": instructor, "langchain": langchain,
    "llama-index": llama_index, "openai-agents": openai_agents, "pydantic-ai": pydantic_ai,
    "litellm": litellm, "litellm-proxy": litellm_proxy,
}  # fmt: skip


def main(name: str, url: str) -> None:
    calls = CLIENTS[name](url)
    for call in calls:
        call()
        print(call.__name__, flush=True)
    print(f"{len(calls)} calls")


if __name__ == "__main__":
    main(*sys.argv[1:])
