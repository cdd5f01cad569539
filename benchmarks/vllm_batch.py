"""How busy the graph keeps a real vLLM.

64 documents of 12 chunks are read at once through the graph: by vLLM in this process, and by a
server. What was prompted and how long each reply was is recorded, and goes to `LLM.generate` with
the same engine arguments as one offline batch, in which no call waits for another. A ratio of 1
is a graph that costs nothing, although its calls depend on each other. Then one long document is
read with a store and a checkpointer, to time what lies between two calls.

    make bench-vllm
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from pydoc_data.topics import topics
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

from vllm_reading import between_calls, recording

from memagent_graph import ReadingConfig, create_memagent

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm_reading import Call

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

DOCUMENTS, CHUNKS = 64, 12
ENGINE = {"max_num_seqs": DOCUMENTS, "max_model_len": 8192, "dtype": "float32"}
BUDGETS = {"question_tokens": 64, "memory_tokens": 32, "answer_tokens": 32}
QUESTION = "Which words are reserved?"


def texts(tokenizer: Any, chunk_tokens: int) -> list[str]:
    """Documents of exactly `CHUNKS` chunks, all different."""
    manual = "\n".join(topics.values())
    found = []
    for number in range(DOCUMENTS):
        begin = number * 3001
        text = f"Document {number}.\n" + manual[begin:] + manual[:begin]
        found.append(text[: tokenizer.prefix(text, CHUNKS * chunk_tokens - chunk_tokens // 2)])
    return found


async def read_all(
    model: Any, documents: list[str], config: ReadingConfig, tokenizer: str | None = None
) -> float:
    """Seconds to read all documents at once."""
    agent = create_memagent(model, config=config, tokenizer=tokenizer)
    await model.ainvoke("Warm up.", max_tokens=8)
    inputs = [{"question": QUESTION, "document": text} for text in documents]
    started = time.perf_counter()
    outputs = await agent.abatch(inputs)
    seconds = time.perf_counter() - started
    calls = sum(output["usage"]["calls"] for output in outputs)
    print(f"  {calls} calls for {len(outputs)} documents", flush=True)
    return seconds


def in_process(folder: str, config: ReadingConfig) -> tuple[float, list[Call], list[str]]:
    from memagent_graph.models.vllm import ChatVLLM

    model = ChatVLLM(model=folder, **ENGINE)
    documents = texts(model.tokenizer, config.chunk_tokens)
    with recording() as calls:
        seconds = asyncio.run(read_all(model, documents, config))
    model.close()
    return seconds, calls[1:], documents  # without the warm-up


def offline(folder: str, calls: list[Call]) -> float:
    from vllm import LLM, SamplingParams

    llm = LLM(folder, **ENGINE)
    llm.generate("Warm up.", SamplingParams(max_tokens=8), use_tqdm=False)
    params = [
        SamplingParams(temperature=0, max_tokens=call.reply, ignore_eos=True) for call in calls
    ]
    prompts = [{"prompt_token_ids": call.prompt} for call in calls]
    started = time.perf_counter()
    llm.generate(prompts, params, use_tqdm=False)
    seconds = time.perf_counter() - started
    llm.llm_engine.engine_core.shutdown()
    return seconds


def through_server(folder: str, documents: list[str], config: ReadingConfig) -> float:
    from servers.vllm_server import vllm_server

    from memagent_graph.models.endpoint import ChatEndpoint

    arguments = [f"--{name.replace('_', '-')}={value}" for name, value in ENGINE.items()]
    log = Path(folder, "server.log")
    with vllm_server(Path(folder), log, "--no-enforce-eager", *arguments) as server:
        model = ChatEndpoint(model=server.name, base_url=server.base_url)
        return asyncio.run(read_all(model, documents, config, tokenizer=folder))


def between(folder: str) -> list[float]:
    from memagent_graph.models.vllm import ChatVLLM

    model = ChatVLLM(model=folder, **ENGINE)
    model.invoke("Warm up.", max_tokens=8)
    manual = "\n".join(topics.values())
    config = ReadingConfig(chunk_tokens=5000, **BUDGETS)
    gaps = between_calls(model, manual[:600_000], config)
    model.close()
    return gaps


def alone(job: Callable[..., Any], *arguments: Any) -> Any:
    """Run in a new process, which takes its engine with it."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(job, *arguments).result()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chunk-tokens", type=int, default=128)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--only", choices=["batch", "between"])
    asked = parser.parse_args()
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    from tiny_model import tiny_model

    with tempfile.TemporaryDirectory() as place:
        folder = str(
            tiny_model(
                Path(place), width=asked.width, layers=asked.layers, vocabulary=8000, spread=0.1
            )
        )
        if asked.only != "between":
            config = ReadingConfig(chunk_tokens=asked.chunk_tokens, **BUDGETS)
            here, calls, documents = alone(in_process, folder, config)
            prompts, replies = (
                sum(len(call.prompt) for call in calls),
                sum(call.reply for call in calls),
            )
            print(
                f"{len(calls)} calls, {prompts:,} prompt and {replies:,} reply tokens", flush=True
            )
            print(f"graph, in the process  {here:7.1f} s", flush=True)
            batch = alone(offline, folder, calls)
            print(
                f"one offline batch      {batch:7.1f} s, so {here / batch:.2f} x (at most 1.15)",
                flush=True,
            )
            there = alone(through_server, folder, documents, config)
            print(f"graph, by the server   {there:7.1f} s   {there / batch:.2f} x (at most 1.3)")
        if asked.only != "batch":
            gaps = alone(between, folder)
            print(
                f"between {len(gaps) + 1} calls of 5,000-token chunks: p50 {median(gaps):.1f} ms, "
                f"p90 {quantiles(gaps, n=10)[-1]:.1f} ms (p50 under 10)"
            )


if __name__ == "__main__":
    main()
