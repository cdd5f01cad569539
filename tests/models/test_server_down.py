from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from fixed_readers import numbered
from servers.redis_server import wait_until

from memagent_graph import ReadingConfig, create_memagent
from memagent_graph.errors import ModelError, TransientModelError
from memagent_graph.models.endpoint import ChatEndpoint


@pytest.fixture
def server(openai_server):
    """A server that takes long enough for calls to be under way together."""
    at_once = openai_server.reply

    def reply(body):
        time.sleep(0.02)
        return at_once(body)

    openai_server.reply = reply
    return openai_server


def prompts(server):
    return Counter(body["messages"][-1]["content"] for body in server.requests)


def killed_and_restarted(server, after):
    """Kill the server once it has had `after` requests; start it when calls have failed."""

    def run():
        while len(server.requests) < after:
            time.sleep(0.001)
        server.kill()
        time.sleep(0.5)
        server.start()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.mark.slow
async def test_a_batch_whose_server_is_killed_and_restarted_completes_and_reads_nothing_thrice(
    server,
):
    model = ChatEndpoint(model="small", base_url=server.base_url)
    agent = create_memagent(model, config=ReadingConfig(chunk_tokens=60, retry_interval=0.05))
    asked = [
        {"question": f"What is where in {number}?", "document": numbered(20)}
        for number in range(32)
    ]
    expected = [out["memory"] for out in await agent.abatch(asked)]
    calls = len(server.requests)
    server.requests.clear()

    restarts = killed_and_restarted(server, after=calls // 2)
    outs = await agent.abatch(asked)
    restarts.join()

    assert [out["memory"] for out in outs] == expected
    assert len(prompts(server)) == calls
    assert max(prompts(server).values()) <= 2
    await model.aclose()


async def test_a_reading_waits_for_a_server_that_is_down_and_attempts_do_not_count(server):
    model = ChatEndpoint(model="small", base_url=server.base_url)
    config = ReadingConfig(chunk_tokens=60, retry_interval=0.01, max_attempts=1)
    agent = create_memagent(model, config=config)
    await model.ainvoke("Hello")
    server.kill()

    waiting = [
        asyncio.create_task(agent.ainvoke({"question": f"{n}?", "document": numbered(5)}))
        for n in range(20)
    ]
    done, _ = await asyncio.wait(waiting, timeout=0.5)
    server.start()
    outs = await asyncio.gather(*waiting)

    assert not done
    assert len({out["memory"] for out in outs}) == 20
    assert max(prompts(server).values()) == 1
    await model.aclose()


@pytest.mark.slow
async def test_a_server_that_stays_away_is_a_lasting_error_after_the_timeout(server):
    model = ChatEndpoint(model="small", base_url=server.base_url, timeout=0.3)
    config = ReadingConfig(chunk_tokens=60, retry_interval=0.01, max_attempts=2)
    agent = create_memagent(model, config=config)
    await model.ainvoke("Hello")
    server.kill()
    begun = time.monotonic()

    with pytest.raises(ModelError, match=r"chunk 1 failed after \d+ attempts.*cannot be") as caught:
        await agent.ainvoke({"question": "?", "document": numbered(20)})

    assert time.monotonic() - begun > 0.3
    assert not isinstance(caught.value, TransientModelError)
    server.start()
    await model.aclose()


async def test_health_says_whether_the_server_answers(server):
    model = ChatEndpoint(model="small", base_url=server.base_url)

    up = [await model.ahealth(), model.health()]
    server.kill()
    down = [await model.ahealth(), model.health()]
    server.start()

    assert (up, down) == ([True, True], [False, False])
    await model.aclose()
    model.close()


@pytest.mark.parametrize("status", [502, 503])
async def test_a_gateway_without_its_server_counts_as_down_and_an_overloaded_server_does_not(
    status, server
):
    model = ChatEndpoint(model="small", base_url=server.base_url)
    server.script = [429, status]

    for patience in (0, model.timeout):
        with pytest.raises(TransientModelError) as caught:
            await model.ainvoke("Hello")
        assert caught.value.patience == patience
    await model.aclose()


def test_threads_and_event_loops_share_one_limit(server):
    first = threading.Barrier(4)  # so that four are under way together, however busy the machine
    at_once, waiting = server.reply, iter(range(4))

    def reply(body):
        if next(waiting, None) is not None:
            first.wait(240)
        return at_once(body)

    server.reply = reply
    model = ChatEndpoint(model="small", base_url=server.base_url, max_concurrency=4)

    async def several():
        await asyncio.gather(*(model.ainvoke("Hello") for _ in range(10)))

    with ThreadPoolExecutor(6) as threads:
        loops = [threads.submit(asyncio.run, several()) for _ in range(3)]
        calls = [threads.submit(model.invoke, "Hello") for _ in range(10)]
        streams = [threads.submit(lambda: list(model.stream("Hello"))) for _ in range(10)]
        for future in (*loops, *calls, *streams):
            future.result()

    assert len(server.requests) == 50
    assert server.most == 4
    model.close()


async def test_calls_get_their_turns_in_order_whoever_gives_up(server):
    model = ChatEndpoint(model="small", base_url=server.base_url, max_concurrency=1)
    server.script = ["hang"]

    calls = [asyncio.create_task(model.ainvoke(f"Call {number}")) for number in range(6)]
    await asyncio.to_thread(wait_until, lambda: not server.script, "the call", seconds=240)
    for given_up in calls[::2]:
        given_up.cancel()
    await asyncio.gather(*calls, return_exceptions=True)

    assert list(prompts(server)) == ["Call 0", "Call 1", "Call 3", "Call 5"]
    await model.aclose()


async def test_a_cancelled_call_gives_its_turn_back(server):
    server.script = ["hang"]
    model = ChatEndpoint(model="small", base_url=server.base_url, max_concurrency=1)

    hung = asyncio.create_task(model.ainvoke("Hello"))
    await asyncio.to_thread(wait_until, lambda: not server.script, "the call", seconds=240)
    hung.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hung
    await model.ainvoke("Hello")
    async for _ in model.astream("Hello"):
        break
    await model.ainvoke("Hello")

    await model.aclose()


async def test_a_server_that_never_answered_is_not_waited_for(server):
    model = ChatEndpoint(model="small", base_url=server.base_url)
    config = ReadingConfig(chunk_tokens=60, retry_interval=0.01, max_attempts=2)
    server.kill()

    with pytest.raises(ModelError, match="chunk 1 failed after 2 attempts"):
        await create_memagent(model, config=config).ainvoke({"question": "?", "document": "A."})

    server.start()
    await model.aclose()


async def test_a_synchronous_call_does_not_wait_for_the_loop_that_it_holds_up(server):
    model = ChatEndpoint(model="small", base_url=server.base_url, max_concurrency=1)

    first = asyncio.create_task(model.ainvoke("Hello"))
    await asyncio.sleep(0)  # its turn is taken, or it waits for it
    replies = [model.invoke("Hello").text, "".join(p.text for p in model.stream("Hello"))]

    assert {*replies, (await first).text} == {replies[0]}
    model.close()
