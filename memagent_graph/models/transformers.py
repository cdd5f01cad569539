"""A chat model on `transformers` in this process, for CPUs, Macs and small GPUs."""

from __future__ import annotations

import asyncio
import json
from functools import cached_property
from time import perf_counter
from typing import TYPE_CHECKING, Any

from pydantic import Field, PrivateAttr

from memagent_graph.errors import ConfigurationError
from memagent_graph.models.completion import (
    ChatTemplate,
    Generation,
    LoopChatModel,
    reply_end,
    reply_part,
    whole_reply,
)
from memagent_graph.models.transformers_engine import DecodingRow, TransformersEngine, get_engine

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping

    import torch
    from langchain_core.messages import BaseMessage
    from langchain_core.outputs import ChatGenerationChunk, ChatResult

    from memagent_graph.sync import LoopThread
    from memagent_graph.text.tokens import Tokenizer

_LONGEST_REPLY = 4096
"""Longest reply if no limit is set, in tokens."""


class ChatTransformers(LoopChatModel):
    """A chat model on `transformers` that batches calls from all threads and event loops.

    The weights are loaded at the first call, once per process for all objects with the same model
    and options. In float32, a reply at temperature 0 or with a seed does not depend on the other
    calls in the batch.

    Args:
        model: a folder or a hub id.
        temperature: 0 by default.
        top_p: nucleus sampling.
        seed: seed of the sampling of each call.
        max_tokens: longest reply, in tokens. Set here, it also overrides the reader's budgets, to
            leave a reasoning model room to think.
        stop: strings that end the reply.
        logprobs: whether to report the log-probability of each token.
        revision: revision of the repository on the hub.
        device: "cpu", "cuda" or "mps"; by default the first available of cuda, mps, cpu.
        dtype: type of the weights ("float32", "bfloat16"); "auto" takes the model's own.
        adapter: a folder with LoRA weights.
        max_batch: most calls in one batch.
        chat_template_kwargs: variables of the model's chat template (`enable_thinking`).
        hf_overrides: values to change in the model's config.json, as in vLLM:
            `{"max_position_embeddings": 131072, "rope_parameters": {"rope_type": "yarn", ...}}`.
            Objects are merged with those in the file.

    A reply's `response_metadata["generation"]` is a `models.completion.Generation`.

    Raises:
        ConfigurationError: An argument is invalid, or there is no such model.
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

    _engine: TransformersEngine = PrivateAttr()

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
        self._engine = get_engine(
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
        """Context length in tokens; raises `ConfigurationError` if there is no such model."""
        return self._engine.window_tokens

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The model's tokenizer, to cut chunks; None if it is not of the `tokenizers` library."""
        return self._template.tokenizer

    @cached_property
    def _template(self) -> ChatTemplate:
        return ChatTemplate(self._engine.tokenizer, self.chat_template_kwargs)

    def load_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Replace the weights, for all objects that share them.

        Memories made with the old weights are not reused. Create readers and agents again
        afterwards: they take the model's identity when they are created.

        Args:
            weights: a state dict of the model, with the adapter, if any, merged in.

        Raises:
            ConfigurationError: The weights belong to another model.
        """
        self._engine.load_weights(weights)

    def close(self) -> None:
        """Release the weights, for all objects that share them; the next call loads them again."""
        self._engine.close()

    def _loop_thread(self) -> LoopThread:
        return self._engine.thread

    async def _complete(
        self, messages: list[BaseMessage], stop: list[str] | None, options: dict[str, object]
    ) -> ChatResult:
        started = perf_counter()
        row = await asyncio.wrap_future(self._engine.submit(self._row(messages, stop, options)))
        return whole_reply(row.text, self._record(row, started), self.model)

    async def _parts(
        self, messages: list[BaseMessage], stop: list[str] | None, options: dict[str, object]
    ) -> AsyncGenerator[ChatGenerationChunk, None]:
        started = perf_counter()
        parts: asyncio.Queue[str | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def put(part: str | None) -> None:
            loop.call_soon_threadsafe(parts.put_nowait, part)

        future = self._engine.submit(self._row(messages, stop, options, put))
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
    ) -> DecodingRow:
        names = ("temperature", "top_p", "seed", "max_tokens", "stop")
        if unknown := options.keys() - set(names):
            message = (
                f"ChatTransformers has no option {', '.join(sorted(unknown))}: use "
                f"{', '.join(names)}."
            )
            raise ConfigurationError(message)
        chosen = {name: getattr(self, name) for name in names} | options
        words = stop if stop is not None else chosen["stop"]
        return DecodingRow(
            self._template.token_ids(messages),
            max_tokens=chosen["max_tokens"] or _LONGEST_REPLY,
            temperature=chosen["temperature"],
            top_p=chosen["top_p"],
            seed=chosen["seed"],
            stop=[words] if isinstance(words, str) else words or (),
            emit=emit,
        )

    def _record(self, row: DecodingRow, started: float) -> Generation:
        return Generation(
            prompt_token_ids=row.prompt,
            token_ids=row.token_ids,
            logprobs=row.logprobs if self.logprobs else None,
            finish_reason=row.finish_reason,
            seconds=perf_counter() - started,
        )
