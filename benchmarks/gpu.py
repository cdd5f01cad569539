"""What one GPU does with the reading graph, on vLLM with a model of dummy weights.

Four measurements on one engine, each against a peer of the same run: documents read at once
through the graph against one batch of the same prompts, in which no call waits for another; 16
questions over one document against one, with the prefix cache's hit rate; a document in eight
segments against one; and what lies between two calls of one reading, with a store and a
checkpointer. Prints a table in Markdown and writes the figures as JSON. Nothing is downloaded:
weights are dummy ones, and the tokenizer is made on the spot.

    make bench-gpu [SHAPE=tiny]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from vllm_reading import Call, FullMemory, ask, between_calls, document, recording

from memagent_graph import ReadingConfig, create_memagent

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from memagent_graph.models.vllm import ChatVLLM

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

QUESTIONS, SEGMENTS = 16, 8


class Shape(NamedTuple):
    """A model, and how much of what it reads.

    Attributes:
        model: of transformers' `Qwen2Config`.
        learned: tokens of the vocabulary that are learned; pairs of them fill it up.
        engine: arguments of vLLM's engine.
        budgets: of the reading, in tokens.
        reply: tokens of each reply.
        documents: read at once, of `chunks` chunks each.
        chunks: of one of them.
        shared: chunks of the document that several questions are asked about.
        long: chunks of the document that is read in segments.
        single: chunks of the document between whose calls the time is taken.
    """

    model: dict[str, int]
    learned: int
    engine: dict[str, Any]
    budgets: dict[str, int]
    reply: int
    documents: int
    chunks: int
    shared: int
    long: int
    single: int

    @property
    def config(self) -> ReadingConfig:
        return ReadingConfig(answer_tokens=self.reply, exact_cuts=True, **self.budgets)


SHAPES = {
    "7b": Shape(
        {
            "vocab_size": 152_064,
            "hidden_size": 3_584,
            "intermediate_size": 18_944,
            "num_hidden_layers": 28,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
        },
        learned=8_000,
        engine={"dtype": "bfloat16", "max_model_len": 16_384, "max_num_seqs": 64},
        budgets={"question_tokens": 128, "chunk_tokens": 5_000, "memory_tokens": 512},
        reply=128,
        documents=32,
        chunks=6,
        shared=8,
        long=32,
        single=16,
    ),
    "tiny": Shape(
        {
            "vocab_size": 2_304,
            "hidden_size": 128,
            "intermediate_size": 512,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
        },
        learned=2_000,
        engine={
            "dtype": "float32",
            "max_model_len": 4_096,
            "max_num_seqs": 16,
            "enforce_eager": True,
        },
        budgets={"question_tokens": 32, "chunk_tokens": 640, "memory_tokens": 32},
        reply=8,
        documents=4,
        chunks=3,
        shared=2,
        long=8,
        single=4,
    ),
}


def make_folder(shape: Shape, folder: Path) -> None:
    """Save all of the model but its weights."""
    from tiny_model import byte_pairs
    from transformers import Qwen2Config

    length = shape.engine["max_model_len"]
    tokenizer = byte_pairs(shape.learned, length, ids=shape.model["vocab_size"])
    tokenizer.save_pretrained(folder)
    Qwen2Config(
        **shape.model,
        architectures=["Qwen2ForCausalLM"],
        max_position_embeddings=2 * length,
        rope_theta=1_000_000.0,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    ).save_pretrained(folder)


class Measured(NamedTuple):
    """What some work took, and the calls that it made."""

    seconds: float
    calls: list[Call]

    @property
    def tokens(self) -> float:
        """Of prompts and replies, a second."""
        return sum(len(call.prompt) + call.reply for call in self.calls) / self.seconds

    @property
    def hit_rate(self) -> float:
        """The share of the prompts' tokens that the prefix cache had."""
        return sum(call.cached for call in self.calls) / sum(
            len(call.prompt) for call in self.calls
        )


class Bench:
    """Measures on one engine; each time on other texts, with an empty prefix cache.

    Args:
        model: the engine's.
        shape: how much of what it reads.
    """

    def __init__(self, model: ChatVLLM, shape: Shape) -> None:
        self.model, self.shape = model, shape
        self._texts = 0

    def text(self, chunks: int) -> str:
        self._texts += 1
        tokens = chunks * self.shape.config.chunk_tokens
        return document(self.model.tokenizer, tokens, str(self._texts))

    def measure(self, work: Awaitable[Any]) -> Measured:
        async def reset() -> None:
            assert await (await engine._ensure_started()).reset_prefix_cache()  # noqa: SLF001

        async def run() -> None:
            await work

        engine = self.model._engine  # noqa: SLF001
        engine.thread.wait_for(reset())
        with recording() as calls:
            started = time.perf_counter()
            asyncio.run(run())
            return Measured(time.perf_counter() - started, calls)

    def through_graph(self) -> Measured:
        config, shape = self.shape.config, self.shape
        agent = create_memagent(FullMemory(self.model, config=config), config=config)
        asked = [
            {"question": f"What is in document {number}?", "document": self.text(shape.chunks)}
            for number in range(shape.documents)
        ]
        return self.measure(agent.abatch(asked))

    def at_once(self, calls: list[Call]) -> Measured:
        """The same prompts, and replies of the same lengths, none of which waits for another."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        engine = self.model._engine  # noqa: SLF001

        async def one(call: Call) -> None:
            params = SamplingParams(
                temperature=self.model.temperature,
                max_tokens=call.reply,
                ignore_eos=True,
                output_kind=RequestOutputKind.FINAL_ONLY,
            )
            async for _ in engine.generate(call.prompt, params, None):
                pass

        async def batch() -> None:
            await asyncio.gather(*map(one, calls))

        return self.measure(engine.thread.run(batch()))

    def questions(self, count: int) -> Measured:
        return self.measure(ask(self.model, self.text(self.shape.shared), count, self.shape.config))

    def segments(self, count: int) -> Measured:
        config = self.shape.config.model_copy(update={"segments": count})
        return self.measure(ask(self.model, self.text(self.shape.long), 1, config))

    def between(self) -> list[float]:
        config = self.shape.config
        reader = FullMemory(self.model, config=config)
        return between_calls(reader, self.text(self.shape.single), config)


def figures(bench: Bench) -> dict[str, float]:
    """All four measurements, by name; seconds where the name gives no unit."""
    graph = bench.through_graph()
    batch = bench.at_once(graph.calls)
    one, many = bench.questions(1), bench.questions(QUESTIONS)
    whole, parts = bench.segments(1), bench.segments(SEGMENTS)
    gaps = bench.between()
    return {
        "graph: calls": len(graph.calls),
        "graph: tokens a second": graph.tokens,
        "one batch: tokens a second": batch.tokens,
        "graph against one batch": graph.tokens / batch.tokens,
        "1 question": one.seconds,
        "1 question: hit rate": one.hit_rate,
        f"{QUESTIONS} questions": many.seconds,
        f"{QUESTIONS} questions: hit rate": many.hit_rate,
        f"{QUESTIONS} questions against 1": many.seconds / one.seconds,
        "1 segment": whole.seconds,
        "1 segment: calls": len(whole.calls),
        f"{SEGMENTS} segments": parts.seconds,
        f"{SEGMENTS} segments: calls": len(parts.calls),
        f"1 segment against {SEGMENTS}": whole.seconds / parts.seconds,
        "between two calls: median, ms": median(gaps),
        "between two calls: longest, ms": max(gaps),
    }


def run(shape: Shape, folder: Path) -> dict[str, float]:
    from memagent_graph.models.vllm import ChatVLLM

    make_folder(shape, folder)
    model = ChatVLLM(
        model=str(folder),
        temperature=1,  # of dummy weights the likeliest token is often the same
        max_tokens=shape.reply,
        sampling={"ignore_eos": True},
        load_format="dummy",
        enable_prefix_caching=True,
        **shape.engine,
    )
    started = time.perf_counter()
    asyncio.run(ask(model, "Warm up.", QUESTIONS, shape.config))
    warm = time.perf_counter() - started
    found = {"engine's start": warm} | figures(Bench(model, shape))
    model.close()
    return found


def table(found: dict[str, float]) -> str:
    rows = [f"| {name} | {value:,.{0 if value >= 100 else 2}f} |" for name, value in found.items()]
    return "\n".join(["| | |", "|---|---|", *rows])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, default="7b", help="tiny is for a CPU")
    parser.add_argument("--out", type=Path, default=Path("gpu.json"))
    given = parser.parse_args(arguments)
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    import torch
    import vllm

    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        found = run(SHAPES[given.shape], Path(folder, given.shape))
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    about = {"shape": given.shape, "device": device, "vllm": vllm.__version__}
    seconds = round(time.perf_counter() - started, 1)
    record = about | {"seconds": seconds, "figures": found}
    given.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"{', '.join(about.values())}; {seconds} s in all\n\n{table(found)}")


if __name__ == "__main__":
    main()
