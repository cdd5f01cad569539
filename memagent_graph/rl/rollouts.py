"""Run groups of readings through the graph and reward them, to train on; engines that sample."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from memagent_graph import errors
from memagent_graph.graph.build import create_memagent
from memagent_graph.graph.state import ReadingInput
from memagent_graph.models.endpoint import ChatEndpoint
from memagent_graph.readers.base import Answer, Update, Usage
from memagent_graph.readers.chat import ChatReader
from memagent_graph.readers.resolve import resolve_model
from memagent_graph.rl.recorder import ROLLOUT, TraceRecorder
from memagent_graph.rl.traces import ListSink, LoadedTraces, RecordedCall, Rollout, join

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import torch
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage
    from langchain_core.runnables import RunnableConfig

    from memagent_graph.config import ReadingConfig
    from memagent_graph.evaluation.samples import Sample
    from memagent_graph.evidence.places import Memory
    from memagent_graph.prompts import Prompts
    from memagent_graph.readers.base import Step
    from memagent_graph.rl.grpo import Reward, TrainingSettings
    from memagent_graph.rl.traces import Record
    from memagent_graph.text.source import Source
    from memagent_graph.text.tokens import TokenizerLike


class RolloutRunner:
    """Reads each question several times with a policy that samples.

    An empty reply is not asked for again, since it has to be trained on: it leaves the memory
    unchanged, and the reading gets the reward of an empty answer.

    With a model that supports seeds, equal seed, rollout and prompt give the same reply, regardless
    of what else runs.

    The model samples at temperature 1, and reports token ids and log-probabilities. Its `reader`
    calls it, and the `recorder` records readings: set its `policy` when the weights change.
    """

    def __init__(
        self,
        model: BaseChatModel,
        tokenizer: TokenizerLike,
        *,
        config: ReadingConfig,
        reward: Reward,
        prompts: Prompts | None = None,
        concurrency: int = 256,
        seed: int = 0,
    ) -> None:
        self._reward = reward
        self._slots = concurrency
        self.reader = _SeededReader(model, prompts=prompts, config=config, seed=seed)
        self._agent = create_memagent(self.reader, config=config, tokenizer=tokenizer)
        self._sink = _TrainingSink()
        self.recorder = TraceRecorder(self._sink, tokenizer=tokenizer)

    async def collect(self, samples: Sequence[Sample], *, times: int) -> LoadedTraces:
        """Read each sample `times` times, and reward the readings; those that fail are skipped."""
        slots = asyncio.Semaphore(self._slots)
        failed: Counter[str] = Counter()
        self.reader.begin()
        answers = {sample.id: sample.answers for sample in samples}

        async def read(sample: Sample, source: Source, index: int) -> None:
            name = f"{sample.id}#{self.recorder.policy}.{index}"
            config = self.recorder.config(sample=sample.id, group=sample.id, rollout=name)
            asked = ReadingInput(question=sample.question, document=source)
            async with slots:
                try:
                    await self._agent.ainvoke(asked, config)
                except errors.MemAgentError as error:
                    failed[f"{type(error).__name__}: {error}"] += 1

        opened = [(sample, sample.open()) for sample in samples]
        await asyncio.gather(*(read(*one, index) for one in opened for index in range(times)))
        found = join(self._sink.take()).rollouts
        # An order that does not depend on which reading ended first.
        found.sort(key=lambda one: one.rollout)
        return LoadedTraces([self._score(one, answers[one.group]) for one in found], failed)

    def _score(self, rollout: Rollout, answers: Sequence[str]) -> Rollout:
        answer = "" if rollout.rollout in self.reader.speechless else rollout.answer
        return replace(rollout, reward=self._reward(answer, answers))


class _TrainingSink(ListSink):
    """Keeps no calls: the texts of all prompts of a batch would take gigabytes."""

    def write(self, record: Record) -> None:
        if not isinstance(record, RecordedCall):
            super().write(record)


class _SeededReader(ChatReader):
    """Gives every call its own seed, derived from the rollout and the prompt.

    Attributes:
        speechless: ids of rollouts with an empty reply.
    """

    shortens = False  # a memory over its budget is cut, as in the paper, so that the policy learns

    def __init__(
        self, model: BaseChatModel, *, prompts: Prompts | None, config: ReadingConfig, seed: int
    ) -> None:
        super().__init__(model, prompts=prompts, config=config)
        self._seed = seed
        self.begin()

    def begin(self) -> None:
        """Forget previous rollouts."""
        self.speechless: set[str] = set()
        self._asked: Counter[bytes] = Counter()

    async def update(self, step: Step, *, config: RunnableConfig | None = None) -> Update:
        try:
            return await super().update(step, config=config)
        except errors.EmptyReplyError:
            self.speechless.add(_rollout_of(config))
            return Update(None, usage=Usage(calls=1))

    async def respond(
        self, question: str, memory: Memory, *, config: RunnableConfig | None = None
    ) -> Answer:
        try:
            return await super().respond(question, memory, config=config)
        except errors.EmptyReplyError:
            self.speechless.add(_rollout_of(config))
            return Answer("(an empty reply)", "", usage=Usage(calls=1))

    async def _ask(
        self,
        prompt: str,
        config: RunnableConfig | None,
        options: dict[str, Any],
        *more: Any,
    ) -> tuple[AIMessage, str]:
        about = sha256(f"{self._seed} {_rollout_of(config)} {prompt}".encode()).digest()
        self._asked[about] += 1  # a repeated attempt must not fail in the same way
        seed = (int.from_bytes(about[:4], "little") + self._asked[about]) % 2**31
        return await super()._ask(prompt, config, {**options, "seed": seed}, *more)


def _rollout_of(config: RunnableConfig | None) -> str:
    return str((config or {}).get("metadata", {}).get(ROLLOUT, ""))


def make_served_policy(model: str, base_url: str, **options: Any) -> ChatEndpoint:
    """Make a model on a vLLM server that samples from its whole distribution at temperature 1.

    All sampling parameters are sent with each request. vLLM takes missing ones from the model's
    generation_config.json, which for Qwen2.5 has top_k 20 and a repetition penalty; the recorded
    log-probabilities would then not be those of the distribution sampled from.

    Args:
        model: name of the model on the server.
        base_url: URL of the server, or of a gateway before it, up to `/v1`.
        options: further arguments of `ChatEndpoint`.
    """
    whole = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
    body = {**(options.pop("extra_body", None) or {}), **whole}
    sampling: dict[str, Any] = {"temperature": 1.0, "top_p": 1.0, "extra_body": body}
    return ChatEndpoint(model=model, base_url=base_url, **options, **sampling)


class ServedWeights:
    """Loads new weights into a vLLM server that shares a folder with this process.

    The server must be started with `VLLM_SERVER_DEV_MODE=1` in its environment. Anyone who can
    reach it can then control it: keep it on a loopback or private address.

    Args:
        url: URL of the server, with or without `/v1`.
        folder: a folder that the server reaches by the same path.
    """

    def __init__(self, url: str, folder: Path) -> None:
        self._root = url.rstrip("/").removesuffix("/v1")
        self._folder = folder.absolute() / "weights"

    def __call__(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Replace the server's weights with a state dict.

        The main process does so, and other processes wait for it.
        """
        from accelerate import PartialState

        processes = PartialState()
        if processes.is_main_process:
            self._replace(weights)
        processes.wait_for_everyone()

    def _replace(self, weights: Mapping[str, torch.Tensor]) -> None:
        import httpx
        from safetensors.torch import save_file

        self._folder.mkdir(parents=True, exist_ok=True)
        plain = {name: weight.detach().cpu().clone() for name, weight in weights.items()}
        save_file(plain, self._folder / "model.safetensors")
        body = {"method": "reload_weights", "kwargs": {"weights_path": str(self._folder)}}
        try:
            for path, sent in (("/collective_rpc", body), ("/reset_prefix_cache", None)):
                httpx.post(self._root + path, json=sent, timeout=600.0).raise_for_status()
        except httpx.HTTPError as error:
            message = (
                f"The server at {self._root} did not load the new weights: {error} Start vLLM with "
                "VLLM_SERVER_DEV_MODE=1 in its environment."
            )
            raise errors.ModelError(message) from error


def make_engine(
    settings: TrainingSettings, *, device: str = "cpu", processes: int = 1
) -> tuple[Any, Callable[[Mapping[str, torch.Tensor]], None]]:
    """Return the model that samples, to be closed, and a function that loads weights into it."""
    if shaping := _SAMPLING & settings.engine_options.keys():
        message = (
            f"engine_options cannot have {', '.join(sorted(shaping))}: training needs tokens "
            "sampled from the whole distribution. Leave it out."
        )
        raise errors.ConfigurationError(message)
    options = {"logprobs": True, **settings.engine_options}
    if settings.engine.startswith(("http://", "https://")):
        served = make_served_policy(
            settings.model, settings.engine, return_token_ids=True, **options
        )
        return served, ServedWeights(settings.engine, settings.out)
    if settings.engine not in {"hf", "vllm"}:
        message = f"There is no engine {settings.engine!r}: use hf, vllm, or a vLLM server's URL."
        raise errors.ConfigurationError(message)
    if settings.engine == "vllm" and processes > 1:
        message = (
            f"engine=vllm trains in one process, not {processes}: start a vLLM server and name "
            "its URL as the engine."
        )
        raise errors.ConfigurationError(message)
    options |= {"temperature": 1.0, "top_p": 1.0}
    if settings.engine == "hf":
        options = {"dtype": "float32", "device": device} | options  # as the trainer computes
    model: Any = resolve_model(f"{settings.engine}:{settings.model}", **options)
    return model, model.load_weights


_SAMPLING = {"temperature", "top_p", "sampling", "seed"}
"""Options of engines that change which tokens are sampled."""
