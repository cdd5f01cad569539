r"""GRPO: settings, rewards, advantages within groups, rows to train on, and the loss; all pure.

A reward is any function of an answer and the right answers (`Reward`). Several right answers are
alternatives, and the best match counts. A reading's answer is the content of the last `\boxed{}` in
its reply, or the whole reply without one.

An advantage is the reward minus the mean of the group (GRPO, arXiv 2402.03300), by default not
divided by the standard deviation (Dr. GRPO, arXiv 2503.20783). It is the same for every token of
every conversation of the rollout (MemAgent, arXiv 2507.02259, section 3).
"""

from __future__ import annotations

import re
import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import inf, isfinite
from pathlib import Path
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from memagent_graph.errors import ConfigurationError, TraceError
from memagent_graph.evaluation.samples import exact_match, substring_match, without_latex
from memagent_graph.models.reply import find_boxed

if TYPE_CHECKING:
    import torch

    from memagent_graph.rl.traces import Conversation, Rollout


class GRPOSettings(BaseModel):
    """Settings of `MultiConversationGRPOTrainer`, by default the paper's, as far as it states them.

    Attributes:
        learning_rate: learning rate of AdamW after the warm-up.
        warmup_steps: optimizer steps over which the learning rate rises from 0.
        decay_steps: optimizer steps over which the learning rate then falls to a tenth; 0 keeps it
            constant.
        weight_decay: weight decay of AdamW.
        max_grad_norm: norm to which the gradient is clipped.
        clip_low: distance below 1 to which a token's ratio is clipped.
        clip_high: distance above 1 to which it is clipped.
        dual_clip: bound of a token's gain, in multiples of a negative advantage.
        kl_weight: weight of the divergence from the initial model; 0 keeps no copy of that model.
        importance_cap: largest weight of a token that an older policy sampled.
        scale_advantages: divide by the standard deviation of the group, as GRPO does and
            Dr. GRPO (arXiv 2503.20783) does not.
        mask_overlong: ignore completions that were cut off by their budget, as DAPO does (arXiv
            2503.14476, section 3.4).
        updates: optimizer steps that the rows of one iteration are split over.
        token_budget: tokens of one forward pass; the longest conversation must fit.
        gradient_checkpointing: compute activations twice to save memory.
        mixed_precision: "bf16" computes in bfloat16 and keeps the weights in float32.
        lora_rank: train adapters of this rank on all linear layers instead of the weights.
        seed: seed of everything random.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    learning_rate: float = Field(default=1e-6, gt=0)
    warmup_steps: int = Field(default=20, ge=0)
    decay_steps: int = Field(default=0, ge=0)
    weight_decay: float = Field(default=0.0, ge=0)
    max_grad_norm: float = Field(default=1.0, gt=0)
    clip_low: float = Field(default=0.2, gt=0, lt=1)
    clip_high: float = Field(default=0.2, gt=0)
    dual_clip: float = Field(default=3.0, gt=1)
    kl_weight: float = Field(default=1e-3, ge=0)
    importance_cap: float = Field(default=2.0, ge=1)
    scale_advantages: bool = False
    mask_overlong: bool = False
    updates: int = Field(default=16, ge=1)
    token_budget: int = Field(default=16_384, ge=2)
    gradient_checkpointing: bool = False
    mixed_precision: Literal["no", "bf16", "fp16"] = "no"
    lora_rank: int | None = Field(default=None, ge=1)
    seed: int = 0


class TrainingSettings(GRPOSettings):
    """Settings of a run of `memagent train`.

    Attributes:
        model: folder or hub id of the model to train, with its tokenizer.
        out: folder for checkpoints, metrics, curves and the trained model.
        tasks: tasks to train on: `qa:FILE`, or `masked:FOLDER`, which makes questions from
            documents without labels.
        essays: file or folder of texts that fill documents for which a file is too short.
        length: length of the documents in tokens.
        reward: name of a reward: "exact" or "substring".
        iterations: number of times to read and then train.
        questions: questions in an iteration.
        group_size: readings of each question.
        refills: most times to ask for more questions in place of groups with equal rewards.
        evaluate_every: iterations between two evaluations on held-out questions; 0 for none.
        held_out: questions for evaluation, which are never trained on; a fifth of a file with few
            questions.
        save_every: iterations between two checkpoints.
        engine: engine that samples: "hf" (transformers in this process), "vllm" (in this process),
            or the URL of a vLLM server that serves `model` and shares this machine's files.
        engine_options: arguments of the engine (`max_model_len`, ...).
        chunk_tokens: longest chunk.
        memory_tokens: longest memory.
        answer_tokens: longest answer.
        reading: more fields of `ReadingConfig`, by name (`{update_gate: true}`).
        prompts: file with the prompts.
        concurrency: readings at once.
        deterministic: sample one call at a time, so that not even rounding depends on timing.
        traces: recorded rollouts to train on; nothing is then generated.
        epochs: number of passes over these.
    """

    model: str
    out: Path
    tasks: tuple[str, ...] = ()
    essays: Path | None = None
    length: int = Field(default=28_000, ge=1)
    reward: str = "exact"
    iterations: int = Field(default=100, ge=1)
    questions: int = Field(default=128, ge=1)
    group_size: int = Field(default=16, ge=2)
    refills: int = Field(default=0, ge=0)
    evaluate_every: int = Field(default=10, ge=0)
    held_out: int = Field(default=64, ge=1)
    save_every: int = Field(default=10, ge=1)
    engine: str = "hf"
    engine_options: dict[str, Any] = Field(default_factory=dict)
    chunk_tokens: int = 5000
    memory_tokens: int = 1024
    answer_tokens: int = 1024
    reading: dict[str, Any] = Field(default_factory=dict)
    prompts: Path | None = None
    concurrency: int = Field(default=256, ge=1)
    deterministic: bool = False
    traces: tuple[str, ...] = ()
    epochs: int = Field(default=1, ge=1)


_LEAST_SPREAD = 1e-6
"""Added to the standard deviation, so that differences by rounding do not count."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """A running mean of rewards, of which there were `count`: the latest `horizon` weigh most.

    It is the baseline of rollouts that are alone in their group.
    """

    mean: float = 0.0
    count: int = 0
    horizon: int = 1000

    def with_rewards(self, rewards: Sequence[float]) -> Baseline:
        """Return the baseline after further rewards, in any order."""
        if not rewards:
            return self
        count = self.count + len(rewards)
        share = len(rewards) / max(len(rewards), min(count, self.horizon))
        mean = self.mean + share * (fmean(rewards) - self.mean)
        return Baseline(mean, count, self.horizon)


def group_advantages(
    rewards: Sequence[float],
    groups: Sequence[str],
    *,
    scale: bool = False,
    baseline: Baseline | None = None,
) -> list[float]:
    """Return the advantage of each rollout, from the reward and the group of each, `[rollouts]`.

    With `scale`, it is divided by the standard deviation of the group. A rollout that is alone in
    its group is measured against the baseline; without rewards there, its advantage is 0.

    Raises:
        TraceError: There are no rewards, or their number differs from that of groups.
    """
    if not rewards:
        raise TraceError("There are no rollouts to compare: give at least one.")
    if len(groups) != len(rewards):
        message = f"There are {len(rewards)} rewards and {len(groups)} groups: give one of each."
        raise TraceError(message)
    members: dict[str, list[int]] = defaultdict(list)
    for place, group in enumerate(groups):
        members[group].append(place)
    advantages = [0.0] * len(rewards)
    for places in members.values():
        own = [rewards[place] for place in places]
        spread = min(own) < max(own)  # the mean of equal rewards may differ from them by rounding
        mean, unit = fmean(own) if spread else own[0], 1.0
        if len(own) == 1 and baseline is not None and baseline.count:
            mean = baseline.mean
        elif spread and scale:
            unit = pstdev(own) + _LEAST_SPREAD
        for place in places:
            advantages[place] = (rewards[place] - mean) / unit
    return advantages


def informative(rollouts: Sequence[Rollout]) -> tuple[list[Rollout], int]:
    """Drop groups whose rewards are all equal (dynamic sampling of DAPO, arXiv 2503.14476).

    Returns the rollouts that are left, in order, and the number of groups dropped.
    """
    rewards: dict[str, set[float | None]] = defaultdict(set)
    for rollout in rollouts:
        rewards[rollout.group].add(rollout.reward)
    kept = [rollout for rollout in rollouts if len(rewards[rollout.group]) > 1]
    return kept, sum(len(different) == 1 for different in rewards.values())


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """A conversation to train on, in token ids, with the advantage of every completion token.

    `sampled` are the recorded log-probabilities, `[completion tokens]`.
    """

    prompt: tuple[int, ...]
    completion: tuple[int, ...]
    sampled: tuple[float, ...]
    advantage: float

    def __len__(self) -> int:
        return len(self.prompt) + len(self.completion)


def make_training_rows(
    rollouts: Sequence[Rollout],
    *,
    vocabulary: str,
    settings: GRPOSettings,
    baseline: Baseline,
) -> tuple[list[TrainingRow], dict[str, float]]:
    """Return the rows of whole groups of rewarded rollouts, and metrics of the rollouts.

    The vocabulary is the `fingerprint` of the trained model's tokenizer.

    Raises:
        TraceError: There are no rollouts, or one has no reward, was recorded with another
            tokenizer, or has a conversation over `token_budget`.
    """
    rewards = [_reward(rollout) for rollout in rollouts]
    conversations = [one for rollout in rollouts for one in rollout.conversations]
    for conversation in conversations:
        _check_rows(conversation, vocabulary, settings.token_budget)
    if any(one.sampling.get("temperature") not in {1, None} for one in conversations):
        warnings.warn(_TEMPERATURE, stacklevel=3)
    groups = [rollout.group for rollout in rollouts]
    scale = settings.scale_advantages
    advantages = group_advantages(rewards, groups, scale=scale, baseline=baseline)
    rows = [
        TrainingRow(one.prompt_ids, one.completion_ids, one.logprobs, advantage)
        for rollout, advantage in zip(rollouts, advantages, strict=True)
        for one in rollout.conversations
        if not (settings.mask_overlong and one.finish_reason == _CUT_OFF)
    ]
    return rows, {
        "reward": fmean(rewards),
        "reward_std": pstdev(rewards),
        "rollouts": len(rollouts),
        "rollouts_without_spread": sum(not advantage for advantage in advantages),
        "completion_tokens": fmean(len(one.completion_ids) for one in conversations),
        "memory_tokens": fmean(rollout.memory_tokens for rollout in rollouts),
        "calls": fmean(len(rollout.conversations) for rollout in rollouts),
        "rollout_tokens": fmean(rollout.tokens for rollout in rollouts),
        "cut_off": fmean(one.finish_reason == _CUT_OFF for one in conversations),
    }


_CUT_OFF = "length"
"""Finish reason of a completion that reached its token limit."""


_TEMPERATURE = (
    "Some conversations were sampled at a temperature other than 1, but their log-probabilities "
    "were recorded at 1, so the importance weights do not correct for it. Sample at 1."
)


def _reward(rollout: Rollout) -> float:
    if rollout.reward is None:
        message = f"Rollout {rollout.rollout!r} has no reward: score it before training."
        raise TraceError(message)
    return rollout.reward


def _check_rows(conversation: Conversation, vocabulary: str, token_budget: int) -> None:
    if conversation.tokenizer != vocabulary:
        message = (
            f"Rollout {conversation.rollout!r} was recorded with another tokenizer than that of "
            "the model to train: train the model that it was recorded with."
        )
        raise TraceError(message)
    tokens = len(conversation.prompt_ids) + len(conversation.completion_ids)
    if tokens > token_budget:
        message = (
            f"A conversation of rollout {conversation.rollout!r} has {tokens} tokens, but "
            f"token_budget is {token_budget}: raise it."
        )
        raise TraceError(message)


@dataclass(frozen=True)
class LossTerms:
    """The result of `grpo_loss`; all fields are scalars.

    Attributes:
        loss: sum over tokens, to be divided by the number of tokens in the whole step.
        clipped: number of tokens whose ratio was clipped.
        kl: sum of the k3 estimate over tokens, in nats; 0 without a reference.
        weight: sum of the importance weights over tokens.
    """

    loss: torch.Tensor
    clipped: torch.Tensor
    kl: torch.Tensor
    weight: torch.Tensor


def grpo_loss(
    logprobs: torch.Tensor,
    advantages: torch.Tensor,
    *,
    old: torch.Tensor,
    sampled: torch.Tensor,
    reference: torch.Tensor | None = None,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float = 3.0,
    importance_cap: float = 2.0,
    kl_weight: float = 1e-3,
) -> LossTerms:
    r"""Return the clipped policy loss, summed over the completion tokens of any conversations.

    For a token with ratio \(r = \exp(\log\pi - \log\pi_{old})\) and advantage \(A\), it is
    \(-w \min(rA, \mathrm{clip}(r, 1-\epsilon_{low}, 1+\epsilon_{high})A) + \beta k_3\), where
    every token of every conversation of a rollout has the rollout's advantage (MemAgent,
    arXiv 2507.02259, section 3.2; the asymmetric clip and the mean over tokens are DAPO's,
    arXiv 2503.14476). If \(A\) is negative, the gain is at least \(cA\), so that a token that has
    become much more likely does not outweigh all others (dual clip, arXiv 1912.09729).
    \(k_3 = \exp(d) - d - 1\) with \(d = \log\pi_{ref} - \log\pi\) estimates the divergence from
    the reference (J. Schulman, "Approximating KL Divergence", 2020).
    \(w = \min(\pi_{old}/\pi_{sampled}, cap)\) corrects for tokens sampled by an older policy or by
    an engine that rounds differently (truncated importance sampling; Ionides 2008).

    Args:
        logprobs: log-probabilities under the policy being trained, `[tokens]`; they carry the
            gradient.
        advantages: advantages, `[tokens]`.
        old: log-probabilities under the policy at the beginning of the step, `[tokens]`.
        sampled: log-probabilities recorded by the engine, `[tokens]`.
        reference: log-probabilities under the reference policy, `[tokens]`; None leaves the
            divergence out.
        clip_low: epsilon_low, how far below 1 the ratio is clipped.
        clip_high: epsilon_high, how far above 1 the ratio is clipped.
        dual_clip: c, above 1; infinity turns the dual clip off.
        importance_cap: largest importance weight w.
        kl_weight: beta, the weight of the divergence.
    """
    ratio = (logprobs - old.detach()).exp()
    clipped_ratio = ratio.clamp(1 - clip_low, 1 + clip_high)
    gain, clipped_gain = ratio * advantages, clipped_ratio * advantages
    weight = (old.detach() - sampled).exp().clamp(max=importance_cap)
    least = (dual_clip * advantages).masked_fill(advantages >= 0, -inf)
    bounded = gain.minimum(clipped_gain).maximum(least)
    loss = -(weight * bounded).sum()
    kl = logprobs.new_zeros(())
    if reference is not None:
        distance = reference - logprobs
        kl = (distance.exp() - distance - 1).sum()
        loss = loss + kl_weight * kl
    return LossTerms(loss, (clipped_gain < gain).sum(), kl.detach(), weight.sum())


Reward: TypeAlias = Callable[[str, Sequence[str]], float]
"""Takes the answer and the right answers; returns the reward."""


def exact(answer: str, truths: Sequence[str]) -> float:
    r"""Return 1 if the answer, or the content of its `\boxed{}`, is one of `truths`, else 0.

    Numbers are compared as numbers ("1,234.0" is "1234", "-5" is not "5"), everything else as in
    SQuAD, ignoring case, punctuation, articles and runs of white space. LaTeX's `\text{}` and a
    pair of dollars are ignored as well.
    """
    given = without_latex(find_boxed(answer))
    value = number(given)
    for truth in map(without_latex, _check_truths(truths)):
        wanted = number(truth)
        same = exact_match(given, [truth]) == 1 if wanted is None else value == wanted
        if same and (value is None) == (wanted is None):
            return 1.0
    return 0.0


def substring(answer: str, truths: Sequence[str]) -> float:
    """Return 1 if one of `truths` occurs in the answer, ignoring case, else 0.

    Long answers have better chances, so do not use it alone.
    """
    return substring_match(answer, _check_truths(truths), "any")


REWARDS: dict[str, Reward] = {"exact": exact, "substring": substring}
"""Rewards by their names in a configuration."""


def make_reward(wanted: str | Reward) -> Reward:
    """Make a reward from a name in `REWARDS`, or a function of an answer and the right answers.

    Raises:
        ConfigurationError: There is no reward of that name. The reward itself raises `TraceError`
            if the function returns anything but a finite number.
    """
    if not callable(wanted) and wanted not in REWARDS:
        known = ", ".join(REWARDS)
        message = f"There is no reward {wanted!r}. Choose from: {known}, or give your own."
        raise ConfigurationError(message)
    found = wanted if callable(wanted) else REWARDS[wanted]

    def reward(answer: str, truths: Sequence[str]) -> float:
        value = found(answer, truths)
        if not isinstance(value, int | float) or not isfinite(value):
            name = getattr(found, "__name__", type(found).__name__)
            message = (
                f"The reward {name} returned {value!r} for the answer {answer[:80]!r}: it must be "
                "a finite number."
            )
            raise TraceError(message)
        return float(value)

    return reward


def number(text: str) -> Fraction | None:
    """Return the exact number that the whole text is; None if it is not a number.

    Fractions, exponents and groups of thousands are understood; currency and per cent signs are
    ignored.
    """
    text = text.strip(_AROUND).rstrip("." + _AROUND)
    if not _NUMBER.fullmatch(text):
        return None
    plain = re.sub(r"[,\s$€£¥%]", "", text).replace("−", "-").lstrip("+")
    try:
        return Fraction(plain)
    except (ValueError, ZeroDivisionError):
        return None


_DIGITS = r"(?:\d{1,3}(?:,\d{3})+|\d{1,400})(?:\.\d{1,400})?|\.\d{1,400}"
_NUMBER = re.compile(
    rf"(?:(?<!\w)[-−+])?[$€£¥]?(?<![\w.])(?:{_DIGITS})(?:e[-+]?\d{{1,3}}|/\d{{1,400}})?\s?%?",
    re.IGNORECASE,
)
_AROUND = "()[]{}\"'`*,;:!? \n"
"""Characters that may stand around a number."""


def _check_truths(truths: Sequence[str]) -> Sequence[str]:
    """Return `truths`, checked: with an empty one, every answer would be right."""
    if isinstance(truths, str) or not truths or not all(truth.strip() for truth in truths):
        message = f"The right answers must be a list of texts, none of them empty, not {truths!r}."
        raise TraceError(message)
    return truths
