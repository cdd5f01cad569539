"""Train a small language model on questions of two hops: `make train-real`.

A document says who works where and where each place is, among others and talk of the weather; the
question is in which town somebody works. Names are made up, so that no model knows them, and those
of the held-out questions are never trained on. Prints rewards, scores on held-out questions, and
the seconds that each iteration reads, trains and hands the weights on; --out gets the curve.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from memagent_graph.evaluation.samples import Sample
from memagent_graph.rl.grpo import TrainingSettings, exact, substring
from memagent_graph.rl.training import Training

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SECONDS = ("reading_seconds", "training_seconds", "handing_on_seconds")
STARTS = (
    "Ba Be Bro Ca Da Del El Fa Gra Ha Hol Ja Ka Kel La Lo Ma Mer Na No Os Pa Ra Ro Sa Sel Ta Tor"
)
MIDDLES = "la le li ma mi na ne no ra re ri ro sa si ta te va ve"
ENDS = "dan den dra gren len lia lin mar mond na nek nis ran rik ros sen tha ton vik"
JOBS = "baker clerk cook gardener mechanic nurse painter porter tailor teacher weaver welder"
PLACES = "bakery brewery college foundry harbour hospital library mill museum quarry station"
WEATHER = (
    "It rained for most of the {part}.",
    "The wind turned to the {wind} during the {part}.",
    "Nobody could remember a warmer {part}.",
    "Fog lay over the fields until the {part}.",
    "The road to the {wind} was closed in the {part}.",
)
PARTS = ("morning", "afternoon", "evening", "night", "week", "spring", "autumn")
WINDS = ("north", "south", "east", "west")


def name(rng: random.Random) -> str:
    """A name that hardly anything else has."""
    return "".join(rng.choice(part.split()) for part in (STARTS, MIDDLES, ENDS))


def make_sample(number: int, words: int) -> Sample:
    """Make the question of a number.

    Args:
        number: number of the question.
        words: length of the document.
    """
    rng = random.Random(number)
    people = [f"{name(rng)} {name(rng)}" for _ in range(4)]
    places = [f"the {name(rng)} {rng.choice(PLACES.split())}" for _ in people]
    towns = [name(rng) for _ in people]
    facts = [
        text
        for person, place, town in zip(people, places, towns, strict=True)
        for text in (
            f"{person} works as a {rng.choice(JOBS.split())} at {place}. ",
            f"T{place[1:]} stands in {town}. ",
        )
    ]
    rng.shuffle(facts)
    said = sum(len(fact.split()) for fact in facts)
    while said < words:
        text = rng.choice(WEATHER).format(part=rng.choice(PARTS), wind=rng.choice(WINDS)) + " "
        facts.insert(rng.randrange(len(facts) + 1), text)
        said += len(text.split())
    return Sample(
        id=f"two hops/{words}/{number}",
        task="two hops",
        length=words,
        question=f"In which town does {people[0]} work? Answer with the name of the town alone.",
        answers=(towns[0],),
        metric="any",
        pieces=lambda: iter(facts),
    )


def reward(answer: str, truths: Sequence[str]) -> float:
    return (exact(answer, truths) + substring(answer, truths)) / 2


def report(line: Mapping[str, float]) -> None:
    shown = [f"{name.replace('_', ' ')} {line[name]:.2f}" for name in SECONDS if name in line]
    shown += [f"{name} {line[name]:.3f}" for name in sorted(line) if "reward" in name]
    print(f"iteration {line['iteration']}: {', '.join(shown)}", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="folder of a model")
    parser.add_argument("--out", type=Path, default=Path("real-trained"))
    parser.add_argument("--iterations", type=int, default=30)
    parser.add_argument("--words", type=int, default=350, help="length of a document")
    parser.add_argument("--chunk-tokens", type=int, default=160)
    parser.add_argument("--memory-tokens", type=int, default=96)
    parser.add_argument("--questions", type=int, default=24)
    parser.add_argument("--held-out", type=int, default=128)
    given = vars(parser.parse_args(arguments))
    gpu = torch.cuda.is_available()
    words = given.pop("words")
    settings = TrainingSettings(
        **given | {"model": str(given["model"])},
        answer_tokens=48,
        updates=2,
        warmup_steps=4,
        kl_weight=0.0,
        clip_high=0.28,
        token_budget=16_384,
        evaluate_every=10,
        save_every=given["iterations"],
        mixed_precision="bf16" if gpu else "no",
        gradient_checkpointing=gpu,
        group_size=8,
        learning_rate=5e-5,
        lora_rank=16,
        engine_options={"dtype": "bfloat16" if gpu else "float32", "max_batch": 64},
    )
    print(f"on {torch.cuda.get_device_name() if gpu else 'the CPU: no GPU is here'}", flush=True)
    training = Training(
        settings, questions=lambda number: make_sample(number, words), reward=reward
    )
    asyncio.run(training.run(report))


if __name__ == "__main__":
    main()
