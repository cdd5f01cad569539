"""A server that fails some calls and answers most is not one that is away."""

from __future__ import annotations

import random
import threading
from contextlib import closing

import pytest
from fixed_readers import numbered
from servers.openai_server import OpenAIServer, hash_of_prompt

from memagent_graph import ReadingConfig, create_memagent
from memagent_graph.models.endpoint import ChatEndpoint

DOCUMENTS, CHUNKS = 20, 5
SMALL = ReadingConfig(chunk_tokens=60, retry_interval=0.05)


def asked():
    return [
        {"question": f"What is where in {number}?", "document": numbered(25)}
        for number in range(DOCUMENTS)
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
async def test_with_one_request_in_ten_failing_all_documents_come_to_their_answers(
    openai_server, expected
):
    model = ChatEndpoint(model="small", base_url=openai_server.base_url)
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
    await model.aclose()


@pytest.mark.slow
async def test_refusals_before_the_first_reply_of_a_slow_server_cost_no_document(openai_server):
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
    model = ChatEndpoint(model="small", base_url=openai_server.base_url)
    agent = create_memagent(model, config=SMALL)

    outs = await agent.abatch(asked())

    assert len({out["memory"] for out in outs}) == DOCUMENTS
    assert len(openai_server.requests) == DOCUMENTS * (CHUNKS + 1) + 4
    await model.aclose()
