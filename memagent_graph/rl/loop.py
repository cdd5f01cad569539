"""The online loop: read with the current policy, score, train, load the new weights, repeat."""

from __future__ import annotations

import random
from collections import Counter
from statistics import fmean
from time import perf_counter
from typing import TYPE_CHECKING

from memagent_graph.errors import TraceError
from memagent_graph.rl.advantages import informative

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import torch

    from memagent_graph.evaluation.samples import Sample
    from memagent_graph.rl.journal import Journal
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
        stopping = self._agreed_to_stop()
        while state["iteration"] < settings.iterations and not stopping:
            metrics = await self._iterate(state)
            self._tell(metrics)
            if settings.evaluate_every and state["iteration"] % settings.evaluate_every == 0:
                await self._evaluate(state["iteration"])
            stopping = self._agreed_to_stop()
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
        worth: list[float] = []
        missing = settings.questions
        for _ in range(settings.refills + 1):
            samples = await self._samples(state, missing)
            found = await self.runner.collect(samples, times=settings.group_size)
            failed += found.failed
            worth.append(found.answer_reward)
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
                [one.step_rewards for one in found.rollouts],
            )
            useful += [found.rollouts[place] for place in kept.kept]
            missing = kept.dropped
            if not missing:
                break
        # One process may have used more questions than another.
        state["question"] = int(self.trainer.over_processes(state["question"], "max"))
        counts = {"failed": failed.total(), "groups_dropped": missing}
        return rollouts, counts | {"answer_reward": fmean(worth)}

    async def _samples(self, state: dict[str, int], count: int) -> list[Sample]:
        """Draw the next questions; with `skip_guessable`, only those that need the document."""
        found: list[Sample] = []
        for _ in range(_DRAWS):
            numbers = self._numbers(state, count - len(found))
            drawn = [self.questions.training(number) for number in numbers]
            if not self.settings.skip_guessable:
                return drawn
            known = await self.runner.guessed(drawn)
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
        reward = await self.held_out_reward()
        self._tell({"iteration": iteration, "held_out_reward": reward})

    async def held_out_reward(self) -> float:
        """Return the mean reward of the held-out questions, one reading each; failures count 0."""
        samples = self.questions.held_out
        found = await self.runner.collect(samples, times=1)
        return found.answer_reward * len(found.rollouts) / len(samples)

    def _tell(self, metrics: dict[str, float]) -> None:
        self.journal.log(metrics)
        self.report(metrics)

    def _agreed_to_stop(self) -> bool:
        """Whether any process was asked to stop; all must stop together."""
        return bool(self.trainer.over_processes(self._stopping, "max"))

    def _hand_on(self) -> None:
        self.hand_on(self.trainer.weights())
        self.runner.version = self.trainer.version


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
