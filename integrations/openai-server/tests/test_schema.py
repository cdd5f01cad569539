"""The OpenAPI schema, and a client that is generated from it."""

from __future__ import annotations

import json
import shutil

import pytest
from openapi_spec_validator import validate
from release.packages import Environment

from memagent_openai_server import create_app

CALLS = """
import json, sys
from generated import AuthenticatedClient, models
from generated.api.default import (
    chat_completions, deleted_response, embeddings, list_models, new_response, ping, response,
)

needle, question = "The vault opens at 6:40.", "When does the vault open?"
client = AuthenticatedClient(base_url=sys.argv[1], token="the-key-of-ann-0123456789")
asked = models.ChatRequest(
    model=models.ChatRequestModel.EXTRACTIVE,
    messages=[models.Message(role=models.MessageRole.USER, content=f"{needle}\\n\\n{question}")],
)
chat = chat_completions.sync(client=client, body=asked, x_memagent_session="monday")
asked = models.ResponseRequest(
    model=models.ResponseRequestModel.EXTRACTIVE, input_=f"{needle}\\n\\n{question}"
)
made = new_response.sync(client=client, body=asked)
again = response.sync(made.id, client=client)
gone = deleted_response.sync(made.id, client=client)
asked = models.EmbeddingRequest(model=models.EmbeddingRequestModel.EXTRACTIVE, input_="a")
print(json.dumps({
    "chat": chat.choices[0].message.content,
    "coverage": chat.memagent.coverage,
    "response": again.output[-1].additional_properties["content"][0]["text"],
    "deleted": gone.deleted,
    "models": [card.id for card in list_models.sync(client=client).data],
    "refused": embeddings.sync(client=client, body=asked).error.code,
    "ping": ping.sync(client=client).additional_properties,
}))
"""


@pytest.fixture
def environment(tmp_path):
    """An empty one, which is deleted: pytest would keep the last three."""
    yield Environment(tmp_path)
    shutil.rmtree(tmp_path)


def test_it_is_valid_and_names_the_models():
    schema = create_app({"one": "extractive", "two": "extractive"}).openapi()

    validate(schema)
    kinds = [name for name in schema["components"]["schemas"] if name.endswith("Request")]
    assert len(kinds) == 6
    for kind in kinds:
        found = schema["components"]["schemas"][kind]["properties"]["model"]
        assert found == {"type": "string", "enum": ["one", "two"]}


def test_every_path_says_what_it_gives_and_how_it_fails():
    paths = create_app().openapi()["paths"]

    operations = [each for path in paths.values() for each in path.values()]
    assert len({each["operationId"] for each in operations}) == len(operations)
    for path in (path for path in paths if path.startswith(("/v1/", "/tok", "/detok"))):
        for operation in paths[path].values():
            content = operation["responses"]["200"]["content"]["application/json"]
            assert "$ref" in content["schema"], path
            assert "404" in operation["responses"]


@pytest.mark.release
def test_a_client_is_generated_from_it_and_talks_to_the_server(serve, environment):
    server = serve(keys={"the-key-of-ann-0123456789": "ann"})
    folder = environment.folder
    (folder / "schema.json").write_text(json.dumps(server.app.openapi()))
    (folder / "config.yaml").write_text("post_hooks: []")
    (folder / "calls.py").write_text(CALLS)
    environment.install("openapi-python-client>=0.26", "python-dateutil")
    options = ["--meta=none", "--output-path=generated", "--config=config.yaml"]
    options += ["--fail-on-warning", "--path=schema.json"]

    environment.run("openapi-python-client", "generate", *options)
    said = json.loads(environment.run("python", "calls.py", server.url).stdout)

    assert said == {
        "chat": "The vault opens at 6:40.",
        "coverage": 1.0,
        "response": "The vault opens at 6:40.",
        "deleted": True,
        "models": ["extractive"],
        "refused": "not_offered",
        "ping": {"status": "ok"},
    }
