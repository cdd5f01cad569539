"""A model of `transformers` in this process: one copy of the weights, run by one thread."""

from __future__ import annotations

import atexit
import json
import os
import queue
import threading
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from memagent_graph.errors import ConfigurationError, ContextLengthError, ModelError
from memagent_graph.models.decoding import Row, decode
from memagent_graph.models.overrides import overridden

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

_CLOSED = "The model was closed during this reply; call it again to load it again."
_GATHERING = 0.003
"""Time for which a batch waits for more calls, in seconds: readings often call together."""


class Engine:
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

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The model's tokenizer.

        Raises:
            ConfigurationError: There is no such model.
        """
        found: PreTrainedTokenizerBase = self._loaded(AutoTokenizer)
        return found

    @cached_property
    def config(self) -> PretrainedConfig:
        """The model's configuration, with the overrides.

        Raises:
            ConfigurationError: There is no such model, or no value of an override's name.
        """
        load: Callable[..., PretrainedConfig] = partial(self._loaded, AutoConfig)
        return overridden(load, self._overrides)

    @cached_property
    def window_tokens(self) -> int | None:
        """Context length in tokens; None if the model's configuration lacks it."""
        return getattr(self.config.get_text_config(), "max_position_embeddings", None)

    @cached_property
    def model(self) -> Any:
        """The model on its device, in evaluation mode; loaded at the first use."""
        device = self._device or _best_device()
        try:
            model = self._loaded(AutoModelForCausalLM, config=self.config, dtype=self._dtype)
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

    def submit(self, row: Row) -> Future[Row]:
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
        future: Future[Row] = Future()
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

    def _loaded(self, kind: Any, **options: object) -> Any:
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
        while (calls := worker.gathered(self._max_batch)) is not None:
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

    def _decode(self, rows: list[Row]) -> None:
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
        self.calls: queue.SimpleQueue[tuple[Row, Future[Row]] | None] = queue.SimpleQueue()
        self.closing = False
        self.thread = threading.Thread(
            target=work, args=(self,), name="memagent-transformers", daemon=True
        )
        self.thread.start()

    def gathered(self, most: int) -> list[tuple[Row, Future[Row]]] | None:
        """Wait for calls, and return at least one; None once the thread is to end."""
        calls: list[tuple[Row, Future[Row]]] = []
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


_engines: dict[tuple[object, ...], Engine] = {}


def shared_engine(**arguments: Any) -> Engine:
    """Return this process's engine with these arguments; a new one if there is none."""
    key = (os.getpid(), *sorted(arguments.items()))
    if key not in _engines:
        _engines[key] = Engine(**arguments)
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
