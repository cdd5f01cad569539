"""A document that is read in several segments at once, whose memories are merged."""

from __future__ import annotations

import asyncio
import threading
from contextlib import nullcontext
from itertools import pairwise

import pytest
from doubles import numbered, until_together
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore

from memagent_graph import MemoryBank, ReadingConfig, create_memagent
from memagent_graph.errors import (
    ConfigurationError,
    ContextLengthError,
    ModelError,
    TransientModelError,
)
from memagent_graph.evidence.places import Memory
from memagent_graph.graph.chunks import cut_evenly
from memagent_graph.graph.reading import Reading
from memagent_graph.graph.segments import groups, merge, most_merges
from memagent_graph.readers.base import Answer, Identity, Merge, Reader, Update, Usage
from memagent_graph.readers.chat import ChatReader
from memagent_graph.text.chunks import chunks
from memagent_graph.text.source import TextSource
from memagent_graph.text.tokens import EstimatingTokenizer

SMALL = ReadingConfig(chunk_tokens=50, memory_tokens=4000, retry_interval=0.001, segments=4)
TEXT = numbered(195)
ASKED = {"question": "?", "document": TEXT}


class Listing(Reader):
    """Its memory is the list of what it read; fails when told to, and knows how many run at once.

    Args:
        fails: from a chunk or a list of memories to an error, or None.
        delay: seconds that a call takes.
        together: updates that are waited for until so many have run at once.
    """

    identity = Identity("listing", "listing-1")

    def __init__(self, fails=lambda what: None, delay=0.0, together=1):
        self.fails, self.delay, self.together = fails, delay, together
        self.spans, self.merges = [], []
        self.running = self.most = 0
        self.lock = threading.Lock()

    async def update(self, step, *, config=None):
        chunk = step.chunk
        with self.lock:
            self.running += 1
            self.most = max(self.most, self.running)
            self.spans.append((chunk.start, chunk.end))
        try:
            await until_together(self, self.together)
            await asyncio.sleep(self.delay)
            if error := self.fails(chunk):
                raise error
        finally:
            with self.lock:
                self.running -= 1
        text = f"{step.memory.text}{chunk.start}-{chunk.end}\n"
        return Update(Memory(text), usage=Usage(1, chunk.tokens, 2))

    async def merge(self, question, memories, *, config=None):
        self.merges.append(len(memories))
        if error := self.fails(memories):
            raise error
        return Merge(Memory("".join(memory.text for memory in memories)), usage=Usage(1, 5, 7))

    async def respond(self, question, memory, *, config=None):
        return Answer(memory.text, memory.text, usage=Usage(1, 1, 1))


def run(agent, asked, how="invoke", config=None):
    if how == "invoke":
        return agent.invoke(asked, config)
    return asyncio.run(agent.ainvoke(asked, config))


def bounds(text, most, chunk_tokens=50):
    """Where the segments of a text begin and end."""
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

    out = run(create_memagent(reader, config=SMALL), ASKED, how)

    assert covers(ends(out["answer"]))
    assert sorted(reader.spans) == ends(out["answer"])
    assert reader.most == 4
    assert reader.merges == [4]
    chunks = len(reader.spans)
    assert out["usage"]["calls"] == chunks + 2
    assert out["usage"]["output_tokens"] == 2 * chunks + 7 + 1
    assert (out["coverage"], out["stopped"], out["warnings"]) == (1.0, "end", [])


def test_a_document_of_one_segment_is_read_as_ever():
    reader = Listing()
    config = SMALL.model_copy(update={"chunk_tokens": 5000})

    out = create_memagent(reader, config=config).invoke(ASKED)

    assert (ends(out["answer"]), reader.merges) == ([(0, len(TEXT))], [])


def test_each_chunk_is_a_segment_of_its_own_if_asked_for():
    reader = Listing()
    config = SMALL.model_copy(update={"segments": 1000})

    out = create_memagent(reader, config=config).invoke(ASKED)

    assert covers(ends(out["answer"]))
    assert reader.merges[0] == len(reader.spans)


@pytest.mark.parametrize(("concurrency", "parts"), [(1, 1), (3, 3), (100, 13)])
def test_automatic_segments_are_as_many_as_the_model_answers_at_once_and_not_too_short(
    concurrency, parts
):
    reader = Listing()
    reader.concurrency = concurrency
    agent = create_memagent(reader, config=SMALL.model_copy(update={"segments": "auto"}))

    events = [*agent.stream(ASKED, stream_mode="custom")]

    assert covers(ends(events[-1]["answer"]))
    assert len({event["fold"] for event in events if event["event"] == "chunk"}) == parts


def test_a_named_memory_is_read_from_its_beginning_to_its_end():
    reader = Listing()
    agent = create_memagent(reader, config=SMALL, store=InMemoryStore())

    agent.invoke({**ASKED, "memory_name": "notes"})

    assert reader.spans == sorted(reader.spans)
    assert reader.merges == []


def test_events_tell_the_segments_apart_and_what_was_merged():
    agent = create_memagent(Listing(), config=SMALL)

    events = [*agent.stream(ASKED, stream_mode="custom")]

    kinds = [event["event"] for event in events]
    assert (kinds[0], kinds[-2:]) == ("opened", ["merge", "answer"])
    read = [event for event in events if event["event"] == "chunk"]
    assert {event["fold"] for event in read} == {"1.1", "1.2", "1.3", "1.4"}
    last = {event["fold"]: event for event in read}
    assert all(event["position"] == event["length"] for event in last.values())
    assert sum(event["length"] for event in last.values()) == len(TEXT)
    merged = events[-2]
    assert (merged["memories"], merged["calls"], merged["fold"]) == (4, 1, "")


def test_the_graph_shows_segments_only_where_there_are_any():
    one = create_memagent(Listing(), config=ReadingConfig()).get_graph()
    several = create_memagent(Listing(), config=SMALL).get_graph()

    assert {*several.nodes} - {*one.nodes} == {"fold", "merge_memories"}


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

    out = create_memagent(reader, config=SMALL).invoke(ASKED)

    assert (len(ends(out["answer"])), reader.merges) == (1, [])


@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
def test_what_fails_names_segment_and_chunk_and_is_gone_on_from(how):
    broken = [True]

    def fails(chunk):
        late = isinstance(chunk, list) or not len(TEXT) // 2 + 300 < chunk.start < len(TEXT) * 0.7
        return ModelError("No.") if broken and not late else None

    reader = Listing(fails, delay=0.002)
    agent = create_memagent(reader, config=SMALL, checkpointer=InMemorySaver())
    thread = {"configurable": {"thread_id": "t"}}

    with pytest.raises(ModelError, match=r"^Reading chunk \d+ of segment 3 failed: No\.") as error:
        run(agent, ASKED, how, thread)
    assert error.value.chunk is not None
    broken.clear()
    out = run(agent, None, how, thread)

    assert covers(ends(out["answer"]))
    assert len(reader.spans) <= len(ends(out["answer"])) + 4


def test_a_merge_that_fails_is_said_and_made_again_without_reading():
    broken = [True]

    def fails(what):
        return ModelError("No.") if broken and isinstance(what, list) else None

    reader = Listing(fails)
    agent = create_memagent(reader, config=SMALL, checkpointer=InMemorySaver())
    thread = {"configurable": {"thread_id": "t"}}

    with pytest.raises(ModelError, match=r"^Merging the memories failed: No\."):
        agent.invoke(ASKED, thread)
    read = len(reader.spans)
    broken.clear()
    out = agent.invoke(None, thread)

    assert covers(ends(out["answer"]))
    assert len(reader.spans) == read


def test_a_merge_is_repeated_while_its_error_may_pass():
    left = [TransientModelError("Busy."), TransientModelError("Busy.")]
    reader = Listing(lambda what: left.pop() if left and isinstance(what, list) else None)

    out = create_memagent(reader, config=SMALL).invoke(ASKED)

    assert covers(ends(out["answer"]))
    assert reader.merges == [4, 4, 4]


@pytest.mark.parametrize("fails", [False, True])
def test_another_document_on_the_same_thread_begins_anew(fails):
    broken = [fails]
    reader = Listing(lambda chunk: ModelError("No.") if any(broken) and chunk.start else None)
    agent = create_memagent(reader, config=SMALL, checkpointer=InMemorySaver())
    thread = {"configurable": {"thread_id": "t"}}
    with pytest.raises(ModelError) if fails else nullcontext():
        agent.invoke(ASKED, thread)
        assert "folds" not in agent.get_state(thread).values
    broken.clear()

    out = agent.invoke({"question": "?", "document": numbered(110)}, thread)

    assert covers(ends(out["answer"]), numbered(110))


@pytest.mark.parametrize("node", ["overwrite_memory", "merge_memories", "write_answer"])
def test_a_reading_stops_where_it_is_told_to_and_goes_on(node):
    reader = Listing()
    agent = create_memagent(
        reader, config=SMALL, checkpointer=InMemorySaver(), interrupt_before=[node]
    )
    thread = {"configurable": {"thread_id": "t"}}

    out, stops = agent.invoke(ASKED, thread), 0
    while agent.get_state(thread).next:
        out, stops = agent.invoke(None, thread), stops + 1

    assert stops > (1 if node == "overwrite_memory" else 0)
    assert covers(ends(out["answer"]))
    assert len(reader.spans) == len({*reader.spans})


# With a store


def test_what_was_read_and_merged_is_found_again():
    store, reader = InMemoryStore(), Listing()
    agent = create_memagent(reader, config=SMALL, store=store)
    first = agent.invoke(ASKED)
    read = len(reader.spans)

    again = agent.invoke(ASKED)

    assert len(reader.spans) == read
    assert reader.merges == [4]
    assert again["usage"]["calls"] == 1
    same = ("answer", "memory", "version", "coverage", "stopped")
    assert [again[field] for field in same] == [first[field] for field in same]
    assert again["usage"]["document_tokens"] == first["usage"]["document_tokens"]


def test_one_reading_is_listed_with_all_that_led_to_it_and_forgotten_with_it():
    store, reader = InMemoryStore(), Listing()
    bank = MemoryBank(store)
    out = create_memagent(reader, config=SMALL, store=store).invoke(ASKED)

    (listed,) = bank.list()
    history = bank.history(listed[0])

    assert listed[1].id == out["version"]
    assert len(history[0].made_by.merged) == 4
    assert history.gaps == []
    assert [version.span for version in history[:0:-1]] == ends(out["answer"])
    assert bank.check() == []
    lines = bank.export()
    assert bank.forget(listed[0]).versions == len(history)
    assert store.search((), limit=1000) == []
    assert bank.import_(lines) == len(history)
    assert [version.id for version in bank.history(listed[0])] == [v.id for v in history]
    assert bank.check() == []


def test_a_memory_branched_off_keeps_what_led_to_it():
    store = InMemoryStore()
    bank = MemoryBank(store)
    create_memagent(Listing(), config=SMALL, store=store).invoke(ASKED)
    ((name, head),) = bank.list()
    history = [version.id for version in bank.history(name)]

    bank.branch(head.id, "mine")
    forgotten = bank.forget(name)

    assert (forgotten.versions, forgotten.shared) == (0, {"mine": len(history)})
    assert [version.id for version in bank.history("mine")] == history


def test_old_versions_go_when_only_the_newest_are_kept():
    store, reader = InMemoryStore(), Listing()
    config = SMALL.model_copy(update={"keep_versions": 1})
    agent = create_memagent(reader, config=config, store=store)
    first, read = agent.invoke(ASKED), len(reader.spans)

    again = agent.invoke(ASKED)

    assert [version.id for version in MemoryBank(store).history(first["version"])] == [
        first["version"]
    ]
    assert (len(reader.spans), again["answer"]) == (read, first["answer"])


def test_a_deadline_before_the_first_chunk_leaves_nothing_in_the_store():
    class Waiting(Listing):
        async def update(self, step, *, config=None):
            return await asyncio.Event().wait()

        async def respond(self, question, memory, *, config=None):
            return Answer("Nothing.", "Nothing.")

    store = InMemoryStore()
    config = SMALL.model_copy(update={"deadline": 0.2})

    out = create_memagent(Waiting(), config=config, store=store).invoke(ASKED)

    assert (out["stopped"], out["coverage"], out["memory"]) == ("deadline", 0, "")
    assert MemoryBank(store).list() == []


def test_a_merged_version_says_whether_a_memory_lost_its_end():
    store = InMemoryStore()
    config = SMALL.model_copy(update={"memory_tokens": 30})

    out = create_memagent(Listing(), config=config, store=store).invoke(ASKED)

    assert MemoryBank(store).get(out["version"]).cut


@pytest.mark.slow
def test_a_document_that_grows_costs_what_it_grew_by():
    store, reader = InMemoryStore(), Listing()
    agent = create_memagent(reader, config=SMALL, store=store)
    lines = [60, 62, 200, 201, 900, 1000]
    before = 0

    for number in lines:
        reader.spans.clear()
        text = numbered(number)
        out = agent.invoke({"question": "?", "document": text})

        assert covers(ends(out["answer"]), text)
        old = [start for start, _ in reader.spans if start < before]
        assert len(old) <= 1  # the last chunk, which has more text now
        before = len(text)


def test_the_first_segment_takes_over_what_was_read_in_one():
    store, reader = InMemoryStore(), Listing()
    whole = SMALL.model_copy(update={"segments": 1, "max_calls": 5})
    create_memagent(reader, config=whole, store=store).invoke(ASKED)
    read = [*reader.spans]

    create_memagent(reader, config=SMALL, store=store).invoke(ASKED)

    assert len(read) == 4
    assert len(reader.spans) == len({*reader.spans})


def test_segments_of_the_same_text_have_memories_of_their_own():
    text = "The same line again and again.\n" * 200
    reader = Listing()

    out = create_memagent(reader, config=SMALL, store=InMemoryStore()).invoke(
        {"question": "?", "document": text}
    )

    assert reader.merges == [4]
    assert covers(ends(out["answer"]), text)


def test_a_reading_in_one_is_another_reading():
    store, reader = InMemoryStore(), Listing()
    one = SMALL.model_copy(update={"segments": 1, "keep_versions": 1})
    first = create_memagent(reader, config=one, store=store).invoke(ASKED)

    out = create_memagent(reader, config=SMALL, store=store).invoke(ASKED)

    assert reader.merges == [4]
    assert covers(ends(out["answer"]))
    assert {version.id for _, version in MemoryBank(store).list()} == {
        first["version"],
        out["version"],
    }


def test_what_a_limit_left_unread_is_read_the_next_time():
    store, reader = InMemoryStore(), Listing()
    limited = SMALL.model_copy(update={"max_calls": 20})
    part = create_memagent(reader, config=limited, store=store).invoke(ASKED)

    out = create_memagent(reader, config=SMALL, store=store).invoke(ASKED)

    assert part["coverage"] < 1
    assert covers(ends(out["answer"]))
    assert len(reader.spans) == len({*reader.spans})


def test_a_failed_reading_without_a_checkpointer_goes_on_from_the_store():
    broken, store = [True], InMemoryStore()
    half = len(TEXT) // 2

    def fails(chunk):
        return (
            ModelError("No.")
            if broken and not isinstance(chunk, list) and half + 200 < chunk.start < half + 400
            else None
        )

    reader = Listing(fails, delay=0.002)
    agent = create_memagent(reader, config=SMALL.model_copy(update={"lease": False}), store=store)
    with pytest.raises(ModelError):
        agent.invoke(ASKED)
    broken.clear()

    out = agent.invoke(ASKED)

    assert covers(ends(out["answer"]))
    assert len(reader.spans) <= len(ends(out["answer"])) + 4


async def test_of_two_memories_of_a_segment_the_one_that_was_stored_first_is_merged():
    store, config = InMemoryStore(), SMALL.model_copy(update={"lease": False})
    reached, stored = asyncio.Event(), asyncio.Event()

    class Late(Listing):
        async def update(self, step, *, config=None):
            if step.chunk.end == len(TEXT):
                reached.set()
                await stored.wait()
            return await super().update(step, config=config)

    class First(Listing):
        async def update(self, step, *, config=None):
            update = await super().update(step, config=config)
            return Update(Memory(f"{update.memory.text}of the first\n"))

    first = First(lambda what: ModelError("No.") if isinstance(what, list) else None)
    late = asyncio.create_task(create_memagent(Late(), config=config, store=store).ainvoke(ASKED))
    await reached.wait()
    with pytest.raises(ModelError, match="Merging"):
        await create_memagent(first, config=config, store=store).ainvoke(ASKED)
    stored.set()

    out = await late

    bank = MemoryBank(store)
    parts = [await bank.aget(id) for id in (await bank.aget(out["version"])).made_by.merged]
    assert parts[-1].text.endswith("of the first\n")
    assert out["memory"] == "".join(part.text for part in parts)


# Budgets


@pytest.mark.parametrize("most", [8, 14, 20])
def test_all_calls_together_keep_to_the_limit(most):
    reader = Listing()

    out = create_memagent(reader, config=SMALL.model_copy(update={"max_calls": most})).invoke(ASKED)

    calls = len(reader.spans) + len(reader.merges) + 1
    assert most - 6 < calls == out["usage"]["calls"] <= most
    assert out["stopped"] == "max_calls"
    assert 0 < out["coverage"] < 1


def test_a_limit_that_leaves_a_segment_nothing_is_refused_with_what_it_takes():
    agent = create_memagent(Listing(), config=SMALL.model_copy(update={"max_calls": 5}))

    with pytest.raises(ConfigurationError, match="in 4 segments needs max_calls of 8 or more"):
        agent.invoke(ASKED)
    with pytest.raises(ConfigurationError, match="3 questions in 4 segments .* 24 or more"):
        agent.invoke({"questions": ["?", "??", "???"], "document": TEXT})


@pytest.mark.slow
def test_a_deadline_ends_all_segments_and_what_was_read_is_merged():
    class Stuck(Listing):
        async def update(self, step, *, config=None):
            if step.memory.text:
                await asyncio.Event().wait()
            return await super().update(step, config=config)

    reader = Stuck()
    config = SMALL.model_copy(update={"deadline": 3})

    out = create_memagent(reader, config=config).invoke(ASKED)

    assert out["stopped"] == "deadline"
    assert len(ends(out["answer"])) == 4
    assert 0 < out["coverage"] < 1
    assert reader.merges == [4]


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
    config = SMALL.model_copy(update={"chunk_tokens": 300})  # longer ones are cut ahead
    text = numbered(1100)
    questions = [f"What is {number}?" for number in range(4)]

    out = run(
        create_memagent(reader, config=config),
        {"questions": questions, "document": Watched(text)},
        how,
    )

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
    await create_memagent(reader, config=SMALL).ainvoke(ASKED)
    chunks = sum(start >= last for start, _ in reader.spans)
    assert chunks > 4
    agent = create_memagent(Uneven(), config=SMALL)

    async with asyncio.timeout(60):
        out = await agent.ainvoke({"questions": ["?", "??"], "document": TEXT})

    assert all(covers(ends(record["answer"])) for record in out["answers"])


def test_a_question_whose_segment_fails_says_so_and_takes_no_other_with_it():
    class Partial(Listing):
        async def update(self, step, *, config=None):
            if step.question == "??" and step.chunk.end == len(TEXT):
                raise ModelError("No.")
            return await super().update(step, config=config)

    agent = create_memagent(Partial(), config=SMALL)

    out = agent.invoke({"questions": ["?", "??"], "document": TEXT})

    first, second = out["answers"]
    assert covers(ends(first["answer"]))
    assert "of segment 4 for question 2 failed: No." in second["error"]


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


@given(
    st.integers(1, 40), st.integers(1, 5), st.lists(st.integers(1, 400), min_size=1, max_size=12)
)
def test_a_document_that_grows_keeps_its_segments_and_new_ones_are_no_more_than_asked_for(
    most, least, grown
):
    chunks, known = grown[0], cut_evenly(grown[0], most, least)
    for more in grown[1:]:
        chunks += more

        found = cut_evenly(chunks, most, least, {*known})

        assert found[: len(known)] == known
        assert len(found) - len(known) <= most
        known = found


@given(st.lists(st.integers(0, 1024), min_size=1), st.integers(0, 9000))
def test_groups_are_all_memories_in_order_and_fit_unless_there_are_two(sizes, room):
    found = [*groups(sizes, room)]

    assert [start for start, _ in found] == [0, *(end for _, end in found[:-1])]
    assert found[-1][1] == len(sizes)
    for start, end in found:
        assert end - start <= 2 or sum(sizes[start:end]) + 16 * (end - start) <= room
    assert all(end - start > 1 for start, end in found[:-1])


class Counting(GenericFakeChatModel):
    """Replies with a memory as long as it may be, and keeps the longest prompt."""

    seen: list[str]

    def _generate(self, messages, *args, **kwargs):
        self.seen.append(messages[0].content)
        return super()._generate(messages, *args, **kwargs)


def long_memory(number, tokens=1024):
    text = " ".join(f"Fact {number}.{count} holds." for count in range(tokens))
    room = EstimatingTokenizer().prefix(text, tokens)
    assert room < len(text)
    return text[:room].rpartition(" Fact ")[0]


@pytest.mark.slow
@pytest.mark.parametrize("chunk_tokens", [5000, 100])
async def test_64_full_memories_are_merged_within_the_window(chunk_tokens):
    # Word for word: these replies are no notes on what they are given.
    config = ReadingConfig(
        segments=64, chunk_tokens=chunk_tokens, answer_tokens=100, exact_cuts=True
    )
    counter = EstimatingTokenizer()
    replies = [AIMessage(long_memory(number)) for number in range(64)]
    model = Counting(messages=iter(replies), seen=[])
    reading = Reading("r", ChatReader(model, config=config), config, counter)
    memories = [Memory(long_memory(number)) for number in range(64)]

    (memory,), usage, cut, *_ = await merge(reading, "What holds?" * 100, memories)

    assert counter.count(memory.text) <= 1024
    assert not cut
    assert usage.calls == len(model.seen) <= most_merges(64, config)
    longest = max(counter.count(prompt) for prompt in model.seen)
    assert longest + config.memory_tokens <= config.window_tokens
    text = "".join(model.seen)
    assert all(f"Fact {number}.0 holds." in text for number in range(64))


@given(st.lists(st.integers(0, 1024), max_size=70), st.sampled_from([50, 1000, 5000]))
def test_no_tree_of_merges_is_larger_than_planned(sizes, chunk_tokens):
    config = ReadingConfig(segments=70, chunk_tokens=chunk_tokens)
    planned, calls, left = most_merges(len(sizes), config), 0, sizes
    while len(left) > 1:
        together = [*groups(left, config.merge_tokens)]
        calls += sum(end - start > 1 for start, end in together)
        left = [min(1024, sum(left[start:end])) for start, end in together]

    assert calls <= planned


async def test_a_group_that_the_context_cannot_hold_is_halved():
    def fails(memories):
        return ContextLengthError("Too long.") if len(memories) > 2 else None

    reader = Listing(fails)
    reading = Reading("r", reader, SMALL, EstimatingTokenizer())

    (memory,), usage, *_ = await merge(reading, "?", [Memory(f"{n}\n") for n in range(5)])

    assert memory.text == "0\n1\n2\n3\n4\n"
    assert usage.calls == len(reader.merges)


async def test_two_that_the_context_cannot_hold_are_an_error():
    reading = Reading(
        "r", Listing(lambda _: ContextLengthError("Too long.")), SMALL, EstimatingTokenizer()
    )

    with pytest.raises(ContextLengthError):
        await merge(reading, "?", [Memory("a"), Memory("b")])


async def test_a_merged_memory_keeps_to_its_budget():
    config = SMALL.model_copy(update={"memory_tokens": 10})
    reading = Reading("r", Listing(), config, EstimatingTokenizer())

    told = [Memory(f"Number {n} is here. ") for n in range(4)]

    (memory,), _, cut, *_ = await merge(reading, "?", told)

    assert cut
    assert 0 < EstimatingTokenizer().count(memory.text) <= 10


async def test_an_empty_merge_replaces_nothing():
    class Emptying(Listing):
        async def merge(self, question, memories, *, config=None):
            self.merges.append(len(memories))
            return Merge(Memory(" "))

    reader = Emptying()
    reading = Reading("r", reader, SMALL, EstimatingTokenizer())

    merged = await merge(reading, "?", [Memory("a"), Memory("b")])

    assert [one.text for one in merged.memories] == ["a\nb"]
    assert merged.faulty == 1
    assert reader.merges == [2, 2]
