"""Call a model without a server of its own as if it had one."""

from __future__ import annotations

import json
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from langchain_core.messages import AIMessage, AIMessageChunk, convert_to_messages

from memagent_graph.errors import ContextLengthError, RefusalError
from memagent_graph.models.failures import model_error
from memagent_http.refusals import Refusal
from memagent_openai_server.completion import Head, usage_of
from memagent_openai_server.errors import TOO_LONG
from memagent_openai_server.upstream import Reply

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from langchain_core.language_models import BaseChatModel

_OPTIONS = ("temperature", "top_p", "seed", "max_tokens")


class LocalModel:
    """A LangChain chat model: vLLM or transformers in this process, or any provider's.

    Args:
        model: the model.
        name: the model's name for clients.
    """

    def __init__(self, model: BaseChatModel, name: str) -> None:
        self._model = model
        self._name = name

    async def complete(self, body: bytes) -> Reply:
        """Answer a chat completion as a server would.

        Raises:
            Refusal: The model cannot do what the request asks for.
            ModelError: The model failed.
        """
        fields = json.loads(body)
        parts = self._parts(fields)
        head = Head.new(self._name)
        try:
            first = await anext(parts, None)
            if fields.get("stream"):
                options = fields.get("stream_options") or {}
                usage = bool(options.get("include_usage"))
                return Reply.stream(_chunks(head, first, parts, usage=usage))
            whole = first
            async for part in parts:
                whole = part if whole is None else whole + part
            return Reply.whole(_completion(head, whole))
        except (Refusal, ValueError, NotImplementedError) as error:
            if isinstance(error, Refusal):
                raise
            raise Refusal(400, "The model does not take this conversation.") from error
        except Exception as error:
            found = model_error(error)
            if isinstance(found, ContextLengthError):
                message = "The request is longer than the model's maximum context length."
                raise Refusal(400, message, code=TOO_LONG, param="messages") from error
            if isinstance(found, RefusalError):
                raise Refusal(400, "The model refused.", code="content_filter") from error
            raise found from error

    async def aclose(self) -> None:
        """Do nothing: there are no connections."""

    async def _parts(self, fields: dict[str, Any]) -> AsyncGenerator[AIMessageChunk, None]:
        for name, value in (("n", 1), ("logprobs", False), ("response_format", {"type": "text"})):
            if fields.get(name) not in (None, value):
                message = f"This model gives one answer, in plain text: it does not take {name}."
                raise Refusal(400, message, param=name, code="unsupported_parameter")
        limit = fields.get("max_completion_tokens") or fields.get("max_tokens")
        wanted = {**fields, "max_tokens": limit}
        known = type(self._model).model_fields
        options = {
            name: wanted[name]
            for name in _OPTIONS
            if wanted.get(name) is not None and name in known
        }
        stop = fields.get("stop")
        model: Any = self._model
        if fields.get("tools"):
            model = model.bind_tools(fields["tools"], tool_choice=fields.get("tool_choice"))
        messages = convert_to_messages(fields["messages"])
        async for part in model.astream(
            messages, stop=[stop] if isinstance(stop, str) else stop, **options
        ):
            yield part


async def _chunks(
    head: Head,
    first: AIMessageChunk | None,
    rest: AsyncGenerator[AIMessageChunk, None],
    *,
    usage: bool,
) -> AsyncGenerator[dict[str, Any], None]:
    yield head.chunk({"role": "assistant", "content": ""})
    whole = first
    if first is not None and first.text:
        yield head.chunk({"content": first.text})
    async with aclosing(rest):
        try:
            async for part in rest:
                whole = part if whole is None else whole + part
                if part.text:
                    yield head.chunk({"content": part.text})
        except Exception as error:
            raise model_error(error) from error
    if whole is not None and (calls := _calls(whole)):
        numbered = [{"index": index, **call} for index, call in enumerate(calls)]
        yield head.chunk({"tool_calls": numbered})
    yield head.chunk({}, _finish_reason(whole))
    if usage:
        yield head.usage(_usage(whole))


def _completion(head: Head, message: AIMessage | None) -> dict[str, Any]:
    said: dict[str, Any] = {"role": "assistant", "content": message.text if message else ""}
    if message is not None and (calls := _calls(message)):
        said["tool_calls"] = calls
    return head.whole(said, _finish_reason(message), _usage(message))


def _calls(message: AIMessage) -> list[dict[str, Any]]:
    return [
        {
            "id": call["id"],
            "type": "function",
            "function": {"name": call["name"], "arguments": json.dumps(call["args"])},
        }
        for call in message.tool_calls
    ]


def _finish_reason(message: AIMessage | None) -> str:
    if message is not None and message.tool_calls:
        return "tool_calls"
    found = message.response_metadata.get("finish_reason") if message else None
    return "length" if found in ("length", "max_tokens", "MAX_TOKENS") else "stop"


def _usage(message: AIMessage | None) -> dict[str, int]:
    found = message.usage_metadata if message else None
    return usage_of(*((found["input_tokens"], found["output_tokens"]) if found else (0, 0)))
