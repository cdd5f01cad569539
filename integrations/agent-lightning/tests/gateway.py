"""The rollout and event routes of Agent Lightning 1.0.2's gateway, with a scripted policy.

For tests and measurements of the worker, which meets this gateway only. `test_gateway.py` runs
`MemAgentRollout` on Agent Lightning's own, which needs Python 3.12, in processes that its
controller starts.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any, Self

_NEXT = {"queuing": {"running", "failed"}, "running": {"succeeded", "failed"}}


class Gateway:
    """Answers on a real socket.

    Args:
        reply: from a prompt to the policy's reply.
        hold: calls of the policy that wait until so many are there at once.

    Attributes:
        rollouts: by id, each with its task, `state`, `rewards` and the `calls` of the policy.
        most: calls of the policy at once, at most.
    """

    def __init__(self, reply: Callable[[str], str], *, hold: int = 0) -> None:
        self.reply = reply
        self.rollouts: dict[str, dict[str, Any]] = {}
        self.most = self._now = 0
        self._hold = hold
        self._enough = asyncio.Event()
        self._serving: set[asyncio.Task[None]] = set()

    def add(self, name: str, task: dict[str, Any], **fields: Any) -> None:
        about = {"input": task, "is_train": True, "config": {"timeout_seconds": 600}}
        self.rollouts[name] = {**about, **fields, "state": "queuing", "rewards": [], "calls": []}

    @property
    def under_way(self) -> bool:
        """Whether a rollout waits or is read."""
        return any(one["state"] in _NEXT for one in self.rollouts.values())

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=2048)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self._enough.set()
        while self._serving:
            await asyncio.wait(self._serving)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        mine = asyncio.current_task()
        self._serving.add(mine)
        try:
            while line := await reader.readline():
                method, target, _ = line.decode().split(" ", 2)
                length = 0
                while (header := await reader.readline()).strip():
                    if header.lower().startswith(b"content-length:"):
                        length = int(header.split(b":")[1])
                body = json.loads(await reader.readexactly(length) or b"{}")
                status, found = await self._answer(method, target, body)
                sent = json.dumps(found).encode()
                writer.write(
                    b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
                    % (status, len(sent))
                )
                writer.write(sent)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            self._serving.discard(mine)

    async def _answer(self, method: str, target: str, body: Any) -> tuple[int, Any]:
        if found := re.match(r"/proxy/rollout/([^/]+)/attempt/0/mode/(train|val)/(.*)", target):
            return await self._ask(found[1], found[2], found[3], body)
        if target.startswith("/api/rollouts?"):
            limit = int(re.search(r"limit=(\d+)", target)[1])
            waiting = [{"rollout_id": name, **one} for name, one in self.rollouts.items()]
            return 200, [one for one in waiting if one["state"] == "queuing"][:limit]
        if found := re.fullmatch(r"/api/rollouts/([^/]+)/attempt/0/events", target):
            self.rollouts[found[1]]["rewards"].append(body["data"]["value"])
            return 200, {}
        one = self.rollouts[target.rpartition("/")[2]]
        state = body["status"]["state"]
        if state not in _NEXT.get(one["state"], ()):
            return 409, {"detail": f"cannot transition {one['state']} -> {state}"}
        one |= body["status"]
        return 200, {}

    async def _ask(self, name: str, mode: str, path: str, body: Any) -> tuple[int, Any]:
        if not path.endswith("chat/completions"):
            return 404, {}
        self._now += 1
        self.most = max(self.most, self._now)
        if self._now >= self._hold:
            self._enough.set()
        await self._enough.wait()
        self._now -= 1
        self.rollouts[name]["calls"].append({**body, "mode": mode})
        text = self.reply(body["messages"][-1]["content"])
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        about = {"id": "c", "object": "chat.completion", "created": 1, "model": "policy"}
        return 200, {**about, "choices": [choice]}
