"""Records and rollouts made by hand."""

from itertools import product

from memagent_graph.rl.traces import Conversation, End, Rollout, fingerprint


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
    steps = [
        conversation(rollout, step, final=step == updates, **fields) for step in range(updates + 1)
    ]
    return [*steps, End(rollout, updates + 1, "forty", reward)]


def rollout(name, group, reward, parts, vocabulary, **fields):
    """A rollout of conversations, each given as (prompt, completion, logprobs)."""
    names = ("prompt_ids", "completion_ids", "logprobs")
    found = tuple(
        conversation(name, **dict(zip(names, part, strict=True)), tokenizer=vocabulary, **fields)
        for part in parts
    )
    return Rollout(name, group, "q", found, "answer", reward, 0)


def some_rollouts(tokenizer, seed, *, groups=3, size=4, longest=40):
    import torch

    torch.manual_seed(seed)
    vocabulary = fingerprint(tokenizer)

    def drawn(most):
        return tuple(torch.randint(4, 300, (int(torch.randint(1, most + 1, ())),)).tolist())

    def part():
        completion = drawn(12)
        logprobs = tuple((-torch.rand(len(completion)) * 8).tolist())
        return drawn(longest), completion, logprobs

    found = []
    for group, index in product(range(groups), range(size)):
        parts = [part() for _ in range(int(torch.randint(1, 4, ())))]
        reward = float(torch.rand(()).round(decimals=2)) if group else 1.0
        found.append(rollout(f"g{group}r{index}", f"g{group}", reward, parts, vocabulary))
    return found
