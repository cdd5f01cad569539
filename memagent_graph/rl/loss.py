"""The loss of multi-conversation GRPO, as a pure function for any trainer."""

from __future__ import annotations

from dataclasses import dataclass

import torch


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

    Examples:
        >>> import torch
        >>> from memagent_graph.rl import grpo_loss
        >>> logprobs = torch.tensor([-1.0, -2.0], requires_grad=True)
        >>> old = logprobs.detach()  # the policy at the beginning of the step
        >>> terms = grpo_loss(logprobs, torch.tensor([1.0, -1.0]), old=old, sampled=old)
        >>> (terms.loss / 2).backward()  # two tokens
        >>> logprobs.grad
        tensor([-0.5000,  0.5000])
    """
    ratio = torch.exp(logprobs - old.detach())
    clipped_ratio = ratio.clamp(1 - clip_low, 1 + clip_high)
    gain, clipped_gain = ratio * advantages, clipped_ratio * advantages
    weight = torch.exp(old.detach() - sampled).clamp(max=importance_cap)
    least = torch.where(advantages < 0, dual_clip * advantages, -torch.inf)
    bounded = torch.maximum(torch.minimum(gain, clipped_gain), least)
    loss = -(weight * bounded).sum()
    kl = logprobs.new_zeros(())
    if reference is not None:
        distance = reference - logprobs
        kl = (torch.exp(distance) - distance - 1).sum()
        loss = loss + kl_weight * kl
    return LossTerms(loss, (clipped_gain < gain).sum(), kl.detach(), weight.sum())
