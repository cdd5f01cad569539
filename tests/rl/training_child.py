"""Trains in a process of its own, so that it can be killed: MODEL OUT."""

import asyncio
import sys
from pathlib import Path

from memagent_graph.evaluation.samples import Piece, Sample
from memagent_graph.rl.settings import TrainingSettings
from memagent_graph.rl.training import Training


def question(index):
    words = [f"word{(index * 7 + place) % 50}" for place in range(60)]
    return Sample(
        id=f"q{index}",
        task="words",
        length=60,
        question=f"Which word is number {index}?",
        answers=(words[0],),
        metric="any",
        pieces=lambda: iter([Piece(" ".join(words))]),
    )


def reward(answer, truths):
    """Not sensible, but different for most answers."""
    return sum(map(ord, answer)) % 5 / 5


def settings(model, out, **fields):
    given = {
        "model": str(model),
        "out": Path(out),
        "iterations": 6,
        "questions": 2,
        "group_size": 3,
        "updates": 2,
        "learning_rate": 1e-3,
        "warmup_steps": 2,
        "kl_weight": 0.01,
        "token_budget": 2048,
        "evaluate_every": 2,
        "held_out": 2,
        "save_every": 1,
        "chunk_tokens": 120,
        "memory_tokens": 5,
        "answer_tokens": 5,
        "deterministic": True,
        "engine_options": {"max_batch": 1},
    }
    return TrainingSettings(**given | fields)


if __name__ == "__main__":
    training = Training(settings(*sys.argv[1:3]), questions=question, reward=reward)
    asyncio.run(training.run(lambda line: print(line["iteration"], flush=True)))
