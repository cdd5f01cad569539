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


def test_a_request_and_its_answer_are_passed_on_byte_for_byte(behind, upstream):
    answer = b'{ "what the server says": [1.0, "\\u00e9"] }'
    for path, body in BODIES.items():
        upstream.script, asked = [answer], {"model": "small", **body, "odd": [1.0]}

        found = behind.post(path, json=asked)

        assert (found.status_code, found.content) == (200, answer)
        assert (upstream.paths[-1], upstream.requests[-1]) == (path, asked)
        assert behind.metric("memagent_requests_total", path=path, how="passed", status="200") == 1


@pytest.mark.parametrize("path", BODIES)
def test_a_model_without_a_server_refuses_by_name(shared, path):
    found = shared.post(path, json={"model": "extractive", **BODIES[path]})

    assert found.status_code == 404
    assert found.json()["error"]["code"] == "not_offered"
    assert f"'extractive' has no {path}" in found.json()["error"]["message"]


def test_so_does_a_model_whose_server_has_no_such_path(behind, upstream):
    for status in (404, 405):
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
