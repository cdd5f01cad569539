"""Those who run a chatbot look at the memories of its users, change, move and forget them."""

import asyncio
import json
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest
from conversations import Keeper, dated, dump, graph_with, of, say
from fixed_readers import ScriptedReader
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite.aio import AsyncSqliteStore

from memagent_graph import ConversationMemory, RedisStore
from memagent_graph.conversation.users import Users
from memagent_graph.errors import (
    ConfigurationError,
    MemoryConflictError,
    MemoryNotFoundError,
    StoreError,
)
from memagent_graph.memory.items import check_namespace, place_of, user_of
from memagent_graph.memory.stores import open_store
from memagent_graph.memory.version import MemoryVersion

HOSTILE = ["a.b", "100%25", "*", "user-x", "a/b c", "{x}", "Ärger", "thread monday", "a\nb", "\0"]


@pytest.fixture(params=["memory", "sqlite", "redis"])
def store(request, tmp_path):
    if request.param == "memory":
        yield InMemoryStore()
    elif request.param == "sqlite":
        with open_store(str(tmp_path / "memories.sqlite")) as opened:
            yield opened
    else:
        yield request.getfixturevalue("redis_store")


def tell(store, user, *days, **options):
    """Fold a message a day; return the memory that did."""
    memory = ConversationMemory(Keeper(), store=store, **options)
    for day in days:
        said = HumanMessage(f"On {day} I, {user}, bred llamas.", id=f"{user}-{day}")
        memory.save([said], user=user, thread=day)
    return memory


def test_users_are_listed_with_their_memories_whatever_their_ids_are(store):
    for user in HOSTILE:
        tell(store, user, "monday")
    tell(store, "eve", "monday", namespace=("other",))

    listed = Users(store).list()

    assert [user for user, _ in listed] == sorted(HOSTILE)
    assert all(f"I, {user.splitlines()[0]}" in version.text for user, version in listed)
    assert [user for user, _ in Users(store, ("other",)).list()] == ["eve"]
    assert Users(store, ("memagent", "x")).list() == []
    with pytest.raises(ConfigurationError, match="The user is empty"):
        Users(store).of("")


@given(st.text(min_size=1))
def test_the_user_is_known_from_the_place_of_their_memory(user):
    assert user_of(place_of(user, ("a", "b")), ("a", "b")) == user
    assert user_of(place_of(user, ("a", "b")), ("a",)) is None
    assert check_namespace(place_of(user, ("a",)))


def test_a_subject_that_is_forgotten_is_in_no_version_any_more(store):
    memory = tell(store, "ann", "monday")
    memory.save([HumanMessage("My number is quinoa.", id="n")], user="ann", thread="tuesday")
    memory.save([HumanMessage("I sail.", id="s")], user="ann", thread="friday")
    monday = memory.history("ann")[-1]

    gone = memory.forget_about("ann", "number quinoa")

    assert gone
    assert all("quinoa" in one for one in gone)
    items = store.search((), limit=1_000)
    assert "quinoa" not in repr([item.value for item in items])
    assert all(word in memory.load("ann") for word in ("llamas", "sail"))
    assert [version.id for version in memory.history("ann")][1:] == [monday.id]
    assert memory.forget_about("ann", "number quinoa") == []


@pytest.mark.parametrize("said", ["We moved to Quinoa Street in Husum last week.", "I own quinoa"])
def test_a_subject_that_is_forgotten_takes_no_day_and_no_other_line_with_it(store, said):
    memory = ConversationMemory("extractive", store=store)
    told = [said, "I live in a house with a green door", "My sister bought a boat in May"]
    memory.save([("human", one) for one in told], user="ann", thread="monday")
    day, *_, house, boat = memory.load("ann").splitlines()

    memory.forget_about("ann", "quinoa")

    assert memory.load("ann").splitlines() == [day, house, boat]


def test_lines_and_users_are_found_by_words_and_capitals_do_not_matter(store):
    tell(store, "ann", "monday", "tuesday")
    tell(store, "ben", "tuesday")

    users = Users(store)

    assert {found.user for found in users.search("LLAMAS tuesday")} == {"ann", "ben"}
    assert [found.text for found in users.search("bred tuesday", ["ann"])] == [
        line for line in users.get("ann").text.splitlines() if "tuesday" in line
    ]
    assert len(users.search("ANN")) == 2
    assert users.search("llamas sunday") == []


def test_the_history_says_who_changed_what_when_from_which_messages_with_which_model(store):
    tell(store, "ann", "monday", "tuesday", keep_versions=2)
    users = Users(store)
    edited = users.edit("ann", "Ann breeds alpacas.", by="support")
    tell(store, "ann", "wednesday", keep_versions=2)

    versions, lines = users.history("ann")

    assert [(line.what, line.by, line.thread, line.messages, line.model) for line in lines] == [
        ("folded", "conversation", "wednesday", ("ann-wednesday",), "scripted"),
        ("edited", "support", "", (), ""),
        ("folded", "conversation", "tuesday", ("ann-tuesday",), "scripted"),
        ("folded", "conversation", "monday", ("ann-monday",), "scripted"),
    ]
    assert [version.id for version in versions] == [line.version for line in lines[:2]]
    assert lines[1].version == edited.id
    assert lines[1].at == edited.created_at
    assert not any("llamas" in str(line) or "alpacas" in str(line) for line in lines)


def test_an_edit_is_refused_if_the_memory_changed_since_it_was_read(store):
    tell(store, "ann", "monday")
    users = Users(store)
    before = users.get("ann")
    tell(store, "ann", "tuesday")

    with pytest.raises(MemoryConflictError, match="'ann' changed meanwhile"):
        users.edit("ann", "Nothing.", by="support", before=before.id)

    assert "tuesday" in users.get("ann").text
    with pytest.raises(MemoryNotFoundError, match="'zoe'.*memagent memory users"):
        users.edit("zoe", "Nothing.", by="support")


@pytest.fixture
def aged(monkeypatch):
    """Let the next versions be of some days ago."""

    def age(days):
        at = (datetime.now(UTC) - timedelta(days=days)).isoformat()
        original = MemoryVersion.__init__

        def init(self, *args, **fields):
            original(self, *args, **{"created_at": at, **fields})

        monkeypatch.setattr(MemoryVersion, "__init__", init)

    return age


def test_versions_stay_for_some_days_after_they_were_replaced(store, aged):
    for days, thread in ((30, "first"), (20, "second"), (3, "third"), (1, "fourth")):
        aged(days)
        tell(store, "ann", thread, keep_days=7)
    users = Users(store)
    before = [version.thread for version in users.history("ann")[0]]

    preview = users.prune(days=2, by="root", preview=True)
    done = users.prune(days=2, by="root")

    assert before == ["fourth", "third", "second"]  # which was replaced three days ago
    assert preview.versions == done.versions == {"ann": 1}
    assert [version.thread for version in users.history("ann")[0]] == ["fourth", "third"]
    assert users.prune(versions=1, by="root").versions == {"ann": 1}
    assert users.prune(versions=1, days=0, by="root").versions == {}


def test_messages_that_were_kept_word_for_word_go_with_their_age(store):
    memory = ConversationMemory(ScriptedReader(*["Talks."] * 5), store=store)
    now = datetime.now(UTC)
    for user, ages in (("ann", (400, 100, 2)), ("ben", (3, 1))):
        for days in ages:
            at = (now - timedelta(days=days)).isoformat()
            memory.save([dated(f"{days} days ago.", at, f"m{days}")], user=user, thread="t")
    users = Users(store)

    def kept(user):
        return [one.text for one in asyncio.run(users.of(user).episodes.read()).said]

    preview = users.prune(days=90, by="root", preview=True)
    before = kept("ann")
    done = users.prune(days=90, by="root")

    assert before == ["400 days ago.", "100 days ago.", "2 days ago."]
    assert preview.messages == done.messages == {"ann": 2}
    assert kept("ann") == ["2 days ago."]
    assert kept("ben") == ["3 days ago.", "1 days ago."]
    assert users.prune(versions=1, by="root").messages == {}
    assert "400 days" not in dump(store)


def test_users_who_are_away_for_long_are_forgotten(store, aged):
    aged(400)
    tell(store, "ann", "first")
    aged(2)
    tell(store, "ben", "first")
    users = Users(store)

    preview = users.prune(idle_days=365, by="root", preview=True)
    assert users.names() == ["ann", "ben"]
    done = users.prune(idle_days=365, by="root")

    assert preview.forgotten == done.forgotten == ["ann"]
    assert [user for user, _ in users.list()] == ["ben"]


def test_all_of_a_user_moves_to_another_store(store):
    tell(store, "ann", "monday", "tuesday")
    tell(store, "ben", "monday")
    users, other = Users(store), Users(InMemoryStore())

    lines = users.export(["ann"])
    imported = other.import_(lines, by="root")

    assert imported == ["ann"]
    assert other.names() == ["ann"]
    assert [v.text for v in other.history("ann")[0]] == [v.text for v in users.history("ann")[0]]
    assert [line.what for line in other.history("ann")[1]] == ["imported", "folded", "folded"]
    tell(other.store, "ann", "monday", "tuesday")  # each message is known to be folded
    assert other.get("ann").text == users.get("ann").text
    assert other.import_(users.export(), by="root") == ["ann", "ben"]


@pytest.mark.parametrize(
    "row",
    [
        {"place": ["..", "heads"], "key": "memory", "value": {"version": "x"}},
        {"place": ["heads"], "key": "memory", "value": {"version": "x"}},
        {"place": "notes", "key": "memory", "value": {}},
        {"place": ["notes"], "key": 1, "value": {}},
        {"place": ["notes"], "key": "x", "value": "text"},
        "text",
    ],
)
def test_a_forged_line_is_refused_before_anything_is_stored(row):
    users = Users(InMemoryStore())
    lines = ['{"user": "ann"}', json.dumps({"item": row})]

    with pytest.raises(StoreError, match="Not a line"):
        users.import_(lines, by="root")

    assert users.names() == []
    with pytest.raises(StoreError, match="No user was named"):
        users.import_(lines[1:], by="root")


def test_forgetting_leaves_one_line_that_says_when_and_by_whom(store):
    tell(store, "ann", "monday", "tuesday")
    users = Users(store)

    done = users.forget("ann", by="support")

    assert done.items > 0
    assert done.threads == ("monday", "tuesday")
    assert done.left == ""
    assert users.names() == []
    versions, (line,) = users.history("ann")
    assert versions == []
    assert (line.what, line.by, line.version, line.messages) == ("forgotten", "support", "", ())
    assert users.forget("ann", by="support").items == 0
    tell(store, "ann", "wednesday")
    assert [line.what for line in users.history("ann")[1]] == ["folded", "forgotten"]


def test_messages_that_were_kept_are_found_exported_and_forgotten_too(store):
    memory, users, other = ConversationMemory(store=store), Users(store), Users(InMemoryStore())
    memory.save([dated("I keep an emu!", "2026-11-24")], user="ann", thread="monday")
    users.of("ann").bank.forget("memory")

    assert [(user, version) for user, version in users.list()] == [("ann", None)]
    assert users.search("emu") == [("ann", "I keep an emu!")]
    assert users.search("monday") == []
    other.import_(users.export(), by="root")
    assert other.search("emu") == [("ann", "I keep an emu!")]
    assert users.prune(idle_days=1, by="root", preview=True).forgotten == []
    assert users.forget("ann", by="root").items > 0
    assert users.names() == []


@pytest.fixture
def content(request, store, tmp_path):
    """All bytes of the store, with the free pages and the log of its file."""

    def read():
        if isinstance(store, InMemoryStore):
            return repr([store._data, store._vectors]).encode()
        if isinstance(store, RedisStore):
            return request.getfixturevalue("redis_content")().encode()
        return b"".join(file.read_bytes() for file in tmp_path.glob("memories.sqlite*"))

    return read


@pytest.mark.slow
def test_no_byte_of_the_store_tells_of_somebody_who_was_forgotten(store, content):
    if hasattr(store, "conn"):
        store.conn.execute("PRAGMA journal_mode=WAL")
        store.conn.execute("PRAGMA secure_delete=OFF")  # as where SQLite is built without it
    tell(store, "annabel", *(f"day {number}" for number in range(30)), keep_versions=3)
    tell(store, "ben", "monday")
    users = Users(store)
    users.edit("annabel", "Annabel breeds quokkas.", by="support")
    assert b"quokkas" in content()

    users.forget("annabel", by="support")

    assert b"ben" in content()
    for word in (b"annabel", b"quokkas", b"day 7", b"day 29"):
        assert word not in content().lower()


async def test_the_file_of_an_async_store_is_written_anew_too(tmp_path):
    file = tmp_path / "memories.sqlite"
    async with AsyncSqliteStore.from_conn_string(str(file)) as store:
        await store.conn.execute("PRAGMA secure_delete=OFF")
        memory = ConversationMemory(Keeper(), store=store)
        await memory.asave([("human", "I breed quokkas.")], user="ann", thread="monday")

        done = await memory.aforget("ann", by="support")

        assert done.items > 0
        written = [each.read_bytes() for each in tmp_path.glob("memories.sqlite*")]
        assert not any(b"quokkas" in each for each in written)


def test_a_file_that_another_program_uses_is_said_to_hold_what_was_deleted(tmp_path):
    file = tmp_path / "memories.sqlite"
    with open_store(str(file)) as store, closing(sqlite3.connect(file)) as other:
        tell(store, "ann", "monday")
        store.conn.execute("PRAGMA journal_mode=WAL")
        store.conn.execute("PRAGMA busy_timeout=50")
        other.execute("BEGIN")
        other.execute("SELECT * FROM store").fetchone()

        done = Users(store).forget("ann", by="support")

        assert "may still hold what was deleted" in done.left
        assert "VACUUM" in done.left
        other.rollback()
        assert Users(store).forget("ann", by="support").left == ""


# what a checkpointer holds of them


@pytest.fixture(params=["memory", "sqlite"])
def saver(request, tmp_path):
    if request.param == "memory":
        yield InMemorySaver()
    else:
        with SqliteSaver.from_conn_string(str(tmp_path / "threads.sqlite")) as opened:
            opened.conn.execute("PRAGMA secure_delete=OFF")  # as where SQLite is built without it
            yield opened


def graph(memory, saver):
    return graph_with(memory, lambda state: {}, checkpointer=saver, behind=False)


def bytes_in(folder):
    """The files of threads, as bytes."""
    return [file.read_bytes() for file in folder.glob("threads.sqlite*")]


def threads(saver):
    return {found.config["configurable"]["thread_id"] for found in saver.list(None)}


def test_forgetting_deletes_the_threads_of_a_user_and_says_which_others_spoke_in(saver, tmp_path):
    memory = ConversationMemory(remember_within=0)
    agent = graph(memory, saver)
    say(agent, "I breed quokkas.", of("ann", "monday"))
    say(agent, "I breed bees.", of("ann", "tuesday"))
    say(agent, "I breed hens.", of("ben", "tuesday"))
    say(agent, "I breed goats.", of("ben", "monday too"))
    memory.flush()

    done = memory.forget("ann", checkpointer=saver, by="support")

    assert done.deleted == ("monday",)
    assert done.threads == ("tuesday",)
    assert done.left == ""
    assert threads(saver) == {"tuesday", "monday too"}
    assert memory.load("ann") == ""
    assert "hens" in memory.load("ben")
    assert not any(b"quokkas" in file for file in bytes_in(tmp_path))
    assert isinstance(saver, InMemorySaver) or any(b"goats" in f for f in bytes_in(tmp_path))


def test_a_thread_whose_state_names_nobody_goes_if_it_was_folded(saver):
    memory = ConversationMemory(remember_within=0)
    talk = StateGraph(MessagesState).add_node("talk", lambda state: {})
    agent = talk.add_edge(START, "talk").compile(saver)
    for thread in ("monday", "tuesday"):
        say(agent, "I breed quokkas.", of("ann", thread))
    memory.save([HumanMessage("I breed quokkas.")], user="ann", thread="monday")

    assert memory.forget("ann", checkpointer=saver).deleted == ("monday",)
    assert threads(saver) == {"tuesday"}
