"""A chat model on `transformers` in this process, for CPUs, Macs and small GPUs."""

from __future__ import annotations

import asyncio
import json
import queue
from functools import cached_property
from time import perf_counter
from typing import TYPE_CHECKING, Any

from langchain_core.language_models import BaseChatModel
from pydantic import Field, PrivateAttr, ValidationError

from memagent_graph.errors import ConfigurationError
from memagent_graph.models.chat_template import ChatTemplate
from memagent_graph.models.decoding import Row
from memagent_graph.models.generation import Generation
from memagent_graph.models.reply import reply_end, reply_part, whole_reply
from memagent_graph.models.transformers_engine import Engine, shared_engine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping

    import torch
    from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
    from langchain_core.messages import BaseMessage
    from langchain_core.outputs import ChatGenerationChunk, ChatResult

    from memagent_graph.text.tokens import Tokenizer

_LONGEST_REPLY = 4096
"""Tokens of a reply for which nobody set a limit."""


class ChatTransformers(BaseChatModel):
    """A chat model whose calls, from any thread and event loop, are decoded together.

    The weights are loaded at the first call, once in this process for all that name the same
    model. In float32 and at temperature 0 a reply does not depend on what else is in the batch;
    with a seed it does not at any temperature.

    Args:
        model: a folder or a hub id.
        temperature: 0 by default, so that a memory can be reused.
        top_p: nucleus sampling.
        seed: of the sampling of each call.
        max_tokens: longest reply; set here, it also overrides a reader's budgets, which leaves
            a reasoning model room to think.
        stop: strings that end the reply.
        logprobs: tell the log-probability of each token.
        revision: of the hub's repository.
        device: "cpu", "cuda" or "mps"; the best there is by default.
        dtype: of the weights ("float32", "bfloat16"); "auto" takes the model's own.
        adapter: a folder with LoRA weights.
        max_batch: most calls that are decoded together.
        chat_template_kwargs: variables of the model's chat template (`enable_thinking`).
        hf_overrides: what to change of the model's config.json, named as there (and as for vLLM):
            `{"max_position_embeddings": 131072, "rope_parameters": {"rope_type": "yarn", ...}}`.
            Of an object only what is named changes.

    A reply's `response_metadata["generation"]` is a `models.generation.Generation`.

    Raises:
        ConfigurationError: An argument makes no sense, or there is no such model.
        ContextLengthError: A prompt leaves no room for a reply.
        ModelError: Memory ran out, or the model failed.
    """

    model: str
    temperature: float = Field(default=0.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    seed: int | None = None
    max_tokens: int | None = None
    stop: list[str] | None = None
    logprobs: bool = False
    revision: str | None = None
    device: str | None = None
    dtype: str = "auto"
    adapter: str | None = None
    max_batch: int = Field(default=32, ge=1)
    chat_template_kwargs: dict[str, object] = Field(default_factory=dict)
    hf_overrides: dict[str, object] = Field(default_factory=dict)

    _engine: Engine = PrivateAttr()

    def __init__(self, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as error:
            text = "; ".join(f"{found['loc'][0]}: {found['msg']}" for found in error.errors())
            raise ConfigurationError(text) from error
        self._engine = shared_engine(
            model=self.model,
            revision=self.revision,
            device=self.device,
            dtype=self.dtype,
            adapter=self.adapter,
            max_batch=self.max_batch,
            overrides=json.dumps(self.hf_overrides, sort_keys=True),
        )

    @property
    def _llm_type(self) -> str:
        return "transformers"

    @property
    def _identifying_params(self) -> dict[str, object]:
        own = ("model", "revision", "adapter", "dtype", "temperature", "top_p", "seed", "stop")
        found = {name: getattr(self, name) for name in (*own, "chat_template_kwargs")}
        found |= {"hf_overrides": self.hf_overrides} if self.hf_overrides else {}
        return found | {"weights_version": self._engine.version}

    @property
    def window_tokens(self) -> int | None:
        """Context length in tokens; raises as the class does when there is no such model."""
        return self._engine.window_tokens

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The model's own, to cut chunks with; None if it is none of the `tokenizers` library."""
        return self._template.tokenizer

    @cached_property
    def _template(self) -> ChatTemplate:
        return ChatTemplate(self._engine.tokenizer, self.chat_template_kwargs)

    def load_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Replace the weights, for all who share them; memories of the old ones are not reused.

        Make readers and agents anew afterwards: what they reuse is decided when they are made.

        Args:
            weights: a state dict of the model, with the adapter merged in if there is one.

        Raises:
            ConfigurationError: They are another model's.
        """
        self._engine.load_weights(weights)

    def close(self) -> None:
        """Let go of the weights, for all who share them; the next call loads them again."""
        self._engine.close()

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: object,
    ) -> ChatResult:
        started = perf_counter()
        future = self._engine.submit(self._row(messages, stop, kwargs))
        try:
            row = future.result()
        except BaseException:
            future.cancel()  # after Ctrl-C
            raise
        return whole_reply(row.text, self._record(row, started), self.model)

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: object,
    ) -> ChatResult:
        started = perf_counter()
        row = await asyncio.wrap_future(self._engine.submit(self._row(messages, stop, kwargs)))
        return whole_reply(row.text, self._record(row, started), self.model)

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: object,
    ) -> Iterator[ChatGenerationChunk]:
        started = perf_counter()
        parts: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        future = self._engine.submit(self._row(messages, stop, kwargs, parts.put))
        future.add_done_callback(lambda _: parts.put(None))
        try:
            while (part := parts.get()) is not None:
                yield reply_part(part)
            yield reply_end("", self._record(future.result(), started), self.model)
        finally:
            future.cancel()

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: object,
    ) -> AsyncIterator[ChatGenerationChunk]:
        started = perf_counter()
        parts: asyncio.Queue[str | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def put(part: str | None) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(parts.put_nowait, part)

        future = self._engine.submit(self._row(messages, stop, kwargs, put))
        future.add_done_callback(lambda _: put(None))
        try:
            while (part := await parts.get()) is not None:
                yield reply_part(part)
            yield reply_end("", self._record(future.result(), started), self.model)
        finally:
            future.cancel()

    def _row(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None,
        options: dict[str, object],
        emit: Callable[[str], None] = lambda _text: None,
    ) -> Row:
        names = ("temperature", "top_p", "seed", "max_tokens", "stop")
        if unknown := options.keys() - set(names):
            message = f"ChatTransformers does not know {', '.join(sorted(unknown))}."
            raise ConfigurationError(message)
        chosen = {name: getattr(self, name) for name in names} | options
        words = stop if stop is not None else chosen["stop"]
        return Row(
            self._template.token_ids(messages),
            max_tokens=chosen["max_tokens"] or _LONGEST_REPLY,
            temperature=chosen["temperature"],
            top_p=chosen["top_p"],
            seed=chosen["seed"],
            stop=[words] if isinstance(words, str) else words or (),
            emit=emit,
        )

    def _record(self, row: Row, started: float) -> Generation:
        return Generation(
            prompt_token_ids=row.prompt,
            token_ids=row.token_ids,
            logprobs=row.logprobs if self.logprobs else None,
            finish_reason=row.finish_reason,
            seconds=perf_counter() - started,
        )
