"""A chat model on vLLM in this process."""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import shutil
import uuid
from contextlib import suppress
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any
from zlib import crc32

from pydantic import Field, PrivateAttr
from safetensors.torch import save_file
from vllm import SamplingParams, exceptions
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.inputs.engine import tokens_input
from vllm.lora.request import LoRARequest
from vllm.sampling_params import RequestOutputKind
from vllm.tokenizers import cached_tokenizer_from_config
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

from memagent_graph import errors
from memagent_graph.models.completion import Generation, LocalChatModel, ModelCall, reply_part
from memagent_graph.sync import LoopThread

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping

    import torch
    from langchain_core.outputs import ChatGenerationChunk
    from transformers import PreTrainedTokenizerBase
    from vllm.config import ModelConfig
    from vllm.outputs import CompletionOutput, RequestOutput

# vLLM 0.26 has no such kinds, and raises a ValueError for a bad request; 0.32 has them.
_BUSY = tuple(
    kind
    for name in ("GracefulHTTPError", "RetryableRequestError")
    if (kind := getattr(exceptions, name, None)) is not None
)
_REFUSED = (getattr(exceptions, "VLLMClientError", ValueError), EngineGenerateError, ValueError)

ENGINE_ARGUMENTS = frozenset(field.name for field in fields(AsyncEngineArgs))
"""Names of the arguments of `Engine`: those of vLLM itself."""

_WONT_START = (
    "vLLM could not start {model!r}: {reason} If memory ran out (see vLLM's log above), lower "
    "max_model_len, max_num_seqs or gpu_memory_utilization, raise tensor_parallel_size, or use a "
    "quantized model; on a CPU, set VLLM_CPU_KVCACHE_SPACE to the size of the cache in GiB."
)


class VLLMEngine:
    """Starts vLLM at the first prompt, with `vllm.AsyncEngineArgs`, on an event loop of its own.

    A caller's loop could end while other loops and threads still use the engine. `version` is the
    number of times that the weights were replaced.
    """

    def __init__(self, model: str, /, **arguments: Any) -> None:
        # Statistics would cost time at every step, for a log that is not shown.
        own = {"model": model, "disable_log_stats": True}
        self.arguments = AsyncEngineArgs(**own | arguments)
        self.thread = LoopThread("memagent-vllm")
        self._started: asyncio.Future[AsyncLLM] | None = None
        self.version = 0
        self._weights: Path | None = None
        atexit.register(self._forget_weights)

    @cached_property
    def config(self) -> ModelConfig:
        """The `ModelConfig` of vLLM, read without starting the engine."""
        try:
            return self.arguments.create_model_config()
        except Exception as error:  # vLLM raises many kinds for models that it cannot run
            message = (
                f"vLLM cannot run {self.arguments.model!r}: {_reason(error)} Name a folder with a "
                "model's config.json and weights, or a hub id that this machine can reach."
            )
            raise errors.ConfigurationError(message) from error

    @property
    def window_tokens(self) -> int:
        """Context length in tokens."""
        return int(self.config.max_model_len)

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The model's tokenizer, of `transformers`."""
        found: PreTrainedTokenizerBase = cached_tokenizer_from_config(self.config)
        return found

    async def generate(
        self, prompt: list[int], params: SamplingParams, adapter: LoRARequest | None = None
    ) -> AsyncIterator[RequestOutput]:
        """Generate from token ids, on this engine's loop; closing or cancelling stops it.

        Raises:
            TransientModelError: The queue is full, or the engine died; the next call restarts it.
            ModelError: vLLM does not start, or refuses the request.
        """
        llm = await self._ensure_started()
        name = uuid.uuid4().hex
        try:
            async for output in llm.generate(
                tokens_input(prompt), params, name, lora_request=adapter
            ):
                yield output
        except EngineDeadError as error:
            await self._discard(llm)
            message = f"vLLM's engine for {self.arguments.model!r} died; the next call restarts it."
            raise errors.TransientModelError(message) from error
        except _BUSY as error:
            message = f"vLLM cannot accept the request now: {error}"
            raise errors.TransientModelError(message) from error
        except _REFUSED as error:
            message = f"vLLM refused the request: {_reason(error)}"
            raise errors.ModelError(message) from error

    async def load_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Replace the weights, in this engine and in those restarted after it."""
        # The workers are other processes, perhaps on other devices: a file reaches all of them.
        folder = Path(mkdtemp(prefix="memagent-weights-"))
        try:
            plain = {name: weight.detach().cpu().clone() for name, weight in weights.items()}
            await asyncio.to_thread(save_file, plain, folder / "model.safetensors")
            await self._reload(await self._ensure_started(), folder)
        except BaseException:
            shutil.rmtree(folder)
            raise
        self._forget_weights()
        self._weights = folder
        self.version += 1

    def _forget_weights(self) -> None:
        """Delete the weights that are kept for a restart; a forked child leaves the parent's."""
        if self._weights is not None and self.thread.pid == os.getpid():
            shutil.rmtree(self._weights)

    def close(self) -> None:
        """Stop the engine and its processes; the next prompt starts it again."""
        self.thread.wait_for(self._close())

    async def _ensure_started(self) -> AsyncLLM:
        """The engine, started only once for concurrent calls."""
        if self._started is None:
            self._started = asyncio.ensure_future(self._start_with_weights())
        started = self._started
        try:
            return await asyncio.shield(started)
        except errors.ModelError:
            if self._started is started:
                self._started = None  # the next call tries again
            raise

    async def _start_with_weights(self) -> AsyncLLM:
        llm = await asyncio.to_thread(self._start)
        if self._weights is not None:
            await self._reload(llm, self._weights)
        return llm

    async def _reload(self, llm: AsyncLLM, folder: Path) -> None:
        try:
            await llm.collective_rpc("reload_weights", kwargs={"weights_path": str(folder)})
        except Exception as error:  # vLLM passes on any error of a worker
            message = f"These are not the weights of {self.arguments.model!r}: {_reason(error)}"
            raise errors.ConfigurationError(message) from error
        await llm.reset_prefix_cache()  # it was computed with the old weights

    def _start(self) -> AsyncLLM:
        try:
            return AsyncLLM.from_engine_args(self.arguments)
        except Exception as error:  # vLLM passes on any error of its processes
            message = _WONT_START.format(model=self.arguments.model, reason=_reason(error))
            raise errors.ModelError(message) from error

    async def _discard(self, llm: AsyncLLM) -> None:
        if self._started is None or self._started.result() is not llm:
            return  # another one has been started
        self._started = None
        if llm.output_handler is not None:
            llm.output_handler.cancel()  # or it would take the shutdown for a crash
        llm.output_processor.propagate_error(EngineDeadError())  # to the calls that still wait
        llm.shutdown()
        llm.engine_core.resources.ctx.destroy(linger=0)  # the shutdown leaves it open

    async def _close(self) -> None:
        if self._started is not None:
            with suppress(errors.ModelError):
                await self._discard(await self._ensure_started())


def _reason(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if text.endswith((".", "!", "?")) else f"{text}."


class ChatVLLM(LocalChatModel):
    """A chat model on vLLM's engine, which batches the calls of all threads and event loops.

    The engine starts at the first call. Objects with the same model and the same engine arguments
    share one. It runs in processes that Python spawns, so a script that uses it must keep its work
    under `if __name__ == "__main__":`.

    Args:
        sampling: further `SamplingParams` of vLLM (`top_k`, `repetition_penalty`).
        adapter: a folder with LoRA weights. An object without an adapter shares the engine if it
            sets `enable_lora=True` and the same `max_lora_rank`.
        engine: arguments of `vllm.AsyncEngineArgs`. They may also be given as keyword arguments:
            `ChatVLLM(model="...", tensor_parallel_size=2, max_model_len=8192)`.

    For the other arguments and what is raised, see `models.completion.LocalChatModel`; besides,
    a `TransientModelError` if vLLM's queue is full, or its process died; the next call restarts it.
    """

    sampling: dict[str, object] = Field(default_factory=dict)
    engine: dict[str, object] = Field(default_factory=dict)

    _lora: LoRARequest | None = PrivateAttr(default=None)

    def __init__(self, **fields: Any) -> None:
        own = {name: value for name, value in fields.items() if name in type(self).model_fields}
        others = {name: fields[name] for name in fields.keys() - own.keys()}
        if unknown := others.keys() - ENGINE_ARGUMENTS:
            message = (
                f"Neither ChatVLLM nor vLLM has an argument {', '.join(sorted(unknown))}: see "
                "vllm.AsyncEngineArgs."
            )
            raise errors.ConfigurationError(message)
        super().__init__(**own | {"engine": own.get("engine", {}) | others})
        if self.adapter:
            self.engine = {"enable_lora": True, "max_lora_rank": _rank(self.adapter)} | self.engine
            name = str(Path(self.adapter).absolute())
            self._lora = LoRARequest(name, crc32(name.encode()) or 1, name)
        self._share(VLLMEngine, self.engine)

    @property
    def _llm_type(self) -> str:
        return "vllm"

    @property
    def _identifying_params(self) -> dict[str, object]:
        shaping = {name: self.engine[name] for name in _SHAPING if name in self.engine}
        return self._identify(sampling=self.sampling, **shaping)

    async def _parts(self, call: ModelCall) -> AsyncGenerator[ChatGenerationChunk, None]:
        prompt = self._encode(call.messages, plain=call.options.get("plain", False))
        params = self._params(call)
        written: list[CompletionOutput] = []
        async for output in self._engine.generate(prompt, params, self._lora):
            written.append(output.outputs[0])
            if not output.finished:
                yield reply_part(written[-1].text)
        generation = _generation(prompt, written)
        yield reply_part(written[-1].text, generation, self.model)

    def _params(self, call: ModelCall) -> SamplingParams:
        given, options = {name: getattr(self, name) for name in _SAMPLING}, {**call.options}
        logprobs = 0 if options.pop("plain", False) or self.logprobs else None
        given |= self.sampling | {"logprobs": logprobs} | options
        kind = RequestOutputKind.FINAL_ONLY if call.whole else RequestOutputKind.DELTA
        try:
            return SamplingParams(output_kind=kind, **given)
        except (TypeError, *_REFUSED) as error:  # vLLM has no such name, or refuses the value
            message = f"vLLM refuses these sampling parameters: {error} Correct sampling=."
            raise errors.ConfigurationError(message) from error


_SAMPLING = ("temperature", "top_p", "seed", "max_tokens", "stop")
_SHAPING = ("dtype", "hf_overrides", "quantization", "revision", "tokenizer", "tokenizer_revision")
"""Engine arguments that change a model's output; the others concern speed and memory."""


def _rank(adapter: str) -> int:
    file = Path(adapter) / "adapter_config.json"
    try:
        return int(json.loads(file.read_text(encoding="utf-8"))["r"])
    except (OSError, ValueError, KeyError) as error:
        message = (
            f"{adapter!r} has no LoRA adapter: name a folder with an adapter_config.json that "
            f"sets the rank r. {error}"
        )
        raise errors.ConfigurationError(message) from error


def _generation(prompt: list[int], written: list[CompletionOutput]) -> Generation:
    logprobs = [
        position[token_id].logprob
        for part in written
        for token_id, position in zip(part.token_ids, part.logprobs or (), strict=False)
    ]
    return Generation(
        prompt_token_ids=prompt,
        token_ids=[token_id for part in written for token_id in part.token_ids],
        logprobs=logprobs or None,
        finish_reason=written[-1].finish_reason,
    )
