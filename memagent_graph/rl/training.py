"""A training run: read with the current policy, score, train, load the new weights, repeat."""

from __future__ import annotations

import gc
import json
import random
import shutil
from collections import Counter
from contextlib import contextmanager
from math import fsum
from time import perf_counter
from typing import TYPE_CHECKING

from memagent_graph.config import ReadingConfig
from memagent_graph.errors import ConfigurationError, TraceError
from memagent_graph.prompts import Prompts
from memagent_graph.rl.advantages import informative
from memagent_graph.rl.questions import number_questions, task_questions
from memagent_graph.rl.rewards import make_reward
from memagent_graph.rl.rollouts import RolloutRunner, make_engine
from memagent_graph.rl.traces import load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    import torch

    from memagent_graph.evaluation.samples import Sample
    from memagent_graph.rl.questions import Questions
    from memagent_graph.rl.rewards import Reward
    from memagent_graph.rl.settings import TrainingSettings
    from memagent_graph.rl.traces import Rollout
    from memagent_graph.rl.trainer import MultiConversationGRPOTrainer


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

    Examples:
        >>> import asyncio
        >>> import json
        >>> from pathlib import Path
        >>> from memagent_graph.rl import Training, TrainingSettings
        >>> rows = [
        ...     {"question": f"Who is {n}?", "answers": ["Fox"], "title": n, "text": f"{n} Fox."}
        ...     for n in ("Ann", "Bo", "Cy")
        ... ]
        >>> _ = Path("names.json").write_text(json.dumps(rows))
        >>> settings = TrainingSettings(
        ...     model="Qwen/Qwen2.5-0.5B-Instruct",
        ...     out="trained",
        ...     tasks=["qa:names.json"],
        ...     length=20,
        ...     iterations=1,
        ...     questions=1,
        ...     group_size=2,
        ...     held_out=1,
        ...     memory_tokens=50,
        ...     answer_tokens=50,
        ... )
        >>> lines = []  # of metrics, one for each iteration and each evaluation
        >>> last = asyncio.run(Training(settings).run(lines.append))
        >>> [line["iteration"] for line in lines]
        [0, 1]
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
        try:
            self.tokenizer = AutoTokenizer.from_pretrained(settings.model)
            model = AutoModelForCausalLM.from_pretrained(settings.model, dtype="float32")
        except (OSError, ValueError) as error:
            message = (
                f"{settings.model!r} cannot be loaded: {error} Name a folder with a model, or a "
                "hub id that this machine can reach."
            )
            raise ConfigurationError(message) from error
        # Here, so that a served policy is made without torch.
        from memagent_graph.rl.trainer import MultiConversationGRPOTrainer

        self.trainer = MultiConversationGRPOTrainer(
            model, self.tokenizer, settings, folder=settings.out
        )
        self.main = self.trainer.accelerator.is_main_process
        self.journal = Journal(settings.out, main=self.main)
        self._questions = questions
        self._reward = make_reward(reward or settings.reward)
        self._prompts = Prompts.from_file(settings.prompts) if settings.prompts else Prompts()
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
        self._report = report if self.main else _report_nothing
        if self.settings.traces:
            self._replay()
        else:
            await self._read_and_train()
        self.trainer.save_model(self.settings.out / "model", self.tokenizer)
        self.trainer.accelerator.wait_for_everyone()  # until everything is written
        self.trainer.close()
        return self.journal.metrics()[-1]

    def _replay(self) -> None:
        found = load(self.settings.traces)
        rewarded = [rollout for rollout in found.rollouts if rollout.reward is not None]
        unknown = Counter({"rollout without a reward": len(found.rollouts) - len(rewarded)})
        for reason, count in (found.skipped + unknown).items():
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
        questions = (
            number_questions(self._questions, settings.held_out)
            if self._questions
            else task_questions(settings, self.tokenizer)
        )
        try:
            with _freeze_loaded():
                await self._iterate(runner, hand_on, questions)
        finally:
            model.close()  # the next user of this engine expects the original weights

    async def _iterate(
        self,
        runner: RolloutRunner,
        hand_on: Callable[[Mapping[str, torch.Tensor]], None],
        questions: Questions,
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
                held_out = questions.held_out
                found = await runner.collect(held_out, times=1)
                reward = fsum(one.reward or 0.0 for one in found.rollouts) / len(held_out)
                self._log({"iteration": state["iteration"], "held_out_reward": reward})

        hand_over()
        if not state["iteration"]:
            await evaluate()
        stopping = self._agree_to_stop()
        while state["iteration"] < settings.iterations and not stopping:
            started = perf_counter()
            rollouts, counts = await self._collect(runner, questions, state)
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
        self, runner: RolloutRunner, questions: Questions, state: dict[str, int]
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
            samples = [questions.make_training(number) for number in numbers]
            found = await runner.collect(samples, times=settings.group_size)
            failed += found.failed
            rollouts = [*useful, *found.rollouts] or rollouts
            if not rollouts:
                message = (
                    f"No reading succeeded. The most frequent error, to be fixed before training: "
                    f"{failed.most_common(1)[0][0]}"
                )
                raise TraceError(message)
            if not found.rollouts:
                break
            kept, missing = informative(
                [one.reward or 0.0 for one in found.rollouts],
                [one.group for one in found.rollouts],
            )
            useful += [found.rollouts[place] for place in kept]
            if not missing:
                break
        # One process may have used more questions than another.
        state["question"] = int(self.trainer.over_processes(state["question"], "max"))
        return rollouts, {"failed": failed.total(), "groups_dropped": missing}

    def _log(self, metrics: Mapping[str, float]) -> None:
        self.journal.log(metrics)
        self._report(metrics)

    def _agree_to_stop(self) -> bool:
        """Whether any process was asked to stop; all must stop together."""
        return bool(self.trainer.over_processes(self._stopping, "max"))


def _report_nothing(_metrics: Mapping[str, float]) -> None:
    """The report of a process that does not report."""


@contextmanager
def _freeze_loaded() -> Iterator[None]:
    """Exempt what is loaded from garbage collection, which took a third of the time.

    A process that has frozen what it loaded keeps it so: to unfreeze would undo that too.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


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
        """Append a line of metrics."""
        if not self._main:
            return
        with self._metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(metrics) + "\n")

    def metrics(self) -> list[dict[str, float]]:
        """Return all lines, except a truncated one that a killed process left."""
        try:
            lines = self._metrics.read_text("utf-8").splitlines(keepends=True)
        except FileNotFoundError:
            return []
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
