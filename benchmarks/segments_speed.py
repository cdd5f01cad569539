"""How much faster a document is read in segments, from a server that takes 0.2 s for each call.

The server answers any number of calls at once, on a socket of this process. The document has 640
chunks.

    python benchmarks/segments_speed.py
"""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress

from memagent_graph import ReadingConfig, create_memagent, plan
from memagent_graph.models.endpoint import ChatEndpoint

LINES, SECONDS = 642, 0.2
SEGMENTS = (64, 8, 1)
GOALS = {8: 6.0, 64: 15.0}


OPEN: set[asyncio.Task[None]] = set()
"""Connections that are answered."""


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer all requests of a connection, each 0.2 s after it came."""
    OPEN.add(asyncio.current_task())
    with suppress(asyncio.IncompleteReadError, ConnectionError):  # the client has gone
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:-2])
            length = {name.lower(): value for name, value in fields.items()}.get("content-length")
            await reader.readexactly(int(length or 0))
            await asyncio.sleep(SECONDS)
            message = {"role": "assistant", "content": "The bell rang at nine."}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
            body = {"id": "c", "object": "chat.completion", "created": 0, "model": "small"}
            data = json.dumps({**body, "choices": [choice], "usage": usage}).encode()
            kind = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: "
            writer.write(kind + str(len(data)).encode() + b"\r\n\r\n" + data)
            await writer.drain()
    writer.close()
    OPEN.discard(asyncio.current_task())


async def main() -> None:
    """Read it in 64 segments, in 8, and in one."""
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    text = "".join(f"Line {number:>4} is here, to be read.\n\n" for number in range(LINES))
    took: dict[int, float] = {}
    for segments in SEGMENTS:
        config = ReadingConfig(chunk_tokens=13, segments=segments)
        model = ChatEndpoint(model="small", base_url=url, api_key="none")
        agent = create_memagent(model, config=config)
        planned = plan("When did it ring?", text, config)
        started = time.perf_counter()
        out = await agent.ainvoke({"question": "When did it ring?", "document": text})
        took[segments] = time.perf_counter() - started
        await model.aclose()
        print(
            f"{segments:>3} segments: {planned.chunks} chunks, {out['usage']['calls']} calls, "
            f"{planned.chain_calls} in a row, {took[segments]:.1f} s",
            flush=True,
        )
    server.close()
    while OPEN:
        await asyncio.wait(OPEN)
    for segments, goal in GOALS.items():
        ratio = took[1] / took[segments]
        print(f"{segments} segments: {ratio:.1f} times faster than one (goal {goal:g})")


if __name__ == "__main__":
    asyncio.run(main())
