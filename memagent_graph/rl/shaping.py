"""Dense rewards, to be added to that of the answer; none is used unless you do so.

Each says more than right or wrong, and each can be won without being right: keep their weights
small against the answer's.
"""

from __future__ import annotations

from math import fsum
from typing import TYPE_CHECKING

from memagent_graph.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memagent_graph.rl.traces import Rollout


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


def update_reward(rollout: Rollout, evidence: Sequence[bool]) -> float:
    """The share of chunks after which the memory was changed if, and only if, there was reason to.

    After the idea of GRU-Mem's update reward (arXiv 2602.10560), which rewards the opening of its
    update gate for chunks with evidence and its closing for others. Its exact formula was not at
    hand, and readers have no gate here: a memory counts as changed when it was not repeated token
    for token. The first one always counts as changed.

    Args:
        rollout: of K updates.
        evidence: of each of the K chunks, whether it held what the answer needs.

    Raises:
        TraceError: There are not as many updates as that, or none.
    """
    updates = [one.completion_ids for one in rollout.conversations if not one.final]
    if not updates or len(updates) != len(evidence):
        message = (
            f"Rollout {rollout.rollout!r} has {len(updates)} updates, and it was said of "
            f"{len(evidence)} chunks whether they hold evidence."
        )
        raise TraceError(message)
    changed = [before != after for before, after in zip([(), *updates], updates, strict=False)]
    right = sum(made == needed for made, needed in zip(changed, evidence, strict=True))
    return right / len(updates)


def exit_reward(read: int, needed: int, chunks: int) -> float:
    """1 for stopping right after the last evidence, 0 for stopping before it, less for later.

    After the idea of GRU-Mem's exit reward (arXiv 2602.10560), which rewards the opening of its
    exit gate when enough was read. Its exact formula was not at hand: here the reward falls
    linearly, to 0 for reading on to the end of a document without need.

    Args:
        read: chunks that were read.
        needed: chunks up to the one with the last evidence.
        chunks: chunks of the document.

    Raises:
        TraceError: The numbers do not fit together.
    """
    if not (0 < needed <= chunks and 0 < read <= chunks):
        message = f"Of {chunks} chunks, {needed} cannot have been needed and {read} read."
        raise TraceError(message)
    if read < needed:
        return 0.0
    return 1.0 if needed == chunks else (chunks - read) / (chunks - needed)


def information_gain(with_memory: Sequence[float], without: Sequence[float]) -> float:
    """How much likelier the final memory makes a token of the right answer, in nats.

    InfoMem (arXiv 2606.03329): the gain in the log-likelihood of the right answer, per token.

    Args:
        with_memory: log-probabilities of its tokens after the prompt with the final memory.
        without: those after the same prompt with an empty memory.

    Raises:
        TraceError: They are not of the same tokens, or there are none.
    """
    if not with_memory or len(with_memory) != len(without):
        message = (
            f"{len(with_memory)} log-probabilities with memory and {len(without)} without are not "
            "those of one answer."
        )
        raise TraceError(message)
    return (fsum(with_memory) - fsum(without)) / len(with_memory)


def information_rewards(
    gains: Sequence[float], rewards: Sequence[float], groups: Sequence[str], *, success: float = 1.0
) -> list[float]:
    """Information gains as rewards: only of rollouts that succeeded, between 0 and 1 in a group.

    InfoMem (arXiv 2606.03329) gives this reward to successful rollouts alone, and normalizes it
    before it is added. How was not at hand: here the least gain among the successful rollouts of a
    group becomes 0 and the greatest 1, and all of them 0 where they are equal.

    Args:
        gains: of the rollouts, by `information_gain`.
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
        least, spread = min(own), max(own) - min(own)
        for place in places:
            found[place] = (gains[place] - least) / spread if spread else 0.0
    return found
