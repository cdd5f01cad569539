"""Records made by hand."""

from __future__ import annotations

from memagent_graph.rl.records import Conversation, End


def conversation(rollout="r", step=0, **fields):
    given = {
        "sample": "q",
        "group": "g",
        "rollout": rollout,
        "step": step,
        "final": False,
        "prompt_ids": (1, 2, 3),
        "completion_ids": (4, 5),
        "logprobs": (-0.25, -1.75),
        "policy": 0,
        "sampling": {"temperature": 1.0, "top_p": 0.9, "seed": None},
        "tokenizer": "t",
    }
    return Conversation(**given | fields)


def records(rollout="r", updates=2, reward=None, **fields):
    """All records of one rollout."""
    steps = [
        conversation(rollout, step, final=step == updates, **fields) for step in range(updates + 1)
    ]
    return [*steps, End(rollout, updates + 1, "forty", reward, response="It is forty.")]
