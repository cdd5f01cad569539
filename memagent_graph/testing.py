"""A chat model that follows a script, for tests of graphs: no server, no key, no chance."""

from __future__ import annotations

import json
import re
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeAlias

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import BaseModel, PrivateAttr

from memagent_graph.errors import ConfigurationError
from memagent_graph.models.completion import ModelCall
from memagent_graph.text.tokens import EstimatingTokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from langchain_core.runnables import Runnable

Reply: TypeAlias = (
    "str | AIMessage | BaseException | tuple[str | BaseException, ...] | dict[str, Any] | BaseModel"
    " | Callable[[list[BaseMessage]], Reply]"
)
"""A reply of the script; see `ScriptedChatModel`."""
_KINDS = (str, AIMessage, BaseException, tuple, dict, BaseModel)
_COUNTER = EstimatingTokenizer()
_WORDS = re.compile(r"\s*\S+\s*|\s+")
_BESIDE_CONTENT = ("id", "tool_calls", "usage_metadata", "response_metadata", "additional_kwargs")


class ScriptedChatModel(BaseChatModel):
    """A chat model that replies by a script, and records what it was asked.

    Each call takes the next reply; the last one serves all further calls. A reply is

    - a string, or an `AIMessage` with tool calls, usage or metadata of its own;
    - an exception, which the call raises;
    - a tuple of strings, the chunks of a stream, in which an exception breaks the stream off;
    - a dict or pydantic model, a structured output: a call of the tool that `tool_choice` demands,
      as `with_structured_output` and `create_agent` read it, and otherwise JSON;
    - or a function that takes the messages and returns one of these.

    Usage is estimated for a message without usage or metadata. Threads and loops may share a model.

    Args:
        script: replies, in order.
        fields: fields of `BaseChatModel`, and `max_tokens`, by default left to the reader.

    Raises:
        ConfigurationError: The script is empty, or has something else, such as a list.
    """

    max_tokens: int | None = None
    """Limit of a reply in tokens, which no reply of a script keeps; by default the reader's."""
    _calls: list[ModelCall] = PrivateAttr(default_factory=list)
    _script: tuple[Reply, ...] = PrivateAttr()
    _lock: Any = PrivateAttr(default_factory=Lock)

    def __init__(self, *script: Reply, **fields: Any) -> None:
        for reply in script or (None,):
            if not (isinstance(reply, _KINDS) or callable(reply)):
                message = (
                    f"{reply!r} is no reply. Give each as an argument: (*replies), if in a list."
                )
                raise ConfigurationError(message)
        super().__init__(**fields)
        self._script = script

    @property
    def calls(self) -> list[ModelCall]:
        """The calls so far, failed ones too: `messages`, `options`, `whole` or in chunks."""
        return self._calls

    @property
    def prompts(self) -> list[str]:
        """The text of each call's messages, each on a line of its own."""
        return ["\n".join(message.text for message in call.messages) for call in self._calls]

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **options: Any) -> Runnable[Any, AIMessage]:
        """Return the model with tools, which each call records among its options."""
        return self.bind(tools=[convert_to_openai_tool(tool) for tool in tools], **options)

    def _generate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **options: Any
    ) -> ChatResult:
        return ChatResult(generations=[*self._play(messages, stop, options, whole=True)])

    def _stream(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **options: Any
    ) -> Iterator[ChatGenerationChunk]:
        return self._play(messages, stop, options, whole=False)

    def _play(
        self, messages: list[BaseMessage], stop: Any, options: dict[str, Any], *, whole: bool
    ) -> Iterator[Any]:
        given = options if stop is None else {**options, "stop": stop}
        with self._lock:
            self._calls.append(ModelCall([*messages], given, whole))
            number = len(self._calls)
        reply = self._script[min(number, len(self._script)) - 1]
        reply = reply(messages) if callable(reply) else reply
        if isinstance(reply, tuple | BaseException):
            parts: Sequence[Any] = reply if isinstance(reply, tuple) else (reply,)
            message = AIMessage("".join(part for part in parts if isinstance(part, str)))
        else:
            message = _to_message(reply, options)
            text = message.content
            parts = _WORDS.findall(text) if isinstance(text, str) else [text]
        for part in parts:
            if isinstance(part, BaseException):
                raise part
            if not whole:
                yield ChatGenerationChunk(message=AIMessageChunk(content=part, id=message.id))
        for place, made in enumerate(message.tool_calls):
            made["id"] = made["id"] or f"call-{number}-{place}"
        if message.usage_metadata is None and not message.response_metadata:
            read = sum(_COUNTER.count(one.text) for one in messages)
            wrote = _COUNTER.count(message.text)
            message.usage_metadata = UsageMetadata(
                input_tokens=read, output_tokens=wrote, total_tokens=read + wrote
            )
        if whole:
            yield ChatGeneration(message=message)
        else:
            rest = {name: getattr(message, name) for name in _BESIDE_CONTENT}
            last = AIMessageChunk(content="", chunk_position="last", **rest)
            yield ChatGenerationChunk(message=last)


def call_tool(name: str, /, **arguments: Any) -> AIMessage:
    """Return a reply that calls a tool; the model gives the call an id."""
    return AIMessage("", tool_calls=[{"name": name, "args": arguments, "id": None}])


def _to_message(reply: Any, options: dict[str, Any]) -> AIMessage:
    if isinstance(reply, str):
        return AIMessage(reply)
    if isinstance(reply, AIMessage):
        return reply.model_copy(deep=True)
    output = reply.model_dump(mode="json") if isinstance(reply, BaseModel) else reply
    if options.get("tool_choice"):  # an agent appends the tool of its output to its own
        return call_tool(options["tools"][-1]["function"]["name"], **output)
    return AIMessage(json.dumps(output))
