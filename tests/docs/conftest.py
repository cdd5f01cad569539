"""What a reader of the documentation has: an empty folder, a model, servers."""

import json
import os
import re
from functools import cache

import pytest
from servers.openai_server import OpenAIServer
from servers.redis_server import RedisServer

ANN = {"name": "Ann", "diet": "vegan", "address.city": "Paris"}
PROFILES = {
    "Minou is 4 now": {"pets": {"name": "Minou", "age": 4}, "address.city": "Berlin"},
    "a vegan in Paris": {**ANN, "pets": {"name": "Minou"}},
    "I moved to Berlin": {"city": "Berlin"},
}
"""What a model says has changed in a profile, once this was said."""
ANSWERS = {
    "harbour belongs to Ann Kestrel": "Ann Kestrel.",
    "early by Mr. Fox": "The lease may be terminated early by Mr. Fox.",
    "": "Nothing yet.",
}
"""What a model says that has read this."""
FACTS = {
    "900 euros since 1 March 2022": "Lease 7 | rent | 900 euros | since 1 March 2022",
    "The rent of Lease 7 is 900 euros.": "Lease 7 | rent | 900 euros",
    "The rent of Lease 7 is 950 euros since 2024": "Lease 7 | rent | 950 euros | since 2024",
    "The tenant of Lease 7 is Nora Brand": "Lease 7 | tenant | Nora Brand",
    "raised to 950 euros": "Lease 7 | rent | 950 euros | since 1 May 2024",
    "The heating of Lease 7 is Gas": "Lease 7 | heating | Gas",
    "The colour of Lease 7 is red": "Lease 7 | colour | red",
    "Nora Brand works at Acme": "Nora Brand | works at | Acme",
    "I live in Paris": "user | lives in | Paris",
    "I like tea": "user | likes | tea",
    "I moved to Berlin": "user | lives in | Berlin",
}
"""What a model says are the facts, once this was said."""


def reply(body):
    """As a model that keeps what it is told, and replies in the form that it is asked for."""
    text = "\n".join(str(message["content"]) for message in body["messages"])
    if "subject | relation | object" in text:
        read = re.split("</?(?:section|conversation)>", text)[1]
        return "\n".join(line for said, line in FACTS.items() if said in read)
    if "You keep the profile" in text:
        found = next(fields for said, fields in PROFILES.items() if said in text)
        action = {"action": "set", "message": 1}
        changes = [{"field": name, "value": value, **action} for name, value in found.items()]
        return json.dumps({"changes": changes})
    if "response_format" in body:
        return json.dumps({"tenant": "Ann Kestrel", "rent": 1480})
    kept = re.findall(r"<notes>\n(?!\()(.*?)\n</notes>", text, re.DOTALL)
    said = re.findall(r"user: (.*)", text)
    return "\n".join([*kept, *said]) or next(said for read, said in ANSWERS.items() if read in text)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """An empty folder, and a server where a reader has OpenAI's."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith(("MEMAGENT_", "OPENAI_"))]:
        if name not in {"MEMAGENT_CACHE", "MEMAGENT_STORE_SECONDS"}:
            monkeypatch.delenv(name)
    server = OpenAIServer(reply)
    server.models = [{"id": "Qwen/Qwen2.5-7B-Instruct", "max_model_len": 32_768}]
    given = {"OPENAI_BASE_URL": server.base_url, "OPENAI_API_KEY": "none"}
    exported = {"URL": server.base_url, "KEY": "none", "MODEL": "any"}  # in deployment.md
    for name, value in {**given, **exported}.items():
        monkeypatch.setenv(name, value)
    yield server
    server.close()


@pytest.fixture
def instead(request, machine):
    """From code to the same code with what a test has where a reader has servers and models."""

    def model():
        return request.getfixturevalue("tiny").as_posix()

    def redis():
        server = RedisServer(request.getfixturevalue("tmp_path_factory").mktemp("redis"))
        request.addfinalizer(server.kill)
        return server.url

    places = {
        "http://localhost:8000/v1": cache(lambda: machine.base_url),
        "redis://localhost:6379/0": cache(redis),
        "Qwen/Qwen2.5-0.5B-Instruct": cache(model),
    }

    def replace(code):
        for theirs, ours in places.items():
            if theirs in code:
                code = code.replace(theirs, ours())
        return code

    return replace
