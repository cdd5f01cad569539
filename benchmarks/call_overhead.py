"""Processor time that a call costs this process, against a bare loop on the same tokenizer.

32 documents of 10 chunks are read at once from a server that answers instantly, in a process of
its own. The bare loop does what a script would: it encodes the document, decodes slices of token
ids, fills in the prompt, and asks with the `openai` SDK alone. Both have the SDK's client, the
tokenizer, the prompts and the number of calls in common. The rounds alternate, after one that
warms up, and what is compared is processor time, not wall clock.

    MEMAGENT_DATA=... python benchmarks/call_overhead.py [TOKENIZER.json]

Without a tokenizer file, a byte-level BPE in the manner of Qwen's is trained first.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from contextlib import suppress
from itertools import count
from multiprocessing import Pipe, Process
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from openai import AsyncOpenAI
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from memagent_graph import ReadingConfig, create_memagent
from memagent_graph.models.endpoint import ChatEndpoint
from memagent_graph.prompts import ANSWER_PROMPT, UPDATE_PROMPT

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from multiprocessing.connection import Connection
    from typing import Any

    from memagent_graph.graph.build import ReadingGraph

DOCUMENTS, CHUNKS, ROUNDS = 32, 10, 5
QUESTION = "Who comes to the house, and why?"
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def trained(text: str) -> Tokenizer:
    backend = Tokenizer(models.BPE())
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=64_000,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(text.splitlines(keepends=True), trainer)
    return backend


def serve(text: str, ready: Connection) -> None:
    """Answer every request at once with another 800 characters of `text`."""
    number = count()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):  # the client has gone
            await answer_all(reader, writer)
        writer.close()

    async def answer_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:-2])
            length = {name.lower(): value for name, value in fields.items()}.get("content-length")
            await reader.readexactly(int(length or 0))
            begin = 997 * next(number) % (len(text) - 800)
            message = {"role": "assistant", "content": text[begin : begin + 800]}
            body = {
                "id": "c",
                "object": "chat.completion",
                "created": 0,
                "model": "small",
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10},
            }
            found = json.dumps(body if length else {"object": "list", "data": []}).encode()
            lines = "HTTP/1.1 200 OK", "content-type: application/json"
            sized = "\r\n".join((*lines, f"content-length: {len(found)}", "", ""))
            writer.write(sized.encode() + found)

    async def run() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0, limit=1 << 20)
        ready.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


def documents(text: str, backend: Tokenizer, chunk_tokens: int) -> list[str]:
    """Stretches of `text`, each in so many chunks."""
    ends = [end for _, end in backend.encode(text + text, add_special_tokens=False).offsets]
    size, step = CHUNKS * chunk_tokens * 93 // 100, len(ends) // 2 // DOCUMENTS
    text += text
    return [text[ends[i * step] : ends[i * step + size]] for i in range(DOCUMENTS)]


async def bare_loop(url: str, texts: list[str], backend: Tokenizer, chunk_tokens: int) -> int:
    """Calls that it made."""
    update, answer = UPDATE_PROMPT, ANSWER_PROMPT.replace("{}", "{{}}")
    calls = 0

    async def ask(prompt: str) -> str:
        nonlocal calls
        calls += 1
        reply = await client.chat.completions.create(
            model="small",
            messages=[{"role": "user", "content": prompt}],
            temperature=0,
            max_tokens=1024,
        )
        return reply.choices[0].message.content or ""

    async def read(text: str) -> str:
        ids = backend.encode(text, add_special_tokens=False).ids
        memory = ""
        for start in range(0, len(ids), chunk_tokens):
            chunk = backend.decode(ids[start : start + chunk_tokens])
            memory = await ask(
                update.format(question=QUESTION, memory=memory, chunk=chunk, words=750)
            )
        return await ask(answer.format(question=QUESTION, memory=memory))

    async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        await asyncio.gather(*map(read, texts))
    return calls


async def graph(agent: ReadingGraph, texts: list[str]) -> int:
    """Calls that it made."""
    outs = await agent.abatch([{"question": QUESTION, "document": text} for text in texts])
    return sum(out["usage"]["calls"] for out in outs)


def cost(reading: Coroutine[Any, Any, int]) -> float:
    """Milliseconds of processor time for each call."""
    before = time.process_time()
    calls = asyncio.run(reading)
    return 1000 * (time.process_time() - before) / calls


def main() -> None:
    text = Path(os.environ["MEMAGENT_DATA"], "war_and_peace.txt").read_text("utf-8")
    backend = Tokenizer.from_file(sys.argv[1]) if len(sys.argv) > 1 else trained(text)
    ours, theirs = Pipe()
    server = Process(target=serve, args=(text, theirs), daemon=True)
    server.start()
    url = f"http://127.0.0.1:{ours.recv()}/v1"
    for chunk_tokens in (5000, 512):
        texts = documents(text, backend, chunk_tokens)
        model = ChatEndpoint(model="small", base_url=url)
        config = ReadingConfig(chunk_tokens=chunk_tokens)
        agent = create_memagent(model, config=config, tokenizer=backend)
        found: dict[str, list[float]] = {"bare loop": [], "graph": []}
        for _ in range(ROUNDS + 1):
            found["bare loop"].append(cost(bare_loop(url, texts, backend, chunk_tokens)))
            found["graph"].append(cost(graph(agent, texts)))
        print(f"chunks of {chunk_tokens:,} tokens, milliseconds of processor time a call")
        for name, (first, *rest) in found.items():
            print(f"  {name:<10} first {first:6.2f}  median {median(rest):6.2f}", flush=True)
        pairs = zip(found["graph"][1:], found["bare loop"][1:], strict=True)
        ratios = [graph / bare for graph, bare in pairs]
        print(f"  ratio {median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})", flush=True)
    server.kill()


if __name__ == "__main__":
    main()
