"""Paths that are passed on to the model's server, and those for probes."""

from importlib.metadata import version

import httpx
import openai
import pytest

KEY = "the-key-of-ann-0123456789"
BODIES = {
    "/v1/completions": {"prompt": "Once upon"},
    "/v1/embeddings": {"input": ["a", "b"]},
    "/tokenize": {"prompt": "Hello"},
    "/detokenize": {"tokens": [1, 2]},
}


@pytest.mark.parametrize("path", BODIES)
def test_a_request_and_its_answer_are_passed_on_byte_for_byte(behind, upstream, path):
    answer = b'{ "what the server says": [1.0, "\\u00e9"] }'
    upstream.script = [answer]

    found = behind.post(path, json={"model": "small", **BODIES[path], "odd": [1.0]})

    assert found.status_code == 200
    assert found.content == answer
    assert upstream.paths == [path]
    assert upstream.requests == [{"model": "small", **BODIES[path], "odd": [1.0]}]
    assert behind.metric("memagent_requests_total", path=path, how="passed", status="200") == 1


@pytest.mark.parametrize("path", BODIES)
def test_a_model_without_a_server_refuses_by_name(shared, path):
    found = shared.post(path, json={"model": "extractive", **BODIES[path]})

    assert found.status_code == 404
    assert found.json()["error"]["code"] == "not_offered"
    assert f"'extractive' has no {path}" in found.json()["error"]["message"]


@pytest.mark.parametrize("status", [404, 405])
def test_so_does_a_model_whose_server_has_no_such_path(behind, upstream, status):
    upstream.script = [status]

    with pytest.raises(openai.NotFoundError, match="'small' has no /v1/embeddings") as caught:
        behind.client().embeddings.create(model="small", input="a")

    assert caught.value.code == "not_offered"


def test_a_probe_needs_no_key_and_the_version_does(serve):
    server = serve(keys={KEY: "ann"})

    ping = httpx.get(f"{server.url}/ping")
    closed = httpx.get(f"{server.url}/version")
    opened = httpx.get(f"{server.url}/version", headers={"authorization": f"Bearer {KEY}"})

    assert ping.json() == {"status": "ok"}
    assert closed.status_code == 401
    assert opened.json() == {"version": version("memagent-openai-server")}
