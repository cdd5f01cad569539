"""A document that is read in several segments at once, whose memories are merged."""

import asyncio
from contextlib import nullcontext
from itertools import pairwise

import pytest
from fixed_readers import Watched, numbered
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.documents import Document
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore

from memagent_graph import MemoryBank, ReadingConfig, create_memagent
from memagent_graph.errors import ConfigurationError, ContextLengthError, ModelError
from memagent_graph.evidence.places import Memory
from memagent_graph.graph.reading import Reading
from memagent_graph.graph.segments import cut_evenly, merge, merge_groups, most_merges
from memagent_graph.readers.base import Answer, Identity, Merge, Reader, Update, Usage
from memagent_graph.readers.chat import ChatReader
from memagent_graph.testing import ScriptedChatModel
from memagent_graph.text.chunks import chunks
from memagent_graph.text.files import open_source
from memagent_graph.text.source import TextSource
from memagent_graph.text.tokens import EstimatingTokenizer

SMALL = ReadingConfig(chunk_tokens=50, memory_tokens=4000, retry_interval=0.001, segments=4)
TEXT = numbered(195)
ASKED = {"question": "?", "document": TEXT}
THREAD = {"configurable": {"thread_id": "t"}}


class Listing(Watched):
    """Its memory is the list of what it read; fails at a chunk, or a list of memories."""

    identity = Identity("listing", "listing-1")

    def __init__(self, fails=lambda what: None, **options):
        super().__init__(lambda step: fails(step.chunk), **options)
        self.fails_to_merge = fails

    async def read(self, step):
        chunk = step.chunk
        self.spans.append((chunk.start, chunk.end))
        await asyncio.sleep(self.delay)
        text = f"{step.memory.text}{chunk.start}-{chunk.end}\n"
        return Update(Memory(text), usage=Usage(1, chunk.tokens, 2))

    async def merge(self, question, memories, *, config=None):
        self.merges.append(len(memories))
        if error := self.fails_to_merge(memories):
            raise error
        return Merge(Memory("".join(memory.text for memory in memories)), usage=Usage(1, 5, 7))

    async def respond(self, question, memory, *, config=None):
        return Answer(memory.text, memory.text, usage=Usage(1, 1, 1))

    @property
    def reads_each_once(self):
        return len(self.spans) == len({*self.spans})


class Broken(Listing):
    def __init__(self, fails, **options):
        self.is_broken = True
        no = ModelError("No.")
        super().__init__(lambda what: no if self.is_broken and fails(what) else None, **options)


def agent_of(reader, store=None, checkpointer=None, **changes):
    config = SMALL.model_copy(update=changes)
    return create_memagent(reader, config=config, store=store, checkpointer=checkpointer)


def ask(reader, store=None, asked=ASKED, **changes):
    return agent_of(reader, store, **changes).invoke(asked)


def run(agent, asked, how="invoke"):
    if how == "invoke":
        return agent.invoke(asked, THREAD)
    return asyncio.run(agent.ainvoke(asked, THREAD))


def bounds(text, most, chunk_tokens=50):
    cut = chunks(TextSource(text), tokenizer=EstimatingTokenizer(), chunk_tokens=chunk_tokens)
    begins = [chunk.start for chunk in cut]
    places = [begins[place] for place in cut_evenly(len(begins), most, 1)]
    return [*pairwise([*places, len(text)])]


def ends(answer):
    """The spans in a memory: whole lines, each behind the one before it."""
    return [tuple(map(int, line.split("-"))) for line in answer.splitlines()]


def covers(found, text=TEXT):
    edges = [0, *(end for _, end in found)]
    return [start for start, _ in found] == edges[:-1] and edges[-1] == len(text)


@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
def test_all_is_read_once_by_segments_at_once_and_merged_in_their_order(how):
    reader = Listing(delay=0.001, together=4)

    out = run(agent_of(reader), ASKED, how)

    assert covers(ends(out["answer"]))
    assert sorted(reader.spans) == ends(out["answer"])
    assert (reader.most, reader.merges) == (4, [4])
    chunks = len(reader.spans)
    assert out["usage"]["calls"] == chunks + 2
    assert out["usage"]["output_tokens"] == 2 * chunks + 7 + 1
    assert (out["coverage"], out["stopped"], out["warnings"]) == (1.0, "end", [])


@pytest.mark.parametrize(("concurrency", "parts"), [(1, 1), (3, 3), (100, 13)])
def test_automatic_segments_are_as_many_as_are_answered_at_once_and_not_short(concurrency, parts):
    reader = Listing()
    reader.concurrency = concurrency

    events = [*agent_of(reader, segments="auto").stream(ASKED, stream_mode="custom")]

    assert covers(ends(events[-1]["answer"]))
    assert len({event["fold"] for event in events if event["event"] == "chunk"}) == parts


def test_a_reader_that_cannot_merge_is_refused_before_anything_is_read():
    class Alone(Listing):
        merge = Reader.merge

    with pytest.raises(ConfigurationError, match="listing does not merge memories: set segments=1"):
        create_memagent(Alone(), config=SMALL)


def test_a_memory_that_holds_nothing_costs_no_merge():
    class Choosy(Listing):
        async def update(self, step, *, config=None):
            update = await super().update(step, config=config)
            return update if step.chunk.start == 0 else Update(None)

    reader = Choosy()

    out = ask(reader)

    assert (len(ends(out["answer"])), reader.merges) == (1, [])


@pytest.mark.parametrize(
    ("how", "kept"), [("invoke", "thread"), ("ainvoke", "thread"), ("invoke", "store")]
)
def test_what_fails_names_segment_and_chunk_and_is_gone_on_from(how, kept):
    def is_late(what):
        return not isinstance(what, list) and len(TEXT) // 2 + 300 < what.start < len(TEXT) * 0.7

    reader = Broken(is_late, delay=0.002)
    saved = {"checkpointer": InMemorySaver()} if kept == "thread" else {"store": InMemoryStore()}
    agent = agent_of(reader, lease=False, **saved)

    with pytest.raises(ModelError, match=r"^Reading chunk \d+ of segment 3 failed: No\.") as error:
        run(agent, ASKED, how)
    assert error.value.chunk is not None
    reader.is_broken = False
    out = run(agent, None if kept == "thread" else ASKED, how)

    assert covers(ends(out["answer"]))
    assert len(reader.spans) <= len(ends(out["answer"])) + 3


def test_a_merge_that_fails_is_said_and_made_again_without_reading():
    reader = Broken(lambda what: isinstance(what, list))
    agent = agent_of(reader, checkpointer=InMemorySaver())

    with pytest.raises(ModelError, match=r"^Merging the memories failed: No\."):
        run(agent, ASKED)
    reader.is_broken = False
    out = run(agent, None)

    assert covers(ends(out["answer"]))
    assert reader.reads_each_once


@pytest.mark.parametrize("fails", [False, True])
def test_another_document_on_the_same_thread_begins_anew(fails):
    reader = Broken(lambda chunk: fails and chunk.start)
    agent = agent_of(reader, checkpointer=InMemorySaver())
    with pytest.raises(ModelError) if fails else nullcontext():
        run(agent, ASKED)
        assert "folds" not in agent.get_state(THREAD).values
    reader.is_broken = False

    out = run(agent, {"question": "?", "document": numbered(110)})

    assert covers(ends(out["answer"]), numbered(110))


@pytest.mark.parametrize("node", ["overwrite_memory", "merge_memories", "write_answer"])
def test_a_reading_stops_where_it_is_told_to_and_goes_on(node):
    reader = Listing()
    saver = InMemorySaver()
    agent = create_memagent(reader, config=SMALL, checkpointer=saver, interrupt_before=[node])

    out, stops = run(agent, ASKED), 0
    while agent.get_state(THREAD).next:
        out, stops = run(agent, None), stops + 1

    assert stops > (1 if node == "overwrite_memory" else 0)
    assert covers(ends(out["answer"]))
    assert reader.reads_each_once


# With a store


@pytest.mark.parametrize("keep", [None, 1])
def test_what_was_read_and_merged_is_found_again(keep):
    store, reader = InMemoryStore(), Listing()
    first = ask(reader, store, keep_versions=keep)
    read = len(reader.spans)

    again = ask(reader, store, keep_versions=keep)

    assert (len(reader.spans), reader.merges, again["usage"]["calls"]) == (read, [4], 1)
    same = ("answer", "memory", "version", "coverage", "stopped")
    assert [again[field] for field in same] == [first[field] for field in same]
    assert again["usage"]["document_tokens"] == first["usage"]["document_tokens"]
    history = MemoryBank(store).history(first["version"])
    assert history[0].id == first["version"]
    assert len(history) == keep or len(history) == read + 1


@pytest.mark.slow
def test_a_document_that_grows_costs_what_it_grew_by():
    store, reader, before = InMemoryStore(), Listing(), 0

    for number in (60, 62, 200, 201, 900, 1000):
        reader.spans.clear()
        text = numbered(number)
        out = ask(reader, store, {"question": "?", "document": text})

        assert covers(ends(out["answer"]), text)
        old = [start for start, _ in reader.spans if start < before]
        assert len(old) <= 1  # the last chunk, which has more text now
        before = len(text)


@pytest.mark.parametrize("limit", [{"segments": 1, "max_calls": 5}, {"max_calls": 20}])
def test_what_a_limit_left_unread_is_read_the_next_time(limit):
    store, reader = InMemoryStore(), Listing()
    part = ask(reader, store, **limit)
    read = len(reader.spans)

    out = ask(reader, store)

    assert part["coverage"] < 1
    assert read > 3
    assert covers(ends(out["answer"]))
    assert reader.reads_each_once


LINE = "One more line: Ann Kestrel paid 1,480 euros.\n"


def folder(count=25, **changed):
    """So many files, as a list of documents; `changed` has other texts by name."""
    files = {
        f"file{number:02}": "".join(
            f"In file {number:02}, lamp {line * 7 % 91} of room {line} is number {line * number}.\n"
            for line in range(40 + number * 7 % 30)
        )
        for number in range(count)
    }
    return [Document(text, metadata={"source": name}) for name, text in (files | changed).items()]


def text_of(number):
    return folder()[number].page_content


def test_a_line_more_in_a_file_mostly_changes_its_chunk_alone_for_a_fifth_more_chunks_at_most():
    def cut(source):
        found = chunks(source, tokenizer=EstimatingTokenizer(), chunk_tokens=1000)
        return [chunk.digest for chunk in found]

    before = open_source(folder())
    known = cut(before)
    folders = [folder(**{f"file{n:02}": LINE + text_of(n)}) for n in range(25)]
    changed = [len({*cut(open_source(one))} - {*known}) for one in folders]

    assert len(known) <= 1.2 * len(cut(TextSource(before.read(0, before.length))))
    assert changed.count(1) >= 20
    assert sum(changed) < 2.5 * len(changed)


@pytest.mark.parametrize("number", [0, 12, 24])
def test_a_line_more_in_a_file_of_a_folder_costs_its_chunk_and_at_most_its_neighbours(number):
    store, reader = InMemoryStore(), Listing()
    sizes = {"chunk_tokens": 1000, "segments": 16}
    ask(reader, store, {"question": "?", "document": folder()}, **sizes)
    first = len(reader.spans)
    reader.spans.clear()

    changed = folder(**{f"file{number:02}": LINE + text_of(number)})
    out = ask(reader, store, {"question": "?", "document": changed}, **sizes)

    assert first >= 25
    assert len(reader.spans) <= 3
    assert (out["coverage"], out["stopped"]) == (1.0, "end")
    assert out["usage"]["document_tokens"] > 20_000


@given(st.integers(0, 9), st.integers(0, 39), st.sampled_from([2, 5, 8]))
@settings(max_examples=10, deadline=None)
def test_what_is_reused_of_a_changed_folder_is_cited_where_it_stands_now(number, line, segments):
    store = InMemoryStore()
    sizes = {"chunk_tokens": 1000, "segments": segments}
    agent = agent_of("extractive", store, **sizes)
    question = "Which lamps of room 7 are there?"
    agent.invoke({"question": question, "document": folder(10)})
    lines = text_of(number).splitlines(keepends=True)
    text = "".join([*lines[:line], LINE, *lines[line:]])
    changed = {"question": question, "document": folder(10, **{f"file{number:02}": text})}

    out = agent.invoke(changed)

    fresh = agent_of("extractive", **sizes).invoke(changed)
    assert out["citations"]
    assert (out["answer"], out["memory"]) == (fresh["answer"], fresh["memory"])
    assert (out["citations"], out["evidence"]) == (fresh["citations"], fresh["evidence"])
    assert out["usage"]["calls"] < fresh["usage"]["calls"]
    whole = open_source(changed["document"])
    for place in out["evidence"]:
        assert whole.read(place["start"], place["end"] - place["start"]) in place["text"]


async def test_of_two_memories_of_a_segment_the_one_that_was_stored_first_is_merged():
    store = InMemoryStore()
    reached, stored = asyncio.Event(), asyncio.Event()

    class Late(Listing):
        async def update(self, step, *, config=None):
            if step.chunk.end == len(TEXT):
                reached.set()
                await stored.wait()
            return await super().update(step, config=config)

    class First(Broken):
        async def update(self, step, *, config=None):
            update = await super().update(step, config=config)
            return Update(Memory(f"{update.memory.text}of the first\n"))

    first = First(lambda what: isinstance(what, list))
    late = asyncio.create_task(agent_of(Late(), store, lease=False).ainvoke(ASKED))
    await reached.wait()
    with pytest.raises(ModelError, match="Merging"):
        await agent_of(first, store, lease=False).ainvoke(ASKED)
    stored.set()

    out = await late

    bank = MemoryBank(store)
    parts = [await bank.aget(id) for id in (await bank.aget(out["version"])).made_by.merged]
    assert parts[-1].text.endswith("of the first\n")
    assert out["memory"] == "".join(part.text for part in parts)


# Several questions


@pytest.mark.slow
@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
def test_questions_and_segments_are_read_at_once_and_each_chunk_cut_once(how):
    reads = []

    class Watched(TextSource):
        def read(self, start, size):
            reads.append(start)
            return super().read(start, size)

    reader = Listing(delay=0.001, together=16)
    text = numbered(1100)
    questions = [f"What is {number}?" for number in range(4)]
    agent = agent_of(reader, chunk_tokens=300)  # longer ones are cut ahead

    out = run(agent, {"questions": questions, "document": Watched(text)}, how)

    assert all(covers(ends(record["answer"]), text) for record in out["answers"])
    assert reader.most == 4 * 4
    chunks = len({*reader.spans})
    assert len(reader.spans) == 4 * chunks
    assert {record["usage"]["calls"] for record in out["answers"]} == {chunks + 2}
    # Where chunks begin, and so segments, is found once; a slow fold reads its text again.
    assert {*reads} == {start for start, _ in reader.spans} | {len(text)}


async def test_no_segment_waits_for_another():
    *_, (last, _) = bounds(TEXT, 4)
    done = asyncio.Event()

    class Uneven(Listing):
        async def update(self, step, *, config=None):
            if step.chunk.start == 0:
                await done.wait()
            update = await super().update(step, config=config)
            if sum(start >= last for start, _ in self.spans) == 2 * chunks:
                done.set()
            return update

    reader = Listing()
    await agent_of(reader).ainvoke(ASKED)
    chunks = sum(start >= last for start, _ in reader.spans)
    assert chunks > 4

    async with asyncio.timeout(60):
        out = await agent_of(Uneven()).ainvoke({"questions": ["?", "??"], "document": TEXT})

    assert all(covers(ends(record["answer"])) for record in out["answers"])


# Where segments end, and how memories are grouped


@given(st.integers(1, 3000), st.integers(1, 100), st.integers(1, 9))
def test_segments_are_as_many_chunks_each_and_no_more_of_them_than_asked_for(chunks, most, least):
    found = cut_evenly(chunks, most, least)

    sizes = [end - start for start, end in pairwise([*found, chunks])]
    assert found[0] == 0
    assert len(found) <= most
    assert {*sizes[:-1]} <= {max(sizes)}
    assert 1 <= sizes[-1] <= max(sizes)
    assert max(sizes) <= max(least, 1.25 * -(-chunks // most))


@given(st.integers(1, 40), st.integers(1, 5), st.lists(st.integers(1, 400), min_size=1, max_size=9))
def test_a_document_that_grows_keeps_its_segments_and_gets_no_more_than_asked(most, least, grown):
    chunks, known = grown[0], cut_evenly(grown[0], most, least)
    for more in grown[1:]:
        chunks += more

        found = cut_evenly(chunks, most, least, {*known})

        assert found[: len(known)] == known
        assert len(found) - len(known) <= most
        known = found


@given(st.lists(st.integers(0, 1024), min_size=1), st.integers(0, 9000))
def test_groups_are_all_memories_in_order_and_fit_unless_there_are_two(sizes, room):
    found = [*merge_groups(sizes, room)]

    assert [start for start, _ in found] == [0, *(end for _, end in found[:-1])]
    assert found[-1][1] == len(sizes)
    for start, end in found:
        assert end - start <= 2 or sum(sizes[start:end]) + 16 * (end - start) <= room
    assert all(end - start > 1 for start, end in found[:-1])


def long_memory(number, tokens=1024):
    text = " ".join(f"Fact {number}.{count} holds." for count in range(tokens))
    room = EstimatingTokenizer().prefix(text, tokens)
    assert room < len(text)
    return text[:room].rpartition(" Fact ")[0]


@pytest.mark.slow
@pytest.mark.parametrize(("count", "tokens"), [(24, 5000), (16, 100)])
async def test_full_memories_are_merged_within_the_window(count, tokens):
    # Word for word: these replies are no notes on what they are given.
    config = ReadingConfig(segments=count, chunk_tokens=tokens, answer_tokens=100, exact_cuts=True)
    counter = EstimatingTokenizer()
    model = ScriptedChatModel(*map(long_memory, range(count)))
    reading = Reading("r", ChatReader(model, config=config), config, counter)
    memories = [Memory(long_memory(number)) for number in range(count)]

    (memory,), usage, cut, *_ = await merge(reading, "What holds?" * 100, memories)

    assert counter.count(memory.text) <= 1024
    assert not cut
    assert usage.calls == len(model.prompts) <= most_merges(count, config)
    longest = max(counter.count(prompt) for prompt in model.prompts)
    assert longest + config.memory_tokens <= config.window_tokens
    text = "".join(model.prompts)
    assert all(f"Fact {number}.0 holds." in text for number in range(count))


def merge_all(reader, texts, config=SMALL):
    memories = [Memory(text) for text in texts]
    return merge(Reading("r", reader, config, EstimatingTokenizer()), "?", memories)


async def test_a_group_that_the_context_cannot_hold_is_halved():
    def fails(memories):
        return ContextLengthError("Too long.") if len(memories) > 2 else None

    reader = Listing(fails)

    (memory,), usage, *_ = await merge_all(reader, [f"{n}\n" for n in range(5)])

    assert memory.text == "0\n1\n2\n3\n4\n"
    assert usage.calls == len(reader.merges)


async def test_an_empty_merge_replaces_nothing():
    class Emptying(Listing):
        async def merge(self, question, memories, *, config=None):
            self.merges.append(len(memories))
            return Merge(Memory(" "))

    reader = Emptying()

    merged = await merge_all(reader, "ab")

    assert [one.text for one in merged.memories] == ["a\nb"]
    assert merged.faulty == 1
    assert reader.merges == [2, 2]


async def test_two_that_the_context_cannot_hold_are_an_error():
    with pytest.raises(ContextLengthError):
        await merge_all(Listing(lambda _: ContextLengthError("Too long.")), "ab")
