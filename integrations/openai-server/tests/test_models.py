"""Several models behind one server."""

from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest
from servers.openai_server import OpenAIServer
from servers.redis_server import wait_until

from memagent_graph.errors import ConfigurationError
from memagent_openai_server import Served, create_app
from memagent_openai_server.models import models_from_file

HI = [{"role": "user", "content": "Hello there"}]


@pytest.fixture
def other():
    server = OpenAIServer(lambda body: "I am the other.")
    server.models = [{"id": "org/other", "max_model_len": 1024}]
    yield server
    server.close()


@pytest.fixture
def both(serve, upstream, other, small):
    models = {
        "small": Served("openai:small", upstream.base_url),
        "fast": Served("openai:org/other", other.base_url, window=1500),
        "extractive": "extractive",
    }
    return serve(models, config=small)


def test_all_are_listed_each_with_its_window(both):
    client = both.client()

    listed = [(card.id, getattr(card, "max_model_len", None)) for card in client.models.list().data]

    assert listed == [("small", 2048), ("fast", 1500), ("extractive", None)]
    assert client.models.retrieve("fast").max_model_len == 1500


def test_a_request_goes_to_its_model_by_the_name_that_its_server_knows(both, upstream, other):
    client = both.client()

    said = [
        client.chat.completions.create(model=name, messages=HI).choices[0].message.content
        for name in ("small", "fast")
    ]
    response = client.responses.create(model="fast", input="Hello")
    other.script = [b"{}"]
    both.post("/tokenize", json={"model": "fast", "prompt": "Hello"})

    assert said == ["Nothing was found.", "I am the other."]
    assert response.output_text == "I am the other."
    assert response.model == "fast"
    assert [body["model"] for body in upstream.requests] == ["small"]
    assert [body["model"] for body in other.requests] == ["org/other"] * 3


def test_a_model_that_none_of_them_is_is_not_there(both):
    with pytest.raises(openai.NotFoundError, match="'small', 'fast', 'extractive'") as caught:
        both.ask(HI, model="large")

    assert caught.value.code == "model_not_found"
    assert httpx.get(f"{both.url}/v1/models/large").status_code == 404


def test_readings_of_all_models_end_at_one_signal(both, upstream, other, asked):
    upstream.script, other.script = ["hang"], ["hang"]
    with ThreadPoolExecutor(2) as pool:
        bodies = [{"model": name, "messages": asked()} for name in ("small", "fast")]
        waiting = [pool.submit(both.post, json=body) for body in bodies]
        wait_until(lambda: upstream.requests and other.requests, "both readings", seconds=240)
        both.signal()
        ended = [each.result() for each in waiting]

    assert [found.json()["error"]["code"] for found in ended] == ["stopping", "stopping"]


async def test_a_model_too_small_to_read_is_served_next_to_one_that_is_not(upstream, other, small):
    other.models = [{"id": "org/other", "max_model_len": 100}]
    tiny = Served("openai:org/other", other.base_url)
    models = {"small": Served("openai:small", upstream.base_url), "tiny": tiny}

    await create_app(models, config=small).state.models.check()
    with pytest.raises(ConfigurationError, match="Lower question_tokens"):
        await create_app({"tiny": tiny}, config=small).state.models.check()


async def test_a_model_without_a_known_context_is_named_at_the_start(
    upstream, other, small, caplog
):
    other.models = [{"id": "org/other"}]
    models = {
        "silent": Served("openai:org/other", other.base_url),
        "given": Served("openai:org/other", other.base_url, 4096),
        "small": Served("openai:small", upstream.base_url),
        "built in": "extractive",
    }

    await create_app(models, config=small).state.models.check()

    (warned,) = caplog.records
    assert "--window" in warned.message
    assert warned.fields == {"model": "silent"}


def test_models_are_read_from_a_file(tmp_path, monkeypatch):
    monkeypatch.setenv("OTHER_KEY", "sk-other")
    file = tmp_path / "models.toml"
    file.write_text("""
[small]
model = "openai:small"
base_url = "http://localhost:8000/v1"
window = 2048

["org/other"]
model = "openai:other"
base_url = "http://localhost:8001/v1"
key = "OTHER_KEY"

[extractive]
model = "extractive"
""")

    found = models_from_file(file)
    served = create_app(found).state.models

    assert found["small"] == Served("openai:small", "http://localhost:8000/v1", 2048)
    assert found["extractive"] == Served("extractive")
    other = served["org/other"].chat
    assert (other.model, other.base_url) == ("other", "http://localhost:8001/v1")
    assert other.api_key.get_secret_value() == "sk-other"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "at least one"),
        ("[a", "cannot be read"),
        ("a = 1", "a: Input should be"),
        ("[a]\nmodle = 'x'", "a.model: Field required"),
        ("[a]\nmodel = 'extractive'\nwindow = 0", "a.window"),
        ("[a]\nmodel = 'openai:x'\nkey = 'MEMAGENT_UNSET'", "MEMAGENT_UNSET, the key"),
        ("[a]\nmodel = 'extractive'\nkey = 'HOME'", "takes no model arguments"),
        ("[a]\nmodel = 3", "model= takes a string"),
    ],
)
def test_a_file_that_says_something_else_is_refused(tmp_path, text, message):
    file = tmp_path / "models.toml"
    file.write_text(text)

    with pytest.raises(ConfigurationError, match=message):
        create_app(models_from_file(file))
    with pytest.raises(ConfigurationError, match="cannot be read"):
        models_from_file(tmp_path / "none.toml")
