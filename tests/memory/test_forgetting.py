"""A preview of forgetting names exactly what is gone afterwards, after any history of a bank."""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

import pytest
from doubles import ScriptedReader
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.messages import HumanMessage
from langgraph.store.base import ListNamespacesOp
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import SqliteStore
from memory_versions import make_version

from memagent_graph import ConversationMemory, MemoryBank
from memagent_graph.errors import MemoryNotFoundError
from memagent_graph.evidence.places import Evidence, Memory
from memagent_graph.memory.owners import above, owners_of
from memagent_graph.memory.version import (
    VersionMerge,
    make_reading_key,
    merge_id,
    root_id,
    text_of,
)
from memagent_graph.readers.base import Update
from memagent_graph.sync import wait_for

NAMES = ["ann", "bob", "cleo"]
DOCUMENTS = ["fish", "bird"]
EXAMPLES = settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(params=["memory", "sqlite", "redis"])
def store(request, tmp_path):
    if request.param == "memory":
        yield InMemoryStore()
    elif request.param == "redis":
        yield request.getfixturevalue("redis_store")
    else:
        with SqliteStore.from_conn_string(str(tmp_path / "store.sqlite")) as store:
            store.setup()
            yield store


class Bank:
    """Memories to which something is done; what makes no sense at that moment is left out.

    Each deed takes the name of a memory and a document. No two sections that are read are the same.
    """

    def __init__(self, store) -> None:
        self.bank = MemoryBank(store, (uuid4().hex, "memagent"))
        self.sections = 0

    def read(self, name, document):
        """Read a section."""
        head = self.bank.head(name)
        version = self._section(document, head)
        assert self.bank.advance(name, version, expected=head and head.id)

    def pass_over(self, name, document):
        """Read a section that adds nothing."""
        if head := self.bank.head(name):
            version = self._section(document, head)
            gated = replace(version, memory=head.memory)
            gated = replace(gated, unchanged=head.unchanged or head.id)
            assert self.bank.advance(name, gated, expected=head.id)

    def read_twice(self, name, document):
        """Read with two folds, and merge them."""
        head = self.bank.head(name)
        folds = [self.bank.append(self._section(document, head), owner=name) for _ in range(2)]
        ids = tuple(fold.id for fold in folds)
        merged = replace(
            folds[1], id=merge_id(ids, "reader"), parent=folds[1].root, made_by=VersionMerge(ids)
        )
        assert self.bank.advance(name, merged, expected=head and head.id)

    def read_alone(self, name, document):
        """Read without a name, unless that was done; the memory of that name is its branch."""
        first = self._section(document, None, question=document)
        key = make_reading_key(first.root, first.document.digest)
        if key not in dict(self.bank.list()):
            wait_for(self.bank.arecord_reading(self.bank.append(first, owner=key)))
        if not self.bank.head(name):
            self.bank.branch(key, name)

    def edit(self, name, document):
        if head := self.bank.head(name):
            self.bank.edit(name, f"{head.text}\nThat of {document} is so.")

    def branch(self, name, document):
        other = NAMES[NAMES.index(name) - 1 - DOCUMENTS.index(document)]
        if self.bank.head(name) and not self.bank.head(other):
            self.bank.branch(name, other)

    def go_back(self, name, document):
        if older := self._older(name):
            assert self.bank.move_head(name, older[0].id, expected=self.bank.head(name).id)

    def lose(self, name, document):
        """Let the first version expire, unless it is needed as a text or by a name."""
        older, items = self._older(name), self.items.values()
        needed = {key for value in items for key in (text_of(value), value.get("version"))}
        if older and older[-1].id not in needed:
            self.bank.store.delete(self.bank.records.versions, older[-1].id)

    def thin(self, name, document):
        self.bank.thin(name, 2)

    def delete(self, name, document):
        if self.bank.head(name):
            self.bank.delete(name)

    def forget(self, name, document):
        if self.bank.head(name):
            self.bank.forget(name)

    def _older(self, name):
        return self.bank.history(name)[1:] if self.bank.head(name) else []

    def _section(self, document, before, *, question="Who?"):
        self.sections += 1
        line, place = f"{self.sections} {document} was there.", 9 * self.sections
        return make_version(
            f"{before.text}\n{line}" if before else line,
            self.sections,
            before=before,
            question=question,
            digest=digest(document),
            name=document,
            start=place,
            end=place + 9,
            evidence=(
                *(before.memory.evidence if before else ()),
                Evidence(line, document, self.sections, place, place + 9),
            ),
        )

    @property
    def items(self):
        """All that is stored."""
        found = self.bank.store.search(self.bank.namespace, limit=10_000)
        return {(item.namespace, item.key): item.value for item in found}

    @property
    def versions(self):
        place = self.bank.records.versions
        return {key: value for (where, key), value in self.items.items() if where == place}

    @property
    def told(self):
        """The versions that each name leads to, the newest first."""
        values = self.versions
        return {name: above(values, [head.id]) for name, head in self.bank.list()}


def digest(document: str) -> str:
    return document.encode().hex().ljust(64, "0")


READING = make_reading_key(root_id("fish", "reader"), digest("fish"))
DEEDS = st.sampled_from(
    [deed for deed in vars(Bank).values() if callable(deed) and deed.__name__[0] != "_"]
    + [Bank.read, Bank.branch]
)
LIVES = st.lists(
    st.tuples(DEEDS, st.sampled_from(NAMES), st.sampled_from(DOCUMENTS)), min_size=2, max_size=16
)


def live(store, deeds):
    bank = Bank(store)
    for deed, name, document in deeds:
        deed(bank, name, document)
    return bank


@pytest.mark.slow
@EXAMPLES
@given(LIVES, st.sampled_from([*NAMES, READING]))
def test_of_a_memory(store, deeds, name):
    lived = live(store, deeds)
    before, told = lived.items, lived.told
    theirs = {key: value for key, value in lived.versions.items() if name in owners_of(value)}
    if name not in told and lived.bank.records.members(name) not in {place for place, _ in before}:
        with pytest.raises(MemoryNotFoundError):
            lived.bank.forget(name, preview=True)
        return

    preview = lived.bank.forget(name, preview=True)

    assert lived.items == before
    versions = lived.versions
    assert lived.bank.forget(name) == preview
    left = lived.versions
    assert preview.versions == len(versions.keys() - left.keys())
    shared = [owner for key in theirs.keys() & left.keys() for owner in owners_of(left[key])]
    assert preview.shared == {owner: shared.count(owner) for owner in shared}
    assert lived.told.keys() == told.keys() - {name}
    others = {key for key, value in versions.items() if {*owners_of(value)} - {name}}
    assert others <= left.keys()


@pytest.mark.slow
@EXAMPLES
@given(LIVES, st.sampled_from(DOCUMENTS))
def test_of_a_document(store, deeds, document):
    lived = live(store, deeds)
    before, versions, told = lived.items, lived.versions, lived.told

    preview = lived.bank.forget_source(digest(document), preview=True)

    assert lived.items == before
    assert lived.bank.forget_source(digest(document)) == preview
    assert preview.versions == len(versions.keys() - lived.versions.keys())
    now = lived.told
    assert {*preview.forgotten} == told.keys() - now.keys()
    assert {*preview.fell_back} == {name for name in now if now[name][0] != told[name][0]}
    assert all(now[name] == told[name][-len(now[name]) :] for name in preview.fell_back)
    assert document not in {other for _, other in preview.unread}
    assert f"{document} was there" not in repr(lived.versions)


class Keeper(ScriptedReader):
    """Its memory is all that it read."""

    async def update(self, step, *, config=None):
        return Update(Memory(f"{step.memory.text}{step.chunk.text}"))


TALKS = st.lists(
    st.tuples(
        st.sampled_from(NAMES), st.sampled_from(["monday", "friday"]), st.sampled_from(DOCUMENTS)
    ),
    min_size=1,
    max_size=8,
)


@pytest.mark.slow
@settings(EXAMPLES, max_examples=10)
@given(TALKS, st.sets(st.sampled_from(NAMES)), st.integers(1, 3))
def test_of_a_person(store, talks, edited, kept):
    place = (uuid4().hex, "memagent")
    memory = ConversationMemory(Keeper(), store=store, namespace=place, keep_versions=kept)
    users = memory.users()
    for number, (user, thread, word) in enumerate(talks):
        said = HumanMessage(f"I have a {word}.", id=f"message {number}")
        memory.save([said], user=user, thread=thread)
    for user in edited & {*users.names()}:
        users.edit(user, "Has a cat.", by="olga")

    held = {user: users.held(user) for user in NAMES}

    assert {user for user in NAMES if held[user].items} == {user for user, _, _ in talks}
    for user in NAMES:
        assert users.held(user) == held[user]  # though others were forgotten meanwhile
        assert held[user].versions <= kept + (user in edited)
        done = users.forget(user, by="olga")
        assert (done.items, done.threads) == (held[user].items, held[user].threads)
        assert users.held(user).items == 0


def test_forgetting_a_user_does_not_look_at_the_items_of_others_for_its_label():
    class Listing(InMemoryStore):
        listed = 0

        async def abatch(self, ops):
            ops = [*ops]
            self.listed += sum(isinstance(op, ListNamespacesOp) for op in ops)
            return await super().abatch(ops)

    memory = ConversationMemory(ScriptedReader(), store=(store := Listing()))
    memory.save([HumanMessage("I sail.", id="1")], user="ann", thread="t")

    memory.forget("ann")

    assert "sail" not in str(store.search(()))
    assert store.listed == 0
