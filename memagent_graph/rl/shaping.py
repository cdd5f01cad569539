"""Dense rewards, to be added to that of the answer; none is used unless you do so.

Each says more than right or wrong, and each can be won without being right: keep their weights
small against the answer's.
"""

from __future__ import annotations

from math import fsum
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, TypeAlias

from memagent_graph.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memagent_graph.rl.traces import Conversation, Rollout

    Span: TypeAlias = tuple[int, int]


def length_penalty(rollout: Rollout, *, budget: int, margin: int) -> float:
    """From 0, while completions keep a margin to their budget, to -1; the mean of conversations.

    The soft overlong punishment of DAPO (arXiv 2503.14476, section 3.4): within the margin it
    falls linearly.

    Args:
        rollout: whose completions count.
        budget: longest completion, in tokens.
        margin: how many of these tokens are better left unused.

    Raises:
        TraceError: The margin is not between 1 and the budget.
    """
    if not 1 <= margin <= budget:
        message = f"The margin of {margin} tokens must be at least 1 and within budget, {budget}."
        raise TraceError(message)
    lengths = [len(one.completion_ids) for one in rollout.conversations]
    over = [min(1.0, max(0.0, (length - budget + margin) / margin)) for length in lengths]
    return -fsum(over) / len(over)


def boxed_once(rollout: Rollout) -> float:
    r"""1 if the reply has exactly one `\boxed{}`, closed and not empty, else 0.

    A format reward as that of GRU-Mem (arXiv 2602.10560), which has formats of its own.
    """
    _, opened, after = rollout.response.partition("\\boxed{")
    if not opened or "\\boxed{" in after:
        return 0.0
    depth = 1
    for place, character in enumerate(after):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return float(bool(after[:place].strip()))
    return 0.0


def update_rewards(rollout: Rollout, evidence: Sequence[Span]) -> tuple[float | None, ...]:
    """For each conversation 1 where its update gate was right, and -1 where it was not.

    The update reward of GRU-Mem (arXiv 2602.10560): the memory is to change where the chunk has
    evidence, and to stay where it has none. A gate is taken to be open where the memory changed,
    whether a reader has gates or repeats its memory. None for conversations that read no chunk.

    Args:
        rollout: as recorded.
        evidence: where it stands in the document, as first and one past the last code point.
    """
    return tuple(
        None if one.changed is None else 1.0 if one.changed == _holds(one, evidence) else -1.0
        for one in rollout.conversations
    )


def exit_reward(rollout: Rollout, evidence: Sequence[Span]) -> float:
    """0 for a reading that ended with the chunk of the last evidence, -0.75 before, -0.5 after it.

    The exit reward of GRU-Mem (arXiv 2602.10560).

    Args:
        rollout: as recorded, of a document that was read from its beginning.
        evidence: where it stands in the document, as first and one past the last code point.

    Raises:
        TraceError: No evidence is known, or the rollout was recorded without what it read, or was
            read in segments.
    """
    ends = [one.end for one in rollout.conversations if one.end is not None]
    parts = any(one.segment is not None for one in rollout.conversations)
    if parts or not evidence or not ends:
        message = (
            f"The exit of rollout {rollout.rollout!r} cannot be judged: it takes chunks that were "
            "read one after the other, and a task that says where its evidence is."
        )
        raise TraceError(message)
    last = max(end for _, end in evidence)
    enough = sum(end >= last for end in ends)
    return _EARLY if enough == 0 else _LATE if enough > 1 else 0.0


_EARLY, _LATE = -0.75, -0.5


def _holds(conversation: Conversation, evidence: Sequence[Span]) -> bool:
    """Whether the chunk that was read has some of the evidence."""
    start, end = conversation.start or 0, conversation.end or 0
    return any(first < end and start < last for first, last in evidence)


def information_rewards(
    gains: Sequence[float], rewards: Sequence[float], groups: Sequence[str], *, success: float = 1.0
) -> list[float]:
    """Information gains as rewards: only of rollouts that succeeded, normalized in their group.

    InfoMem (arXiv 2606.03329): how much likelier the final memory makes a token of the right
    answer, in nats, less the mean of the group's successful rollouts and divided by their standard
    deviation. A rollout that failed, or has no successful one beside it, gets 0.

    Args:
        gains: of the rollouts: the mean log-probability of a token of the right answer given the
            final memory, less that given an empty one. Those of failed rollouts do not matter.
        rewards: of their answers.
        groups: of the rollouts.
        success: least reward of an answer that counts as right.
    """
    found = [0.0] * len(gains)
    members: dict[str, list[int]] = {}
    for place, (reward, group) in enumerate(zip(rewards, groups, strict=True)):
        if reward >= success:
            members.setdefault(group, []).append(place)
    for places in members.values():
        own = [gains[place] for place in places]
        mean, deviation = fmean(own), pstdev(own)
        for place in places:
            found[place] = (gains[place] - mean) / deviation if deviation > _LEAST else 0.0
    return found


def cost_rewards(
    costs: Sequence[float], rewards: Sequence[float], groups: Sequence[str], *, success: float = 1.0
) -> list[float]:
    """What readings cost, as rewards from -1 to 0: only of rollouts that succeeded.

    A cost is told as a share of the highest in its group. What failed is not made better by being
    cheap, so that nothing is gained by giving up early.

    Args:
        costs: of the rollouts, such as their calls; 0 or more.
        rewards: of their answers.
        groups: of the rollouts.
        success: least reward of an answer that counts as right.
    """
    most: dict[str, float] = {}
    for cost, group in zip(costs, groups, strict=True):
        most[group] = max(cost, most.get(group, 0.0))
    return [
        -cost / most[group] if reward >= success and most[group] else 0.0
        for cost, reward, group in zip(costs, rewards, groups, strict=True)
    ]


_LEAST = 1e-6
"""Nats of a deviation that is more than rounding."""
