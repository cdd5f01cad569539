import os
import socket
import threading
import time
from pathlib import Path

import httpx
import pytest
from openai import OpenAI
from servers.openai_server import OpenAIServer

from memagent_graph import ReadingConfig
from memagent_openai_server import create_app
from memagent_openai_server.app import make_server

QUESTION = "When does the vault open?"
NEEDLE = "The vault opens at 6:40."
SMALL = ReadingConfig(
    question_tokens=200, chunk_tokens=400, memory_tokens=100, answer_tokens=100, retry_interval=0.01
)
"""Budgets that fit the 2,048 tokens which the scripted server says that its model holds."""


def long_text(sentences: int = 700, *, needle: str = NEEDLE) -> str:
    lines = [f"Item {number} stands on shelf {number % 7}." for number in range(sentences)]
    lines.insert(sentences // 2, needle)
    return " ".join(lines)


class Running:
    """The application under uvicorn, in a thread of its own, on a free port."""

    def __init__(self, *args, **options) -> None:
        self.app = create_app(*args, **options)
        self.service = self.app.state.service
        self._server = make_server(self.app)
        self._thread = threading.Thread(target=self._server.run)
        self._thread.start()
        while not self._server.started:
            assert self._thread.is_alive()
            time.sleep(0.01)
        self.port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._clients: list[OpenAI] = []

    def client(self, key="not-needed", **options) -> OpenAI:
        options = {"max_retries": 0, **options}
        client = OpenAI(base_url=f"{self.url}/v1", api_key=key, **options)
        self._clients.append(client)
        return client

    def ask(self, messages, **fields):
        """The chat completion of the official SDK, or its stream."""
        fields = {"model": "small", "messages": messages, **fields}
        return self.client().chat.completions.create(**fields)

    def post(self, path="/v1/chat/completions", **options) -> httpx.Response:
        return httpx.post(f"{self.url}{path}", timeout=240, **options)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=240)

    def metric(self, name: str, **labels) -> float:
        from prometheus_client.parser import text_string_to_metric_families

        text = httpx.get(f"{self.url}/metrics").text
        families = text_string_to_metric_families(text)
        samples = [one for family in families for one in family.samples if one.name == name]
        return sum(one.value for one in samples if labels.items() <= one.labels.items())

    def signal(self) -> None:
        """As SIGTERM does."""
        self._server.handle_exit(15, None)

    def stop(self) -> None:
        for client in self._clients:
            client.close()
        self.signal()

    @property
    def is_busy(self) -> bool:
        """Whether its end may still log something, or fold it."""
        return bool(self._server.server_state.tasks or self.service.remember)

    def close(self) -> None:
        self.stop()
        self._thread.join(240)
        assert not self._thread.is_alive()


@pytest.fixture(scope="session")
def stopped():
    """Servers that have begun to end, which takes uvicorn 0.2 seconds: the next test goes on."""
    servers: list[Running] = []
    yield servers
    for each in servers:
        each.close()


@pytest.fixture
def serve(stopped):
    running: list[Running] = []

    def start(*args, **options) -> Running:
        running.append(Running(*args, **options))
        return running[-1]

    yield start
    for each in running:
        if each.is_busy:
            each.close()
        else:
            each.stop()
            stopped.append(each)


@pytest.fixture
def upstream():
    """A scripted model server whose notes are the needle, once it was in a prompt."""

    def reply(body):
        prompt = "\n".join(str(message["content"]) for message in body["messages"])
        return NEEDLE if NEEDLE in prompt else "Nothing was found."

    server = OpenAIServer(reply)
    server.models = [{"id": "small", "max_model_len": 2048, "owned_by": "vllm"}]
    yield server
    server.close()


@pytest.fixture
def behind(serve, upstream):
    return serve("openai:small", base_url=upstream.base_url, config=SMALL)


@pytest.fixture
def builtin(serve):
    return serve()


@pytest.fixture(scope="module")
def shared():
    """As `builtin`, one for all tests of a module."""
    running = Running()
    yield running
    running.close()


@pytest.fixture
def environment():
    """Variables of a process that finds the packages of this checkout."""
    here = Path(__file__).parents[1]
    paths = [str(path) for path in (here.parents[1], here, here.with_name("http"))]
    paths += filter(None, [os.environ.get("PYTHONPATH")])
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MEMAGENT_")}
    return {**kept, "PYTHONPATH": os.pathsep.join(paths)}


@pytest.fixture(params=[False, True], ids=["whole", "streamed"])
def stream(request):
    return request.param


@pytest.fixture
def question():
    return QUESTION


@pytest.fixture
def needle():
    return NEEDLE


@pytest.fixture
def small():
    return SMALL


@pytest.fixture
def text():
    return long_text


@pytest.fixture
def asked():
    """Messages of one turn: a long text, and a question at its end."""

    def make(sentences: int = 700, question: str = QUESTION) -> list[dict]:
        return [{"role": "user", "content": f"{long_text(sentences)}\n\n{question}"}]

    return make
