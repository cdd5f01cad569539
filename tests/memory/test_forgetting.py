"""Forgetting leaves nothing, and its preview names exactly what is gone, after any history."""

import asyncio
from dataclasses import replace
from uuid import uuid4

import pytest
from fixed_readers import QuotingReader, ScriptedReader
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.messages import HumanMessage
from memory_versions import make_version

from memagent_graph import ConversationMemory, MemoryBank, ReadingConfig, create_memagent
from memagent_graph.errors import MemoryNotFoundError
from memagent_graph.evidence.places import Evidence
from memagent_graph.memory.items import owners_of
from memagent_graph.memory.maintenance import above, take_contents
from memagent_graph.memory.version import VersionMerge, make_reading_key, merge_id, root_id
from memagent_graph.sync import wait_for

NAMES = ["ann", "bob", "cleo"]
DOCUMENTS = ["fish", "bird"]
EXAMPLES = settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])


class Bank:
    """Memories to which something is done; what makes no sense at that moment is left out.

    Each deed takes the name of a memory and a document. No two sections that are read are the same.
    """

    def __init__(self, store) -> None:
        self.bank = MemoryBank(store, (uuid4().hex, "memagent"))
        self.sections = 0

    def read(self, name, document):
        head = self.bank.head(name)
        version = self._section(document, head)
        assert self.bank.advance(name, version, expected=head and head.id)

    def pass_over(self, name, document):
        if head := self.bank.head(name):
            version = self._section(document, head)
            gated = replace(version, memory=head.memory, unchanged=True)
            assert self.bank.advance(name, gated, expected=head.id)

    def read_twice(self, name, document):
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
        """Let the first version expire, unless it is needed by a name."""
        older, items = self._older(name), self.items.values()
        needed = {value.get("version") for value in items}
        if older and older[-1].id not in needed:
            self.bank.store.delete(self.bank.versions, older[-1].id)

    def thin(self, name, document):
        self.bank.thin(name, 2)

    def forget(self, name, document):
        if self.bank.head(name):
            self.bank.forget(name)

    def _older(self, name):
        return self.bank.history(name)[1:] if self.bank.head(name) else []

    def _section(self, document, before, *, question="Who?"):
        self.sections += 1
        line, place = f"{self.sections} {document} was there.", 9 * self.sections
        known = before.memory.evidence if before else ()
        evidence = *known, Evidence(line, document, self.sections, place, place + 9)
        read = {"digest": digest(document), "name": document, "start": place, "end": place + 9}
        text, options = f"{before.text}\n{line}" if before else line, {"question": question, **read}
        return make_version(text, self.sections, before=before, evidence=evidence, **options)

    @property
    def items(self):
        found = self.bank.store.search(self.bank.namespace, limit=10_000)
        return {(item.namespace, item.key): item.value for item in found}

    @property
    def versions(self):
        place = self.bank.versions
        return {key: value for (where, key), value in self.items.items() if where == place}

    @property
    def told(self):
        """The versions that each name leads to, the newest first."""
        made = wait_for(take_contents(self.bank)).made
        return {name: above(made, [head.id]) for name, head in self.bank.list()}


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
    if name not in told and lived.bank.members(name) not in {place for place, _ in before}:
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

    assert (lived.items, lived.bank.forget_source(digest(document))) == (before, preview)
    assert preview.versions == len(versions.keys() - lived.versions.keys())
    now = lived.told
    assert {*preview.forgotten} == told.keys() - now.keys()
    assert {*preview.fell_back} == {name for name in now if now[name][0] != told[name][0]}
    assert all(now[name] == told[name][-len(now[name]) :] for name in preview.fell_back)
    assert document not in {other for _, other in preview.unread}
    assert f"{document} was there" not in repr(lived.versions)


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
    memory = ConversationMemory(ScriptedReader(), store=store, namespace=place, keep_versions=kept)
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


SECRET = ("zyxquorin", "vlamtorpe", "brixelund", "qwonderak", "hollowick")
"""Words of a text, of its file's name, of a question and a name that nothing else has."""


@pytest.fixture
def left(redis_content):
    return lambda: [word for word in SECRET if word in redis_content()]


async def plant(store, tmp_path, text=SECRET[0], **asked):
    file = tmp_path / f"{SECRET[2]}.txt"
    file.write_text("".join(f"The {text} of day {n} went to {SECRET[1]}.\n" for n in range(40)))
    agent = create_memagent(QuotingReader(), config=ReadingConfig(chunk_tokens=50), store=store)
    return await agent.ainvoke({"question": f"Where is {SECRET[3]}?", "document": file, **asked})


async def test_a_forgotten_name_leaves_nothing(async_redis_store, left, tmp_path):
    store, bank = async_redis_store, MemoryBank(async_redis_store)
    await plant(store, tmp_path, memory_name="hollowick")
    await bank.aedit("hollowick", f"By hand: {SECRET[0]}")
    racing = (plant(store, tmp_path, memory_name="hollowick") for _ in range(2))
    await asyncio.gather(*racing)  # for the head
    assert left() == [*SECRET]
    other = create_memagent(QuotingReader(), store=store)

    asked = {"question": "What?", "document": "Nothing.", "memory_name": "other"}
    _, done = await asyncio.gather(other.ainvoke(asked), bank.aforget("hollowick"))

    assert left() == []
    assert done.versions > 5
    assert (done.shared, (await bank.ahistory("other")).gaps) == ({}, [])
