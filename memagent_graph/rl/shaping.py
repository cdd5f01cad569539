"""Dense rewards that can be added to the reward of the answer; none is used by default.

Each can be earned without a right answer, so keep their weights small compared with the answer's.
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
    """Return the mean penalty of the conversations' lengths, from 0 to -1.

    The soft overlong punishment of DAPO (arXiv 2503.14476, section 3.4): 0 up to `budget` minus
    `margin` tokens, falling linearly to -1 at `budget`.

    Args:
        rollout: the rollout.
        budget: longest completion, in tokens.
        margin: the last tokens of the budget, which are penalized.

    Raises:
        TraceError: The margin is not between 1 and the budget.
    """
    if not 1 <= margin <= budget:
        message = f"margin must be from 1 to the budget of {budget} tokens, not {margin}."
        raise TraceError(message)
    lengths = [len(one.completion_ids) for one in rollout.conversations]
    over = [min(1.0, max(0.0, (length - budget + margin) / margin)) for length in lengths]
    return -fsum(over) / len(over)


def boxed_once(rollout: Rollout) -> float:
    r"""Return 1 if the reply has exactly one `\boxed{}`, closed and not empty, else 0.

    A format reward like that of GRU-Mem (arXiv 2602.10560), for the paper's answer format.
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
    """Return for each conversation 1 if its update gate was right, -1 if not.

    The update reward of GRU-Mem (arXiv 2602.10560): the memory should change if the chunk has
    evidence, and stay if it has none. The gate counts as open if the memory changed, whether the
    reader has gates or repeats its memory. None for conversations that read no chunk.

    Args:
        rollout: the rollout.
        evidence: spans of the evidence in the document, as first and one past the last code
            point.
    """
    return tuple(
        None if one.changed is None else 1.0 if one.changed == _holds(one, evidence) else -1.0
        for one in rollout.conversations
    )


def exit_reward(rollout: Rollout, evidence: Sequence[Span]) -> float:
    """Return 0 if the reading ended at the chunk of the last evidence, -0.75 before, -0.5 after.

    The exit reward of GRU-Mem (arXiv 2602.10560).

    Args:
        rollout: a rollout that read the document from its beginning.
        evidence: spans of the evidence in the document, as first and one past the last code
            point.

    Raises:
        TraceError: There is no evidence, the rollout was recorded without its chunks, or the
            document was read in segments.
    """
    ends = [one.end for one in rollout.conversations if one.end is not None]
    parts = any(one.segment is not None for one in rollout.conversations)
    if parts or not evidence or not ends:
        message = (
            f"The exit of rollout {rollout.rollout!r} cannot be judged: read in one segment, and "
            "use a task that has the places of its evidence."
        )
        raise TraceError(message)
    last = max(end for _, end in evidence)
    enough = sum(end >= last for end in ends)
    return _EARLY if enough == 0 else _LATE if enough > 1 else 0.0


_EARLY, _LATE = -0.75, -0.5


def _holds(conversation: Conversation, evidence: Sequence[Span]) -> bool:
    """Whether the conversation's chunk has some of the evidence."""
    start, end = conversation.start or 0, conversation.end or 0
    return any(first < end and start < last for first, last in evidence)


def information_rewards(
    gains: Sequence[float], rewards: Sequence[float], groups: Sequence[str], *, success: float = 1.0
) -> list[float]:
    """Return information gains as rewards, normalized over the successful rollouts of a group.

    InfoMem (arXiv 2606.03329): how much the final memory raises the log-probability of a token of
    the right answer, in nats, minus the mean over the group's successful rollouts, divided by their
    standard deviation. A rollout that failed, or is the only successful one, gets 0.

    Args:
        gains: mean log-probability of a token of the right answer given the final memory, minus
            that given an empty one, `[rollouts]`; ignored for failed rollouts.
        rewards: reward of each rollout's answer, `[rollouts]`.
        groups: group of each rollout, `[rollouts]`.
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
    """Return costs of readings as rewards from -1 to 0, for successful rollouts only.

    A cost is taken as a share of the highest cost in its group. A failed rollout gets 0 whatever
    its cost: being cheap does not make it better.

    Args:
        costs: cost of each rollout, such as its number of calls; 0 or more.
        rewards: reward of each rollout's answer, `[rollouts]`.
        groups: group of each rollout, `[rollouts]`.
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
"""Largest standard deviation that counts as rounding, in nats."""
