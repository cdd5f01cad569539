"""The trainer of multi-conversation GRPO."""

from __future__ import annotations

import gc
import random
from collections import defaultdict
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import asdict
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import torch
from accelerate import Accelerator
from accelerate.utils import parse_flag_from_env, send_to_device, set_seed
from safetensors import SafetensorError

from memagent_graph.errors import ConfigurationError
from memagent_graph.rl.grpo import Baseline, TrainingRow, grpo_loss, make_training_rows
from memagent_graph.rl.traces import fingerprint

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from peft import PeftModel
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from memagent_graph.rl.grpo import GRPOSettings
    from memagent_graph.rl.traces import Rollout


_WRITER_OF_TORCH = "inline_container.cc"
"""What torch names when a file could not be written, in an error that is of no class of its own."""


@contextmanager
def _name_unwritten(folder: str | Path) -> Iterator[None]:
    """Raise an `OSError` that names the folder where torch or safetensors cannot write."""
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        if type(error) is RuntimeError and _WRITER_OF_TORCH not in str(error):
            raise
        message = (
            f"{folder} cannot be written: {error}. Free space, and start the same run again: it "
            "continues from the last checkpoint."
        )
        raise OSError(message) from error


class Batch(NamedTuple):
    """Rows of similar length, one conversation each, padded on the right.

    Attributes:
        ids: token ids, `[rows, length]`; padding is 0, and needs no mask since it comes last.
        columns: positions after which some row has a completion token, `[width]`.
        targets: the token after each of these positions, `[rows, width]`.
        trained: whether that token belongs to the row's completion, `[rows, width]`.
        sampled: recorded log-probabilities of the trained tokens, row by row, `[tokens]`.
        advantages: advantages of the trained tokens, `[tokens]`.
    """

    ids: torch.Tensor
    columns: torch.Tensor
    targets: torch.Tensor
    trained: torch.Tensor
    sampled: torch.Tensor
    advantages: torch.Tensor


_MOST_PADDING = 0.1
"""Largest share of padding in a batch."""


def pack(rows: Sequence[TrainingRow], *, token_budget: int) -> Iterator[list[TrainingRow]]:
    """Group rows so that a padded batch has at most `token_budget` tokens and little padding.

    Longer rows are batches alone. The longest come first, so that a lack of memory shows at once.
    """
    group: list[TrainingRow] = []
    filled = 0
    for row in sorted(rows, key=len, reverse=True):
        width = len(group[0]) if group else len(row)
        size = (len(group) + 1) * width
        if group and (size > token_budget or filled + len(row) < (1 - _MOST_PADDING) * size):
            yield group
            group, filled = [], 0
        group.append(row)
        filled += len(row)
    if group:
        yield group


def collate(rows: Sequence[TrainingRow]) -> Batch:
    """Make the tensors of a batch."""
    length = max(map(len, rows))
    ids = torch.zeros(len(rows), length, dtype=torch.long)
    trained = torch.zeros(len(rows), length, dtype=torch.bool)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = torch.tensor([*row.prompt, *row.completion])
        trained[index, len(row.prompt) : len(row)] = True
    columns = trained.any(0).nonzero()[:, 0]
    return Batch(
        ids=ids,
        columns=columns - 1,
        targets=ids[:, columns],
        trained=trained[:, columns],
        sampled=torch.tensor([value for row in rows for value in row.sampled]),
        advantages=torch.tensor([row.advantage for row in rows for _ in row.completion]),
    )


def score(model: torch.nn.Module, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the log-probability of each trained token, and the sum of the entropies there.

    The first are `[tokens]`, with a gradient, and the second is a scalar in nats, without one; both
    are in float32. The batch is on the device of the model, a causal language model.
    """
    # Logits are computed only for trained columns: prompts are long, and vocabularies large.
    output = model(input_ids=batch.ids, logits_to_keep=batch.columns, use_cache=False)
    logits = output.logits[batch.trained].float()
    targets = batch.targets[batch.trained]
    normalizers = logits.logsumexp(-1)
    logprobs = logits.gather(-1, targets[:, None])[:, 0] - normalizers
    with torch.no_grad():
        chances = torch.exp(logits - normalizers[:, None])
        entropy = (normalizers - (chances * logits).sum(-1)).sum()
    return logprobs, entropy


_NOTHING = TrainingRow((0,), (), (), 0.0)
_LAST_SHARE = 0.1
"""Share of the learning rate that is left at the end of its decay."""


class MultiConversationGRPOTrainer:
    """Trains a causal language model on rollouts of several independent conversations each.

    Every token of every conversation of a rollout has the rollout's advantage, and the loss is the
    mean over all these tokens (MemAgent, arXiv 2507.02259, section 3.2; see `grpo_loss`). It runs
    on one device or, under `accelerate launch`, on several, each with the whole model (DDP); each
    process then trains on whole groups of its own.

    Args:
        model: a causal language model of `transformers`, without dropout.
        tokenizer: the model's tokenizer; rollouts recorded with another one are refused.
        settings: the training settings.

    Raises:
        ConfigurationError: The model would be sharded over processes.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: object, settings: GRPOSettings) -> None:
        set_seed(settings.seed)
        self.settings = settings
        self.accelerator = _accelerator(settings)
        self._vocabulary = fingerprint(tokenizer)
        self._reference: torch.nn.Module | None = None
        policy: PreTrainedModel | PeftModel = model
        if settings.lora_rank is not None:
            from peft import LoraConfig, get_peft_model

            rank, scaling = settings.lora_rank, 2 * settings.lora_rank
            adapters = LoraConfig(
                r=rank, lora_alpha=scaling, target_modules="all-linear", task_type="CAUSAL_LM"
            )
            policy = get_peft_model(model, adapters)
        elif settings.kl_weight:
            frozen: torch.nn.Module = deepcopy(model)
            frozen.eval().requires_grad_(requires_grad=False)
            self._reference = frozen.to(self.accelerator.device)
        if settings.gradient_checkpointing:
            # transformers 5 renamed it, and warns about the old name.
            old = policy.gradient_checkpointing_enable
            getattr(policy, "activation_checkpointing_enable", old)({"use_reentrant": False})
        optimizer = torch.optim.AdamW(
            [weight for weight in policy.parameters() if weight.requires_grad],
            lr=settings.learning_rate,
            weight_decay=settings.weight_decay,
        )
        self.model, self._optimizer = self.accelerator.prepare(policy.train(), optimizer)
        self._progress = _TrainerState()
        self.accelerator.register_for_checkpointing(self._progress)

    @property
    def version(self) -> int:
        """Number of optimizer steps so far, which is the version of the current policy."""
        return self._progress.steps

    def step(self, rollouts: Sequence[Rollout]) -> dict[str, float]:
        """Train on rollouts, once.

        The loss is the mean over all tokens, including those of groups with equal rewards, which
        only affect the divergence from the reference. The baseline of a rollout that is alone in
        its group is the mean reward of the steps before. With `updates` above 1, conversations are
        split at random over as many optimizer steps.

        Args:
            rollouts: whole groups, each with its reward.

        Returns:
            Metrics of the rollouts (reward, lengths), of this process's tokens (loss, kl,
            clip_fraction, entropy, importance) and of the steps.

        Raises:
            TraceError: There are no rollouts, or one has no reward, was recorded with another
                tokenizer, or has a conversation over `token_budget`.
        """
        started = perf_counter()
        settings = self.settings
        rows, metrics = make_training_rows(
            rollouts,
            vocabulary=self._vocabulary,
            settings=settings,
            baseline=self._progress.baseline,
        )
        rewards = [rollout.reward or 0.0 for rollout in rollouts]
        self._progress.baseline = self._progress.baseline.with_rewards(rewards)
        metrics["staleness"] = self.version - sum(one.policy for one in rollouts) / len(rollouts)
        random.Random(f"{settings.seed} {self.version}").shuffle(rows)  # noqa: S311 - no secret
        count = settings.updates
        shares = [rows[index::count] for index in range(count)]
        parts = [self._batches(share) for share in shares]
        # For the first update, the old policy is the one that is trained.
        old = [None, *([self._score(self.model, one) for one in part] for part in parts[1:])]
        sums: defaultdict[str, float] = defaultdict(float)
        for share, part, before in zip(shares, parts, old, strict=True):
            self._update(part, before, sum(len(row.completion) for row in share), sums)
        for name in ("loss", "kl", "clip_fraction", "entropy", "importance"):
            metrics[name] = sums[name] / max(1.0, sums["tokens"])
        metrics["grad_norm"] = sums["grad_norm"] / count
        metrics["learning_rate"] = self._rate()
        metrics["tokens"] = sums["tokens"]
        metrics["seconds"] = perf_counter() - started
        return metrics

    def weights(self) -> dict[str, torch.Tensor]:
        """Return the policy's whole state dict, adapters merged in, to load into an engine."""
        return dict(self._merge_adapters().state_dict())

    def _merge_adapters(self) -> PreTrainedModel:
        """Return the model itself or, with adapters, a copy that has them in its weights."""
        model = self.accelerator.unwrap_model(self.model)
        if self.settings.lora_rank is not None:
            model = deepcopy(model).merge_and_unload()
        return cast("PreTrainedModel", model)

    def save(self, folder: str | Path) -> None:
        """Save weights, optimizer, random states and progress, for `restore`.

        Raises:
            OSError: The folder cannot be written.
        """
        with _name_unwritten(folder):
            self.accelerator.save_state(str(folder))

    def restore(self, folder: str | Path) -> None:
        """Restore the exact state of a `save`.

        Raises:
            ConfigurationError: There is no such checkpoint, or it belongs to another model.
        """
        try:
            self.accelerator.load_state(str(folder))
        except (OSError, RuntimeError, ValueError) as error:
            message = (
                f"Training cannot continue from {folder}: {error} Use the settings of the run that "
                "saved it, or another folder."
            )
            raise ConfigurationError(message) from error

    def save_model(self, folder: str | Path, tokenizer: PreTrainedTokenizerBase) -> None:
        """Save model and tokenizer in the format of `transformers`, adapters merged in.

        Raises:
            OSError: The folder cannot be written.
        """
        if self.accelerator.is_main_process:
            with _name_unwritten(folder):
                self._merge_adapters().save_pretrained(folder)
                tokenizer.save_pretrained(folder)

    def over_processes(self, value: float, how: Literal["max", "sum"]) -> float:
        """Return the maximum or sum of a value over all processes; each must call it."""
        found = torch.tensor([float(value)], device=self.accelerator.device)
        gathered = self.accelerator.gather(found)
        return float(gathered.max() if how == "max" else gathered.sum())

    def close(self) -> None:
        """Free the model and leave the process group; must be the last call."""
        # A wrapper that outlives its process group waits for a thread of the group, which may wait
        # for the interpreter's lock (github.com/pytorch/pytorch/issues/56297).
        self.model = self._optimizer = self._reference = None
        self.accelerator.free_memory()
        gc.collect()
        self.accelerator.end_training()

    def _batches(self, rows: Sequence[TrainingRow]) -> list[Batch]:
        """The batches of one update, without rows that have no effect.

        All processes get the same number, since every forward pass is synchronized.
        """
        moving = [row for row in rows if row.advantage or self.settings.kl_weight]
        groups = [*pack(moving, token_budget=self.settings.token_budget)]
        most = int(self.over_processes(len(groups), "max"))
        groups += [[_NOTHING]] * (most - len(groups))
        return [send_to_device(collate(group), self.accelerator.device) for group in groups]

    def _update(
        self,
        batches: Sequence[Batch],
        old: Sequence[torch.Tensor] | None,
        tokens: int,
        sums: dict[str, float],
    ) -> None:
        """Take one optimizer step with the mean over `tokens`; add metrics to `sums`."""
        if not batches:
            return
        # Gradients are averaged over processes; the loss is a mean over the tokens of all.
        share = self.accelerator.num_processes / self.over_processes(tokens, "sum")
        for index, batch in enumerate(batches):
            last = index == len(batches) - 1
            with nullcontext() if last else self.accelerator.no_sync(self.model):
                self._backward(batch, None if old is None else old[index], share, sums)
        parameters = self.model.parameters()
        norm = self.accelerator.clip_grad_norm_(parameters, self.settings.max_grad_norm)
        sums["grad_norm"] += float(norm)
        for group in self._optimizer.param_groups:
            group["lr"] = self._rate()
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._progress.steps += 1

    def _backward(
        self, batch: Batch, old: torch.Tensor | None, share: float, sums: dict[str, float]
    ) -> None:
        settings = self.settings
        reference = self._of_reference(batch)
        logprobs, entropy = score(self.model, batch)
        terms = grpo_loss(
            logprobs,
            batch.advantages,
            old=logprobs.detach() if old is None else old,
            sampled=batch.sampled,
            reference=reference,
            clip_low=settings.clip_low,
            clip_high=settings.clip_high,
            dual_clip=settings.dual_clip,
            importance_cap=settings.importance_cap,
            kl_weight=settings.kl_weight,
        )
        self.accelerator.backward(terms.loss * share)
        found: dict[str, float | torch.Tensor] = {
            "loss": terms.loss.detach(),
            "kl": terms.kl,
            "clip_fraction": terms.clipped,
            "importance": terms.weight,
            "entropy": entropy,
            "tokens": len(logprobs),
        }
        for name, value in found.items():
            sums[name] += float(value)

    def _of_reference(self, batch: Batch) -> torch.Tensor | None:
        if not self.settings.kl_weight:
            return None
        if self._reference is not None:
            with self.accelerator.autocast():  # rounds as the policy does
                return self._score(self._reference, batch)
        with self.accelerator.unwrap_model(self.model).disable_adapter():
            return self._score(self.model, batch)

    @torch.no_grad()
    def _score(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        """Return the log-probabilities of `score`, `[tokens]`, without a gradient."""
        return score(model, batch)[0]

    def _rate(self) -> float:
        settings, done = self.settings, self.version + 1
        rate = settings.learning_rate * min(1, done / (settings.warmup_steps or 1))
        if settings.decay_steps:
            share = min(1, max(0, done - settings.warmup_steps) / settings.decay_steps)
            rate *= 1 - share * (1 - _LAST_SHARE)
        return rate


class _TrainerState:
    def __init__(self) -> None:
        self.steps = 0
        self.baseline = Baseline()

    def state_dict(self) -> dict[str, object]:
        return {"steps": self.steps, "baseline": asdict(self.baseline)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]
        self.baseline = Baseline(**state["baseline"])


_SHARDED = ("FSDP", "DEEPSPEED", "MEGATRON_LM")
"""Ways of sharding, as `accelerate launch` names them in its variables."""


def _accelerator(settings: GRPOSettings) -> Accelerator:
    for name in _SHARDED:
        if parse_flag_from_env(f"ACCELERATE_USE_{name}"):
            message = (
                f"This trainer keeps the whole model on each GPU and does not run under {name}. "
                "Launch it without; lora_rank and gradient_checkpointing save memory. Train larger "
                "models on a cluster, with memagent-agent-lightning."
            )
            raise ConfigurationError(message)
    return Accelerator(mixed_precision=settings.mixed_precision)
