"""Run groups of readings through the graph and reward them, to train on."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, replace
from hashlib import sha256
from math import fsum
from typing import TYPE_CHECKING

from memagent_graph.errors import EmptyReplyError, MemAgentError
from memagent_graph.evidence.places import Memory
from memagent_graph.graph.build import create_memagent
from memagent_graph.graph.state import ReadingInput
from memagent_graph.readers.base import Answer, Update, Usage
from memagent_graph.readers.chat import ChatReader
from memagent_graph.rl.recorder import GROUP, ROLLOUT, TraceRecorder
from memagent_graph.rl.sinks import ListSink
from memagent_graph.rl.traces import Rollout, join

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage
    from langchain_core.runnables import RunnableConfig

    from memagent_graph.config import ReadingConfig
    from memagent_graph.evaluation.samples import Sample
    from memagent_graph.prompts import Prompts
    from memagent_graph.readers.base import Step
    from memagent_graph.readers.chat import Block
    from memagent_graph.rl.rewards import Reward
    from memagent_graph.text.source import Source
    from memagent_graph.text.tokens import TokenizerLike


@dataclass(frozen=True)
class Collected:
    """The rollouts of some questions.

    Attributes:
        rollouts: the complete rollouts, each with its reward.
        failed: number of failed readings, by error.
        answer_reward: mean reward of the answers alone.
    """

    rollouts: list[Rollout]
    failed: Counter[str]
    answer_reward: float = 0.0


class RolloutRunner:
    """Reads each question several times with a policy that samples.

    An empty reply is not asked for again, since it has to be trained on: it leaves the memory
    unchanged, and the reading gets the reward of an empty answer.

    With a model that supports seeds, equal seed, rollout and prompt give the same reply, regardless
    of what else runs.

    Args:
        model: the policy, at temperature 1; it must report token ids and log-probabilities.
        tokenizer: the model's tokenizer.
        config: settings of the readings.
        reward: rewards an answer.
        prompts: the policy's prompts.
        concurrency: most readings at once.
        seed: seed of the sampling.
        shared_start: share of the questions whose readings start from one memory
            (`TrainingSettings.shared_start`).

    Attributes:
        reader: the reader that calls the policy.
        recorder: records the readings; its `policy` is to be set when the model's weights change.
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
        shared_start: float = 0.0,
    ) -> None:
        self._reward = reward
        self._seed = seed
        self._shared_start = shared_start
        self._slots = concurrency
        self.reader = _SeededReader(model, prompts=prompts, config=config, seed=seed)
        self._agent = create_memagent(self.reader, config=config, tokenizer=tokenizer)
        self._sink = ListSink()
        self.recorder = TraceRecorder(self._sink, tokenizer=tokenizer)

    async def collect(self, samples: Sequence[Sample], *, times: int) -> Collected:
        """Read each sample `times` times; failed readings are counted, and the others continue."""
        slots = asyncio.Semaphore(self._slots)
        failed: Counter[str] = Counter()
        opened = {sample.id: sample.open() for sample in samples}
        self.reader.begin(self._draw_starts(opened) if times > 1 else {})
        answers = {sample.id: sample.answers for sample in samples}

        async def read(sample: Sample, source: Source, index: int) -> None:
            name = f"{sample.id}#{self.recorder.policy}.{index}"
            config = self.recorder.config(sample=sample.id, group=sample.id, rollout=name)
            asked = ReadingInput(question=sample.question, document=source)
            async with slots:
                try:
                    await self._agent.ainvoke(asked, config)
                except MemAgentError as error:
                    failed[f"{type(error).__name__}: {error}"] += 1

        await asyncio.gather(
            *(
                read(sample, opened[sample.id], index)
                for sample in samples
                for index in range(times)
            )
        )
        found = join(self._sink.take()).rollouts
        # An order that does not depend on which reading ended first.
        found.sort(key=lambda one: one.rollout)
        scored = [self._score(one, answers[one.group]) for one in found]
        worth = fsum(one.reward or 0.0 for one in scored) / max(1, len(scored))
        return Collected(scored, failed, worth)

    async def find_guessed(self, samples: Sequence[Sample]) -> set[str]:
        """Return the ids of samples whose answer without the document has a reward of 1 or more."""

        async def worth(sample: Sample) -> float:
            answer = await self.reader.respond(sample.question, Memory())
            return self._reward(answer.final, sample.answers)

        worths = await asyncio.gather(*map(worth, samples))
        return {sample.id for sample, reward in zip(samples, worths, strict=True) if reward >= 1}

    def _draw_starts(self, opened: Mapping[str, Source]) -> dict[str, int]:
        """Draw the questions whose readings share their start, and where in the text it ends."""
        starts = {}
        for sample, source in opened.items():
            chance = random.Random(f"{self._seed} {self.recorder.policy} {sample}")  # noqa: S311 - no secret
            if chance.random() < self._shared_start:
                starts[sample] = int(chance.random() * source.length)
        return starts

    def _score(self, rollout: Rollout, answers: Sequence[str]) -> Rollout:
        answer = "" if rollout.rollout in self.reader.speechless else rollout.answer
        return replace(rollout, reward=self._reward(answer, answers))


class _SeededReader(ChatReader):
    """Gives every call its own seed, derived from the rollout and the prompt.

    Where the readings of a group share their start, its chunks are read once, unrecorded.

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

    def begin(self, starts: Mapping[str, int] | None = None) -> None:
        """Forget previous rollouts.

        Args:
            starts: for each group whose readings share their start, the code point up to which
                they do.
        """
        self.speechless: set[str] = set()
        self._asked: Counter[bytes] = Counter()
        self._starts = starts or {}
        self._shared: dict[tuple[object, ...], asyncio.Future[Update]] = {}

    async def update(self, step: Step, *, config: RunnableConfig | None = None) -> Update:
        """Do as `ChatReader` does, except for an empty reply and a start that is shared."""
        group = _get_named(config, GROUP)
        if step.chunk.end > self._starts.get(group, 0):
            return await self._update(step, config)
        key = (group, step.number, step.chunk.start, step.chunk.end, step.fault is None)
        if key not in self._shared:
            # Without the recorder: only what follows the shared start is trained on.
            alone: RunnableConfig = {"callbacks": [], "metadata": {ROLLOUT: f"{group}#start"}}
            self._shared[key] = asyncio.ensure_future(self._update(step, alone))
        return await asyncio.shield(self._shared[key])

    async def _update(self, step: Step, config: RunnableConfig | None) -> Update:
        try:
            return await super().update(step, config=config)
        except EmptyReplyError:
            self.speechless.add(_get_named(config, ROLLOUT))
            return Update(None, usage=Usage(calls=1))

    async def respond(
        self, question: str, memory: Memory, *, config: RunnableConfig | None = None
    ) -> Answer:
        """Do as `ChatReader` does, except for an empty reply."""
        try:
            return await super().respond(question, memory, config=config)
        except EmptyReplyError:
            self.speechless.add(_get_named(config, ROLLOUT))
            return Answer(_SILENCE, "", usage=Usage(calls=1))

    async def _ask(
        self,
        prompt: str,
        config: RunnableConfig | None,
        options: Mapping[str, object],
        seen: Sequence[Block] = (),
    ) -> tuple[AIMessage, str]:
        about = sha256(f"{self._seed} {_get_named(config, ROLLOUT)} {prompt}".encode()).digest()
        self._asked[about] += 1  # a repeated attempt must not fail in the same way
        seed = (int.from_bytes(about[:4], "little") + self._asked[about]) % 2**31
        return await super()._ask(prompt, config, {**options, "seed": seed}, seen)


_SILENCE = "(an empty reply)"


def _get_named(config: RunnableConfig | None, key: str) -> str:
    metadata = (config or {}).get("metadata", {})
    return str(metadata.get(key, ""))
