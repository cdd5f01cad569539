"""The online loop: read with the current policy, score, train, load the new weights, repeat."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from time import perf_counter
from typing import TYPE_CHECKING

from memagent_graph.errors import TraceError
from memagent_graph.rl.advantages import informative

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    import torch

    from memagent_graph.evaluation.samples import Sample
    from memagent_graph.rl.questions import Questions
    from memagent_graph.rl.rollouts import RolloutRunner
    from memagent_graph.rl.settings import TrainingSettings
    from memagent_graph.rl.traces import Rollout
    from memagent_graph.rl.trainer import MultiConversationGRPOTrainer

_DRAWS = 10
"""Most draws to replace questions that the model answers without the document."""


class OnlineLoop:
    """Trains on the policy's own readings.

    Everything follows from the settings' seed and the number of the iteration, so that a run that
    was stopped or killed continues as if it had not been.

    Args:
        trainer: trains the policy.
        runner: reads with the policy.
        hand_on: loads a state dict into the runner's engine.
        questions: questions for training and evaluation.
        settings: the settings of the run.
        journal: keeps metrics and checkpoints.
        report: called with the metrics of each iteration.
    """

    def __init__(
        self,
        trainer: MultiConversationGRPOTrainer,
        runner: RolloutRunner,
        hand_on: Callable[[Mapping[str, torch.Tensor]], None],
        questions: Questions,
        settings: TrainingSettings,
        journal: Journal,
        *,
        report: Callable[[Mapping[str, float]], None] = lambda _metrics: None,
    ) -> None:
        self.trainer = trainer
        self.runner = runner
        self.hand_on = hand_on
        self.questions = questions
        self.settings = settings
        self.journal = journal
        self.report = report
        self._stopping = False

    def stop(self) -> None:
        """Stop after the current iteration, with a checkpoint; safe in a signal handler."""
        self._stopping = True

    async def run(self) -> int:
        """Train to the last iteration, from the latest checkpoint if there is one.

        Returns:
            The number of iterations done.

        Raises:
            TraceError: No reading of an iteration succeeded.
            ModelError: The engine failed for good.
        """
        settings = self.settings
        state = self.journal.restore(self.trainer) or {"iteration": 0, "question": 0}
        self._hand_on()
        if not state["iteration"]:
            await self._evaluate(0)
        stopping = self._agree_to_stop()
        while state["iteration"] < settings.iterations and not stopping:
            metrics = await self._iterate(state)
            self._report(metrics)
            if settings.evaluate_every and state["iteration"] % settings.evaluate_every == 0:
                await self._evaluate(state["iteration"])
            stopping = self._agree_to_stop()
            last = state["iteration"] == settings.iterations or stopping
            if last or state["iteration"] % settings.save_every == 0:
                self.journal.save(self.trainer, state)
        return state["iteration"]

    async def _iterate(self, state: dict[str, int]) -> dict[str, float]:
        started = perf_counter()
        rollouts, counts = await self._collect(state)
        collected = perf_counter()
        metrics: dict[str, float] = {"iteration": state["iteration"] + 1, **counts}
        metrics |= self.trainer.step(rollouts)
        trained = perf_counter()
        self._hand_on()
        state["iteration"] += 1
        metrics["reading_seconds"] = collected - started
        metrics["training_seconds"] = trained - collected
        metrics["handing_on_seconds"] = perf_counter() - trained
        return metrics

    async def _collect(self, state: dict[str, int]) -> tuple[list[Rollout], dict[str, float]]:
        """Collect rollouts of whole groups, and replace groups without anything to learn."""
        settings = self.settings
        rollouts: list[Rollout] = []
        useful: list[Rollout] = []
        failed: Counter[str] = Counter()
        missing = settings.questions
        for _ in range(settings.refills + 1):
            samples = await self._samples(state, missing)
            found = await self.runner.collect(samples, times=settings.group_size)
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
            kept = informative(
                [one.reward or 0.0 for one in found.rollouts],
                [one.group for one in found.rollouts],
            )
            useful += [found.rollouts[place] for place in kept.kept]
            missing = kept.dropped
            if not missing:
                break
        # One process may have used more questions than another.
        state["question"] = int(self.trainer.over_processes(state["question"], "max"))
        return rollouts, {"failed": failed.total(), "groups_dropped": missing}

    async def _samples(self, state: dict[str, int], count: int) -> list[Sample]:
        """Draw the next questions; with `skip_guessable`, only those that need the document."""
        found: list[Sample] = []
        for _ in range(_DRAWS):
            numbers = self._numbers(state, count - len(found))
            drawn = [self.questions.make_training(number) for number in numbers]
            if not self.settings.skip_guessable:
                return drawn
            known = await self.runner.find_guessed(drawn)
            found += [sample for sample in drawn if sample.id not in known]
            if len(found) == count:
                return found
        if not found:
            message = (
                f"The model answered all questions of {_DRAWS} draws without the document: turn "
                "skip_guessable off, or give other questions."
            )
            raise TraceError(message)
        return found

    def _numbers(self, state: dict[str, int], count: int) -> list[int]:
        """Numbers of the next questions, different in each process."""
        accelerator = self.trainer.accelerator
        step = accelerator.num_processes
        first, state["question"] = state["question"], state["question"] + count * step
        return list(range(first + accelerator.process_index, state["question"], step))

    async def _evaluate(self, iteration: int) -> None:
        if not self.settings.evaluate_every:
            return
        reward = await self.measure_held_out()
        self._report({"iteration": iteration, "held_out_reward": reward})

    async def measure_held_out(self) -> float:
        """Return the mean reward of the held-out questions, one reading each; failures count 0."""
        samples = self.questions.held_out
        found = await self.runner.collect(samples, times=1)
        return found.answer_reward * len(found.rollouts) / len(samples)

    def _report(self, metrics: dict[str, float]) -> None:
        self.journal.log(metrics)
        self.report(metrics)

    def _agree_to_stop(self) -> bool:
        """Whether any process was asked to stop; all must stop together."""
        return bool(self.trainer.over_processes(self._stopping, "max"))

    def _hand_on(self) -> None:
        self.hand_on(self.trainer.weights())
        self.runner.recorder.policy = self.trainer.version


def replay(
    trainer: MultiConversationGRPOTrainer, rollouts: Sequence[Rollout], settings: TrainingSettings
) -> Iterator[dict[str, float]]:
    """Train on recorded rollouts, without generating.

    Each step takes `settings.questions` groups per process, in an order given by the seed; each
    process takes different ones. If the last step has fewer groups than processes, some are used
    twice, as in torch's `DistributedSampler`.

    Args:
        trainer: the trainer.
        rollouts: whole groups, each rollout with its reward.
        settings: gives `epochs`, `questions` and `seed`.

    Yields:
        The metrics of each step.
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
    """A folder with `metrics.jsonl`, `checkpoints/` and `curves.png`.

    Args:
        folder: the folder, created if missing; all processes must reach it.
        main: whether this is the process that writes, of several.
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

    def draw(self) -> Path | None:
        """Plot reward, divergence, entropy and lengths.

        Returns:
            Path of the picture; None without matplotlib, or if another process plots.
        """
        if not self._main:
            return None
        lines = self.metrics()
        try:
            from matplotlib.figure import Figure
        except ImportError:
            return None
        figure = Figure(figsize=(10, 6), layout="constrained")
        for place, (title, names) in enumerate(_CURVES.items(), 1):
            axes = figure.add_subplot(2, 2, place)
            for name in names:
                points = [(line["iteration"], line[name]) for line in lines if name in line]
                if points:
                    axes.plot(*zip(*points, strict=True), label=name.replace("_", " "))
            axes.set_title(title)
            axes.set_xlabel("iteration")
            axes.legend(frameon=False)
        path = self.folder / "curves.png"
        figure.savefig(path, dpi=120)
        return path

    def _list_saved(self) -> list[Path]:
        found = self._checkpoints.iterdir()
        return sorted(path for path in found if not path.name.startswith("."))


_CURVES = {
    "Reward": ("reward", "held_out_reward"),
    "Divergence from the reference": ("kl",),
    "Entropy and clipping": ("entropy", "clip_fraction"),
    "Tokens of a reply": ("completion_tokens", "memory_tokens"),
}
