"""How many unseen documents a model of `tiny_reader.py` answers right, read by the graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tiny_reader import PROMPTS, SECTION, sample

from memagent_graph import ReadingConfig, create_memagent, read_many
from memagent_graph.models.transformers import ChatTransformers
from memagent_graph.rl.rewards import exact

if TYPE_CHECKING:
    from pathlib import Path

HOPS = (1, 2)
TRAINED_ON = 4
LENGTHS = (4, 16, 64, 256, 440, 1024)
LONG = 64
BUDGETS = {"memory_tokens": 4, "answer_tokens": 2}
READING = ReadingConfig(chunk_tokens=SECTION, question_tokens=4, **BUDGETS)
HELD_OUT_SEED = 1_000_000


def score(
    model: Path,
    hops: int,
    chunks: int,
    count: int,
    *,
    whole: bool = False,
    temperature: float = 0.0,
) -> float:
    """Share of unseen documents whose question is answered; `whole` reads them in one window."""
    chat = ChatTransformers(
        model=str(model), dtype="float32", max_batch=128, temperature=temperature
    )
    config = READING.model_copy(update={"chunk_tokens": chunks * SECTION}) if whole else READING
    agent = create_memagent(chat, config=config, prompts=PROMPTS)
    samples = [
        sample(index, hops=hops, chunks=chunks, seed=HELD_OUT_SEED) for index in range(count)
    ]
    tasks = [
        {"id": one.id, "question": one.question, "document": one.opened()[0]} for one in samples
    ]
    right = {one.id: one.answers for one in samples}
    worth = sum(
        exact(result.output["answer"], right[result.id])
        for result in read_many(agent, tasks, concurrency=128)
        if result.output
    )
    chat.close()  # the folder will hold other weights when training has gone on
    return worth / count


def sampled(model: Path) -> dict[str, float]:
    """Reward of unseen documents of the length trained on, at temperature 1."""
    return {str(hops): score(model, hops, TRAINED_ON, 256, temperature=1.0) for hops in HOPS}


def scores(
    model: Path, lengths: list[int], count: int, *, whole: bool = False
) -> dict[str, dict[str, float]]:
    """Of each task at each length, over fewer documents where these are long."""
    return {
        str(hops): {
            str(chunks): score(model, hops, chunks, min(count, 40_960 // chunks), whole=whole)
            for chunks in lengths
        }
        for hops in HOPS
    }
