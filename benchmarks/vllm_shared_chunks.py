"""What 16 questions over one document cost on a real vLLM, by the order of the prompt.

Chunks of 1,250 tokens, memories of 256 and replies of 48 are read through the graph: by one
question, by 16 with the library's own prompt, which has the chunk first, and by 16 with the
question and the memory first, as published checkpoints have them. Then the same with a document
three times as long as the cache. Rounds of the three are measured one after the other: what counts
is their ratio within one round. Where other programs use the machine too, the seconds that the
processor worked tell more than those on the clock; on a GPU only the clock does.

    make bench-vllm
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import psutil
from vllm_reading import ask, document

from memagent_graph import Prompts, ReadingConfig
from memagent_graph.prompts import UPDATE_PROMPT

if TYPE_CHECKING:
    from memagent_graph.models.vllm import ChatVLLM

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

QUESTIONS, CHUNKS = 16, 6
CHUNK_TOKENS, MEMORY_TOKENS, REPLY_TOKENS = 1250, 256, 48
BLOCK = 128
"""Tokens of a block of vLLM's cache on a CPU."""
MOST, LEAST = 4.5, 2.5
"""Times one question that 16 may take, and times faster than with the question first."""

_number = count()
_TAGS = "<section>\n{chunk}\n</section>", "<question>\n{question}\n</question>"
_MEMORY = "<notes>\n{memory}\n</notes>"
_CHUNK_FIRST = "\n\n".join([*_TAGS, _MEMORY])
_QUESTION_FIRST = "\n\n".join([_TAGS[1], _MEMORY, _TAGS[0]])
ORDERS = {
    "chunk first": Prompts(),
    "question first": Prompts(update=UPDATE_PROMPT.replace(_CHUNK_FIRST, _QUESTION_FIRST)),
}


class Seconds(NamedTuple):
    """What a run took, by the clock and by the processor."""

    clock: float
    processor: float


def processor_seconds() -> float:
    """Of this process and the engine's."""
    here = psutil.Process()
    times = [one.cpu_times() for one in [here, *here.children(recursive=True)]]
    return sum(one.user + one.system for one in times)


async def read(model: ChatVLLM, chunks: int, order: str, questions: int) -> Seconds:
    """What so many questions about one document take."""
    config = ReadingConfig(
        question_tokens=128,
        chunk_tokens=CHUNK_TOKENS,
        memory_tokens=MEMORY_TOKENS,
        answer_tokens=REPLY_TOKENS,
        exact_cuts=True,
    )
    # Another one each time, so that nothing of it is in the cache yet.
    text = document(model.tokenizer, chunks * CHUNK_TOKENS, str(next(_number)))
    started, worked = time.perf_counter(), processor_seconds()
    await ask(model, text, questions, config, ORDERS[order])
    return Seconds(time.perf_counter() - started, processor_seconds() - worked)


def measure(folder: str, chunks: int, blocks: int | None, rounds: int) -> None:
    from memagent_graph.models.vllm import ChatVLLM

    engine: dict[str, Any] = {"num_gpu_blocks_override": blocks} if blocks else {}
    model = ChatVLLM(
        model=folder,
        max_tokens=REPLY_TOKENS,
        sampling={"ignore_eos": True},
        max_num_seqs=32,
        max_model_len=4096,
        dtype="float32",
        enable_prefix_caching=True,
        **engine,
    )
    asyncio.run(read(model, 1, "question first", 2))  # warm up
    for _ in range(rounds):
        one = asyncio.run(read(model, chunks, "chunk first", 1))
        shared = asyncio.run(read(model, chunks, "chunk first", QUESTIONS))
        apart = asyncio.run(read(model, chunks, "question first", QUESTIONS))
        for by, alone, together, each in zip(
            ("clock", "processor"), one, shared, apart, strict=True
        ):
            print(
                f"  by the {by}: 1 question {alone:.1f} s, {QUESTIONS} chunk first "
                f"{together:.1f} s, question first {each:.1f} s: "
                f"{together / alone:.2f} times one (at most {MOST}), "
                f"{each / together:.2f} times faster (at least {LEAST})",
                flush=True,
            )
    model.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", choices=["short", "long"])
    parser.add_argument("--blocks", type=int, default=80, help="of the small cache")
    asked = parser.parse_args()
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    from tiny_model import tiny_model

    with tempfile.TemporaryDirectory() as place:
        folder = str(
            tiny_model(Path(place, "tiny"), width=384, layers=6, vocabulary=8000, max_length=8192)
        )
        if asked.only != "long":
            print(f"{CHUNKS} chunks of {CHUNK_TOKENS:,} tokens", flush=True)
            measure(folder, CHUNKS, None, asked.rounds)
        if asked.only != "short":
            cache = asked.blocks * BLOCK
            chunks = -(-3 * cache // CHUNK_TOKENS)
            print(f"{chunks} chunks, three times a cache of {cache:,} tokens", flush=True)
            measure(folder, chunks, asked.blocks, asked.rounds)


if __name__ == "__main__":
    main()
