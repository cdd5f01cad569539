import asyncio
import sys
from pathlib import Path

import pytest

from memagent_agent_lightning import Worker
from memagent_graph import ReadingConfig

sys.path.insert(0, str(Path(__file__).parent))
from gateway import Gateway

SMALL = ReadingConfig(chunk_tokens=200, memory_tokens=100, retry_interval=0.01, max_attempts=2)
FILLER = "It rained over the harbour again, and nobody minded. " * 30
TEXT = f"{FILLER}\n\nThe vault opens at 6:40.\n\n{FILLER}"
TASK = {"question": "When does the vault open?", "answers": ["6:40"], "document": TEXT}


def knows(prompt):
    return "\\boxed{6:40}" if "6:40" in prompt else "Nothing yet."


async def served(gateway, *workers):
    """Let workers read until no rollout waits or is read."""
    async with asyncio.TaskGroup() as group:
        running = [group.create_task(worker.run()) for worker in workers]
        while gateway.under_way:
            await asyncio.sleep(0.02)
            assert not any(task.done() for task in running)
        for worker in workers:
            worker.stop()


@pytest.mark.slow
async def test_200_rollouts_are_read_in_one_event_loop_at_once():
    async with Gateway(knows, hold=200) as gateway:
        for number in range(200):
            gateway.add(f"r{number}", {**TASK, "document": "The vault opens at 6:40."})
        worker = Worker(gateway.url, config=SMALL, poll=0.01)

        await served(gateway, worker)

    assert gateway.most == 200
    assert {one["state"] for one in gateway.rollouts.values()} == {"succeeded"}
    assert all(one["rewards"] == [1.0] for one in gateway.rollouts.values())
    assert worker.done == 200


@pytest.mark.slow
async def test_each_rollout_is_read_by_one_worker_with_the_policy_as_it_is():
    async with Gateway(knows) as gateway:
        for number in range(40):
            gateway.add(f"r{number}", TASK, is_train=number > 0)
        workers = [Worker(gateway.url, config=SMALL, poll=0.01, readings=8) for _ in range(3)]

        await served(gateway, *workers)

    assert sum(worker.done for worker in workers) == 40
    assert all(one["rewards"] == [1.0] for one in gateway.rollouts.values())
    counts = {len(one["calls"]) for one in gateway.rollouts.values()}
    assert len(counts) == 1
    calls = [call for one in gateway.rollouts.values() for call in one["calls"]]
    assert {call["mode"] for call in gateway.rollouts["r0"]["calls"]} == {"val"}
    for name, value in {"temperature": 1, "top_p": 1, "top_k": -1, "min_p": 0}.items():
        assert {call[name] for call in calls} == {value}


async def test_a_rollout_that_fails_or_takes_too_long_says_why_and_the_others_go_on():
    async with Gateway(knows) as gateway:
        gateway.add("good", TASK)
        gateway.add("bad", {"question": "?", "answers": []})
        gateway.add("missing", {**TASK, "document": None, "path": "/nowhere/at/all.txt"})
        gateway.add("slow", TASK, config={"timeout_seconds": 0})
        worker = Worker(gateway.url, config=SMALL, poll=0.01)

        await served(gateway, worker)

    states = {name: one["state"] for name, one in gateway.rollouts.items()}
    assert states == {"good": "succeeded", "bad": "failed", "missing": "failed", "slow": "failed"}
    said = {name: one.get("error_message", "") for name, one in gateway.rollouts.items()}
    assert "answers" in said["bad"]
    assert "/nowhere/at/all.txt" in said["missing"]
    assert "0 seconds" in said["slow"]
    assert (worker.done, worker.failed) == (1, 3)


async def test_a_worker_that_is_cancelled_leaves_no_rollout_behind_as_running():
    async with Gateway(knows, hold=10) as gateway:
        for number in range(3):
            gateway.add(f"r{number}", TASK)
        running = asyncio.create_task(Worker(gateway.url, config=SMALL, poll=0.01).run())
        while gateway.most < 3:  # noqa: ASYNC110 - what counts them is no part of this test
            await asyncio.sleep(0.01)

        running.cancel()
        await asyncio.wait([running])
        assert running.cancelled()

    assert {one["state"] for one in gateway.rollouts.values()} == {"failed"}
    assert {one["error_message"] for one in gateway.rollouts.values()} == {"the worker was stopped"}
