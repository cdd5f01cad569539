"""Trains in one process, so that it can be killed, or in several: MODEL OUT [FIELD=VALUE ...]."""

import asyncio
import json
import os
import sys
from pathlib import Path

from memagent_graph.evaluation.samples import Sample
from memagent_graph.rl.grpo import TrainingSettings
from memagent_graph.rl.training import Training


def question(index):
    words = [f"word{(index * 7 + place) % 50}" for place in range(60)]
    asked = "words", 60, f"Which word is number {index}?", (words[0],), "any"
    return Sample(f"q{index}", *asked, lambda: iter([" ".join(words)]))


def reward(answer, truths):
    """Not sensible, but different for most answers."""
    return sum(map(ord, answer)) % 5 / 5


def settings(model, out, **fields):
    loop = {"iterations": 6, "questions": 2, "group_size": 3, "updates": 2, "held_out": 2}
    tokens = {"token_budget": 2048, "chunk_tokens": 120, "memory_tokens": 5, "answer_tokens": 5}
    given = {"learning_rate": 1e-3, "warmup_steps": 2, "kl_weight": 0.01, "deterministic": True}
    given |= {"evaluate_every": 2, "save_every": 1, "engine_options": {"max_batch": 1}}
    return TrainingSettings(model=str(model), out=Path(out), **(loop | tokens | given | fields))


def lines(out):
    """The metrics of a run, without what depends on the clock."""
    found = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{name: line[name] for name in line if "seconds" not in name} for line in found]


def main(model, out, *fields):
    given = dict(map(lambda field: field.split("=", 1), fields))
    stop = int(given.pop("stop", -1))
    rank = os.environ.get("RANK", "0")

    def asked(index):
        with Path(f"{out}.asked").open("a") as file:
            file.write(f"{rank} {index}\n")
        return question(index)

    def report(line):
        print(line["iteration"], flush=True)
        if line["iteration"] == stop:
            training.stop()  # reports go to the first process only

    chosen = settings(model, out, **{name: json.loads(value) for name, value in given.items()})
    training = Training(chosen, questions=asked, reward=reward)
    asyncio.run(training.run(report))


if __name__ == "__main__":
    main(*sys.argv[1:])
