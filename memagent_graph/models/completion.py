"""Convert messages, completions and engine outputs between formats."""

from __future__ import annotations

import atexit
import json
import os
from collections.abc import Mapping
from contextlib import aclosing
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias, TypedDict

from langchain_core.language_models.chat_models import BaseChatModel, generate_from_stream
from langchain_core.messages import AIMessageChunk, HumanMessage, convert_to_openai_messages
from langchain_core.messages.ai import InputTokenDetails, OutputTokenDetails, UsageMetadata
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGenerationChunk
from pydantic import Field, PrivateAttr, ValidationError

from memagent_graph import errors
from memagent_graph.models.failures import fields_of, reply_error, words_of
from memagent_graph.models.reply import (
    Usage,
    ask_like_caller,
    count_of,
    find_ending,
    take_reply,
    usage_of,
)
from memagent_graph.text.tokens import HuggingFaceTokenizer

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence

    import torch
    from langchain_core.messages import BaseMessage
    from langchain_core.outputs import ChatResult
    from langchain_core.runnables import RunnableConfig

    from memagent_graph.sync import LoopThread


class Generation(TypedDict):
    """The entry `generation` in a reply's `response_metadata`.

    Attributes:
        prompt_token_ids: the prompt's tokens; None if not reported.
        token_ids: the completion's tokens, including the one that ended it; None if not reported.
        logprobs: natural logarithm of each completion token's probability under the model, before
            temperature and top-p; None if not requested or not reported.
        finish_reason: why the engine stopped, in its own words ("stop", "length", ...).
    """

    prompt_token_ids: list[int] | None
    token_ids: list[int] | None
    logprobs: list[float] | None
    finish_reason: str | None


_LONGEST_SHOWN = 300
"""Characters shown of a reply that is no completion."""
_RENAMED = {"input_tokens": "prompt_tokens", "output_tokens": "completion_tokens"}


class Completion:
    """Turns what a server sends, whole or part by part, into parts of a reply."""

    def __init__(self) -> None:
        self._about: dict[str, Any] = {"finish_reason": None, "model_name": None, "id": None}
        self._prompt_token_ids: list[int] | None = None
        self._token_ids: list[int] = []
        self._logprobs: list[float] = []
        self._counts: dict[str, int] = {}
        self._has_text = self._is_whole = False
        self._index: int | None = None

    def add(self, sent: object) -> ChatGenerationChunk | None:
        """Convert parsed JSON, or raise the error in it; None if it has no part of this reply."""
        body = fields_of(sent)
        choice = self._find_choice(body.get("choices"))
        reason = choice.get("finish_reason")
        if (error := reply_error(body)) is not None:
            raise error
        if find_ending(reason) == "failed":
            said = words_of(choice.get("error"))
            text = f"The server broke off the reply ({reason}){': ' if said else '.'}{said}"
            raise reply_error({"error": choice.get("error")}) or errors.TransientModelError(text)
        known = {"finish_reason": reason, "model_name": body.get("model"), "id": body.get("id")}
        self._about |= {name: value for name, value in known.items() if value}
        self._prompt_token_ids = body.get("prompt_token_ids") or self._prompt_token_ids
        self._count(fields_of(body.get("usage")))
        message = self._find_message(choice)
        if message is None:
            return None
        self._token_ids += choice.get("token_ids") or []
        chances = fields_of(choice.get("logprobs"))
        self._logprobs += [chance["logprob"] for chance in chances.get("content") or ()]
        self._logprobs += chances.get("token_logprobs") or ()  # of vLLM's plain texts
        content = _content(message.get("content") or "")
        self._has_text = self._has_text or bool(content)
        reasoning = message.get("reasoning_content") or message.get("reasoning")
        extra = {"refusal": message.get("refusal"), "reasoning_content": reasoning}
        calls = []
        for call in message.get("tool_calls") or ():
            asked = fields_of(call.get("function"))
            name, arguments = asked.get("name"), asked.get("arguments")
            index = call.get("index")
            calls.append(tool_call_chunk(name=name, args=arguments, id=call.get("id"), index=index))
        found = AIMessageChunk(
            content=content,
            additional_kwargs={name: value for name, value in extra.items() if value},
            tool_call_chunks=calls,
        )
        return ChatGenerationChunk(message=found)

    def add_whole(self, sent: object) -> ChatGenerationChunk:
        """Convert a whole reply; raises `ModelError` if it is no completion."""
        part = self.add(sent)
        if part is None:
            shown = words_of(sent)[:_LONGEST_SHOWN] or "it is empty."
            text = (
                f"The server's reply is not a chat completion: {shown} Check that the base URL is "
                "that of an OpenAI-compatible API."
            )
            raise errors.TransientModelError(text)
        self._is_whole = True
        return part

    @property
    def lacks_logprobs(self) -> bool:
        """Whether there is text, and no token's probability was reported."""
        return self._has_text and not self._logprobs

    def end(self, *, is_done: bool) -> ChatGenerationChunk:
        """Return the part that ends the reply; `is_done` if the server said that it is complete.

        Raises:
            TransientModelError: The connection ended before the reply did.
        """
        reason = self._about["finish_reason"]
        if reason is None and not (self._is_whole or (is_done and self._has_text)):
            raise errors.TransientModelError(
                "The server ended the stream before the reply was complete."
            )
        generation = Generation(
            prompt_token_ids=self._prompt_token_ids,
            token_ids=self._token_ids or None,
            logprobs=self._logprobs or None,
            finish_reason=reason,
        )
        return _last_part("", self._usage(), {**self._about, "generation": generation})

    def _find_choice(self, choices: object) -> Mapping[str, Any]:
        """The choice of this reply among those that were sent; {} if there are only others."""
        for choice in choices if isinstance(choices, list) else ():
            index = fields_of(choice).get("index") or 0
            if self._index in (None, index):
                self._index = index
                return fields_of(choice)
        return {}

    def _find_message(self, choice: Mapping[str, Any]) -> Mapping[str, Any] | None:
        found = choice.get("delta")
        if found is None and isinstance(choice.get("text"), str):  # the older API
            found = {"content": choice["text"]}
        if found is None and not self._has_text:  # MiniMax repeats the whole reply at the end
            found = choice.get("message")
        return None if found is None else fields_of(found)

    def _count(self, usage: Mapping[str, Any]) -> None:
        """Add what is reported: all counts so far, or in each part some of them."""
        details = [fields_of(usage.get(f"{of}_tokens_details")) for of in ("prompt", "completion")]
        for name, value in [item for report in (usage, *details) for item in report.items()]:
            if (count := count_of(value)) is not None:
                known = _RENAMED.get(name, name)
                self._counts[known] = max(count, self._counts.get(known, 0))

    def _usage(self) -> UsageMetadata | None:
        counts = self._counts
        read, written = counts.get("prompt_tokens"), counts.get("completion_tokens")
        if read is None and written is None:
            return None
        total = counts.get("total_tokens", 0)
        read = max(0, total - (written or 0)) if read is None else read
        written = max(0, total - read) if written is None else written
        found = UsageMetadata(
            input_tokens=read, output_tokens=written, total_tokens=max(total, read + written)
        )
        if "cached_tokens" in counts:
            found["input_token_details"] = InputTokenDetails(cache_read=counts["cached_tokens"])
        if (reasoning := counts.get("reasoning_tokens")) is not None:
            found["output_token_details"] = OutputTokenDetails(reasoning=reasoning)
        return found


def _content(content: Any) -> Any:
    """The text of a message, or its blocks as LangChain knows them."""
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else [content]
    return [
        {"type": "text", "text": str(block.get("text") or "")}
        if isinstance(block, Mapping) and block.get("type") in (None, "output_text")
        else block
        for block in blocks
    ]


def reply_part(
    text: str, generation: Generation | None = None, model: str = ""
) -> ChatGenerationChunk:
    """Return a part of a reply; the last one has `generation`, with both lists of token ids."""
    if generation is None:
        return ChatGenerationChunk(message=AIMessageChunk(content=text))
    read = len(generation["prompt_token_ids"] or ())
    written = len(generation["token_ids"] or ())
    usage = UsageMetadata(input_tokens=read, output_tokens=written, total_tokens=read + written)
    about = {"finish_reason": generation["finish_reason"], "model_name": model}
    return _last_part(text, usage, {**about, "generation": generation})


def _last_part(
    text: str, usage: UsageMetadata | None, about: dict[str, Any]
) -> ChatGenerationChunk:
    message = AIMessageChunk(
        content=text, usage_metadata=usage, response_metadata=about, chunk_position="last"
    )
    return ChatGenerationChunk(message=message)


async def continue_text(
    model: BaseChatModel, text: str, config: RunnableConfig | None, most: int
) -> tuple[str, float, Usage]:
    """Return the line by which a model continues a plain text, in at most so many tokens.

    With it come the logarithm of its probability, 0 if that is not reported, and the cost. Raises
    `ModelError` as `take_reply` does.
    """
    options = {"plain": True, "max_tokens": most, "temperature": 0.0, "stop": ["\n"]}
    asked = ask_like_caller(model, [HumanMessage(text)], config, options)
    try:
        reply, words = await take_reply(asked)
    except errors.EmptyReplyError:
        return "", 0.0, Usage(calls=1)
    found = reply.response_metadata.get("generation") or {}
    return words, sum(found.get("logprobs") or ()), usage_of(reply)


class ModelCall(NamedTuple):
    """A call of a model, with LangChain's options; the fewest parts are enough if it is `whole`."""

    messages: list[BaseMessage]
    options: dict[str, Any]
    whole: bool


Stop: TypeAlias = "list[str] | None"


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
            raise errors.ConfigurationError(text) from error

    def _loop_thread(self) -> LoopThread:
        raise NotImplementedError

    def _parts(self, call: ModelCall) -> AsyncGenerator[ChatGenerationChunk, None]:
        """Yield the reply in parts; runs on the loop."""
        raise NotImplementedError

    async def _complete(self, call: ModelCall) -> ChatResult:
        async with aclosing(self._parts(call)) as parts:
            return generate_from_stream(iter([part async for part in parts]))

    def _generate(
        self, messages: list[BaseMessage], stop: Stop = None, run_manager: Any = None, **more: Any
    ) -> ChatResult:
        return self._loop_thread().wait_for(self._complete(_call(messages, stop, more, whole=True)))

    async def _agenerate(
        self, messages: list[BaseMessage], stop: Stop = None, run_manager: Any = None, **more: Any
    ) -> ChatResult:
        return await self._loop_thread().run(
            self._complete(_call(messages, stop, more, whole=True))
        )

    def _stream(
        self, messages: list[BaseMessage], stop: Stop = None, run_manager: Any = None, **more: Any
    ) -> Iterator[ChatGenerationChunk]:
        return self._loop_thread().iterate(self._parts(_call(messages, stop, more, whole=False)))

    def _astream(
        self, messages: list[BaseMessage], stop: Stop = None, run_manager: Any = None, **more: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        return self._loop_thread().aiterate(self._parts(_call(messages, stop, more, whole=False)))


def _call(
    messages: list[BaseMessage], stop: Stop, options: dict[str, Any], *, whole: bool
) -> ModelCall:
    return ModelCall(messages, options if stop is None else {**options, "stop": stop}, whole)


def _close_at_exit(engine: Any) -> None:
    if engine.thread.pid == os.getpid():
        engine.close()


class LocalChatModel(LoopChatModel):
    """A chat model on an engine of this process, which objects with the same arguments share.

    Args:
        model: a folder or a hub id.
        temperature: 0 by default.
        top_p: nucleus sampling.
        seed: seed of the sampling of each call.
        max_tokens: longest reply, in tokens. Set here, it also overrides the reader's budgets, to
            leave a reasoning model room to think.
        stop: strings that end the reply.
        logprobs: whether to report the log-probability of each token.
        adapter: a folder with LoRA weights.
        chat_template_kwargs: variables of the model's chat template (`enable_thinking`).

    A reply's `response_metadata["generation"]` is a `Generation`. With the call option `plain`, it
    continues the last message as a plain text, with the log-probability of each token.

    Raises:
        ConfigurationError: An argument is invalid, or there is no such model.
        ContextLengthError: A prompt leaves no room for a reply.
        ModelError: Memory ran out, or the engine failed or refused.
    """

    model: str
    temperature: float = Field(default=0.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    seed: int | None = None
    max_tokens: int | None = None
    stop: list[str] | None = None
    logprobs: bool = False
    adapter: str | None = None
    chat_template_kwargs: dict[str, object] = Field(default_factory=dict)

    continues: ClassVar = True
    """Whether calls have the option `plain`."""
    _engines: ClassVar[dict[str, Any]] = {}
    _engine: Any = PrivateAttr()

    def _share(self, kind: Callable[..., Any], arguments: Mapping[str, object]) -> None:
        """Take this process's engine of a kind with these arguments; a new one if it has none."""
        # A forked child needs its own: it does not have the parent's processes and threads.
        about = [os.getpid(), kind.__qualname__, self.model, arguments]
        key = json.dumps(about, sort_keys=True, default=repr)
        if key not in self._engines:
            self._engines[key] = kind(self.model, **arguments)
            atexit.register(_close_at_exit, self._engines[key])  # before the exit of its library
        self._engine = self._engines[key]

    def _identify(self, **more: object) -> dict[str, object]:
        own = ("model", "temperature", "top_p", "seed", "adapter", "stop", "chat_template_kwargs")
        found = {name: getattr(self, name) for name in own}
        return {**found, **more, "weights_version": self._engine.version}

    @property
    def window_tokens(self) -> int | None:
        """Context length in tokens; raises `ConfigurationError` if there is no such model."""
        found: int | None = self._engine.window_tokens
        return found

    @cached_property
    def tokenizer(self) -> HuggingFaceTokenizer | None:
        """The model's tokenizer, to cut chunks; None if it is not of the `tokenizers` library.

        Raises:
            ConfigurationError: It has no chat template.
        """
        tokenizer = self._engine.tokenizer
        if getattr(tokenizer, "chat_template", "") is None:
            message = (
                f"The tokenizer of {tokenizer.name_or_path!r} has no chat template: use the "
                "model's instruction-tuned version, or set chat_template in its "
                "tokenizer_config.json."
            )
            raise errors.ConfigurationError(message)
        backend = getattr(tokenizer, "backend_tokenizer", None)
        return None if backend is None else HuggingFaceTokenizer(backend)

    def _encode(self, messages: Sequence[BaseMessage], *, plain: bool = False) -> list[int]:
        """The token ids of `messages` in the model's own format, up to where the reply begins.

        Those of the last one's text alone if that is to be continued, `plain`.
        """
        own, template = self.tokenizer, self._engine.tokenizer.apply_chat_template
        variables = {**self.chat_template_kwargs, "add_generation_prompt": True}
        asked = convert_to_openai_messages(list(messages))
        ids: list[int] = (
            self._engine.tokenizer.encode(messages[-1].text)
            if plain
            else template(asked, tokenize=True, return_dict=False, **variables)
            if own is None
            else own.encode(template(asked, tokenize=False, **variables))
        )
        window: int | None = self._engine.window_tokens
        if window is not None and len(ids) >= window:
            message = (
                f"The prompt is too long for the model: {len(ids)} tokens, but the context holds "
                f"{window} including the reply. Lower chunk_tokens."
            )
            raise errors.ContextLengthError(message)
        return ids

    def load_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Replace the weights, for all objects that share them, by a state dict of the model.

        An adapter is merged in. Memories made with the old weights are not reused. Create readers
        and agents again afterwards: they take the model's identity when they are created.
        """
        self._engine.thread.wait_for(self._engine.load_weights(weights))

    def close(self) -> None:
        """Stop the engine, for all objects that share it; the next call starts it again."""
        self._engine.close()

    def _loop_thread(self) -> LoopThread:
        thread: LoopThread = self._engine.thread
        return thread
