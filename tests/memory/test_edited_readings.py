"""Readings under way whose memory is edited: they go on from the edit."""

import asyncio
from functools import partial

import pytest
from fixed_readers import ChainReader, chain
from gated_readings import PATIENT, SMALL, TEXT, Gated, Reading, alone, under_way, until
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.base import PutOp
from langgraph.store.memory import InMemoryStore

from memagent_graph import MemoryBank, create_memagent
from memagent_graph.errors import MemoryConflictError
from memagent_graph.memory.store import GetThenPut

SEGMENTED = SMALL.model_copy(update={"segments": 2})


@pytest.fixture
def store():
    return InMemoryStore()


def spans_after(step, config=SMALL):
    """The chunks of an undisturbed reading after so many."""
    reader = ChainReader()
    create_memagent(reader, config=config).invoke({"question": "?", "document": TEXT})
    return reader.spans[step:]


def calls(config=SMALL):
    return len(spans_after(0, config))


async def begin(store, bank, chunks, **options):
    """A reading that waits in the chunk after so many, and its fold."""
    reading = Reading(store, Gated(), **options)
    return reading, await under_way(reading, bank, chunks, options.get("memory_name"))


def hand_made(history):
    return [version.text for version in history if version.edited]


async def is_kept_and_ended(bank, version):
    """Whether the edit is in the history of a version, and no reading is listed any more."""
    return (
        hand_made(await bank.ahistory(version)) == ["By hand."]
        and await everything_listed(bank) == []
    )


async def read_before(store, document="An older page.", **named):
    asked = {"question": "?", "document": document, "memory_name": "diary", **named}
    agent = create_memagent(ChainReader(), config=SMALL, store=store)
    return await agent.ainvoke(asked)


def read_on(memory, spans):
    for start, end in spans:
        memory = chain(memory, TEXT[start:end])
    return memory


async def everything_listed(bank):
    return [item async for item in bank.scan(bank.leases)]


@pytest.mark.parametrize("name", [None, "diary"])
async def test_a_chunk_that_is_being_read_when_the_memory_is_edited_is_read_again(
    async_store, name
):
    bank = MemoryBank(async_store)
    reading, fold = await begin(async_store, bank, 3, memory_name=name)
    assert (fold.edit, fold.taken) == ("", "")

    edit = await bank.aedit(fold.memory, "By hand.", before=fold.version)
    (waits,) = await bank.aunder_way()
    assert (waits.edit, waits.version, waits.taken) == (edit.id, edit.id, "")
    reading.reader.may.release()
    await until(lambda: reading.told("edited") or reading.reader.may.release())
    (taken,) = await bank.aunder_way(fold.memory)
    assert taken.edit == edit.id
    assert edit.created_at < taken.taken
    out = await reading.end()

    assert out["answer"] == read_on("By hand.", spans_after(3))
    assert "By hand." in reading.reader.memories
    history = await bank.ahistory(name or out["version"])
    assert (history[0].id, history[0].text) == (out["version"], out["answer"])
    assert [version.id for version in history if version.edited] == [edit.id]
    assert history.gaps == out["warnings"] == await everything_listed(bank) == []
    (event,) = reading.told("edited")
    assert (event["memory"], event["version"]) == (fold.memory, edit.id)
    agent = create_memagent(reader := ChainReader(), config=SMALL, store=async_store)
    again = await agent.ainvoke({"question": "?", "document": TEXT, "memory_name": name})
    assert (again["answer"], again["version"]) == (out["answer"], out["version"])
    assert reader.spans == []


async def test_what_was_read_since_the_edited_version_is_read_again(store, bank):
    reading, before = await begin(store, bank, 1)
    await under_way(reading, bank, 3)

    await bank.aedit(before.memory, "By hand.", before=before.version)
    out = await reading.end()

    assert out["answer"] == read_on("By hand.", spans_after(1))
    assert hand_made(await bank.ahistory(out["version"])) == ["By hand."]


async def test_the_second_of_two_editors_is_told_and_can_edit_the_edit(store, bank):
    reading, fold = await begin(store, bank, 2)
    edits = (bank.aedit(fold.memory, f"By {who}.", before=fold.version) for who in ("ann", "bob"))

    results = await asyncio.gather(*edits, return_exceptions=True)

    (kept,) = [one for one in results if not isinstance(one, Exception)]
    assert sum(isinstance(one, MemoryConflictError) for one in results) == 1
    (listed,) = await bank.aunder_way(fold.memory)
    assert listed.version == kept.id
    await bank.aedit(fold.memory, "By both.", before=kept.id)
    assert (await reading.end())["answer"] == read_on("By both.", spans_after(2))


async def test_an_older_version_of_a_reading_that_has_ended_is_not_edited(store, bank):
    reading, fold = await begin(store, bank, 2)
    out = await reading.end()

    with pytest.raises(MemoryConflictError, match="changed meanwhile"):
        await bank.aedit(fold.memory, "Too late.", before=fold.version)

    edit = await bank.aedit(fold.memory, "By hand.", before=out["version"])
    assert (await bank.aget(fold.memory)).id == edit.id


async def test_an_edit_of_the_head_that_a_reading_began_at_begins_it_anew(store, bank):
    await read_before(store)
    reading, _ = await begin(store, bank, 2, memory_name="diary")

    edit = await bank.aedit("diary", "By hand.")
    assert (await bank.ahead("diary")).id == edit.id
    await asyncio.sleep(1)  # after a call that takes long, a near store is waited for
    out = await reading.end()

    assert out["answer"] == read_on("By hand.", spans_after(0))
    assert len(reading.reader.spans) == 3 + calls()
    history = await bank.ahistory("diary")
    assert (history[0].id, hand_made(history)) == (out["version"], ["By hand."])
    assert out["warnings"] == []


async def test_what_was_read_before_the_head_that_a_reading_began_at_is_not_edited(store, bank):
    await read_before(store, TEXT[1:])
    older = (await bank.ahistory("diary"))[1]
    reading, _ = await begin(store, bank, 2, memory_name="diary")

    with pytest.raises(MemoryConflictError, match="changed meanwhile"):
        await bank.aedit("diary", "By hand.", before=older.id)

    await reading.end()
    assert len(reading.reader.spans) == calls()


async def test_a_reading_begins_where_a_name_was_moved_back_to_and_not_at_its_edit(store, bank):
    await read_before(store)
    before = await bank.ahead("diary")
    edit = await bank.aedit("diary", "By hand.")
    assert await bank.amove_head("diary", before.id, expected=edit.id)

    reading = Reading(store, Gated(), memory_name="diary")
    await reading.end()

    assert reading.reader.memories[0] == before.text


async def test_an_edit_that_goes_when_another_reading_moves_the_name_first_is_said(store, bank):
    reading, fold = await begin(store, bank, 2, memory_name="diary")
    edit = await bank.aedit("diary", "By hand.", before=fold.version)
    await read_before(store, "Another page.")

    out = await reading.end()

    assert hand_made(await bank.ahistory("diary")) == []
    (warning,) = out["warnings"]
    assert edit.id in warning


class Between(InMemoryStore):
    """Another way to a store, on which something else happens first once, before a kind of call."""

    def __init__(self, store):
        super().__init__()
        self._data = store._data
        self.before = self.happens = None

    async def abatch(self, ops):
        ops = [*ops]
        await self.let_happen(ops)
        return await super().abatch(ops)

    async def let_happen(self, ops):
        if self.before and any(self.before(op) for op in ops):
            self.before = None
            await self.happens()


@pytest.fixture
def between(store, monkeypatch):
    monkeypatch.setenv("MEMAGENT_STORE_SECONDS", str(PATIENT))
    commit = GetThenPut.acommit

    async def acommit(self, puts, **given):
        if isinstance(self._store, Between):
            await self._store.let_happen(puts)
        return await commit(self, puts, **given)

    monkeypatch.setattr(GetThenPut, "acommit", acommit)
    return Between(store)


def leaves(op):
    return isinstance(op, PutOp) and "underway" in op.namespace and op.value is None


def lists(op):
    return isinstance(op, PutOp) and "underway" in op.namespace


def edit_all(bank):
    """Edit what all folds of the only reading are at, just before it is seen no more."""

    async def edit():
        for fold in await bank.aunder_way():
            await edit_of(bank, fold)()

    return edit


def edit_of(bank, fold):
    return partial(bank.aedit, fold.memory, "By hand.", before=fold.version)


@pytest.mark.parametrize("name", [None, "diary"])
async def test_an_edit_after_the_last_chunk_is_what_the_answer_is_written_from(
    store, bank, between, name
):
    between.before, between.happens = leaves, edit_all(bank)
    reading = Reading(between, Gated(), memory_name=name)
    # Without a name, it leaves the list as the last version is written, which is not there yet.
    again = [] if name else spans_after(calls() - 1)

    out = await reading.end()

    assert out["answer"] == read_on("By hand.", again)
    assert reading.reader.spans == spans_after(0) + again
    newest = (await bank.alist())[0][1]
    assert (newest.id, newest.text) == (out["version"], out["answer"])
    assert await everything_listed(bank) == []


async def test_an_edit_of_an_earlier_version_after_the_last_chunk_is_read_on(store, bank, between):
    reading, fold = await begin(between, bank, 2, memory_name="diary")

    between.before, between.happens = leaves, edit_of(bank, fold)
    out = await reading.end()

    assert out["answer"] == read_on("By hand.", spans_after(2))
    assert len(reading.reader.spans) == 2 * calls() - 2
    assert (await bank.ahead("diary")).id == out["version"]


async def test_an_edit_of_a_segment_that_is_read_is_taken_by_it_and_merged(store, bank):
    reading = Reading(store, Gated(), SEGMENTED)
    await reading.read(4)
    await until(lambda: reading.reader.waits == 2)
    first, second = await bank.aunder_way()
    assert first.memory == second.memory

    await bank.aedit(first.memory, "By hand.", before=second.version)
    out = await reading.end()

    border, read = first.length, second.position + first.length
    assert any(end > start >= border for start, end in reading.reader.spans)
    one = read_on("", [span for span in spans_of(reading) if span[0] < border])
    other = read_on("By hand.", [span for span in spans_of(reading) if span[0] >= read])
    assert out["answer"] == chain("merge", one + other)
    assert await is_kept_and_ended(bank, out["version"])


def spans_of(reading):
    """The chunks that were read, each once, in the order of the document."""
    return sorted({*reading.reader.spans})


async def test_an_edit_of_a_segment_that_has_ended_is_kept_at_the_merge(store, bank):
    reading = Reading(store, Gated(), SEGMENTED)
    await reading.read(calls(SEGMENTED) - 1)
    await until(lambda: reading.reader.waits == 1)
    folds = await bank.aunder_way()
    (fold,) = [fold for fold in folds if fold.position == fold.length]

    await edit_of(bank, fold)()
    out = await reading.end()

    border, is_first = folds[0].length, fold.fold == "1.1"
    rest = read_on("", [span for span in spans_of(reading) if (span[0] < border) != is_first])
    texts = f"By hand.{rest}" if is_first else f"{rest}By hand."
    assert out["answer"] == chain("merge", texts)
    assert await is_kept_and_ended(bank, out["version"])


async def test_a_merged_memory_is_edited_before_the_answer(store, bank, between):
    def leaves_the_whole(op):
        if lists(op) and op.value is not None and "." not in op.value["fold"]:
            whole.add(op.key)
        return leaves(op) and op.key in whole

    whole = set()
    between.before, between.happens = leaves_the_whole, edit_all(bank)

    out = await Reading(between, Gated(), SEGMENTED).end()

    assert out["answer"] == "By hand."
    assert await is_kept_and_ended(bank, out["version"])


@pytest.mark.parametrize("resume", [True, False], ids=["itself", "by another"])
async def test_a_reading_that_was_broken_off_goes_on_from_the_edit_when_resumed(
    store, bank, resume
):
    saver = InMemorySaver() if resume else None
    reading, fold = await begin(store, bank, 3, saver=saver)
    await reading.stop()

    await edit_of(bank, fold)()
    again = Reading(store, Gated(), saver=saver, resume=resume)
    out = await again.end()

    assert (again.reader.memories[0], len(again.reader.spans)) == ("By hand.", calls() - fold.step)
    assert out["answer"] == read_on("By hand.", spans_after(fold.step))
    assert hand_made(await bank.ahistory(out["version"])) == ["By hand."]


async def test_an_edit_of_where_a_reading_begins_is_seen_though_it_was_not_listed_yet(
    store, bank, between
):
    broken_off, fold = await begin(store, bank, 2)
    await broken_off.stop()

    between.before, between.happens = lists, edit_of(bank, fold)
    again = Reading(between, Gated())
    out = await again.end()

    assert (again.reader.memories[0], len(again.reader.spans)) == ("By hand.", calls() - fold.step)
    assert hand_made(await bank.ahistory(out["version"])) == ["By hand."]


async def two_readings(store, bank):
    """One that leads, one that has taken over the two chunks that it has read, and the fold."""
    first = Reading(store, Gated())
    await until(lambda: first.reader.waits)
    second = Reading(store, Gated())
    await until(lambda: "progress" in second.out)
    fold = await under_way(first, bank, 2)
    await until(lambda: second.out["progress"]["step"] == 2)
    return first, second, fold


async def test_two_readings_of_the_same_go_on_from_the_edit(store, bank):
    first, second, fold = await two_readings(store, bank)

    await edit_of(bank, fold)()
    second.reader.read_all()
    outs = [await first.end(), await second.end()]

    assert [out["answer"] for out in outs] == 2 * [read_on("By hand.", spans_after(2))]
    assert outs[0]["version"] == outs[1]["version"]
    assert len(first.reader.spans + second.reader.spans) <= calls() + 2


async def test_a_follower_that_is_cancelled_leaves_the_reading_that_it_follows_in_the_list(
    store, bank
):
    first, second, fold = await two_readings(store, bank)

    await second.stop()

    (left,) = await bank.aunder_way(fold.memory)
    assert left.holder == fold.holder
    assert (await first.end())["answer"] == alone()


async def test_a_reading_that_is_cancelled_leaves_no_task_and_nothing_in_the_list(store, bank):
    before = asyncio.all_tasks()
    reading, _ = await begin(store, bank, 2)

    await reading.stop()

    assert (asyncio.all_tasks(), await everything_listed(bank)) == (before, [])


async def test_two_documents_that_are_read_at_once_into_one_name_are_both_listed_and_edited(
    store, bank
):
    documents = [TEXT, TEXT[1:]]
    readings = [Reading(store, Gated(), memory_name="diary", document=one) for one in documents]
    for reading in readings:
        await reading.read(2)
    await until(lambda: all(reading.reader.waits for reading in readings))
    folds = await bank.aunder_way("diary")
    assert [fold.length for fold in folds] == [len(one) for one in documents]

    for fold, text in zip(folds, ("By hand.", "For the other."), strict=True):
        await bank.aedit("diary", text, before=fold.version)
    await asyncio.gather(*(reading.end() for reading in readings))

    for reading, text in zip(readings, ("By hand.", "For the other."), strict=True):
        assert text in reading.reader.memories
    assert await bank.aunder_way() == []


async def test_readings_that_share_no_work_are_listed_apart(store, bank):
    apart = SMALL.model_copy(update={"lease": False})
    readings = [Reading(store, Gated(), apart) for _ in range(2)]
    # Both read chunk 1 themselves: one that looked later would take what the other has stored.
    await until(lambda: all(reading.reader.waits for reading in readings))
    for reading, chunks in zip(readings, (1, 3), strict=True):
        await reading.read(chunks)
    assert sorted(fold.step for fold in await bank.aunder_way()) == [1, 3]

    await readings[0].stop()

    (fold,) = await bank.aunder_way()
    assert fold.step == 3
    await readings[1].end()
    assert await bank.aunder_way() == []


@pytest.mark.parametrize("forget", ["name", "source"])
async def test_forgetting_takes_a_reading_that_was_broken_off_out_of_the_list(store, bank, forget):
    reading, fold = await begin(store, bank, 2, memory_name="diary")
    await bank.aedit("diary", "By hand.", before=fold.version)
    lost = await everything_listed(bank)
    await reading.stop()
    await bank.items([bank.put(tuple(one.namespace), one.key, one.value) for one in lost])

    await (bank.aforget("diary") if forget == "name" else bank.aforget_source(fold.source))

    assert await everything_listed(bank) == []
