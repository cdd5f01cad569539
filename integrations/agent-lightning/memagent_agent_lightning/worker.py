"""Read for hundreds of rollouts in one event loop.

A worker takes waiting rollouts from the gateway, in place of Agent Lightning's controller, which
starts a process for each. Any number of workers may serve one gateway: the first one that reports a
rollout as running gets it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from argparse import ArgumentParser
from typing import TYPE_CHECKING, Any

import httpx
from pydantic import ValidationError

from memagent_agent_lightning.rollout import ReadingTask, rollout
from memagent_graph.errors import MemAgentError
from memagent_graph.text.tokens import load_tokenizer

if TYPE_CHECKING:
    from memagent_graph.config import ReadingConfig
    from memagent_graph.prompts import Prompts
    from memagent_graph.rl.grpo import Reward
    from memagent_graph.text.tokens import TokenizerLike

_ATTEMPT = "0"
"""The attempt whose events the gateway returns."""
_CONNECTIONS = 32
"""Most connections to the gateway's API; model calls have their own."""


class Worker:
    """Takes rollouts from a gateway until it is stopped.

    Args:
        url: URL of the gateway.
        key: key of the gateway, if it has one.
        readings: most readings at once. Each may have a socket open: see `ulimit -n`.
        poll: interval of checks for new rollouts, in seconds.
        config: settings of the readings; the paper's by default.
        prompts: the policy's prompts.
        tokenizer: the policy's tokenizer, so that chunks have as many tokens as in the paper.
        reward: a reward function, or the name of one in `memagent_graph.rl.grpo`.

    Attributes:
        done: number of rollouts that were read and rewarded.
        failed: number of rollouts that failed.

    Examples:
        >>> import asyncio
        >>> from memagent_agent_lightning import Worker
        >>> worker = Worker("http://localhost:8080", readings=64)
        >>> asyncio.run(worker.run())  # doctest: +SKIP
    """

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        readings: int = 512,
        poll: float = 1.0,
        config: ReadingConfig | None = None,
        prompts: Prompts | None = None,
        tokenizer: TokenizerLike = None,
        reward: str | Reward = "exact",
    ) -> None:
        self.done = 0
        self.failed = 0
        self._url = url.rstrip("/")
        self._key = key
        self._most = readings
        self._poll = poll
        self._options: dict[str, Any] = {
            "config": config,
            "prompts": prompts,
            "reward": reward,
            "tokenizer": load_tokenizer(tokenizer),
        }
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Take no more rollouts; those under way are finished."""
        self._stopping.set()

    async def run(self) -> None:
        """Read until `stop`. If cancelled, rollouts under way are reported as failed.

        Raises:
            HTTPError: The gateway refuses a request, or cannot be reached.
        """
        try:
            await self._run()
        except ExceptionGroup as failures:  # the first of them ended the others
            raise failures.exceptions[0] from failures

    async def _run(self) -> None:
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        # Servers close an idle connection after some seconds, maybe while a request is on its way.
        limits = httpx.Limits(max_connections=_CONNECTIONS, keepalive_expiry=1)
        transport = httpx.AsyncHTTPTransport(retries=5, limits=limits)
        async with (
            httpx.AsyncClient(
                base_url=self._url, headers=headers, transport=transport, timeout=60
            ) as gateway,
            asyncio.TaskGroup() as reading,
        ):
            under_way: set[asyncio.Task[None]] = set()
            while not self._stopping.is_set():
                for found in await self._waiting(gateway, self._most - len(under_way)):
                    task = reading.create_task(self._serve(gateway, found))
                    under_way.add(task)
                    task.add_done_callback(under_way.discard)
                await self._pause()

    async def _waiting(self, gateway: httpx.AsyncClient, room: int) -> list[dict[str, Any]]:
        """Take waiting rollouts, and return those that this worker got."""
        if room <= 0:
            return []
        params: dict[str, str | int] = {"state_in": "queuing", "limit": room}
        reply = await gateway.get("/api/rollouts", params=params)
        found: list[dict[str, Any]] = reply.raise_for_status().json()
        running = {"state": "running", "last_attempt_id": _ATTEMPT}
        taken = await asyncio.gather(
            *(self._report(gateway, one["rollout_id"], running) for one in found)
        )
        return [one for one, mine in zip(found, taken, strict=True) if mine]

    async def _serve(self, gateway: httpx.AsyncClient, found: dict[str, Any]) -> None:
        """Read for one rollout, and report its reward, or why it failed."""
        name = found["rollout_id"]
        mode = "train" if found.get("is_train", True) else "val"
        base_url = f"{self._url}/proxy/rollout/{name}/attempt/{_ATTEMPT}/mode/{mode}/openai/v1"
        limit = (found.get("config") or {}).get("timeout_seconds")
        status = {"state": "failed", "error_message": "the worker was stopped"}
        try:
            task = ReadingTask.model_validate(found["input"])
            async with asyncio.timeout(limit):
                worth = await rollout(task, base_url, api_key=self._key, **self._options)
            event = {"event_type": "reward", "data": {"value": worth, "source": "agent"}}
            events = f"/api/rollouts/{name}/attempt/{_ATTEMPT}/events"
            (await gateway.post(events, json=event)).raise_for_status()
            status = {"state": "succeeded"}
        except TimeoutError:
            status["error_message"] = f"the reading took more than {limit} seconds"
        except (MemAgentError, ValidationError, OSError, httpx.HTTPError) as error:
            status["error_message"] = f"{type(error).__name__}: {error}"
        finally:
            succeeded = status["state"] == "succeeded"
            self.done, self.failed = self.done + succeeded, self.failed + (not succeeded)
            await asyncio.shield(self._report(gateway, name, status))

    async def _report(self, gateway: httpx.AsyncClient, name: str, status: dict[str, str]) -> bool:
        """Report a status, and return whether the gateway accepted it; not if another was first."""
        reply = await gateway.patch(f"/api/rollouts/{name}", json={"status": status})
        if reply.status_code in {httpx.codes.CONFLICT, httpx.codes.NOT_FOUND}:
            return False
        reply.raise_for_status()
        return True

    async def _pause(self) -> None:
        try:
            await asyncio.wait_for(self._stopping.wait(), self._poll)
        except TimeoutError:
            return


async def work(worker: Worker) -> None:
    """Run a worker until SIGINT or SIGTERM."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, worker.stop)
    await worker.run()


def main() -> None:
    """`python -m memagent_agent_lightning.worker URL [--tokenizer ID] [--reward NAME] ...`."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("url", help="URL of the gateway; AGL_KEY is its key")
    parser.add_argument("--tokenizer", help="folder or hub id of the policy's tokenizer")
    parser.add_argument("--reward", default="exact", help="name in memagent_graph.rl.grpo")
    parser.add_argument("--readings", type=int, default=512, help="most readings at once")
    parser.add_argument("--poll", type=float, default=1.0, help="seconds between checks")
    given = parser.parse_args()
    try:
        asyncio.run(work(Worker(key=os.environ.get("AGL_KEY"), **vars(given))))
    except MemAgentError as error:
        sys.exit(f"error: {error}")
    except httpx.HTTPError as error:
        sys.exit(f"error: The gateway {given.url} failed: {error}. Check agl-server and AGL_KEY.")


if __name__ == "__main__":
    main()
