"""Settings at random: segments, skim, the update gate, limits, several questions."""

import asyncio
import threading
from collections import Counter
from zlib import crc32

import pytest
from fixed_readers import numbered
from hypothesis import example, given, settings
from hypothesis import strategies as st
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore

from memagent_graph import ReadingConfig, create_memagent, plan
from memagent_graph.errors import ConfigurationError, ModelError
from memagent_graph.evidence.places import Memory
from memagent_graph.graph.state import common_spans, merge_spans
from memagent_graph.readers.base import Answer, Identity, Merge, Reader, Update, Usage

THREAD = {"configurable": {"thread_id": "t"}}
SAME = ("answer", "memory", "coverage", "skipped", "stopped")
"""Fields of an output that do not depend on how often a call was made."""


class Knowing(Reader):
    """Its memory is all that it read, in order, and what it looked for; the gate goes by the chunk.

    Args:
        found: whether it takes an answer for one that was found.
        fails: the number of the call that fails, and with what.
    """

    identity = Identity("knowing", "knowing-1")

    def __init__(self, *, found=None, fails=(0, None)):
        self.found, self.fails = found, fails
        self.calls = []
        self.depths = {}  # of memories: calls that each waited for the one before
        self.lock = threading.Lock()

    def call(self, before, *about):
        """Note a call, and how long the chain of calls is that ends with it."""
        with self.lock:
            self.calls.append(about)
            if len(self.calls) == self.fails[0]:
                raise self.fails[1]
        return 1 + max(self.depths.get(text, 0) for text in before)

    def noted(self, text, depth):
        with self.lock:
            self.depths[text] = max(self.depths.get(text, 0), depth)
        return Memory(text)

    async def update(self, step, *, config=None):
        start, end = step.chunk.start, step.chunk.end
        depth = self.call([step.memory.text], "update", step.question, start, end)
        closed = step.update_gate and start % 3 == 0
        text = f"{step.memory.text}{step.question}: {start}-{end}\n"
        memory = None if closed else self.noted(text, depth)
        return Update(memory, Usage(1, step.chunk.tokens, 1))

    async def merge(self, question, memories, *, config=None):
        texts = [memory.text for memory in memories]
        depth = self.call(texts, "merge", question)
        text = "".join(dict.fromkeys("".join(texts).splitlines(keepends=True)))
        return Merge(self.noted(text, depth), Usage(1, 1, 1))

    async def respond(self, question, memory, *, config=None):
        depth = self.call([memory.text], "respond", question)
        if memory.text:
            self.noted(memory.text, depth)
        text = memory.text or "Nothing."
        return Answer(text, text, found=self.found, usage=Usage(1, 1, 1))

    def read(self, question):
        read = {(*span,) for _, asked, *span in self.of("update") if asked == question}
        return sorted(read)

    def of(self, kind):
        return [call for call in self.calls if call[0] == kind]


def skimming(share):
    """A skim that reads about so many of 100 chunks, others with each memory and question."""

    def score(query, memory, chunk):
        return crc32(f"{query}|{len(memory)}|{chunk}".encode()) % 100 < share

    score.fingerprint = f"{share} of 100"
    return score


SKIMS = {"lexical": "lexical", **{f"{share}%": skimming(share) for share in (0, 10, 60)}}
DRAWN = {
    "lines": st.integers(1, 40),
    "questions": st.integers(1, 3),
    "segments": st.one_of(st.integers(1, 5), st.sampled_from(["auto", 1000])),
    "skim": st.sampled_from([None, None, *SKIMS]),
    "update_gate": st.booleans(),
    "max_calls": st.one_of(st.none(), st.integers(2, 120)),
    "chunk_tokens": st.integers(20, 80),
    "found": st.sampled_from([None, True, False]),
}


def plain(**others):
    """An example: one fold without a gate, and what differs from that."""
    settings = {"questions": 1, "segments": 1, "skim": None}
    settings |= {"update_gate": False, "max_calls": None}
    return {**settings, "found": False, **others}


class Drawn:
    """A reading with settings as they were drawn; `skim` is a key of `SKIMS`."""

    def __init__(self, lines, questions, found, skim, **settings):
        self.config = ReadingConfig(
            **{"memory_tokens": 20_000, "retry_interval": 0.001, "lease": False, **settings},
            skim=SKIMS.get(skim),
        )
        self.found, self.text = found, numbered(lines).strip()
        self.questions = [f"Where is {7 * number}?" for number in range(1, questions + 1)]
        several = {"questions": self.questions} if questions > 1 else {}
        self.asked = {"document": self.text, **(several or {"question": self.questions[0]})}

    def reader(self, **options):
        return Knowing(found=self.found, **options)

    def plan(self):
        return plan(self.questions[-1], self.text, self.config, questions=len(self.questions))


def records_of(out):
    return out.get("answers") or [out]


def read(agent, asked, awaited, config=None):
    if awaited:
        return asyncio.run(agent.ainvoke(asked, config))
    return agent.invoke(asked, config)


# What a skim leaves of its share in one round was more than the plan had for the next.
@pytest.mark.slow
@example(**plain(awaited=False, lines=28, segments=3, skim="60%", max_calls=13, chunk_tokens=34))
@example(
    **plain(
        awaited=False, lines=26, questions=2, segments=2, max_calls=26, chunk_tokens=20, found=None
    )
)
@settings(max_examples=60, deadline=None)
@given(awaited=st.booleans(), **DRAWN)
def test_any_reading_keeps_to_its_plan_and_says_what_it_read(awaited, **chosen):
    drawn = Drawn(**chosen)
    config, reader, length = drawn.config, drawn.reader(), len(drawn.text)
    agent = create_memagent(reader, config=config)
    try:
        planned = drawn.plan()
    except ConfigurationError:
        with pytest.raises(ConfigurationError, match="max_calls of"):
            agent.invoke(drawn.asked)
        assert reader.calls == []
        return

    records = records_of(read(agent, drawn.asked, awaited))

    assert sum(record["usage"]["calls"] for record in records) == len(reader.calls)
    assert len(reader.calls) <= planned.calls <= (config.max_calls or planned.calls)
    assert max(reader.depths.values(), default=1) <= planned.chain_calls
    for question, record in zip(drawn.questions, records, strict=True):
        spans, skipped = [[*span] for span in reader.read(question)], record["skipped"]
        assert record["coverage"] == pytest.approx(sum(e - s for s, e in spans) / length)
        assert common_spans(merge_spans(spans), skipped) == []
        if record["stopped"] == "end":
            assert merge_spans(sorted([*spans, *skipped])) == [[0, length]]
        if config.skim is None:
            assert skipped == []
        if config.max_calls is None:
            assert record["stopped"] == "end"
            if drawn.found is False:
                assert record["coverage"] == 1


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(share=st.floats(0, 0.99), awaited=st.booleans(), **DRAWN)
def test_any_reading_that_was_killed_goes_on_and_repeats_a_call_a_fold(share, awaited, **chosen):
    class Kill(BaseException):
        """Nothing that the graph knows."""

    drawn = Drawn(**{**chosen, "max_calls": None})
    whole = drawn.reader()
    expected = records_of(create_memagent(whole, config=drawn.config).invoke(drawn.asked))
    reader = drawn.reader(fails=(1 + int(share * len(whole.calls)), Kill("Now.")))
    agent = create_memagent(reader, config=drawn.config, checkpointer=InMemorySaver())

    with pytest.raises(Kill):
        read(agent, drawn.asked, awaited, THREAD)
    records = records_of(read(agent, None, awaited, THREAD))

    for record, before in zip(records, expected, strict=True):
        assert {field: record[field] for field in SAME} == {field: before[field] for field in SAME}
    repeated = Counter(reader.calls) - Counter(whole.calls)
    assert set(repeated.values()) <= {1}
    assert repeated.total() <= drawn.plan().calls_at_once


@pytest.mark.slow
@example(**plain(share=0.9375, lines=28, skim="lexical", chunk_tokens=20))
@settings(max_examples=30, deadline=None)
@given(share=st.floats(0, 0.99), **DRAWN)
def test_any_reading_that_failed_is_taken_up_from_the_store(share, **chosen):
    drawn = Drawn(**{**chosen, "max_calls": None, "questions": 1})
    whole = drawn.reader()
    expected = create_memagent(whole, config=drawn.config).invoke(drawn.asked)
    reader = drawn.reader(fails=(1 + int(share * len(whole.calls)), ModelError("No.")))
    agent = create_memagent(reader, config=drawn.config, store=InMemoryStore())

    with pytest.raises(ModelError):
        agent.invoke(drawn.asked)
    out = agent.invoke(drawn.asked)

    assert {field: out[field] for field in SAME} == {field: expected[field] for field in SAME}
    assert set((Counter(reader.calls) - Counter(whole.calls)).values()) <= {1}
