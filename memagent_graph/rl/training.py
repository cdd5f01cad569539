"""A training run: read with the current policy, score, train, load the new weights, repeat.

Questions for training and for evaluation are split by text before they are numbered.
"""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from math import fsum
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeAlias

from memagent_graph.config import ReadingConfig
from memagent_graph.errors import ConfigurationError, TraceError
from memagent_graph.evaluation.questions import same
from memagent_graph.evaluation.samples import draw
from memagent_graph.evaluation.tasks import make_task
from memagent_graph.prompts import Prompts
from memagent_graph.rl.grpo import informative, make_reward
from memagent_graph.rl.rollouts import RolloutRunner, make_engine
from memagent_graph.rl.traces import load
from memagent_graph.text.files import open_source
from memagent_graph.text.tokens import load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from pathlib import Path

    import torch

    from memagent_graph.evaluation.samples import Sample, Task
    from memagent_graph.rl.grpo import Reward, TrainingSettings
    from memagent_graph.rl.traces import Rollout
    from memagent_graph.rl.trainer import MultiConversationGRPOTrainer
    from memagent_graph.text.tokens import TokenizerLike

    Make: TypeAlias = Callable[[int], Sample]


class Training:
    """A run of `memagent train`.

    Args:
        settings: settings of the run.
        questions: function that makes the sample of a number, in place of `settings.tasks`. The
            first `settings.held_out` are never trained on, nor are others with the same question.
        reward: function that rewards an answer, in place of `settings.reward`.

    Attributes:
        main: whether this is the process that reports and writes, of several.

    Raises:
        ConfigurationError: There is no such model, task, reward or engine.
    """

    def __init__(
        self,
        settings: TrainingSettings,
        *,
        questions: Callable[[int], Sample] | None = None,
        reward: Reward | None = None,
    ) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.settings = settings
        self._reward = make_reward(reward or settings.reward)
        self._prompts = Prompts.from_file(settings.prompts) if settings.prompts else Prompts()
        self.tokenizer = _load(AutoTokenizer, settings.model)
        if settings.traces:  # what can be wrong is read before the model, which takes long
            self._found = load(settings.traces)
        elif questions is not None:
            self._questions = number_questions(questions, settings.held_out)
        else:
            self._questions = task_questions(settings, self.tokenizer)
        model = _load(AutoModelForCausalLM, settings.model, dtype="float32")
        # Here, so that a served policy is made without torch.
        from memagent_graph.rl.trainer import MultiConversationGRPOTrainer

        self.trainer = MultiConversationGRPOTrainer(model, self.tokenizer, settings)
        self.main = self.trainer.accelerator.is_main_process
        self.journal = Journal(settings.out, main=self.main)
        self._stopping = False

    def stop(self) -> None:
        """Stop after the current iteration, with a checkpoint; safe in a signal handler."""
        self._stopping = True

    async def run(self, report: Callable[[Mapping[str, float]], None]) -> dict[str, float]:
        """Train, save the model to `settings.out / "model"`, and close the trainer.

        Args:
            report: called with the metrics of each iteration, in the main process.

        Returns:
            The last metrics.

        Raises:
            TraceError: No reading succeeded, or no rollout in the traces has a reward.
            ModelError: The engine failed for good.
        """
        self._report = report
        if self.settings.traces:
            self._replay()
        else:
            await self._read_and_train()
        self.trainer.save_model(self.settings.out / "model", self.tokenizer)
        self.trainer.accelerator.wait_for_everyone()  # until everything is written
        self.trainer.close()
        return self.journal.metrics()[-1]

    def _replay(self) -> None:
        found = self._found
        rewarded = [rollout for rollout in found.rollouts if rollout.reward is not None]
        unknown = Counter({"rollout without a reward": len(found.rollouts) - len(rewarded)})
        for reason, count in (found.skipped + unknown).items() if self.main else ():
            self._report({"iteration": 0, f"skipped: {reason}": count})
        if not rewarded:
            message = (
                f"There is nothing to train on: no rollout in {', '.join(self.settings.traces)} "
                "has a reward. Record rewards with TraceRecorder.feedback."
            )
            raise TraceError(message)
        self.journal.clear()
        for metrics in replay(self.trainer, rewarded, self.settings):
            self._log(metrics)

    async def _read_and_train(self) -> None:
        settings, accelerator = self.settings, self.trainer.accelerator
        model, hand_on = make_engine(
            settings, device=str(accelerator.device), processes=accelerator.num_processes
        )
        runner = RolloutRunner(
            model,
            self.tokenizer,
            config=ReadingConfig(
                chunk_tokens=settings.chunk_tokens,
                memory_tokens=settings.memory_tokens,
                answer_tokens=settings.answer_tokens,
                **settings.reading,
            ),
            prompts=self._prompts,
            reward=self._reward,
            concurrency=1 if settings.deterministic else settings.concurrency,
            seed=settings.seed,
        )
        try:
            await self._iterate(runner, hand_on)
        finally:
            model.close()  # the next user of this engine expects the original weights

    async def _iterate(
        self, runner: RolloutRunner, hand_on: Callable[[Mapping[str, torch.Tensor]], None]
    ) -> None:
        """Train to the last iteration, from the latest checkpoint if there is one.

        Everything follows from the settings' seed and the number of the iteration, so that a run
        that was stopped or killed continues as if it had not been.
        """
        settings = self.settings
        state = self.journal.restore(self.trainer) or {"iteration": 0, "question": 0}

        def hand_over() -> None:
            hand_on(self.trainer.weights())
            runner.recorder.policy = self.trainer.version

        async def evaluate() -> None:
            """Log the mean reward of the held-out questions, one reading each; failures are 0."""
            if settings.evaluate_every and state["iteration"] % settings.evaluate_every == 0:
                held_out = self._questions.held_out
                found = await runner.collect(held_out, times=1)
                reward = fsum(one.reward or 0.0 for one in found.rollouts) / len(held_out)
                self._log({"iteration": state["iteration"], "held_out_reward": reward})

        hand_over()
        if not state["iteration"]:
            await evaluate()
        stopping = self._agree_to_stop()
        while state["iteration"] < settings.iterations and not stopping:
            started = perf_counter()
            rollouts, counts = await self._collect(runner, state)
            collected = perf_counter()
            metrics = {"iteration": state["iteration"] + 1, **counts}
            metrics |= self.trainer.step(rollouts)
            trained = perf_counter()
            hand_over()
            state["iteration"] += 1
            metrics["reading_seconds"] = collected - started
            metrics["training_seconds"] = trained - collected
            metrics["handing_on_seconds"] = perf_counter() - trained
            self._log(metrics)
            await evaluate()
            stopping = self._agree_to_stop()
            last = state["iteration"] == settings.iterations or stopping
            if last or state["iteration"] % settings.save_every == 0:
                self.journal.save(self.trainer, state)

    async def _collect(
        self, runner: RolloutRunner, state: dict[str, int]
    ) -> tuple[list[Rollout], dict[str, float]]:
        """Collect rollouts of whole groups, and replace groups without anything to learn."""
        settings, accelerator = self.settings, self.trainer.accelerator
        rollouts: list[Rollout] = []
        useful: list[Rollout] = []
        failed: Counter[str] = Counter()
        missing, step = settings.questions, accelerator.num_processes
        for _ in range(settings.refills + 1):
            first = state["question"] + accelerator.process_index
            state["question"] += missing * step  # each process asks different ones
            numbers = range(first, state["question"], step)
            samples = [self._questions.make_training(number) for number in numbers]
            found = await runner.collect(samples, times=settings.group_size)
            failed += found.skipped
            rollouts = [*useful, *found.rollouts] or rollouts
            if not rollouts:
                message = (
                    f"No reading succeeded. The most frequent error, to be fixed before training: "
                    f"{failed.most_common(1)[0][0]}"
                )
                raise TraceError(message)
            if not found.rollouts:
                break
            kept, missing = informative(found.rollouts)
            useful += kept
            if not missing:
                break
        # One process may have used more questions than another.
        state["question"] = int(self.trainer.over_processes(state["question"], "max"))
        return rollouts, {"failed": failed.total(), "groups_dropped": missing}

    def _log(self, metrics: Mapping[str, float]) -> None:
        if self.main:
            self.journal.log(metrics)
            self._report(metrics)

    def _agree_to_stop(self) -> bool:
        """Whether any process was asked to stop; all must stop together."""
        return bool(self.trainer.over_processes(self._stopping, "max"))


def _load(kind: Any, name: str, **options: object) -> Any:
    """Return a model, or its tokenizer; raise `ConfigurationError` if it cannot be loaded."""
    try:
        return kind.from_pretrained(name, **options)
    except (OSError, ValueError) as error:
        fix = "Name a folder with a model, or a hub id that this machine can reach."
        message = f"{name!r} cannot be loaded: {error} {fix}"
        raise ConfigurationError(message) from error


def replay(
    trainer: MultiConversationGRPOTrainer, rollouts: Sequence[Rollout], settings: TrainingSettings
) -> Iterator[dict[str, float]]:
    """Train on recorded rollouts, without generating; yield the metrics of each step.

    Each step takes `settings.questions` groups per process, in an order given by the seed; each
    process takes different ones. If the last step has fewer groups than processes, some are used
    twice, as in torch's `DistributedSampler`.
    """
    rank, processes = trainer.accelerator.process_index, trainer.accelerator.num_processes
    groups: dict[str, list[Rollout]] = {}
    for rollout in rollouts:
        groups.setdefault(rollout.group, []).append(rollout)
    for epoch in range(settings.epochs):
        order = sorted(groups)
        random.Random(f"{settings.seed} {epoch}").shuffle(order)  # noqa: S311 - no secret
        for start in range(0, len(order), settings.questions * processes):
            chosen = order[start : start + settings.questions * processes]
            mine = chosen[rank::processes] or [chosen[rank % len(chosen)]]
            step = [rollout for group in mine for rollout in groups[group]]
            yield {"iteration": trainer.version + 1, **trainer.step(step)}


_STATE = "loop.json"
_KEPT = 2


class Journal:
    """A folder with `metrics.jsonl` and `checkpoints/`, which all processes must reach.

    Of several processes, the `main` one writes.
    """

    def __init__(self, folder: Path, *, main: bool = True) -> None:
        self.folder = folder
        self._main = main
        self._checkpoints = folder / "checkpoints"
        self._checkpoints.mkdir(parents=True, exist_ok=True)
        self._metrics = folder / "metrics.jsonl"

    def log(self, metrics: Mapping[str, float]) -> None:
        """Append a line of metrics; for the main process."""
        with self._metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(metrics) + "\n")

    def metrics(self) -> list[dict[str, float]]:
        """Return all lines, except a truncated one that a killed process left."""
        file = self._metrics
        lines = file.read_text("utf-8").splitlines(keepends=True) if file.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def save(self, trainer: MultiConversationGRPOTrainer, state: dict[str, int]) -> None:
        """Save a checkpoint of trainer and loop; the latest two are kept."""
        name = f"{state['iteration']:06d}"
        unfinished, folder = self._checkpoints / f".{name}", self._checkpoints / name
        if self._main:
            shutil.rmtree(unfinished, ignore_errors=True)
        trainer.accelerator.wait_for_everyone()
        trainer.save(unfinished)
        trainer.accelerator.wait_for_everyone()
        if not self._main:
            return
        (unfinished / _STATE).write_text(json.dumps(state), "utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        unfinished.rename(folder)
        for old in self._list_saved()[:-_KEPT]:
            shutil.rmtree(old)

    def restore(self, trainer: MultiConversationGRPOTrainer) -> dict[str, int] | None:
        """Restore the latest checkpoint, and return the loop's state; None if there is none.

        Metrics after the checkpoint are removed.

        Raises:
            ConfigurationError: The checkpoint belongs to another model.
        """
        saved = self._list_saved()
        if not saved:
            self.clear()
            return None
        trainer.restore(saved[-1])
        state: dict[str, int] = json.loads((saved[-1] / _STATE).read_text("utf-8"))
        if self._main:
            kept = [line for line in self.metrics() if line["iteration"] <= state["iteration"]]
            text = "".join(json.dumps(line) + "\n" for line in kept)
            new = self._metrics.with_suffix(".new")  # a kill leaves the old file or the new one
            new.write_text(text, "utf-8")
            new.replace(self._metrics)
        return state

    def clear(self) -> None:
        """Delete the metrics of an earlier run."""
        if self._main:
            self._metrics.unlink(missing_ok=True)

    def _list_saved(self) -> list[Path]:
        found = self._checkpoints.iterdir()
        return sorted(path for path in found if not path.name.startswith("."))


_SHARE = 5
"""Inverse of the largest share of a file's different questions that is held out."""
_ATTEMPTS, _STRIDE = 100, 1_000_003
"""Most tries, and their distance, to replace a training question that is held out."""


class Questions:
    """Training questions by number, and held-out questions for evaluation.

    `training` has a function for each task, which makes its question of a number counted from 0;
    tasks are taken in turn.
    """

    def __init__(self, held_out: Sequence[Callable[[], Sample]], training: Sequence[Make]) -> None:
        self._held_out = held_out
        self._training = training

    @cached_property
    def held_out(self) -> list[Sample]:
        """The questions for evaluation."""
        return [make() for make in self._held_out]

    def make_training(self, number: int) -> Sample:
        """Return the training question of a number, counted from 0; its id contains the number."""
        place, task = divmod(number, len(self._training))
        sample = self._training[task](place)
        return replace(sample, id=f"{sample.id}@{number}")


def task_questions(settings: TrainingSettings, tokenizer: TokenizerLike) -> Questions:
    """Return the questions of `settings.tasks`, with the length and seed of the settings."""
    if not settings.tasks:
        raise ConfigurationError("Name what to train on: tasks: [qa:FILE], or masked:FOLDER.")
    essays = open_source(settings.essays) if settings.essays else None
    tasks = [make_task(name, essays) for name in settings.tasks]
    counter = load_tokenizer(tokenizer)
    seed = settings.seed
    makers = [partial(task.sample, settings.length, seed=seed, tokenizer=counter) for task in tasks]
    return split(tasks, makers, held_out=settings.held_out, seed=seed)


def split(tasks: Sequence[Task], makers: Sequence[Make], *, held_out: int, seed: int) -> Questions:
    """Split tasks so that no training question has the text of a held-out one, of any task.

    A file holds out at most a fifth of its questions; the others are repeated in another order once
    all have been asked.
    """
    kept: set[str] = set()
    chosen: list[Callable[[], Sample]] = []
    texts = [_texts(task, seed) for task in tasks]
    for place, (own, maker) in enumerate(zip(texts, makers, strict=True)):
        first = _first_of_each(own, len(range(place, held_out, len(tasks))), kept)
        kept |= {own[index] for index in first}
        chosen += [partial(maker, index) for index in first]
    training = []
    for task, own, maker in zip(tasks, texts, makers, strict=True):
        free = [index for index, text in enumerate(own) if text not in kept]
        if not free:
            message = (
                f"{task.name} has no question left to train on: {len(kept)} are held out. Lower "
                "held_out, or train on another file."
            )
            raise ConfigurationError(message)
        training.append(_repeat(maker, free, seed))
    return Questions(chosen, training)


def number_questions(make: Make, held_out: int) -> Questions:
    """Return the questions that a function makes; the first `held_out` are for evaluation only."""
    kept = {_key(make(index)) for index in range(held_out)}

    def make_one(number: int) -> Sample:
        for attempt in range(_ATTEMPTS):
            sample = make(held_out + number + attempt * _STRIDE)
            if _key(sample) not in kept:
                return sample
        message = (
            f"All questions of {_ATTEMPTS} draws are held out. Lower held_out ({held_out}), or "
            "give more questions."
        )
        raise ConfigurationError(message)

    return Questions([partial(make, index) for index in range(held_out)], [make_one])


def _repeat(make: Make, free: Sequence[int], seed: int) -> Make:
    """Make samples of these indexes, again and again in another order."""

    @lru_cache(maxsize=2)
    def order(epoch: int) -> list[int]:
        return random.Random(f"{seed} {epoch}").sample(free, len(free))  # noqa: S311 - no secret

    def make_one(number: int) -> Sample:
        epoch, place = divmod(number, len(free))
        return make(order(epoch)[place])

    return make_one


def _texts(task: Task, seed: int) -> list[str]:
    """The task's questions by index, in one spelling."""
    texts = task.texts or ()
    places = (draw(task.name, len(texts), index, seed) for index in range(len(texts)))
    return [same(texts[place]) for place in places]


def _first_of_each(texts: Sequence[str], wanted: int, kept: AbstractSet[str]) -> list[int]:
    """Indexes of the first different texts that are not kept yet, within the file's share."""
    first: dict[str, int] = {}
    for place, text in enumerate(texts):
        first.setdefault(text, place)
    room = max(1, len(first) // _SHARE) - len(kept & first.keys())
    return [place for text, place in first.items() if text not in kept][: min(wanted, max(0, room))]


def _key(sample: Sample) -> str:
    """The key of a sample in the split: question and answers, since tasks repeat questions."""
    return same(" ".join((sample.question, *sample.answers)))
