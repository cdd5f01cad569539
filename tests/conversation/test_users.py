"""Those who run a chatbot look at the memories of its users, change, move and forget them."""

import asyncio
import json
import sqlite3
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest
from conversations import Keeper, dated, dump, graph_with, of, say, words_in
from fixed_readers import ScriptedReader
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite.aio import AsyncSqliteStore

from memagent_graph import ConversationMemory
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

    assert ["quinoa" in one for one in gone] == [True] * len(gone) != []
    assert "quinoa" not in repr([item.value for item in store.search((), limit=1_000)])
    assert words_in(memory.load("ann"), "llamas", "sail") == ["llamas", "sail"]
    assert [version.id for version in memory.history("ann")][1:] == [monday.id]
    assert memory.forget_about("ann", "number quinoa") == []


@pytest.mark.parametrize("said", ["We moved to Quinoa Street in Husum last week.", "I own quinoa"])
def test_a_subject_that_is_forgotten_takes_no_day_and_no_other_line_with_it(store, said):
    memory = ConversationMemory("extractive", store=store)
    told = said, "I live in a house with a green door", "My sister bought a boat in May"
    memory.save([("human", one) for one in told], user="ann", thread="monday")
    day, *_, house, boat = memory.load("ann").splitlines()

    memory.forget_about("ann", "quinoa")

    assert memory.load("ann").splitlines() == [day, house, boat]


def test_lines_and_users_are_found_by_words_and_capitals_do_not_matter(store):
    tell(store, "ann", "monday", "tuesday")
    tell(store, "ben", "tuesday")

    users = Users(store)

    assert {found.user for found in users.search("LLAMAS tuesday")} == {"ann", "ben"}
    own = [line for line in users.get("ann").text.splitlines() if "tuesday" in line]
    assert [found.text for found in users.search("bred tuesday", ["ann"])] == own
    assert (len(users.search("ANN")), users.search("llamas sunday")) == (2, [])


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
    assert (lines[1].version, lines[1].at) == (edited.id, edited.created_at)
    assert not any("llamas" in str(line) or "alpacas" in str(line) for line in lines)


def test_an_edit_is_refused_if_the_memory_changed_since_it_was_read(store):
    tell(store, "ann", "monday")
    users = Users(store)
    before = users.get("ann").id
    tell(store, "ann", "tuesday")

    with pytest.raises(MemoryConflictError, match="'ann' changed meanwhile"):
        users.edit("ann", "Nothing.", by="support", before=before)

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

    def kept():
        return [version.thread for version in users.history("ann")[0]]

    assert kept() == ["fourth", "third", "second"]  # which was replaced three days ago
    preview = users.prune(days=2, by="root", preview=True)
    done = users.prune(days=2, by="root")

    assert preview.versions == done.versions == {"ann": 1}
    assert kept() == ["fourth", "third"]
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
    assert kept("ann") == ["400 days ago.", "100 days ago.", "2 days ago."]
    done = users.prune(days=90, by="root")

    assert preview.messages == done.messages == {"ann": 2}
    assert (kept("ann"), kept("ben")) == (["2 days ago."], ["3 days ago.", "1 days ago."])
    assert users.prune(versions=1, by="root").messages == {}
    assert "400 days" not in dump(store)


def test_users_who_are_away_for_long_are_forgotten(store, aged):
    for user, days in (("ann", 400), ("ben", 2)):
        aged(days)
        tell(store, user, "first")
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

    imported = other.import_(users.export(["ann"]), by="root")

    assert (imported, other.names()) == (["ann"], ["ann"])
    own, theirs = users.history("ann"), other.history("ann")
    assert [v.text for v in theirs[0]] == [v.text for v in own[0]]
    assert [line.what for line in theirs[1]] == ["imported", "folded", "folded"]
    tell(other.store, "ann", "monday", "tuesday")  # each message is known to be folded
    assert other.get("ann").text == users.get("ann").text
    assert other.import_(users.export(), by="root") == ["ann", "ben"]


@pytest.mark.parametrize("row", [
    {"place": ["..", "heads"], "key": "memory", "value": {"version": "x"}},
    {"place": ["heads"], "key": "memory", "value": {"version": "x"}},
    {"place": "notes", "key": "memory", "value": {}}, {"place": ["notes"], "key": 1, "value": {}},
    {"place": ["notes"], "key": "x", "value": "text"}, "text",
])  # fmt: skip
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
    assert (done.threads, done.left, users.names()) == (("monday", "tuesday"), "", [])
    versions, (line,) = users.history("ann")
    told = versions, line.what, line.by, line.version, line.messages
    assert told == ([], "forgotten", "support", "", ())
    assert users.forget("ann", by="support").items == 0
    tell(store, "ann", "wednesday")
    assert [line.what for line in users.history("ann")[1]] == ["folded", "forgotten"]


def test_messages_that_were_kept_are_found_exported_and_forgotten_too(store):
    memory, users, other = ConversationMemory(store=store), Users(store), Users(InMemoryStore())
    memory.save([dated("I keep an emu!", "2026-11-24")], user="ann", thread="monday")
    users.of("ann").bank.forget("memory")

    assert users.list() == [("ann", None)]
    assert (users.search("emu"), users.search("monday")) == ([("ann", "I keep an emu!")], [])
    other.import_(users.export(), by="root")
    assert other.search("emu") == [("ann", "I keep an emu!")]
    assert users.prune(idle_days=1, by="root", preview=True).forgotten == []
    assert users.forget("ann", by="root").items > 0
    assert users.names() == []


@pytest.mark.slow
def test_no_byte_of_the_store_tells_of_somebody_who_was_forgotten(store, content):
    if hasattr(store, "conn"):
        store.conn.execute("PRAGMA journal_mode=WAL")
        store.conn.execute("PRAGMA secure_delete=OFF")  # as where SQLite is built without it
    tell(store, "annabel", *(f"day {number}" for number in range(30)), keep_versions=3)
    tell(store, "ben", "monday")
    users = Users(store)
    users.edit("annabel", "Annabel breeds quokkas.", by="support")
    assert "quokkas" in content()

    users.forget("annabel", by="support")

    assert words_in(content().lower(), "annabel", "quokkas", "day 7", "day 29", "ben") == ["ben"]


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


# what a server loses, and what old threads leave


@pytest.mark.parametrize(("lost", "left", "warning"), [
    pytest.param(["head"], ["monday", "tuesday"], "is gone", id="the head"),
    pytest.param([0], ["monday"], "is gone: an earlier one is continued", id="the newest"),
    pytest.param([0, 1], [], "begins anew", id="all versions"),
    pytest.param([], ["monday", "tuesday"], "", id="nothing"),
])  # fmt: skip
def test_what_a_server_lost_is_no_new_start_unless_it_is_all(store, caplog, lost, left, warning):
    memory = tell(store, "ann", "monday", "tuesday")
    records, versions = Users(store).of("ann").bank, memory.history("ann")
    for one in lost:
        place = (records.heads, "memory") if one == "head" else (records.versions, versions[one].id)
        store.delete(*place)

    tell(store, "ann", "friday")

    assert [day for day in ("monday", "tuesday", "friday") if day in memory.load("ann")] == [
        *left,
        "friday",
    ]
    assert warning in caplog.text
    if lost and left:
        assert "was gone" in "".join(memory.history("ann")[0].warnings)
    if not lost:
        memory.forget("ann")
        tell(store, "ann", "friday")
        assert (memory.history("ann")[0].warnings, caplog.text) == ((), "")


@pytest.mark.slow
def test_prune_takes_what_old_threads_leave(store):
    memory = tell(store, "ann", *(f"day {n}" for n in range(30)), keep_versions=2)
    users = Users(store)
    before = users.held("ann").items

    assert users.prune(days=1, by="olga").marks == {}
    time.sleep(1.1)  # SQLite's times have seconds
    preview = users.prune(days=1 / 86_400, by="olga", preview=True)
    done = users.prune(days=1 / 86_400, by="olga")

    assert preview.marks == done.marks == {"ann": 89}
    held = users.held("ann")
    assert before - held.items >= 59
    assert held.items < 12
    assert held.threads == ()
    assert "day 29" in memory.load("ann")
    assert [change.what for change in users.history("ann")[1]] == ["folded"]


# what a checkpointer holds of them


@pytest.fixture(params=["memory", "sqlite"])
def saver(request, tmp_path):
    if request.param == "memory":
        yield InMemorySaver()
    else:
        with SqliteSaver.from_conn_string(str(tmp_path / "threads.sqlite")) as opened:
            opened.conn.execute("PRAGMA secure_delete=OFF")  # as where SQLite is built without it
            yield opened


def threads(saver):
    return {found.config["configurable"]["thread_id"] for found in saver.list(None)}


def test_forgetting_deletes_the_threads_of_a_user_and_says_which_others_spoke_in(saver, tmp_path):
    memory = ConversationMemory(remember_within=0)
    agent = graph_with(memory, lambda state: {}, checkpointer=saver, behind=False)
    say(agent, "I breed quokkas.", of("ann", "monday"))
    say(agent, "I breed bees.", of("ann", "tuesday"))
    say(agent, "I breed hens.", of("ben", "tuesday"))
    say(agent, "I breed goats.", of("ben", "monday too"))
    memory.flush()

    done = memory.forget("ann", checkpointer=saver, by="support")

    assert (done.deleted, done.threads, done.left) == (("monday",), ("tuesday",), "")
    assert (threads(saver), memory.load("ann")) == ({"tuesday", "monday too"}, "")
    assert "hens" in memory.load("ben")
    kept = b"".join(file.read_bytes() for file in tmp_path.glob("threads.sqlite*"))
    assert b"quokkas" not in kept
    assert isinstance(saver, InMemorySaver) or b"goats" in kept


def test_a_thread_whose_state_names_nobody_goes_if_it_was_folded(saver):
    memory = ConversationMemory(remember_within=0)
    talk = StateGraph(MessagesState).add_node("talk", lambda state: {})
    agent = talk.add_edge(START, "talk").compile(saver)
    for thread in ("monday", "tuesday"):
        say(agent, "I breed quokkas.", of("ann", thread))
    memory.save([HumanMessage("I breed quokkas.")], user="ann", thread="monday")

    assert memory.forget("ann", checkpointer=saver).deleted == ("monday",)
    assert threads(saver) == {"tuesday"}
