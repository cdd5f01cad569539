"""A chat model on `transformers` in this process, for CPUs, Macs and small GPUs.

With `generate()` of transformers, a batch shares one sampler, seed and length, and rows that have
ended are still computed. Here each row has its own, and leaves the batch when it is done.
"""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from pydantic import Field
from tokenizers.decoders import DecodeStream
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from memagent_graph.errors import ConfigurationError, ModelError
from memagent_graph.models.completion import Generation, LocalChatModel, ModelCall, reply_part
from memagent_graph.sync import LoopThread

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

    from langchain_core.outputs import ChatGenerationChunk
    from tokenizers import Tokenizer as Backend
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase


@dataclass
class DecodingRow:
    """A prompt in token ids, its sampling parameters, and its reply, which `stop` is no part of.

    Pieces of text that are certain are emitted. The token ids of the reply include the one that
    ended it; `logprobs` are natural, under the model, before temperature and `top_p`. The row
    `has_left` if nobody waits any more. `finish_reason` is "stop" or "length", or None until then.
    """

    prompt: list[int]
    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    stop: Sequence[str] = ()
    emit: Callable[[str], object] = lambda _text: None
    has_left: bool = False
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    text: str = ""
    finish_reason: str | None = None

    def __post_init__(self) -> None:
        self.generator = torch.Generator()
        if self.seed is None:
            self.generator.seed()
        else:
            self.generator.manual_seed(self.seed)
        self._stream = DecodeStream(skip_special_tokens=True)
        self._emitted = 0

    def append(self, token: int, logprob: float, ends: frozenset[int], tokenizer: Backend) -> None:
        """Add a token and its `logprob`; set `finish_reason` if it ends the reply."""
        self.token_ids.append(token)
        self.logprobs.append(logprob)
        if token in ends:
            self.finish_reason = "stop"
        else:
            self.text += self._stream.step(tokenizer, token) or ""
            places = [place for place in (self.text.find(word) for word in self.stop) if place >= 0]
            if places:
                self.text = self.text[: min(places)]
                self.finish_reason = "stop"
            elif len(self.token_ids) >= self.max_tokens:
                self.finish_reason = "length"
        certain = len(self.text)
        if self.finish_reason is None and self.stop:  # the end may be a part of a stop string
            certain -= max(map(len, self.stop)) - 1
        if certain > self._emitted:
            self.emit(self.text[self._emitted : certain])
            self._emitted = certain


def choose(logprobs: torch.Tensor, rows: Sequence[DecodingRow]) -> list[int]:
    """Choose the next token of each row from log-probabilities, `[rows, vocabulary]`."""
    return [_draw(known, row) for known, row in zip(logprobs, rows, strict=True)]


def _draw(logprobs: torch.Tensor, row: DecodingRow) -> int:
    if row.temperature == 0:
        return int(logprobs.argmax())
    chances, order = torch.softmax(logprobs / row.temperature, -1), None
    if row.top_p < 1:
        chances, order = chances.sort(descending=True, stable=True)
        chances = chances.masked_fill(chances.cumsum(-1) - chances >= row.top_p, 0)
    reached = chances.cumsum(-1, dtype=torch.float64)
    draw = torch.rand((), generator=row.generator).double()
    # The first token whose cumulative sum exceeds the draw: never one of probability 0.
    found = torch.searchsorted(reached, draw * reached[-1], right=True)
    return int(found if order is None else order[found])


@torch.inference_mode()
def decode(
    model: PreTrainedModel, tokenizer: Backend, ends: frozenset[int], rows: Sequence[DecodingRow]
) -> None:
    """Generate the complete replies of all `rows`, which end with one of the token ids `ends`."""
    rows = list(rows)
    device = model.device
    # Readings of the same document begin with the same prompt: each prompt is computed once.
    prompts: dict[tuple[int, ...], int] = {}
    places = [prompts.setdefault(tuple(row.prompt), len(prompts)) for row in rows]
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(one)) + [*one] for one in prompts], device=device)
    lengths = torch.tensor([*map(len, prompts)], device=device)
    # [prompts, width]: padding is on the left, so that all rows grow at the same end.
    mask = (torch.arange(width, device=device) >= width - lengths[:, None]).long()
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    taken = inspect.signature(type(model).forward).parameters
    cache, name = None, "cache" if "cache" in taken else "past_key_values"  # newer ones
    while rows:
        output = model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            use_cache=True,
            logits_to_keep=1,
            **({} if cache is None else {name: cache}),
        )
        cache = getattr(output, name)
        logprobs = torch.log_softmax(output.logits[:, -1].float(), -1).cpu()
        if len(logprobs) < len(rows):
            asked = torch.tensor(places, device=device)
            cache.batch_select_indices(asked)
            logprobs, mask, positions = logprobs[asked.cpu()], mask[asked], positions[asked]
        tokens = choose(logprobs, rows)
        known = logprobs.gather(-1, torch.tensor(tokens)[:, None])[:, 0].tolist()
        for row, token, logprob in zip(rows, tokens, known, strict=True):
            row.append(token, logprob, ends, tokenizer)
        is_going = [row.finish_reason is None and not row.has_left for row in rows]
        going = [number for number, goes in enumerate(is_going) if goes]
        if len(going) < len(rows):
            rows = [rows[number] for number in going]
            if not rows:
                return
            kept = torch.tensor(going, device=device)
            cache.batch_select_indices(kept)
            mask, positions = mask[kept], positions[kept]
        ids = torch.tensor([[row.token_ids[-1]] for row in rows], device=device)
        mask = torch.cat([mask, mask.new_ones(len(rows), 1)], -1)
        positions = positions[:, -1:] + 1


_Call: TypeAlias = "tuple[DecodingRow, asyncio.Future[DecodingRow]]"
_CLOSED = "The model was closed during this reply; call it again to load it again."
_GATHERING = 0.003
"""Time for which a batch waits for more calls, in seconds: readings often call together."""


@dataclass(eq=False)
class TransformersEngine:
    """Batches the calls of all threads and event loops on a loop of its own.

    A batch takes the calls waiting when the model becomes free. The weights are loaded at the
    first call. The arguments are those of `ChatTransformers`.

    Attributes:
        version: number of times that the weights were replaced.
        batches: number of calls in each batch so far.
    """

    name: str
    revision: str | None
    device: str | None
    dtype: str
    adapter: str | None
    max_batch: int
    hf_overrides: dict[str, object]
    version: int = 0
    batches: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._waiting: list[_Call] = []
        self._decoding: list[_Call] = []
        self._work: asyncio.Task[None] | None = None
        self._model_in_use = asyncio.Lock()
        self.thread = LoopThread("memagent-transformers")
        # One thread for all batches: the C library keeps memory for each that has computed.
        self._worker = LoopThread("memagent-transformers-batches")

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The model's tokenizer; raises `ConfigurationError` if there is no such model."""
        found: PreTrainedTokenizerBase = self._load(AutoTokenizer)
        return found

    @cached_property
    def config(self) -> PretrainedConfig:
        """The model's configuration, with the overrides; objects are merged with the file's.

        Raises:
            ConfigurationError: There is no such model, or no value of an override's name.
        """
        own = self._load(AutoConfig)
        changed: dict[str, object] = {}
        for name, value in self.hf_overrides.items():
            if not hasattr(own, name):
                message = (
                    f"hf_overrides: the model's config.json has no {name!r}; check its spelling."
                )
                raise ConfigurationError(message)
            known = getattr(own, name)
            both = isinstance(known, dict) and isinstance(value, dict)
            changed[name] = known | value if both else value
        found: PretrainedConfig = self._load(AutoConfig, **changed) if changed else own
        return found

    @cached_property
    def window_tokens(self) -> int | None:
        """Context length in tokens; None if the model's configuration lacks it."""
        return getattr(self.config.get_text_config(), "max_position_embeddings", None)

    @cached_property
    def model(self) -> Any:
        """The model on its device, in evaluation mode; loaded at the first use."""
        own = "mps" if torch.backends.mps.is_available() else "cpu"
        device = self.device or ("cuda" if torch.cuda.is_available() else own)
        try:
            model = self._load(AutoModelForCausalLM, config=self.config, dtype=self.dtype)
            model = model.to(device)
            if self.adapter is not None:
                from peft import PeftModel

                model = PeftModel.from_pretrained(model, self.adapter).merge_and_unload()
        except torch.OutOfMemoryError as error:
            message = (
                f"{self.name!r} does not fit into the memory of {device!r}: name another device, "
                "dtype='bfloat16', or a smaller model."
            )
            raise ModelError(message) from error
        return model.eval()

    async def generate(self, row: DecodingRow) -> DecodingRow:
        """Return a row with its reply, made in a batch with those of other calls; on the loop.

        Raises:
            ModelError: Memory ran out, or the model failed or was closed.
        """
        if self.window_tokens is not None:
            row.max_tokens = min(row.max_tokens, self.window_tokens - len(row.prompt))
        done: asyncio.Future[DecodingRow] = asyncio.get_running_loop().create_future()
        self._waiting.append((row, done))
        if self._work is None:
            self._work = asyncio.create_task(self._work_through())
        try:
            return await done
        finally:
            row.has_left = True

    async def load_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Replace the weights between two batches; see `ChatTransformers.load_weights`."""
        async with self._model_in_use:
            try:
                self.model.load_state_dict(weights)
            except RuntimeError as error:
                message = f"These are not the weights of {self.name!r}: {error}"
                raise ConfigurationError(message) from error
            self.version += 1

    def close(self) -> None:
        """Break off all calls and release the weights; a new call loads them again."""

        async def close() -> None:
            for row, _ in (*self._waiting, *self._decoding):
                row.has_left = True  # the running batch ends at its next token
            async with self._model_in_use:
                self.__dict__.pop("model", None)

        self.thread.wait_for(close())

    def _load(self, kind: Any, **options: object) -> Any:
        try:
            # Set, because transformers would ask on the terminal whether to run a model's code.
            return kind.from_pretrained(
                self.name, revision=self.revision, trust_remote_code=False, **options
            )
        except (OSError, ValueError) as error:
            message = (
                f"{self.name!r} cannot be loaded: {' '.join(str(error).split())[:300]} Name a "
                "folder with a model's config.json, weights and tokenizer, or a hub id that this "
                "machine can reach."
            )
            raise ConfigurationError(message) from error

    async def _work_through(self) -> None:
        while self._waiting:
            known = 0
            while known < len(self._waiting) < self.max_batch:
                known = len(self._waiting)
                await asyncio.sleep(_GATHERING)
            async with self._model_in_use:
                most = self.max_batch
                self._decoding, self._waiting = self._waiting[:most], self._waiting[most:]
                rows = [row for row, _ in self._decoding if not row.has_left]
                failure: ModelError | None = None
                if rows:
                    self.batches.append(len(rows))
                    try:
                        await self._worker.run(self._decode(rows))
                    except Exception as error:  # noqa: BLE001 - passed on to the callers
                        failure = _failure(error)
            for row, done in self._decoding:
                if done.done():  # it was cancelled
                    continue
                if failure is None and row.finish_reason is not None:
                    done.set_result(row)
                else:
                    done.set_exception(failure or ModelError(_CLOSED))
            self._decoding = []
        self._work = None

    async def _decode(self, rows: list[DecodingRow]) -> None:
        ends = _ends(self.model, self.tokenizer)
        try:
            decode(self.model, self.tokenizer.backend_tokenizer, ends, rows)
        except torch.OutOfMemoryError:
            if len(rows) == 1 or any(row.token_ids for row in rows):
                raise
            self.max_batch = half = len(rows) // 2
            await self._decode(rows[:half])
            await self._decode(rows[half:])


def _ends(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    found = model.generation_config.eos_token_id
    listed = found if isinstance(found, list) else [found]
    return frozenset(token for token in (*listed, tokenizer.eos_token_id) if token is not None)


def _failure(error: Exception) -> ModelError:
    if isinstance(error, ModelError):
        return error
    if isinstance(error, torch.OutOfMemoryError):
        return ModelError(
            "The model ran out of memory: lower max_batch or chunk_tokens, or set dtype='bfloat16'."
        )
    return ModelError(f"The model failed: {type(error).__name__}: {error}")


_LONGEST_REPLY = 4096
"""Longest reply if no limit is set, in tokens."""


class ChatTransformers(LocalChatModel):
    """A chat model on `transformers` that batches calls from all threads and event loops.

    The weights are loaded at the first call, once per process for all objects with the same model
    and options. In float32, a reply at temperature 0 or with a seed does not depend on the other
    calls in the batch.

    Args:
        revision: revision of the repository on the hub.
        device: "cpu", "cuda" or "mps"; by default the first available of cuda, mps, cpu.
        dtype: type of the weights ("float32", "bfloat16"); "auto" takes the model's own.
        max_batch: most calls in one batch.
        hf_overrides: values to change in the model's config.json, as in vLLM:
            `{"max_position_embeddings": 131072, "rope_parameters": {"rope_type": "yarn", ...}}`.
            Objects are merged with those in the file.

    For the other arguments and what is raised, see `models.completion.LocalChatModel`.
    """

    revision: str | None = None
    device: str | None = None
    dtype: str = "auto"
    max_batch: int = Field(default=32, ge=1)
    hf_overrides: dict[str, object] = Field(default_factory=dict)

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
        shared = ("revision", "device", "dtype", "adapter", "max_batch", "hf_overrides")
        self._share(TransformersEngine, {name: getattr(self, name) for name in shared})

    @property
    def _llm_type(self) -> str:
        return "transformers"

    @property
    def _identifying_params(self) -> dict[str, object]:
        more = {"hf_overrides": self.hf_overrides} if self.hf_overrides else {}
        return self._identify(revision=self.revision, dtype=self.dtype, **more)

    async def _parts(self, call: ModelCall) -> AsyncGenerator[ChatGenerationChunk, None]:
        row = self._row(call)
        parts: asyncio.Queue[str | None] = asyncio.Queue()
        if not call.whole:
            loop = asyncio.get_running_loop()
            row.emit = lambda part: loop.call_soon_threadsafe(parts.put_nowait, part)
        replying = asyncio.ensure_future(self._engine.generate(row))
        replying.add_done_callback(lambda _: parts.put_nowait(None))
        try:
            while (part := await parts.get()) is not None:
                yield reply_part(part)
            await replying
        finally:
            replying.cancel()
        generation = Generation(
            prompt_token_ids=row.prompt,
            token_ids=row.token_ids,
            logprobs=row.logprobs if self.logprobs or "plain" in call.options else None,
            finish_reason=row.finish_reason,
        )
        yield reply_part(row.text if call.whole else "", generation, self.model)

    def _row(self, call: ModelCall) -> DecodingRow:
        names = ("temperature", "top_p", "seed", "max_tokens", "stop")
        chosen = {name: getattr(self, name) for name in names} | call.options
        words, plain = chosen.pop("stop") or (), chosen.pop("plain", False)
        chosen["max_tokens"] = chosen["max_tokens"] or _LONGEST_REPLY
        return DecodingRow(
            self._encode(call.messages, plain=plain),
            stop=[words] if isinstance(words, str) else words,
            **chosen,
        )
