"""A model of `transformers` in this process: one copy of the weights, run by one thread.

With `generate()` of transformers, a batch shares one sampler, seed and length, and rows that have
ended are still computed. Here each row has its own, and leaves the batch when it is done.
"""

from __future__ import annotations

import atexit
import inspect
import json
import os
import queue
import threading
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from tokenizers.decoders import DecodeStream
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from memagent_graph.errors import ConfigurationError, ContextLengthError, ModelError
from memagent_graph.sync import LoopThread

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tokenizers import Tokenizer
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase


@dataclass
class DecodingRow:
    """A prompt, its sampling parameters, and its reply.

    Attributes:
        prompt: token ids.
        max_tokens: longest reply, in tokens.
        temperature: 0 takes the most likely token.
        top_p: nucleus sampling: least total probability of the tokens to choose from.
        seed: seed of the sampling; None draws one.
        stop: strings that end the reply, and are not part of it.
        emit: called with each piece of text that is certain.
        left: returns whether the caller no longer waits for the reply.
        token_ids: token ids of the reply, including the one that ended it.
        logprobs: natural logarithms of their probabilities under the model, before temperature
            and `top_p`.
        text: the reply without special tokens.
        finish_reason: "stop" or "length"; None until the reply ends.
    """

    prompt: list[int]
    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    stop: Sequence[str] = ()
    emit: Callable[[str], None] = lambda _text: None
    left: Callable[[], bool] = lambda: False
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    text: str = ""
    finish_reason: str | None = None

    def __post_init__(self) -> None:
        self._generator = torch.Generator()
        if self.seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(self.seed)
        self._stream = DecodeStream(skip_special_tokens=True)
        self._emitted = 0

    def draw(self) -> float:
        """Draw a number from 0 to 1 from the row's own generator."""
        return float(torch.rand((), generator=self._generator))

    def append(
        self, token: int, logprob: float, ends: frozenset[int], tokenizer: Tokenizer
    ) -> None:
        """Add a token; set `finish_reason` if it ends the reply.

        Args:
            token: its id.
            logprob: natural logarithm of its probability.
            ends: token ids that end a reply.
            tokenizer: decodes the token.
        """
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
        self._emit()

    def _emit(self) -> None:
        """Emit the text that cannot be part of a stop string any more."""
        certain = len(self.text)
        if self.finish_reason is None and self.stop:
            certain -= max(map(len, self.stop)) - 1
        if certain > self._emitted:
            self.emit(self.text[self._emitted : certain])
            self._emitted = certain


def _name_of_cache(kind: type[PreTrainedModel]) -> str:
    """The name of the cache's argument, which newer versions of transformers changed."""
    return "cache" if "cache" in inspect.signature(kind.forward).parameters else "past_key_values"


def choose(logprobs: torch.Tensor, rows: Sequence[DecodingRow]) -> list[int]:
    """Choose the next token of each row, independently of the other rows.

    Args:
        logprobs: log-probabilities of all tokens, `[rows, vocabulary]`.
        rows: the rows, with their sampling parameters and generators.
    """
    tokens: list[int] = logprobs.argmax(-1).tolist()
    for cut in (False, True):
        places = [
            place
            for place, row in enumerate(rows)
            if row.temperature > 0 and (row.top_p < 1) is cut
        ]
        if places:
            drawn = _draw(logprobs[places], [rows[place] for place in places], cut=cut)
            for place, token in zip(places, drawn, strict=True):
                tokens[place] = token
    return tokens


def _draw(logprobs: torch.Tensor, rows: Sequence[DecodingRow], *, cut: bool) -> list[int]:
    """Sample a token for each row; with `cut`, within `top_p`."""
    temperatures = torch.tensor([[row.temperature] for row in rows])
    chances, order = torch.softmax(logprobs / temperatures, -1), None
    if cut:
        chances, order = chances.sort(dim=-1, descending=True, stable=True)
        most = torch.tensor([[row.top_p] for row in rows])
        chances = chances.masked_fill(chances.cumsum(-1) - chances >= most, 0)
    reached = chances.cumsum(-1, dtype=torch.float64)
    draws = torch.tensor([[row.draw()] for row in rows], dtype=torch.float64)
    # The first token whose cumulative sum exceeds the draw: never one of probability 0.
    found = torch.searchsorted(reached, draws * reached[:, -1:], right=True)
    chosen: list[int] = (found if order is None else order.gather(-1, found))[:, 0].tolist()
    return chosen


@torch.inference_mode()
def decode(
    model: PreTrainedModel, tokenizer: Tokenizer, ends: frozenset[int], rows: Sequence[DecodingRow]
) -> None:
    """Generate the complete replies of all `rows`.

    Args:
        model: a causal language model of `transformers`, in evaluation mode.
        tokenizer: its tokenizer.
        ends: token ids that end a reply.
        rows: the prompts; the replies are written into them.
    """
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
    cache, name = None, _name_of_cache(type(model))
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
        going = [
            number
            for number, row in enumerate(rows)
            if row.finish_reason is None and not row.left()
        ]
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


Config = TypeVar("Config")


def override(load: Callable[..., Config], overrides: Mapping[str, object]) -> Config:
    """Load a configuration with changes.

    Args:
        load: loads a configuration of `transformers`, with the given values in place of the
            file's.
        overrides: values by name; an object is merged with the one in the file.

    Raises:
        ConfigurationError: The configuration has no value of that name.
    """
    own = load()
    changed: dict[str, object] = {}
    for name, value in overrides.items():
        if not hasattr(own, name):
            message = f"hf_overrides: the model's config.json has no {name!r}; check its spelling."
            raise ConfigurationError(message)
        known = getattr(own, name)
        if isinstance(known, dict) and isinstance(value, dict):
            changed[name] = {**known, **value}
        else:
            changed[name] = value
    return load(**changed) if changed else own


_CLOSED = "The model was closed during this reply; call it again to load it again."
_GATHERING = 0.003
"""Time for which a batch waits for more calls, in seconds: readings often call together."""


class TransformersEngine:
    """Batches the calls of all threads and event loops.

    A batch takes the calls waiting when the model becomes free. The weights are loaded at the
    first call.

    Args:
        model: a folder or a hub id.
        revision: revision of the repository on the hub.
        device: "cpu", "cuda" or "mps"; None takes the first available of cuda, mps, cpu.
        dtype: type of the weights ("float32"); "auto" takes the model's own.
        adapter: folder with LoRA weights.
        max_batch: most calls in one batch.
        overrides: values to change in the model's config.json, as JSON.

    Attributes:
        version: number of times that the weights were replaced.
        batches: number of calls in each batch so far.
    """

    def __init__(
        self,
        *,
        model: str,
        revision: str | None,
        device: str | None,
        dtype: str,
        adapter: str | None,
        max_batch: int,
        overrides: str = "{}",
    ) -> None:
        self.name = model
        self.version = 0
        self.batches: list[int] = []
        self._from = {"pretrained_model_name_or_path": model, "revision": revision}
        self._device = device
        self._dtype = dtype
        self._adapter = adapter
        self._max_batch = max_batch
        self._overrides: dict[str, object] = json.loads(overrides)
        self._lock = threading.Lock()
        self._model_in_use = threading.Lock()
        self._worker: _Worker | None = None
        self.thread = LoopThread("memagent-transformers-calls")

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The model's tokenizer.

        Raises:
            ConfigurationError: There is no such model.
        """
        found: PreTrainedTokenizerBase = self._load(AutoTokenizer)
        return found

    @cached_property
    def config(self) -> PretrainedConfig:
        """The model's configuration, with the overrides.

        Raises:
            ConfigurationError: There is no such model, or no value of an override's name.
        """
        load: Callable[..., PretrainedConfig] = partial(self._load, AutoConfig)
        return override(load, self._overrides)

    @cached_property
    def window_tokens(self) -> int | None:
        """Context length in tokens; None if the model's configuration lacks it."""
        return getattr(self.config.get_text_config(), "max_position_embeddings", None)

    @cached_property
    def model(self) -> Any:
        """The model on its device, in evaluation mode; loaded at the first use."""
        device = self._device or _best_device()
        try:
            model = self._load(AutoModelForCausalLM, config=self.config, dtype=self._dtype)
            model = model.to(device)
            if self._adapter is not None:
                from peft import PeftModel

                model = PeftModel.from_pretrained(model, self._adapter).merge_and_unload()
        except torch.OutOfMemoryError as error:
            message = (
                f"{self.name!r} does not fit into the memory of {device!r}: name another device, "
                "dtype='bfloat16', or a smaller model."
            )
            raise ModelError(message) from error
        return model.eval()

    def submit(self, row: DecodingRow) -> Future[DecodingRow]:
        """Queue a row; the future returns it with its reply, and can be cancelled.

        Raises:
            ContextLengthError: The prompt leaves no room for a reply.
        """
        window = self.window_tokens
        if window is not None:
            if len(row.prompt) >= window:
                message = (
                    f"The prompt is too long for the model: {len(row.prompt)} tokens, but the "
                    f"context holds {window} including the reply. Lower chunk_tokens."
                )
                raise ContextLengthError(message)
            row.max_tokens = min(row.max_tokens, window - len(row.prompt))
        future: Future[DecodingRow] = Future()
        with self._lock:
            if self._worker is None:
                self._worker = _Worker(self._work)
            worker = self._worker
            row.left = lambda: worker.closing or future.cancelled()
            worker.calls.put((row, future))
        return future

    def load_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Replace the weights between two batches, as training does.

        Args:
            weights: a state dict of the model.

        Raises:
            ConfigurationError: The weights belong to another model.
        """
        with self._model_in_use:
            try:
                self.model.load_state_dict(weights)
            except RuntimeError as error:
                message = f"These are not the weights of {self.name!r}: {error}"
                raise ConfigurationError(message) from error
            self.version += 1

    def close(self) -> None:
        """Cancel all calls, end the thread and release the weights; a new call starts it again."""
        with self._lock:
            worker, self._worker = self._worker, None
            if worker is not None:
                worker.closing = True  # the running batch ends at its next token
                worker.calls.put(None)
        if worker is not None:
            worker.thread.join()
        self.__dict__.pop("model", None)

    def _load(self, kind: Any, **options: object) -> Any:
        try:
            # Set, because transformers would ask on the terminal whether to run a model's code.
            return kind.from_pretrained(**self._from, trust_remote_code=False, **options)
        except (OSError, ValueError) as error:
            message = (
                f"{self.name!r} cannot be loaded: {' '.join(str(error).split())[:300]} Name a "
                "folder with a model's config.json, weights and tokenizer, or a hub id that this "
                "machine can reach."
            )
            raise ConfigurationError(message) from error

    def _work(self, worker: _Worker) -> None:
        while (calls := worker.gather(self._max_batch)) is not None:
            rows = [row for row, _ in calls]
            try:
                with self._model_in_use:
                    self.batches.append(len(rows))
                    self._decode(rows)
            except Exception as error:  # noqa: BLE001 - passed on to the callers
                failure = _failure(error)
                for _, future in calls:
                    with suppress(InvalidStateError):
                        future.set_exception(failure)
            else:
                for row, future in calls:
                    with suppress(InvalidStateError):  # it was cancelled
                        if row.finish_reason is None:
                            future.set_exception(ModelError(_CLOSED))
                        else:
                            future.set_result(row)

    def _decode(self, rows: list[DecodingRow]) -> None:
        ends = _ends(self.model, self.tokenizer)
        try:
            decode(self.model, self.tokenizer.backend_tokenizer, ends, rows)
        except torch.OutOfMemoryError:
            if len(rows) == 1 or any(row.token_ids for row in rows):
                raise
            self._max_batch = half = len(rows) // 2
            self._decode(rows[:half])
            self._decode(rows[half:])


class _Worker:
    """The thread that runs a model until it is closed, and its queue of calls.

    Args:
        work: the thread's function.
    """

    def __init__(self, work: Callable[[_Worker], None]) -> None:
        self.calls: queue.SimpleQueue[tuple[DecodingRow, Future[DecodingRow]] | None] = (
            queue.SimpleQueue()
        )
        self.closing = False
        self.thread = threading.Thread(
            target=work, args=(self,), name="memagent-transformers", daemon=True
        )
        self.thread.start()

    def gather(self, most: int) -> list[tuple[DecodingRow, Future[DecodingRow]]] | None:
        """Wait for calls, and return at least one; None once the thread is to end."""
        calls: list[tuple[DecodingRow, Future[DecodingRow]]] = []
        while len(calls) < most:
            try:
                call = self.calls.get(timeout=_GATHERING if calls else None)
            except queue.Empty:
                break
            if call is None:
                for _, future in calls:
                    with suppress(InvalidStateError):
                        future.set_exception(ModelError(_CLOSED))
                return None
            if not call[1].cancelled():
                calls.append(call)
        return calls


_engines: dict[tuple[object, ...], TransformersEngine] = {}


def get_engine(**arguments: Any) -> TransformersEngine:
    """Return this process's engine with these arguments; a new one if there is none."""
    key = (os.getpid(), *sorted(arguments.items()))
    if key not in _engines:
        _engines[key] = TransformersEngine(**arguments)
    return _engines[key]


@atexit.register
def _close_all() -> None:
    for (pid, *_), engine in list(_engines.items()):
        if pid == os.getpid():
            engine.close()


def _best_device() -> str:
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


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
