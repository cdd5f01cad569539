"""What the reading graph costs on a real vLLM, with small models or dummy weights made on the spot.

    python benchmarks/on_vllm.py batch       # `make bench-vllm` runs this and the next
    python benchmarks/on_vllm.py questions

- `batch`: 64 documents of 12 chunks are read at once through the graph: by vLLM in this process,
  and by a server. What was prompted and how long each reply was goes to `LLM.generate` with the
  same engine arguments as one offline batch, in which no call waits for another. A ratio of 1 is a
  graph that costs nothing, although its calls depend on each other.
- `questions`: 16 questions over one document, with the library's own prompt, which has the chunk
  first, against one question, and against 16 with the question and the memory first, as published
  checkpoints have them. Then the same with a document three times as long as the cache. What counts
  is their ratio within one round, of the seconds that the processor worked: other programs may use
  the machine too.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from pydoc_data.topics import topics
from typing import TYPE_CHECKING, Any, NamedTuple

import psutil

from memagent_graph import Prompts, ReadingConfig, create_memagent
from memagent_graph.evidence.places import Memory
from memagent_graph.readers.chat import ChatReader
from memagent_graph.templates import UPDATE_PROMPT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from langchain_core.runnables import RunnableConfig

    from memagent_graph.models.vllm import ChatVLLM
    from memagent_graph.readers.base import Step, Update

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

QUESTIONS = 16
WORDS = sorted({word for word in topics["class"].split() if word.isalpha() and len(word) < 5})
"""Short words, of about a token each."""


class Call(NamedTuple):
    """One call of the engine: the prompt's token ids, and the length of the reply in tokens."""

    prompt: list[int]
    reply: int


class FullMemory(ChatReader):
    """Asks as `ChatReader` does; its memory is always full: the reply, and the end of the last."""

    shortens = False

    async def update(self, step: Step, *, config: RunnableConfig | None = None) -> Update:
        old = step.memory.text or words(step.question, self._memory_tokens)
        full = replace(step, memory=Memory(old))
        update = await super().update(full, config=config)
        new = update.memory.text if update.memory else ""
        counter, text = self.identity.tokenizer, f"{old} {new}"
        left_out = counter.prefix(text, max(0, counter.count(text) - self._memory_tokens))
        return replace(update, memory=Memory(text[left_out:]))


@contextmanager
def recording() -> Iterator[list[Call]]:
    """Record all calls to engines in this process, until the block ends."""
    from memagent_graph.models.vllm import VLLMEngine

    calls: list[Call] = []
    generate = VLLMEngine.generate

    async def recorded(self: VLLMEngine, prompt: list[int], *rest: Any) -> Any:
        async for output in generate(self, prompt, *rest):
            yield output
        calls.append(Call(prompt, len(output.outputs[0].token_ids)))

    VLLMEngine.generate = recorded  # type: ignore[method-assign]
    try:
        yield calls
    finally:
        VLLMEngine.generate = generate  # type: ignore[method-assign]


def words(seed: str, count: int) -> str:
    """So many words, the same for the same seed."""
    draw = random.Random(seed)
    return " ".join(draw.choice(WORDS) for _ in range(count))


def document(tokenizer: Any, tokens: int, seed: str) -> str:
    """A text of exactly so many tokens, another one for another seed."""
    text = words(seed, 2 * tokens)
    return text[: tokenizer.prefix(text, tokens)]


async def ask(
    model: ChatVLLM,
    text: str,
    questions: int,
    config: ReadingConfig,
    prompts: Prompts | None = None,
) -> None:
    """Ask so many questions about one text, at once.

    Raises:
        SystemExit: One of them failed.
    """
    agent = create_memagent(FullMemory(model, prompts=prompts, config=config), config=config)
    asked = [
        words(f"question {number}", config.question_tokens // 2) for number in range(questions)
    ]
    out = await agent.ainvoke({"questions": asked, "document": text})
    if errors := [answer["error"] for answer in out["answers"] if answer["error"]]:
        raise SystemExit(errors[0])


# A batch

DOCUMENTS, LENGTH = 64, 12
"""Documents of the batch, and chunks of each."""
ENGINE = {"max_num_seqs": DOCUMENTS, "max_model_len": 8192, "dtype": "float32"}
BUDGETS = {"question_tokens": 64, "memory_tokens": 32, "answer_tokens": 32}
QUESTION = "Which words are reserved?"


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
    tokens = LENGTH * config.chunk_tokens - config.chunk_tokens // 2
    documents = [document(model.tokenizer, tokens, str(n)) for n in range(DOCUMENTS)]
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


def alone(job: Callable[..., Any], *arguments: Any) -> Any:
    """Run in a new process, which takes its engine with it."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(job, *arguments).result()


def batch(_: argparse.Namespace) -> None:
    from tiny_model import tiny_model

    with tempfile.TemporaryDirectory() as place:
        folder = str(tiny_model(Path(place), width=512, layers=4, vocabulary=8000, spread=0.1))
        config = ReadingConfig(chunk_tokens=128, **BUDGETS)
        here, calls, documents = alone(in_process, folder, config)
        print(f"graph, in the process  {here:7.1f} s", flush=True)
        peer = alone(offline, folder, calls)
        print(f"one offline batch      {peer:7.1f} s, so {here / peer:.2f} times", flush=True)
        there = alone(through_server, folder, documents, config)
        print(f"graph, by the server   {there:7.1f} s, {there / peer:.2f} times")


# Questions

CHUNKS = 6
CHUNK_TOKENS, MEMORY_TOKENS, REPLY_TOKENS = 1250, 256, 48
SMALL_CACHE, BLOCK = 80, 128
"""Blocks of a small cache, and tokens of one, on a CPU."""
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


def processor_seconds() -> float:
    """Of this process and the engine's."""
    here = psutil.Process()
    times = [one.cpu_times() for one in [here, *here.children(recursive=True)]]
    return sum(one.user + one.system for one in times)


async def read(model: ChatVLLM, chunks: int, order: str, questions: int) -> float:
    """Seconds that the processor worked on so many questions about one document."""
    config = ReadingConfig(
        question_tokens=128,
        chunk_tokens=CHUNK_TOKENS,
        memory_tokens=MEMORY_TOKENS,
        answer_tokens=REPLY_TOKENS,
        exact_cuts=True,
    )
    # Another one each time, so that nothing of it is in the cache yet.
    text = document(model.tokenizer, chunks * CHUNK_TOKENS, str(next(_number)))
    worked = processor_seconds()
    await ask(model, text, questions, config, ORDERS[order])
    return processor_seconds() - worked


def compare(folder: str, chunks: int, blocks: int | None, rounds: int) -> None:
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
        print(
            f"  1 question {one:.1f} s, {QUESTIONS} chunk first {shared:.1f} s, question first "
            f"{apart:.1f} s: {shared / one:.2f} times one (at most {MOST}), "
            f"{apart / shared:.2f} times faster (at least {LEAST})",
            flush=True,
        )
    model.close()


def questions(given: argparse.Namespace) -> None:
    from tiny_model import tiny_model

    with tempfile.TemporaryDirectory() as place:
        folder = str(
            tiny_model(Path(place, "tiny"), width=384, layers=6, vocabulary=8000, max_length=8192)
        )
        print(f"{CHUNKS} chunks of {CHUNK_TOKENS:,} tokens", flush=True)
        compare(folder, CHUNKS, None, given.rounds)
        cache = SMALL_CACHE * BLOCK
        chunks = -(-3 * cache // CHUNK_TOKENS)
        print(f"{chunks} chunks, three times a cache of {cache:,} tokens", flush=True)
        compare(folder, chunks, SMALL_CACHE, given.rounds)


MEASURES = {"batch": batch, "questions": questions}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("measure", choices=MEASURES)
    parser.add_argument("--rounds", type=int, default=2, help="of the questions")
    given = parser.parse_args()
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    MEASURES[given.measure](given)


if __name__ == "__main__":
    main()
