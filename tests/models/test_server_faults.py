"""Servers that are down, that come back, and that fail some calls and answer most."""

import asyncio
import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from fixed_readers import numbered
from servers.openai_server import OpenAIServer, hash_of_prompt
from servers.redis_server import wait_until

from memagent_graph import ReadingConfig, create_memagent
from memagent_graph.conversation.profile_reader import ask_each
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
async def test_a_batch_whose_server_is_killed_completes_and_reads_nothing_thrice(server, model):
    agent = create_memagent(model, config=ReadingConfig(chunk_tokens=60, retry_interval=0.05))
    expected = [out["memory"] for out in await agent.abatch(asked())]
    calls = len(server.requests)
    server.requests.clear()

    restarts = killed_and_restarted(server, after=calls // 2)
    outs = await agent.abatch(asked())
    restarts.join()

    assert [out["memory"] for out in outs] == expected
    assert len(prompts(server)) == calls
    assert max(prompts(server).values()) <= 2


async def test_a_reading_waits_for_a_server_that_is_down_and_attempts_do_not_count(server, model):
    config = ReadingConfig(chunk_tokens=60, retry_interval=0.01, max_attempts=1)
    agent = create_memagent(model, config=config)
    await model.ainvoke("Hello")
    server.kill()

    asks = [agent.ainvoke({"question": f"{n}?", "document": numbered(5)}) for n in range(20)]
    waiting = [asyncio.create_task(one) for one in asks]
    done, _ = await asyncio.wait(waiting, timeout=0.5)
    server.start()
    outs = await asyncio.gather(*waiting)

    assert not done
    assert len({out["memory"] for out in outs}) == 20
    assert max(prompts(server).values()) == 1


@pytest.mark.slow
async def test_a_server_that_stays_away_is_a_lasting_error_after_the_timeout(server, endpoint):
    model = endpoint(timeout=0.3)
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


async def test_health_says_whether_the_server_answers(server, model):
    up = [await model.ahealth(), model.health()]
    server.kill()
    down = [await model.ahealth(), model.health()]
    server.start()

    assert (up, down) == ([True, True], [False, False])
    model.close()


@pytest.mark.parametrize("status", [502, 503])
async def test_a_gateway_without_its_server_is_down_and_an_overloaded_server_is_not(
    status, server, model
):
    server.script = [429, status]

    for patience in (0, model.timeout):
        with pytest.raises(TransientModelError) as caught:
            await model.ainvoke("Hello")
        assert caught.value.patience == patience


def test_threads_and_event_loops_share_one_limit(server, endpoint):
    first = threading.Barrier(4)  # so that four are under way together, however busy the machine
    at_once, waiting = server.reply, iter(range(4))
    under_way, most = set(), []

    def reply(body):
        under_way.add(threading.get_ident())
        most.append(len(under_way))
        if next(waiting, None) is not None:
            first.wait(240)
        said = at_once(body)
        under_way.discard(threading.get_ident())
        return said

    server.reply = reply
    model = endpoint(max_concurrency=4)

    async def several():
        await asyncio.gather(*(model.ainvoke("Hello") for _ in range(10)))

    with ThreadPoolExecutor(6) as threads:
        loops = [threads.submit(asyncio.run, several()) for _ in range(3)]
        calls = [threads.submit(model.invoke, "Hello") for _ in range(10)]
        streams = [threads.submit(lambda: list(model.stream("Hello"))) for _ in range(10)]
        for future in (*loops, *calls, *streams):
            future.result()

    assert len(server.requests) == 50
    assert max(most) == 4


async def test_questions_about_many_are_asked_so_many_at_once():
    under_way, most = set(), 0

    async def ask(one):
        nonlocal most
        under_way.add(one)
        most = max(most, len(under_way))
        await asyncio.sleep(0)
        under_way.remove(one)
        return one

    assert await ask_each(ask, range(20), 3) == [*range(20)]
    assert most == 3


async def test_calls_get_their_turns_in_order_whoever_gives_up(server, endpoint):
    model = endpoint(max_concurrency=1)
    server.script = ["hang"]

    calls = [asyncio.create_task(model.ainvoke(f"Call {number}")) for number in range(6)]
    await asyncio.to_thread(wait_until, lambda: not server.script, "the call", seconds=240)
    for given_up in calls[::2]:
        given_up.cancel()
    await asyncio.gather(*calls, return_exceptions=True)

    assert list(prompts(server)) == ["Call 0", "Call 1", "Call 3", "Call 5"]
    async for _ in model.astream("Hello"):
        break  # so does who leaves a stream
    await model.ainvoke("Hello")


async def test_a_server_that_never_answered_is_not_waited_for(server, model):
    config = ReadingConfig(chunk_tokens=60, retry_interval=0.01, max_attempts=2)
    server.kill()

    with pytest.raises(ModelError, match="chunk 1 failed after 2 attempts"):
        await create_memagent(model, config=config).ainvoke({"question": "?", "document": "A."})

    server.start()


async def test_a_synchronous_call_does_not_wait_for_the_loop_that_it_holds_up(server, endpoint):
    model = endpoint(max_concurrency=1)

    first = asyncio.create_task(model.ainvoke("Hello"))
    await asyncio.sleep(0)  # its turn is taken, or it waits for it
    replies = [model.invoke("Hello").text, "".join(p.text for p in model.stream("Hello"))]

    assert {*replies, (await first).text} == {replies[0]}


DOCUMENTS, CHUNKS = 12, 5
SMALL = ReadingConfig(chunk_tokens=60, retry_interval=0.05)


def asked():
    return [
        {"question": f"What is where in {n}?", "document": numbered(25)} for n in range(DOCUMENTS)
    ]


def one_in_ten():
    """A script for many requests, in which each ten have one fault at some place."""
    rng, script = random.Random(1), []
    for number in range(100):
        ten = ["ok"] * 10
        ten[rng.randrange(10)] = FAULTS[number % len(FAULTS)]
        script += ten
    return script


@pytest.fixture(scope="module")
def expected():
    """What the documents' memories are where no request fails."""
    with closing(OpenAIServer(hash_of_prompt)) as server:
        model = ChatEndpoint(model="small", base_url=server.base_url)
        outs = create_memagent(model, config=SMALL).batch(asked())
        model.close()
    assert len(server.requests) == DOCUMENTS * (CHUNKS + 1)
    return tuple(out["memory"] for out in outs)


TOLD_TO_WAIT = {"status": 429, "headers": {"retry-after": "0.2"}}
FAULTS = [503, 502, "reset", "drop", 429, TOLD_TO_WAIT, "cut"]


@pytest.mark.slow
async def test_with_one_request_in_ten_failing_all_are_answered(openai_server, expected, model):
    agent = create_memagent(model, config=SMALL)
    assert (await agent.ainvoke(asked()[0]))["memory"] == expected[0]
    calls = DOCUMENTS * (CHUNKS + 1)
    openai_server.requests.clear()
    script = openai_server.script = one_in_ten()
    planned = list(script)

    outs = await agent.abatch(asked())

    assert tuple(out["memory"] for out in outs) == expected
    failed = len([fault for fault in planned[: len(openai_server.requests)] if fault != "ok"])
    assert failed >= calls // 10
    assert len(openai_server.requests) == calls + failed  # each failure is repeated once
    assert openai_server.asked == 1  # never taken for away: it was asked for its window only


@pytest.mark.slow
async def test_refusals_before_a_slow_server_s_first_reply_cost_no_document(openai_server, model):
    """The first replies come once all documents' calls are held; the list of models is refused."""
    everyone, first = threading.Barrier(DOCUMENTS), iter(range(DOCUMENTS))
    at_once = openai_server.reply

    def reply(body):
        if next(first, None) is not None:
            everyone.wait(240)
        return at_once(body)

    openai_server.reply = reply
    openai_server.listing = 503
    openai_server.script = [503] * 4
    agent = create_memagent(model, config=SMALL)

    outs = await agent.abatch(asked())

    assert len({out["memory"] for out in outs}) == DOCUMENTS
    assert len(openai_server.requests) == DOCUMENTS * (CHUNKS + 1) + 4
