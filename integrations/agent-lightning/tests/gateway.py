"""The rollout and event routes of Agent Lightning 1.0.2's gateway, with a scripted policy.

For tests of the worker, which meets this gateway only. `test_gateway.py` runs `MemAgentRollout` on
Agent Lightning's own, which needs Python 3.12, in processes that its controller starts.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Self

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

_NEXT = {"queuing": {"running", "failed"}, "running": {"succeeded", "failed"}}
_PROXY = "/proxy/rollout/{name}/attempt/0/mode/{mode}/openai/v1/chat/completions"


class Gateway:
    """Answers on a real socket; `reply` makes the policy's reply of a prompt.

    Calls of the policy wait until there are `hold` at once, and `most` is how many there were. Of
    each rollout it keeps the task, `state`, `rewards` and the `calls` of the policy.
    """

    def __init__(self, reply: Callable[[str], str], *, hold: int = 0) -> None:
        self.reply = reply
        self.rollouts: dict[str, dict[str, Any]] = {}
        self.most = self._now = 0
        self._hold = hold
        self._enough = asyncio.Event()
        routes = [
            Route(_PROXY, self._ask, methods=["POST"]),
            Route("/api/rollouts", self._list),
            Route("/api/rollouts/{name}/attempt/0/events", self._reward, methods=["POST"]),
            Route("/api/rollouts/{name}", self._move, methods=["PATCH"]),
        ]
        config = uvicorn.Config(
            Starlette(routes=routes), port=0, backlog=2048, log_level="error", ws="none"
        )
        self._server = uvicorn.Server(config)

    def add(self, name: str, task: dict[str, Any], **fields: Any) -> None:
        about = {"input": task, "is_train": True, "config": {"timeout_seconds": 600}}
        self.rollouts[name] = {**about, **fields, "state": "queuing", "rewards": [], "calls": []}

    @property
    def under_way(self) -> bool:
        """Whether a rollout waits or is read."""
        return any(one["state"] in _NEXT for one in self.rollouts.values())

    async def __aenter__(self) -> Self:
        self._serving = asyncio.create_task(self._server.serve())
        while not self._server.started:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.01)
        self.url = f"http://127.0.0.1:{self._server.servers[0].sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._enough.set()
        await self._serving

    async def _list(self, request: Request) -> JSONResponse:
        waiting = [{"rollout_id": name, **one} for name, one in self.rollouts.items()]
        queuing = [one for one in waiting if one["state"] == "queuing"]
        return JSONResponse(queuing[: int(request.query_params["limit"])])

    async def _reward(self, request: Request) -> JSONResponse:
        rollout = self.rollouts[request.path_params["name"]]
        rollout["rewards"].append((await request.json())["data"]["value"])
        return JSONResponse({})

    async def _move(self, request: Request) -> JSONResponse:
        one, status = self.rollouts[request.path_params["name"]], (await request.json())["status"]
        if status["state"] not in _NEXT.get(one["state"], ()):
            return JSONResponse({"detail": f"{one['state']} -> {status['state']}"}, 409)
        one |= status
        return JSONResponse({})

    async def _ask(self, request: Request) -> JSONResponse:
        self._now += 1
        self.most = max(self.most, self._now)
        if self._now >= self._hold:
            self._enough.set()
        await self._enough.wait()
        self._now -= 1
        body, about = await request.json(), request.path_params
        self.rollouts[about["name"]]["calls"].append({**body, "mode": about["mode"]})
        message = {"role": "assistant", "content": self.reply(body["messages"][-1]["content"])}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        head = {"id": "c", "object": "chat.completion", "created": 1, "model": "policy"}
        return JSONResponse({**head, "choices": [choice]})
