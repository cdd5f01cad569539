"""The loop: read with the current policy, score, train, hand the new weights on, again."""

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
"""How often questions are drawn in place of those that the model answers unread."""


class OnlineLoop:
    """Trains on questions that the policy itself reads for.

    Everything that it does follows from the settings' seed and the number of the iteration, so
    that a run that was stopped or killed goes on as if it had not been.

    Args:
        trainer: of the policy.
        runner: reads with the policy.
        hand_on: gives a state dict to the engine that the runner reads with.
        questions: to train on, and to evaluate with.
        settings: how much of what.
        journal: where metrics and checkpoints go.
        report: told the metrics of each iteration.
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
        """End after the iteration that runs, with a checkpoint; safe in a signal handler."""
        self._stopping = True

    async def run(self) -> int:
        """Train to the last iteration, from the latest checkpoint if there is one.

        Returns:
            The number of iterations that are done.

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
        """Rollouts of whole groups, refilled where groups taught nothing."""
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
                message = f"No reading succeeded: {failed.most_common(1)[0][0]}"
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
        # One process may have asked more than another.
        state["question"] = int(self.trainer.over_processes(state["question"], "max"))
        counts = {"failed": failed.total(), "groups_dropped": missing}
        return rollouts, counts | {"answer_reward": fmean(worth)}

    async def _samples(self, state: dict[str, int], count: int) -> list[Sample]:
        """The next questions, without those that need no document if the settings say so."""
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
            message = f"The model knows the answers of {_DRAWS} draws of questions unread."
            raise TraceError(message)
        return found

    def _numbers(self, state: dict[str, int], count: int) -> list[int]:
        """Numbers of the next questions, others in each process."""
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
        """Mean reward over the held-out questions, one reading each; a failed one counts 0."""
        samples = self.questions.held_out
        found = await self.runner.collect(samples, times=1)
        return found.answer_reward * len(found.rollouts) / len(samples)

    def _tell(self, metrics: dict[str, float]) -> None:
        self.journal.log(metrics)
        self.report(metrics)

    def _agreed_to_stop(self) -> bool:
        """Whether any process was told to; they must not go on without each other."""
        return bool(self.trainer.over_processes(self._stopping, "max"))

    def _hand_on(self) -> None:
        self.hand_on(self.trainer.weights())
        self.runner.version = self.trainer.version


def replay(
    trainer: MultiConversationGRPOTrainer, rollouts: Sequence[Rollout], settings: TrainingSettings
) -> Iterator[dict[str, float]]:
    """Train on recorded rollouts, without generating anything.

    Each step takes as many groups as an iteration of the loop has questions, in an order that
    the seed decides, and in each of several processes others. A last step with fewer groups than
    processes has some of them twice, as in torch's `DistributedSampler`.

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
