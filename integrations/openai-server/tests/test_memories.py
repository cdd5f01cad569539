"""Over HTTP, the memories of users and sessions are listed, edited and forgotten."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import httpx
import pytest
from langchain_core.messages import HumanMessage
from langgraph.store.memory import InMemoryStore
from servers.redis_server import RedisServer

from memagent_graph import ConversationMemory
from memagent_graph.memory.redis import RedisStore
from memagent_graph.memory.stores import open_store
from memagent_openai_server import Limits

ANN, BEN = "the-key-of-ann-0123456789", "the-key-of-ben-0123456789"
KEYS = {ANN: "ann", BEN: "ben"}
MEMORIES = "/v1/memories"
HOSTILE = [
    "*",
    "%",
    "a/b/",
    "../heads",
    "a.b",
    "{x}",
    "\x00",
    "Ä\n",
    "' OR '1'='1",
    "user ann",
    "x" * 512,
]


@pytest.fixture(params=["memory", "sqlite", "redis"])
def store(request, tmp_path):
    if request.param == "memory":
        yield InMemoryStore()
    elif request.param == "sqlite":
        with open_store(str(tmp_path / "memories.sqlite")) as opened:
            yield opened
    else:
        server = RedisServer(tmp_path)
        with RedisStore.from_url(server.url) as opened:
            yield opened
        server.kill()


def talked(store, user, *said, tenant="ann"):
    """A chatbot on the tenant's part of the store remembers what a user said."""
    memory = ConversationMemory(store=store, namespace=(f"tenant-{tenant}", "memagent"))
    for number, text in enumerate(said):
        message = HumanMessage(text, id=f"m{number}")
        memory.save([message], user=user, thread=f"thread {number}")


class Operator:
    """Calls the server with a tenant's key."""

    def __init__(self, server, key):
        self._client = httpx.Client(
            base_url=server.url, headers={"authorization": f"Bearer {key}"}, timeout=60
        )

    def close(self):
        self._client.close()

    def __call__(self, method, path=MEMORIES, status=200, **options):
        found = self._client.request(method, path, **options)
        assert found.status_code == status, found.text
        return found.json()

    def get(self, path=MEMORIES, **params):
        return self("GET", path, params=params)

    def ids(self, **params):
        return [memory["id"] for memory in self.get(**params)["data"]]


@pytest.fixture
def server(serve, store):
    return serve(keys=KEYS, store=store)


@pytest.fixture
def ann(server):
    with closing(Operator(server, ANN)) as operator:
        yield operator


@pytest.fixture
def ben(server):
    with closing(Operator(server, BEN)) as operator:
        yield operator


def read(server, key, needle, **options):
    messages = [{"role": "user", "content": f"{needle}\n\nWhat does the vault hold?"}]
    return server.client(key).chat.completions.create(
        model="extractive", messages=messages, **options
    )


def test_memories_are_found_by_user_and_session(server, store, ann, ben):
    talked(store, "joe", "I breed quokkas.", "I live in Hobart.")
    talked(store, "joanna", "I breed hens.")
    read(server, ANN, "The vault holds a heron.", user="joe")
    session = {"x-memagent-session": "monday"}
    read(server, ANN, "The vault holds a wren.", extra_headers=session)

    everything = ann.get()

    assert [memory["id"] for memory in everything["data"]] == [
        "conversation joanna",
        "conversation joe",
        "session monday",
        "user joe",
    ]
    assert not everything["has_more"]
    assert ann.ids(user="joe") == ["conversation joe", "user joe"]
    assert ann.ids(session="monday") == ["session monday"]
    first = ann.get(limit=3)
    assert first["has_more"]
    assert ann.ids(after=first["data"][-1]["id"]) == ["user joe"]
    assert ben.ids() == ben.ids(user="joe") == []


def test_a_memory_is_edited_and_its_history_says_by_whom(server, store, ann):
    talked(store, "joe", "I breed quokkas.")
    (memory,) = ann.get(user="joe")["data"]
    edit = {"text": "Joe breeds emus.", "version": memory["version"]}

    edited = ann("PUT", params={"user": "joe"}, json=edit)
    late = ann("PUT", params={"user": "joe"}, json=edit, status=409)
    users = server.service.memories("ann").users
    versions, changes = asyncio.run(users.ahistory("joe"))

    assert edited["text"] == "Joe breeds emus."
    assert edited["edited"]
    assert late["error"]["code"] == "memory_conflict"
    assert (changes[0].what, changes[0].by) == ("edited", "key ann")
    assert (versions[0].text, len(versions)) == ("Joe breeds emus.", 2)


def test_a_session_is_edited_and_forgotten_and_goes_on_from_nothing(server, ann):
    session = {"extra_headers": {"x-memagent-session": "monday"}}
    read(server, ANN, "The vault holds a wren.", **session)
    about = [{"role": "user", "content": "What does the vault hold?"}]

    def ask():
        chat = server.client(ANN).chat.completions
        return chat.create(model="extractive", messages=about, **session).to_json()

    ann("PUT", params={"session": "monday"}, json={"text": "The vault holds a robin."})
    assert "robin" in ask()
    gone = ann("DELETE", params={"session": "monday"})

    assert gone == {"object": "memory", "deleted": True, "threads": [], "left": ""}
    assert ann.ids() == []
    assert "robin" not in ask()
    assert "wren" not in ask()


def test_a_user_is_forgotten_with_what_was_read_for_them(server, store, ann, tmp_path):
    talked(store, "joe", "I breed quokkas.")
    read(server, ANN, "The vault holds a heron.", user="joe")

    gone = ann("DELETE", params={"user": "joe"})
    _, (change,) = asyncio.run(server.service.memories("ann").users.ahistory("joe"))

    assert gone == {"object": "memory", "deleted": True, "threads": ["thread 0"], "left": ""}
    assert ann.ids() == []
    assert (change.what, change.by) == ("forgotten", "key ann")
    ann("DELETE", params={"user": "joe"}, status=404)
    for file in tmp_path.glob("memories.sqlite*"):
        assert b"quokkas" not in file.read_bytes()
        assert b"heron" not in file.read_bytes()


def test_a_tenant_reaches_no_memory_of_another(server, store, ann, ben):
    talked(store, "joe", "I breed quokkas.")
    read(server, ANN, "The vault holds a heron.", user="joe")
    before = ann.get()

    for whose in ({"user": "joe"}, {"session": "monday"}, {"user": "tenant-ann"}):
        ben("PUT", params=whose, json={"text": "Nothing."}, status=404)
        ben("DELETE", params=whose, status=404)
        assert ben.get(**whose)["data"] == []

    assert ann.get() == before


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_any_name_is_a_name_and_nothing_else(server, store, ann, name):
    talked(store, "joe", "I breed quokkas.")
    talked(store, name, "I breed hens.")

    assert [memory["user"] for memory in ann.get(user=name)["data"]] == [name]
    ann("PUT", params={"user": name}, json={"text": "Hens."})
    ann("DELETE", params={"user": name})

    assert ann.ids() == ["conversation joe"]


@pytest.mark.parametrize(
    ("method", "path", "query", "body", "param"),
    [
        ("GET", MEMORIES, "limit=0", None, "limit"),
        ("GET", MEMORIES, "limit=x", None, "limit"),
        ("GET", MEMORIES, "users=ann", None, "users"),
        ("GET", MEMORIES, "user=a&session=b", None, "user"),
        ("GET", MEMORIES, f"user={'x' * 513}", None, "user"),
        ("GET", MEMORIES, "text=hens", None, "text"),
        ("DELETE", MEMORIES, "", None, "user"),
        ("DELETE", MEMORIES, "user=a&session=b", None, "user"),
        ("PUT", MEMORIES, "", {"text": "x"}, "user"),
        ("PUT", MEMORIES, "user=a", {"text": ""}, "text"),
        ("PUT", MEMORIES, "user=a", {"text": " \n"}, "text"),
        ("PUT", MEMORIES, "user=a", {"text": 7}, "text"),
        ("PUT", MEMORIES, "user=a", {"text": "word " * 2000}, "text"),
        ("PUT", MEMORIES, "user=a", {"text": "x", "owner": "ben"}, "owner"),
        ("PUT", MEMORIES, "user=a", [], None),
    ],
)
def test_what_means_nothing_is_refused_by_name(shared, method, path, query, body, param):
    found = httpx.request(method, f"{shared.url}{path}?{query}", json=body)

    assert found.status_code == 400
    assert found.json()["error"]["param"] == param


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello."}]}),
        ("POST", "/v1/responses", {"input": "Hello."}),
        ("GET", MEMORIES, None),
    ],
)
def test_a_users_name_is_of_bounded_length(shared, method, path, body):
    def ask(user):
        given = {"json": {"model": "extractive", **body, "user": user}} if body else {}
        query = {} if body else {"params": {"user": user}}
        return httpx.request(method, shared.url + path, timeout=240, **given, **query)

    assert ask("x" * 512).status_code == 200
    refused = ask("x" * 513)

    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "user"


def test_bodies_are_limited_and_pages_of_other_sites_may_not_edit(serve):
    server = serve(limits=Limits(body_bytes=10_000))
    url = f"{server.url}{MEMORIES}?user=ann"

    assert httpx.put(url, json={"text": "x" * 20_000}).status_code == 413
    assert httpx.put(url, content='{"text": "x"}').status_code == 415
    headers = {"content-type": "text/plain"}
    assert httpx.put(url, content='{"text": "x"}', headers=headers).status_code == 415
    headers = {"origin": "https://evil.example"}
    for method in ("PUT", "DELETE", "GET"):
        found = httpx.request(method, url, json={"text": "x"}, headers=headers)
        assert found.status_code == 403


def test_ten_edits_at_once_are_ten_versions_or_conflicts(server, store, ann):
    talked(store, "joe", "I breed quokkas.")

    def edit(number):
        found = ann._client.put(MEMORIES, params={"user": "joe"}, json={"text": f"Edit {number}."})
        return found.status_code

    with ThreadPoolExecutor(10) as pool:
        codes = [*pool.map(edit, range(10))]

    assert {*codes} <= {200, 409}
    _, changes = asyncio.run(server.service.memories("ann").users.ahistory("joe"))
    assert [change.what for change in changes].count("edited") == codes.count(200) >= 1
