"""Memories to inspect, and visitors without a browser."""

import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from urllib.parse import urlencode

from langchain_core.messages import HumanMessage
from memory_versions import make_version
from starlette.testclient import TestClient

from memagent_graph import ConversationMemory
from memagent_graph.conversation.users import Users
from memagent_graph.evidence.places import Evidence
from memagent_graph.memory.bank import MemoryBank
from memagent_graph.memory.version import MemoryVersion, make_reading_key
from memagent_graph.sync import wait_for
from memagent_graph.text.files import open_source

HERE = "http://127.0.0.1:8765"
TOKEN = "a token that is long enough"
FACTS = [
    "Lease 7 | rent | 900 euros | since 2020; until 2022; replaced",
    "Lease 7 | rent | 950 euros | since 2022",
    "Lease 7 | tenant | Nora Brand",
    "Nora Brand | works at | Acme",
    "Moon | seat | here | disputed",
    "Moon | seat | there | disputed",
    "Lease 7 | landlord | Bo Zorn | replaces Bo Lund",
]


def visitor(app, base_url=HERE, **options) -> TestClient:
    """A browser that is on a page of the inspector."""
    options.setdefault("headers", {"origin": base_url})
    return TestClient(app, base_url=base_url, follow_redirects=False, **options)


def at(path: str, **fields: object) -> str:
    return f"{path}?{urlencode(fields)}"


def pages(name: str, old: MemoryVersion, new: MemoryVersion) -> list[str]:
    """The pages of a memory that had these versions."""
    kinds = ("memory", "reading", "edit", "forget", "forget/document")
    return [
        *(at(f"/{kind}", of=name) for kind in kinds),
        at("/memory", of=name, version=old.id),
        at("/compare", of=name, before=old.id, after=new.id),
        at("/rollback", of=name, to=old.id),
    ]


def user_pages(name: str) -> list[str]:
    return ["/users", *(at(f"/user{kind}", of=name) for kind in ("", "/forget", "/edit"))]


def follow(page: TestClient, path: str) -> Iterator[str]:
    """The pages of a list, each of which leads to the next."""
    while path:
        yield (html := page.get(path, headers={"hx-request": "true"}).text)
        more = re.search(r'hx-get="([^"]*)" hx-trigger="revealed"', html)
        path = unescape(more[1]) if more else ""


def walk(page: TestClient, path: str) -> list[str]:
    """The names on all pages of a list, which have at most 50 each."""
    names = [re.findall(r"<bdi>([\w-]+)</bdi></a>", html) for html in follow(page, path)]
    assert max(map(len, names)) <= 50
    return [name for each in names for name in each]


def text_of(response) -> str:
    return unescape(response.text)


def store_memory(bank: MemoryBank, name: str, /, *texts: str, **more) -> list[MemoryVersion]:
    """A named memory that had these texts, one after the other."""
    made: list[MemoryVersion] = []
    for step, text in enumerate(texts, 1):
        before = made[-1] if made else None
        made.append(make_version(text, step, before=before, **more))
        expected = None if before is None else before.id
        assert bank.advance(name, made[-1], expected=expected)
    return made


def store_reading(bank: MemoryBank, *texts: str, ended: bool = True, **more) -> str:
    """A reading without a name; its key."""
    made = None
    for step, text in enumerate(texts, 1):
        made = make_version(text, step, before=made, **more)
        bank.append(made, owner=make_reading_key(made.root, made.document.digest))
    if ended:
        wait_for(bank.arecord_reading(made))
    return make_reading_key(made.root, made.document.digest)


def remember(store, user: str, *texts: str, thread: str = "thread monday") -> Users:
    """Have a chatbot hear these messages of a user; returns all users."""
    memory = ConversationMemory(store=store)
    for number, text in enumerate(texts):
        memory.save([HumanMessage(text, id=f"{user} {number}")], user=user, thread=thread)
    return memory.users()


def place_in(file: Path, statement: str, *, name: str | None = None) -> dict[str, object]:
    """What a version says of a document and of a statement that it quotes."""
    source = open_source(file)
    start = source.read(0, source.length).index(statement)
    found = source.locate(start)
    evidence = Evidence(statement, name or file.name, found.line, start, start + len(statement))
    told = {"digest": source.digest, "name": name or file.name, "length": source.length}
    return told | {"evidence": (evidence,)}
