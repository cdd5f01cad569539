"""One chat model object, of LangChain's own clients, replies and folds, from any kind of code."""

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from conversations import agent_with, of, words_in
from langgraph.store.memory import InMemoryStore

from memagent_graph import ConversationMemory

APPLICATION = "You sell boats."
TURNS = 6


class Handler(BaseHTTPRequestHandler):
    """Speaks the APIs of both, and repeats what it is to note of a turn.

    It keeps no connection: these clients fail by themselves if one is kept from an event loop that
    has ended.
    """

    def do_POST(self):
        asked = self.rfile.read(int(self.headers["Content-Length"])).decode()
        reply = "I see."
        if APPLICATION not in asked:  # a fold
            reply = "\n".join(f"Owns boat {n}." for n in range(TURNS) if f"boat {n}" in asked)
        body = {"id": "1", "model": "small", "role": "assistant", "type": "message"}
        if self.path.endswith("/messages"):
            body["content"] = [{"type": "text", "text": reply}]
            body |= {"stop_reason": "end_turn", "stop_sequence": None}
            body["usage"] = {"input_tokens": 9, "output_tokens": 9}
        else:
            message = {"role": "assistant", "content": reply}
            body |= {"object": "chat.completion", "created": 1}
            body["choices"] = [{"index": 0, "message": message, "finish_reason": "stop"}]
            body["usage"] = {"prompt_tokens": 9, "completion_tokens": 9, "total_tokens": 18}
        content = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


OPTIONS = {"model": "small", "api_key": "none", "max_retries": 0, "timeout": 60}


def openai(server):
    client = pytest.importorskip("langchain_openai")
    return client.ChatOpenAI(base_url=f"{server}/v1", **OPTIONS)


def anthropic(server):
    client = pytest.importorskip("langchain_anthropic", reason="make test-deepagents installs it")
    return client.ChatAnthropic(base_url=server, **OPTIONS)


def in_turn(agent, turns):
    return [agent.invoke(*turn) for turn in turns]


def in_one_loop(agent, turns):
    async def talk():
        return [await agent.ainvoke(*turn) for turn in turns]

    return asyncio.run(talk())


def in_a_loop_each(agent, turns):
    return [asyncio.run(agent.ainvoke(*turn)) for turn in turns]


def mixed(agent, turns):
    async def both():
        return await agent.ainvoke(*turns[0]), await asyncio.to_thread(agent.invoke, *turns[1])

    first = asyncio.run(both())
    return [*first, *in_turn(agent, turns[2:4]), *in_a_loop_each(agent, turns[4:])]


def in_threads(agent, turns):
    def run(turn):
        return agent.invoke(*turn) if turn[0]["number"] % 2 else asyncio.run(agent.ainvoke(*turn))

    with ThreadPoolExecutor(len(turns)) as pool:
        return [*pool.map(run, turns)]


@pytest.mark.slow
@pytest.mark.parametrize("way", [in_turn, in_one_loop, in_a_loop_each, mixed, in_threads])
@pytest.mark.parametrize("client", [openai, anthropic])
def test_a_model_object_replies_and_folds_in_any_kind_of_code(client, way, server, caplog):
    memory = ConversationMemory(model := client(server), store=InMemoryStore())
    agent = agent_with(memory, model=model, system_prompt=APPLICATION)
    said = [{"messages": [("human", f"I own boat {n}.")], "number": n} for n in range(TURNS)]

    outputs = way(agent, [(one, of("ann", f"t{n}")) for n, one in enumerate(said)])

    assert [out["messages"][-1].text for out in outputs] == ["I see."] * TURNS
    assert memory.flush() == 0
    boats = [f"boat {number}" for number in range(TURNS)]
    assert words_in(memory.load("ann"), *boats) == boats
    assert not [record for record in caplog.records if record.levelname in {"WARNING", "ERROR"}]
