"""Convert messages, completions and engine outputs between formats."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import isfinite
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, convert_to_openai_messages
from langchain_core.messages.ai import InputTokenDetails, OutputTokenDetails, UsageMetadata
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from pydantic import BaseModel, ValidationError

from memagent_graph.errors import ConfigurationError, TransientModelError
from memagent_graph.models.failures import reply_error, words_of
from memagent_graph.text.tokens import HuggingFaceTokenizer

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence

    from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
    from langchain_core.messages import BaseMessage
    from openai.types.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionMessage
    from openai.types.chat.chat_completion import Choice
    from openai.types.chat.chat_completion_chunk import Choice as ChunkChoice
    from openai.types.chat.chat_completion_chunk import ChoiceDelta

    from memagent_graph.sync import LoopThread


class Generation(TypedDict):
    """The entry `generation` in a reply's `response_metadata`.

    Attributes:
        prompt_token_ids: the prompt's tokens; None if not reported.
        token_ids: the completion's tokens, including the one that ended it; None if not reported.
        logprobs: natural logarithm of each completion token's probability under the model, before
            temperature and top-p; None if not requested or not reported.
        finish_reason: why the engine stopped, in its own words ("stop", "length", ...).
        seconds: time from the request to the end of the reply, in seconds.
    """

    prompt_token_ids: list[int] | None
    token_ids: list[int] | None
    logprobs: list[float] | None
    finish_reason: str | None
    seconds: float


def text_in(block: str | Mapping[str, object]) -> str | None:
    """Return the text of a block of a message's content: "" for a thought, None without text."""
    if isinstance(block, str):
        return block
    if block.get("thought"):  # Gemini
        return ""
    text = block.get("text")
    if isinstance(text, Mapping):  # OpenAI's Assistants
        text = text.get("value")
    return text if isinstance(text, str) else None


def text_of(reply: BaseMessage) -> str:
    """Return the text of a model's message, without blocks that are no text of the reply."""
    if isinstance(reply.content, str):
        return reply.content
    said = [b for b in reply.content if isinstance(b, str) or b.get("type") in _SPOKEN]
    return "".join(text_in(block) or "" for block in said)


_SPOKEN = {"text", "output_text"}
"""Types of the blocks that a model says; the latter is that of OpenAI's Responses."""

Ending = Literal["cut off", "refused", "failed"]
_REFUSED = re.compile(
    r"filter|safety|refus|block|prohibit|spii|recitation|guardrail|sensitive|toxic|moderat|violat"
    r"|censor|^risk|^language"
)
_CUT_OFF = re.compile(
    r"length|(?:^|_)max|limit|truncat|budget|context|not_finished|incomplete|(?:^|_)full(?:_|$)"
    r"|(?<!eos_)(?<!eot_)(?<!end_)(?<!stop_)(?<!special_)tokens?(?:_|$)"
)
_FAILED = re.compile(
    r"error|fail|abort|cancel|interrupt|time_?d?_?out|overload|unavailable|malformed|insufficient"
    r"|exception|terminat|deadline|kill|crash|preempt|disconnect|(?:^|_)lost|(?:^|_)oom|memory"
    r"|unexpected|^other"
)
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")


def find_ending(finish_reason: str | None) -> Ending | None:
    """Return what a finish reason means if the reply is not whole; None if it is.

    Each provider has words of its own: "length", "max_tokens" (Anthropic), "MAX_TOKENS" (Gemini,
    Cohere), "model_length" (Mistral), "token_limit" (watsonx), "model_context_window_exceeded";
    "content_filter", "SAFETY", "RECITATION" (Gemini), "guardrail_intervened" (Bedrock), "sensitive"
    (Zhipu); "error" (OpenRouter), "network_error" (Zhipu), "insufficient_system_resource"
    (DeepSeek), "abort" (vLLM, SGLang), "ERROR" (Cohere). Unknown words are understood by their
    parts; a reply is whole if none of them says otherwise.

    Args:
        finish_reason: why the reply ended, in the server's words.
    """
    if not finish_reason:
        return None
    words = re.sub(r"\W+", "_", _CAMEL.sub("_", finish_reason)).lower()
    if _REFUSED.search(words):
        return "refused"
    if "rate_limit" not in words and _CUT_OFF.search(words):
        return "cut off"
    return "failed" if "rate_limit" in words or _FAILED.search(words) else None


def count_of(value: object) -> int | None:
    """Return a number of tokens that a server reports; None if it is not one.

    Some servers send floats or strings.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return int(number) if isfinite(number) and number >= 0 else None


_LONGEST_SHOWN = 300
"""Characters shown of a reply that is no completion."""


def to_result(completion: ChatCompletion, started: float) -> ChatResult:
    """Convert a whole completion.

    Args:
        completion: the completion, parsed but not validated by the SDK.
        started: time of the request, by `perf_counter`.

    Raises:
        ModelError: The reply holds an error, or is no completion.
    """
    body = _fields(completion)
    choice = _first(body.get("choices"))
    message = _message(choice, "message")
    reason = getattr(choice, "finish_reason", None)
    _check(body, choice, reason)
    if message is None:
        text = (
            f"The server's reply is not a chat completion: {_show(completion)} Check that the "
            "base URL is that of an OpenAI-compatible API."
        )
        raise TransientModelError(text)
    extra = _extra(message)
    calls = [call.model_dump() for call in getattr(message, "tool_calls", None) or ()]
    if calls:
        extra["tool_calls"] = calls  # AIMessage parses them into `tool_calls`
    generation = Generation(
        prompt_token_ids=body.get("prompt_token_ids"),
        token_ids=getattr(choice, "token_ids", None),
        logprobs=_logprobs(choice) or None,
        finish_reason=reason,
        seconds=perf_counter() - started,
    )
    reply = AIMessage(
        content=_content(message),
        additional_kwargs=extra,
        usage_metadata=_ReportedUsage().add(body.get("usage")).metadata(),
        response_metadata={
            "finish_reason": reason,
            "model_name": body.get("model"),
            "id": body.get("id"),
            "generation": generation,
        },
    )
    return ChatResult(generations=[ChatGeneration(message=reply)])


class PartialCompletion:
    """Turns a stream's parts into chunks, and collects what only the last chunk can report.

    Args:
        started: time of the request, by `perf_counter`.
    """

    def __init__(self, started: float) -> None:
        self._started = started
        self._model: str | None = None
        self._finish_reason: str | None = None
        self._prompt_token_ids: list[int] | None = None
        self._token_ids: list[int] = []
        self._logprobs: list[float] = []
        self._usage = _ReportedUsage()
        self._has_text = False
        self._index: int | None = None
        self._is_done = False

    def chunk(self, part: ChatCompletionChunk) -> ChatGenerationChunk:
        """Convert one part of the stream.

        Raises:
            ModelError: The part holds an error.
        """
        body = _fields(part)
        choice = self._own(body.get("choices"))
        self._model = body.get("model") or self._model
        self._prompt_token_ids = body.get("prompt_token_ids") or self._prompt_token_ids
        self._usage.add(body.get("usage"))
        reason = getattr(choice, "finish_reason", None)
        _check(body, choice, reason)
        self._finish_reason = reason or self._finish_reason
        delta = _message(choice, "delta")
        if delta is None and not self._has_text:  # MiniMax repeats the whole reply at the end
            delta = _message(choice, "message")
        if delta is None:  # the part with the usage, or the last one
            return ChatGenerationChunk(message=AIMessageChunk(content=""))
        self._token_ids += getattr(choice, "token_ids", None) or []
        self._logprobs += _logprobs(choice)
        content = _content(delta)
        self._has_text = self._has_text or bool(content)
        calls = [
            tool_call_chunk(
                name=call.function.name if call.function else None,
                args=call.function.arguments if call.function else None,
                id=call.id,
                index=getattr(call, "index", None),
            )
            for call in getattr(delta, "tool_calls", None) or ()
        ]
        message = AIMessageChunk(
            content=content, additional_kwargs=_extra(delta), tool_call_chunks=calls
        )
        return ChatGenerationChunk(message=message)

    def end(self) -> None:
        """Note that the server said that the stream is complete."""
        self._is_done = True

    def _own(self, choices: object) -> Any:
        """The choice of this reply among those of a part; None if it has only others."""
        for choice in choices if isinstance(choices, list) else ():
            index = getattr(choice, "index", None) or 0
            if self._index in (None, index):
                self._index = index
                return choice
        return None

    def last(self) -> ChatGenerationChunk:
        """Return the chunk that ends the reply.

        Raises:
            TransientModelError: The connection ended before the reply did.
        """
        if self._finish_reason is None and not (self._is_done and self._has_text):
            raise TransientModelError("The server ended the stream before the reply was complete.")
        generation = Generation(
            prompt_token_ids=self._prompt_token_ids,
            token_ids=self._token_ids or None,
            logprobs=self._logprobs or None,
            finish_reason=self._finish_reason,
            seconds=perf_counter() - self._started,
        )
        message = AIMessageChunk(
            content="",
            usage_metadata=self._usage.metadata(),
            response_metadata={
                "finish_reason": self._finish_reason,
                "model_name": self._model,
                "generation": generation,
            },
            chunk_position="last",
        )
        return ChatGenerationChunk(message=message)


class _ReportedUsage:
    """The usage of a call, as far as the server reports it.

    In a stream, a part's usage is that of all parts so far, or each part has some of the counts.
    """

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def add(self, usage: object) -> Self:
        """Add what a reply or a part of one reports."""
        counts = _fields(usage)
        reported = {
            "input": _count(counts, "prompt_tokens", "input_tokens"),
            "output": _count(counts, "completion_tokens", "output_tokens"),
            "total": _count(counts, "total_tokens"),
            "cached": _count(_fields(counts.get("prompt_tokens_details")), "cached_tokens"),
            "reasoning": _count(
                _fields(counts.get("completion_tokens_details")), "reasoning_tokens"
            ),
        }
        for name, count in reported.items():
            if count is not None:
                self._counts[name] = max(count, self._counts.get(name, 0))
        return self

    def metadata(self) -> UsageMetadata | None:
        """Return the usage; None unless both of its counts are known."""
        counts = self._counts
        total, read, written = (counts.get(name) for name in ("total", "input", "output"))
        if read is None and total is not None and written is not None:
            read = max(0, total - written)
        if written is None and total is not None and read is not None:
            written = max(0, total - read)
        if read is None and written is None:
            return None
        read, written = read or 0, written or 0
        found = UsageMetadata(
            input_tokens=read, output_tokens=written, total_tokens=max(total or 0, read + written)
        )
        if "cached" in counts:
            found["input_token_details"] = InputTokenDetails(cache_read=counts["cached"])
        if "reasoning" in counts:
            found["output_token_details"] = OutputTokenDetails(reasoning=counts["reasoning"])
        return found


def _count(counts: Mapping[str, Any], *names: str) -> int | None:
    found = (count_of(counts.get(name)) for name in names)
    return next((count for count in found if count is not None), None)


def _check(body: Mapping[str, Any], choice: object, reason: str | None) -> None:
    """Raise the error that a reply, or a part of one, has in place of a completion."""
    if (error := reply_error(body)) is not None:
        raise error
    if find_ending(reason) == "failed":
        said = words_of(getattr(choice, "error", None))
        found = reply_error({"error": getattr(choice, "error", None)})
        text = f"The server broke off the reply ({reason}){': ' if said else '.'}{said}"
        raise found or TransientModelError(text)


def _fields(parsed: object) -> dict[str, Any]:
    """The fields of an object that the SDK parsed without validating it."""
    if isinstance(parsed, Mapping):
        return dict(parsed)
    return {**vars(parsed), **(parsed.model_extra or {})} if isinstance(parsed, BaseModel) else {}


def _first(choices: object) -> Any:
    return choices[0] if isinstance(choices, list) and choices else None


def _message(choice: object, name: str) -> Any:
    """The message of a choice, under its name; the text, if the reply is of the older API."""
    found, text = getattr(choice, name, None), getattr(choice, "text", None)
    if found is None and isinstance(text, str):
        found = {"content": text}
    if not isinstance(found, Mapping):
        return found
    from openai.types.chat.chat_completion_chunk import ChoiceDelta

    return ChoiceDelta.construct(**found)


def _content(message: object) -> Any:
    """The text of a message, or its blocks as LangChain knows them."""
    content = getattr(message, "content", None) or ""
    if isinstance(content, str):
        return content
    return [_block(part) for part in (content if isinstance(content, list) else [content])]


def _block(part: Any) -> Any:
    is_text = isinstance(part, Mapping) and part.get("type") in (None, "output_text")
    return {"type": "text", "text": str(part.get("text") or "")} if is_text else part


def _show(reply: object) -> str:
    text = words_of(reply if isinstance(reply, str) else _fields(reply)) or "it is empty."
    return text[:_LONGEST_SHOWN]


def _extra(message: ChatCompletionMessage | ChoiceDelta) -> dict[str, object]:
    """Refusal, and reasoning, which are not part of the text."""
    reasoning = getattr(message, "reasoning_content", None) or getattr(message, "reasoning", None)
    found = {"refusal": getattr(message, "refusal", None), "reasoning_content": reasoning}
    return {name: value for name, value in found.items() if value}


def _logprobs(choice: Choice | ChunkChoice) -> list[float]:
    content = getattr(getattr(choice, "logprobs", None), "content", None)
    return [token.logprob for token in content or ()]


def whole_reply(text: str, generation: Generation, model: str) -> ChatResult:
    """Return a complete reply; `generation` must have both lists of token ids."""
    message = AIMessage(
        content=text,
        usage_metadata=_usage(generation),
        response_metadata=_metadata(generation, model),
    )
    return ChatResult(generations=[ChatGeneration(message=message)])


def reply_part(text: str) -> ChatGenerationChunk:
    """Return a piece of a streamed reply."""
    return ChatGenerationChunk(message=AIMessageChunk(content=text))


def reply_end(text: str, generation: Generation, model: str) -> ChatGenerationChunk:
    """Return the last piece of a streamed reply, with usage and `generation`."""
    message = AIMessageChunk(
        content=text,
        usage_metadata=_usage(generation),
        response_metadata=_metadata(generation, model),
        chunk_position="last",
    )
    return ChatGenerationChunk(message=message)


def _metadata(generation: Generation, model: str) -> dict[str, object]:
    reason = generation["finish_reason"]
    return {"finish_reason": reason, "model_name": model, "generation": generation}


def _usage(generation: Generation) -> UsageMetadata:
    read = len(generation["prompt_token_ids"] or ())
    written = len(generation["token_ids"] or ())
    return UsageMetadata(input_tokens=read, output_tokens=written, total_tokens=read + written)


class ChatTemplate:
    """Turns messages into a prompt in the format that the model was trained on.

    Args:
        tokenizer: a tokenizer of `transformers`, with a chat template.
        variables: variables of the template, such as `enable_thinking`.

    Raises:
        ConfigurationError: The tokenizer has no chat template.
    """

    def __init__(self, tokenizer: Any, variables: Mapping[str, object] | None = None) -> None:
        if getattr(tokenizer, "chat_template", "") is None:
            message = (
                f"The tokenizer of {tokenizer.name_or_path!r} has no chat template: use the "
                "model's instruction-tuned version, or set chat_template in its "
                "tokenizer_config.json."
            )
            raise ConfigurationError(message)
        backend = getattr(tokenizer, "backend_tokenizer", None)
        self.tokenizer = HuggingFaceTokenizer(backend) if backend is not None else None
        self._original = tokenizer
        self._variables = dict(variables or {}, add_generation_prompt=True)

    def token_ids(self, messages: Sequence[BaseMessage]) -> list[int]:
        """Return the token ids of the text of `messages`, up to where the reply begins."""
        asked = convert_to_openai_messages(list(messages))
        template = self._original.apply_chat_template
        if self.tokenizer is None:  # it is not of the `tokenizers` library
            ids: list[int] = template(asked, tokenize=True, return_dict=False, **self._variables)
            return ids
        return self.tokenizer.encode(template(asked, tokenize=False, **self._variables))


class LoopChatModel(BaseChatModel):
    """A chat model whose calls run on one event loop, from whatever thread or loop they come.

    Raises:
        ConfigurationError: A field is invalid; raised on construction.
    """

    def __init__(self, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as error:
            found = [(*item["loc"], item["msg"]) for item in error.errors()]
            text = "; ".join(": ".join(map(str, parts)) for parts in found)
            raise ConfigurationError(text) from error

    def _loop_thread(self) -> LoopThread:
        raise NotImplementedError

    async def _complete(
        self, messages: list[BaseMessage], stop: list[str] | None, options: dict[str, object]
    ) -> ChatResult:
        """Return the whole reply; runs on the loop."""
        raise NotImplementedError

    def _parts(
        self, messages: list[BaseMessage], stop: list[str] | None, options: dict[str, object]
    ) -> AsyncGenerator[ChatGenerationChunk, None]:
        """Yield the reply in parts; runs on the loop."""
        raise NotImplementedError

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: object,
    ) -> ChatResult:
        return self._loop_thread().wait_for(self._complete(messages, stop, kwargs))

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: object,
    ) -> ChatResult:
        return await self._loop_thread().run(self._complete(messages, stop, kwargs))

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: object,
    ) -> Iterator[ChatGenerationChunk]:
        return self._loop_thread().iterate(self._parts(messages, stop, kwargs))

    def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: object,
    ) -> AsyncIterator[ChatGenerationChunk]:
        return self._loop_thread().aiterate(self._parts(messages, stop, kwargs))
