"""vLLM's engine in this process: one per model, shared by all that use the model."""

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
from typing import TYPE_CHECKING

from safetensors.torch import save_file
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.exceptions import GracefulHTTPError, RetryableRequestError, VLLMClientError
from vllm.inputs.engine import tokens_input
from vllm.tokenizers import cached_tokenizer_from_config
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

from memagent_graph.errors import (
    ConfigurationError,
    ContextLengthError,
    ModelError,
    TransientModelError,
)
from memagent_graph.sync import LoopThread

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    import torch
    from transformers import PreTrainedTokenizerBase
    from vllm import SamplingParams
    from vllm.config import ModelConfig
    from vllm.lora.request import LoRARequest
    from vllm.outputs import RequestOutput

ENGINE_ARGUMENTS = frozenset(field.name for field in fields(AsyncEngineArgs))
"""Names of the arguments of `Engine`: those of vLLM itself."""

_WONT_START = (
    "vLLM could not start {model!r}: {reason} If memory ran out (see vLLM's log above), lower "
    "max_model_len, max_num_seqs or gpu_memory_utilization, raise tensor_parallel_size, or use a "
    "quantized model; on a CPU, set VLLM_CPU_KVCACHE_SPACE to the size of the cache in GiB."
)


class Engine:
    """Starts vLLM at the first prompt, on an event loop of its own.

    A caller's loop could end while other loops and threads still use the engine.

    Args:
        arguments: arguments of `vllm.AsyncEngineArgs`.

    Attributes:
        version: number of times that the weights were replaced.
    """

    def __init__(self, arguments: dict[str, object]) -> None:
        # Statistics would cost time at every step, for a log that is not shown.
        self.arguments = AsyncEngineArgs(**{"disable_log_stats": True} | arguments)
        self.thread = LoopThread("memagent-vllm")
        self._started: asyncio.Future[AsyncLLM] | None = None
        self.version = 0
        self._weights: Path | None = None

    @cached_property
    def config(self) -> ModelConfig:
        """The `ModelConfig` of vLLM, read without starting the engine.

        Raises:
            ConfigurationError: There is no such model, or vLLM cannot run it.
        """
        try:
            return self.arguments.create_model_config()
        except Exception as error:  # vLLM raises many kinds for models that it cannot run
            message = (
                f"vLLM cannot run {self.arguments.model!r}: {_reason(error)} Name a folder with a "
                "model's config.json and weights, or a hub id that this machine can reach."
            )
            raise ConfigurationError(message) from error

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The model's tokenizer, of `transformers`."""
        found: PreTrainedTokenizerBase = cached_tokenizer_from_config(self.config)
        return found

    async def generate(
        self, prompt: list[int], params: SamplingParams, adapter: LoRARequest | None = None
    ) -> AsyncIterator[RequestOutput]:
        """Generate, on this engine's loop; closing the iterator or cancelling stops it.

        Args:
            prompt: token ids.
            params: sampling parameters, and which outputs to yield.
            adapter: LoRA weights to use.

        Raises:
            ContextLengthError: The prompt leaves no room for a reply.
            TransientModelError: The queue is full, or the engine died; the next call restarts it.
            ModelError: vLLM does not start, or refuses the request.
        """
        if len(prompt) >= self.config.max_model_len:
            message = (
                f"The prompt is too long for the model: {len(prompt)} tokens, but the context "
                f"holds {self.config.max_model_len} including the reply. Lower chunk_tokens."
            )
            raise ContextLengthError(message)
        llm = await self._running()
        try:
            async for output in llm.generate(
                tokens_input(prompt), params, uuid.uuid4().hex, lora_request=adapter
            ):
                yield output
        except EngineDeadError as error:
            await self._discard(llm)
            message = f"vLLM's engine for {self.arguments.model!r} died; the next call restarts it."
            raise TransientModelError(message) from error
        except (GracefulHTTPError, RetryableRequestError) as error:
            message = f"vLLM cannot accept the request now: {error}"
            raise TransientModelError(message) from error
        except (VLLMClientError, EngineGenerateError, ValueError) as error:
            message = f"vLLM refused the request: {_reason(error)}"
            raise ModelError(message) from error

    async def load_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Replace the weights, in this engine and in those restarted after it.

        Args:
            weights: a state dict of the model.

        Raises:
            ConfigurationError: The weights belong to another model.
            ModelError: vLLM does not start.
        """
        # The workers are other processes, perhaps on other devices: a file reaches all of them.
        folder = Path(mkdtemp(prefix="memagent-weights-"))
        try:
            plain = {name: weight.detach().cpu().clone() for name, weight in weights.items()}
            await asyncio.to_thread(save_file, plain, folder / "model.safetensors")
            await self._reload(await self._running(), folder)
        except BaseException:
            shutil.rmtree(folder)
            raise
        self.forget_weights()
        self._weights = folder
        self.version += 1

    def forget_weights(self) -> None:
        """Delete the weights that `load_weights` keeps for a restart."""
        if self._weights is not None:
            shutil.rmtree(self._weights)
            self._weights = None

    def close(self) -> None:
        """Stop the engine and its processes; the next prompt starts it again."""
        self.thread.wait_for(self._close())

    async def _running(self) -> AsyncLLM:
        """The engine, started only once for concurrent calls."""
        if self._started is None:
            self._started = asyncio.ensure_future(self._start_with_weights())
        started = self._started
        try:
            return await asyncio.shield(started)
        except ModelError:
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
            raise ConfigurationError(message) from error
        await llm.reset_prefix_cache()  # it was computed with the old weights

    def _start(self) -> AsyncLLM:
        try:
            return AsyncLLM.from_engine_args(self.arguments)
        except Exception as error:  # vLLM passes on any error of its processes
            message = _WONT_START.format(model=self.arguments.model, reason=_reason(error))
            raise ModelError(message) from error

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
            with suppress(ModelError):
                await self._discard(await self._running())


_engines: dict[tuple[int, str], Engine] = {}


def shared_engine(arguments: dict[str, object]) -> Engine:
    """Return this process's engine with these arguments; a new one if there is none."""
    # A forked child needs its own: it does not have the parent's processes and threads.
    key = (os.getpid(), json.dumps(arguments, sort_keys=True, default=repr))
    if key not in _engines:
        _engines[key] = Engine(arguments)
    return _engines[key]


@atexit.register
def _close_all() -> None:
    for (pid, _), engine in list(_engines.items()):
        if pid == os.getpid():
            engine.close()
            engine.forget_weights()
    _engines.clear()


def _reason(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if text.endswith((".", "!", "?")) else f"{text}."
