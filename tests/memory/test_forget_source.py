"""A document is forgotten: nothing of it stays in any memory, and all else does."""

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest
from bombs import DOCUMENTS
from conversations import words_in
from langgraph.checkpoint.memory import InMemorySaver

from memagent_graph import MemoryBank, ReadingConfig, create_memagent
from memagent_graph.errors import ConfigurationError, ModelError
from memagent_graph.evidence.places import Evidence, Memory
from memagent_graph.memory.forget import ForgottenSource
from memagent_graph.memory.version import edit_version, make_reading_key
from memagent_graph.readers.base import Answer, Identity, Merge, Reader, Update
from memagent_graph.text import cache as user_cache
from memagent_graph.text import converter
from memagent_graph.text.files import open_source
from memagent_graph.text.source import TextSource

SMALL = ReadingConfig(chunk_tokens=30)
FILLER = "Nothing else was said that day, and it rained. " * 7
NOTHING = ForgottenSource()


class FactReader(Reader):
    """Notes each line that begins with a name in capitals, with its place.

    Args:
        before: called with the number of each chunk before it is read.
    """

    identity = Identity("facts", "facts-1")

    def __init__(self, before=None):
        self.before, self.chunks = before, 0

    async def update(self, step, *, config=None):
        self.chunks += 1
        if self.before is not None:
            await self.before(self.chunks)
        chunk, at = step.chunk, step.chunk.start
        lines, evidence = step.memory.text.splitlines(), [*step.memory.evidence]
        for line in chunk.text.splitlines(keepends=True):
            text = line.strip()
            if text.split(" ")[0].isupper():
                place = chunk.source.locate(at)
                lines.append(text)
                evidence.append(Evidence(text, place.name, place.line, at, at + len(text)))
            at += len(line)
        return Update(Memory("\n".join(lines), tuple(evidence)) if lines else None)

    async def merge(self, question, memories, *, config=None):
        text = "\n".join(memory.text for memory in memories if memory.text)
        return Merge(Memory(text, tuple(item for memory in memories for item in memory.evidence)))

    async def respond(self, question, memory, *, config=None):
        return Answer(memory.text, memory.text)


@pytest.fixture
def stored(content):
    return lambda: content().lower()


def document(word, name=None):
    """A text of several chunks with a planted word at its beginning, middle and end."""
    text = "\n\n".join(f"{word.upper()} {part} was there.\n{FILLER}" for part in "abc")
    return text if name is None else TextSource(text, name)


@pytest.fixture(scope="module")
def one_pool():
    """Converts for each of the stores."""
    yield
    converter.shared.end()


@pytest.fixture
def cache(tmp_path, monkeypatch, one_pool):
    monkeypatch.setenv("MEMAGENT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("LANGGRAPH_AES_KEY", raising=False)
    user_cache._cache.cache_clear()
    return tmp_path / "cache"


def agent(bank, reader=None, config=SMALL, **options):
    return create_memagent(reader or FactReader(), config=config, store=bank.store, **options)


def read(bank, document, question="What?", config=SMALL, **asked):
    return agent(bank, None, config).invoke({"question": question, "document": document, **asked})


def digest(document):
    return open_source(document).digest


def read_diary(bank, *words):
    for word in words:
        read(bank, document(word, word), memory_name="diary")


def forget(bank, word):
    return bank.forget_source(digest(document(word)))


def names_in(text):
    """The names in capitals of a memory's lines, in order, each of which a document has thrice."""
    return [word for word in text.split() if word.isupper()]


def expire(bank, name):
    for version in bank.history(name)[1:]:
        bank.store.delete(bank.versions, version.id)


def test_a_named_memory_falls_back_to_what_it_was_before_the_document(bank, stored):
    read_diary(bank, "fish")
    before = bank.history("diary")
    read_diary(bank, "bird", "bear")
    after = bank.history("diary")

    done = bank.forget_source(digest(document("bird", "bird")))

    assert (done.fell_back, done.forgotten) == (("diary",), ())
    assert (done.unread, done.versions) == ((("diary", "bear"),), len(after) - len(before))
    assert words_in(stored(), "bird", "bear") == []
    assert (bank.history("diary"), bank.history("diary").gaps) == (before, [])
    assert (bank.check(), forget(bank, "bird")) == ([], NOTHING)
    again = read(bank, document("bear", "bear"), memory_name="diary")
    assert names_in(again["memory"]) == [*["FISH"] * 3, *["BEAR"] * 3]


@pytest.mark.slow
@pytest.mark.parametrize("segments", [1, 3])
@pytest.mark.parametrize("kept", [None, 1])
def test_a_part_of_joined_documents_is_forgotten_by_its_own_digest(bank, stored, segments, kept):
    named = ReadingConfig(chunk_tokens=30, keep_versions=kept)
    config = named.model_copy(update={"segments": segments})
    corpus = [document(word, word) for word in ("fish", "bird", "bear")]
    read(bank, corpus, config=config)
    for one in (document("goat", "goat"), corpus, document("bear", "bear")):
        read(bank, one, config=named, memory_name="all")
    alone = read(bank, document("bear", "bear"), config=config)

    done = bank.forget_source(corpus[1].digest)

    falls_back = ["all"] if kept is None else []
    assert [*done.fell_back] == falls_back
    assert {*done.unread} >= {("all", "fish"), ("all", "bear")}
    assert "bird" not in stored()
    assert all(bank.get(name).text.count("GOAT") == 3 for name in falls_back)
    left = bank.get(alone["version"])
    assert left.text == alone["memory"]
    names = [*falls_back, make_reading_key(left.root, corpus[2].digest)]
    assert [name for name, _ in bank.list()] == names
    assert bank.forget_source(corpus[1].digest) == NOTHING


def test_where_versions_expired_the_others_say_what_was_read(bank, stored):
    read_diary(bank, "fish", "bird")
    bank.edit("diary", bank.get("diary").text + "\nNobody knows this.")
    expire(bank, "diary")
    read(bank, document("fish", "fish"))

    done = forget(bank, "fish")

    assert "diary" in done.forgotten
    assert (done.unread, words_in(stored(), "fish", "nobody")) == ((("diary", "bird"),), [])


def test_where_nothing_says_which_of_joined_documents_were_read_memories_are_named(bank):
    joined = [document(word, word) for word in ("bear", "bird")]
    for name, first in (("sure", document("lynx", "lynx")), ("unsure", joined)):
        for read_first in (first, document("goat", "goat")):
            read(bank, read_first, question=f"Is it {name}?", memory_name=name)
        expire(bank, name)
    read(bank, document("fish", "fish"))

    done = forget(bank, "fish")

    assert done.unsure == ("unsure",)
    assert all(bank.get(name).text.count("GOAT") == 3 for name in ("sure", "unsure"))


@pytest.mark.slow
@pytest.mark.parametrize("broken", range(12))
def test_what_was_broken_off_is_finished_by_the_next_try(bank, stored, monkeypatch, broken):
    read_diary(bank, "bird", "fish")
    read(bank, [document("fish", "fish"), document("bear", "bear")])
    monkeypatch.setattr("memagent_graph.memory.maintenance._AT_ONCE", 3)
    commit, left = bank.commit, [broken]

    async def fail_later(*args, **options):
        left[0] -= 1
        if left[0] < 0:
            raise ConnectionError("gone")
        return await commit(*args, **options)

    monkeypatch.setattr(bank, "commit", fail_later)
    try:
        forget(bank, "fish")
    except ConnectionError:
        monkeypatch.setattr(bank, "commit", commit)
        assert all(bank.get(name) for name, _ in bank.list())
        forget(bank, "fish")

    assert "fish" not in stored()
    assert names_in(bank.get("diary").text) == ["BIRD"] * 3


def test_a_named_memory_that_moves_meanwhile_is_looked_at_again(bank, stored, monkeypatch):
    read_diary(bank, "bird", "fish")
    commit, moves = bank.commit, ["FISH by hand.", "FISH again."]

    async def move_first(puts, given):
        if moves and any(put.namespace == bank.heads for put in puts):
            monkeypatch.setattr(bank, "commit", commit)
            await bank.aedit("diary", f"{(await bank.aget('diary')).text}\n{moves.pop()}")
            monkeypatch.setattr(bank, "commit", move_first)
        return await commit(puts, given)

    monkeypatch.setattr(bank, "commit", move_first)
    forget(bank, "fish")

    assert moves == []
    assert "fish" not in stored()
    assert names_in(bank.get("diary").text) == ["BIRD"] * 3


def forgetting(bank, at, *, fails=0, stored=str):
    """A reader before whose chunk of that number the document is forgotten; it may fail later."""

    async def before(chunk):
        if chunk == at:
            await bank.aforget_source(digest(document("fish")))
        if chunk > at:  # nor while it goes on, as it could be killed
            assert "fish" not in stored()
        if chunk == fails:
            raise ModelError("The model is gone.")

    return FactReader(before)


@pytest.mark.slow
@pytest.mark.parametrize("fails", [0, 7], ids=["to the end", "fails"])
@pytest.mark.parametrize("name", [None, "diary"])
def test_a_reading_under_way_does_not_bring_its_document_back(bank, stored, name, fails):
    read_diary(bank, "bird")
    reading = agent(bank, forgetting(bank, 3, fails=fails, stored=stored))
    asked = {"question": "What?", "document": document("fish"), "memory_name": name}

    if fails:
        with pytest.raises(ModelError):
            reading.invoke(asked)
    else:
        out = reading.invoke(asked)
        assert "FISH c" in out["memory"]
        assert "was forgotten while this was read" in " ".join(out["warnings"])
    assert "fish" not in stored()
    assert names_in(bank.get("diary").text) == ["BIRD"] * 3


def test_a_reading_that_goes_on_from_a_memory_does_not_bring_it_back(bank, stored):
    read_diary(bank, "bird", "fish")
    asked = {"question": "What?", "document": document("bear", "bear"), "memory_name": "diary"}

    out = agent(bank, forgetting(bank, 3)).invoke(asked)

    assert "fish" not in stored()
    assert bank.get("diary").text == out["memory"]
    assert names_in(out["memory"]) == [*["BIRD"] * 3, *["BEAR"] * 3]


def test_what_a_killed_reading_wrote_meanwhile_goes_when_another_is_forgotten(bank, stored):
    read_diary(bank, "bird", "fish")
    stray = edit_version(bank.get("diary"), bank.get("diary").text + " FISH.")
    forget(bank, "fish")
    bank.append(stray, owner="diary")
    assert "fish" in stored()

    forget(bank, "fish")

    assert "fish" not in stored()
    assert names_in(bank.get("diary").text) == ["BIRD"] * 3


def test_what_a_resumed_reading_writes_upon_what_was_forgotten_goes_with_the_next_try(bank, stored):
    read_diary(bank, "fish")
    saver, bird = InMemorySaver(), document("bird", "bird")
    thread = {"configurable": {"thread_id": "t"}}
    asked = {"question": "What?", "document": bird, "memory_name": "diary"}

    for reader, given in ((forgetting(bank, 0, fails=4), asked), (FactReader(), None)):
        with suppress(ModelError):
            again = agent(bank, reader, checkpointer=saver)
            again.invoke(given, thread, context={"document": bird})
        forget(bank, "fish")

    assert "fish" not in stored()
    assert bank.check() == []


def test_what_was_forgotten_long_ago_does_not_come_back_from_checkpoints(bank, stored):
    read_diary(bank, "fish")
    spare = bank.history("diary")
    forget(bank, "fish")
    bank.forget_source(*(TextSource(f"Page {n}.").digest for n in range(40)))
    for n in range(40):
        bank.forget_source(TextSource(f"Sheet {n}.").digest)
    bank.store.put(bank.heads, "diary", {"version": spare[0].id})

    bank.check(repair=True, spare=spare)

    assert "fish" not in stored()


def test_a_reading_that_began_afterwards_is_kept(bank):
    read(bank, document("fish"))
    forget(bank, "fish")

    out = read(bank, document("fish"))

    assert (out["warnings"], bank.get(out["version"]).text) == ([], out["memory"])


@pytest.mark.slow
def test_converted_documents_go_from_the_cache(bank, stored, cache, tmp_path):
    folder = tmp_path / "papers"
    folder.mkdir()
    planted = {"a.pdf": "SWORDFISH", "b.docx": "KINGFISHER", "c.html": "JELLYBEAN"}
    for name, word in planted.items():
        DOCUMENTS[f"a{Path(name).suffix}"](folder / name, f"{word} was there.")
    read(bank, folder)
    for name in ("a.pdf", "b.docx"):
        read(bank, folder / name, memory_name="notes")

    def entries():
        files = [path.read_bytes() for path in cache.rglob("*") if path.is_file()]
        return b"".join(files).lower().decode("latin-1")

    words = [word.lower() for word in planted.values()]
    assert words_in(entries(), *words) == words

    done = bank.forget_source(digest(folder / "b.docx"))

    assert done.cached == 1
    for kept in (entries(), stored()):
        assert words_in(kept, "kingfisher", "swordfish") == ["swordfish"]
    bank.forget_source(open_source(folder))
    assert "fish" not in stored()
    assert (entries(), bank.list()) == ("", [])


@pytest.mark.slow
async def test_of_readers_while_a_document_is_forgotten_none_is_lost_unnamed(async_redis_store):
    bank = MemoryBank(async_redis_store)
    words = ["bird", "bear", "goat", "lynx"]

    await add_to_diary(bank, "fish")
    forgetting = bank.aforget_source(digest(document("fish")))
    *_, done = await asyncio.gather(*(add_to_diary(bank, word) for word in words), forgetting)

    head = await bank.ahead("diary")
    text = "" if head is None else head.text
    lost = [document for _, document in done.unread]
    assert [text.count(word.upper()) for word in words] == [3 * (one not in lost) for one in words]
    assert "fish" not in repr([item async for item in bank.scan(bank.versions)]).lower()


def add_to_diary(bank, word):
    asked = {"question": "What?", "document": document(word, word), "memory_name": "diary"}
    return agent(bank).ainvoke(asked)


async def test_a_head_that_moves_while_it_is_looked_up_is_not_missed(async_store, monkeypatch):
    bank = MemoryBank(async_store)
    for word in ("bird", "fish"):
        await add_to_diary(bank, word)
    values = bank.values
    monkeypatch.setattr(bank, "led_to", lambda name: None)  # as in another process

    async def forget_in_between(places, **options):
        found = await values(places, **options)
        if places == [(bank.heads, "diary")]:
            monkeypatch.setattr(bank, "values", values)
            await bank.aforget_source(digest(document("fish")))
        return found

    monkeypatch.setattr(bank, "values", forget_in_between)

    assert names_in((await bank.ahead("diary")).text) == ["BIRD"] * 3


def test_a_head_that_was_altered_goes(bank, stored):
    read(bank, document("fish"), memory_name="diary")
    place = (bank.versions, bank.get("diary").id)
    bank.store.put(*place, {**bank.store.get(*place).value, "checksum": "altered"})

    done = forget(bank, "fish")

    assert done.forgotten == ("diary",)
    assert "fish" not in stored()


def test_what_is_no_digest_is_refused(bank):
    with pytest.raises(ConfigurationError, match="'fish.txt' is not a digest"):
        bank.forget_source("fish.txt")
