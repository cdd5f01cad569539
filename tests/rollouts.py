"""Rollouts made by hand, for tests of what is done with them."""

from __future__ import annotations

from memagent_graph.rl.traces import Conversation, Rollout


def conversation(prompt, completion, logprobs, vocabulary, *, temperature=1.0):
    return Conversation(
        sample="s",
        group="g",
        rollout="r",
        step=0,
        final=False,
        prompt_ids=prompt,
        completion_ids=completion,
        logprobs=logprobs,
        policy=0,
        sampling={"temperature": temperature},
        tokenizer=vocabulary,
    )


def rollout(name, group, reward, parts, vocabulary):
    """A rollout of conversations, each given whole or as (prompt, completion, logprobs)."""
    found = tuple(
        part if isinstance(part, Conversation) else conversation(*part, vocabulary)
        for part in parts
    )
    return Rollout(name, group, "s", found, "answer", reward, 0)
