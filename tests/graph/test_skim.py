"""Chunks that a look finds nothing in cost no call; they are on record, and read if need be."""

import pytest
from langgraph.store.memory import InMemoryStore
from pydantic import ValidationError

from memagent_graph import MemoryBank, ReadingConfig, create_memagent
from memagent_graph.errors import ModelError
from memagent_graph.evidence.places import Memory
from memagent_graph.graph.state import merge_spans
from memagent_graph.readers.base import Answer, Identity, Merge, Reader, Update, Usage
from memagent_graph.text.chunks import chunks
from memagent_graph.text.source import TextSource
from memagent_graph.text.tokens import EstimatingTokenizer

QUESTION = "Where is the observatory of Ortega?"
FACT = "The observatory of Ortega is in Husum."
SMALL = {"chunk_tokens": 100, "memory_tokens": 400, "retry_interval": 0.001}
PASSAGE = 1000
"""Code points around the fact that are in its passage, at most, and a chunk."""
SKIM = ReadingConfig(skim="lexical", **SMALL)


def filler(lines, first=0):
    return "".join(f"Line {first + n} tells of the sea and of ships.\n" for n in range(lines))


TEXT = filler(100) + FACT + "\n" + filler(100, 100)
ASKED = {"question": QUESTION, "document": TEXT}
YES = ReadingConfig(skim=lambda _, memory, chunk: "Yes" in chunk, **{**SMALL, "chunk_tokens": 13})


class Finding(Reader):
    """Notes the lines that have a word, and knows whether it has any."""

    def __init__(self, word="Husum"):
        self.word = word
        self.identity = Identity("finding", f"finding {word}")
        self.spans, self.answers = [], 0

    async def update(self, step, *, config=None):
        self.spans.append((step.chunk.start, step.chunk.end))
        lines = [line for line in step.chunk.text.splitlines() if self.word in line]
        text = "\n".join([*step.memory.text.splitlines(), *lines]) or "nothing"
        return Update(Memory(text), usage=Usage(1, 10, 1))

    async def merge(self, question, memories, *, config=None):
        return Merge(Memory("\n".join(memory.text for memory in memories)))

    async def respond(self, question, memory, *, config=None):
        self.answers += 1
        text = memory.text or "nothing"
        return Answer(text, text, found=self.word in memory.text, usage=Usage(1, 1, 1))


def cut(text):
    found = chunks(TextSource(text), tokenizer=EstimatingTokenizer(), chunk_tokens=100)
    return [(chunk.start, chunk.end) for chunk in found]


def ask(reader, config=SKIM, document=TEXT, question=QUESTION, **options):
    agent = create_memagent(reader, config=config, **options)
    return agent.invoke({"question": question, "document": document})


def test_only_chunks_with_words_of_the_question_are_read_and_the_others_are_in_the_output():
    reader = Finding()

    out = ask(reader)

    at = TEXT.index(FACT)
    assert FACT in out["answer"]
    assert next(span for span in cut(TEXT) if span[0] <= at < span[1]) in reader.spans
    assert all(abs(start - at) < PASSAGE for start, _ in reader.spans)
    assert out["usage"]["calls"] == len(reader.spans) + 1
    spans = sorted([*span] for span in [*out["skipped"], *reader.spans])
    assert merge_spans(spans) == [[0, len(TEXT)]]
    read = sum(end - start for start, end in reader.spans)
    assert out["coverage"] == pytest.approx(read / len(TEXT))
    assert out["stopped"] == "end"


def test_names_that_the_memory_has_learned_are_looked_for():
    built, lives = "was built by Tobias Quandt.\n", "Tobias Quandt lives in Husum.\n"
    text = f"{filler(100)}The observatory of Ortega {built}"
    text += f"{filler(100, 100)}{lives}{filler(100, 200)}"
    question = "Where does the builder of the Ortega observatory live?"

    out = ask(Finding("Quandt"), document=text, question=question)

    assert "Husum" in out["answer"]
    assert out["coverage"] < 0.2


class TestKinds:
    def test_a_function_decides_by_question_memory_and_chunk(self):
        seen = []

        async def score(question, memory, chunk):
            seen.append((question, memory, chunk))
            return 0.5 if "Husum" in chunk else 0.49

        reader = Finding()
        out = ask(reader, ReadingConfig(skim=score, **SMALL))

        assert "Husum" in out["answer"]
        assert len(reader.spans) == 1
        assert "".join(chunk for _, _, chunk in seen) == TEXT
        assert seen[-1][:2] == (QUESTION, FACT)

    def test_a_function_that_fails_is_named_in_the_error(self):
        def score(question, memory, chunk):
            raise ZeroDivisionError("by zero")

        with pytest.raises(ModelError, match="by zero"):
            ask(Finding(), ReadingConfig(skim=score, **SMALL))

    def test_anything_else_is_refused_with_what_there_is(self):
        with pytest.raises(ValidationError, match='"lexical", a decision model or a function'):
            ReadingConfig(skim="semantic")


def test_events_tell_what_is_skipped_and_that_it_is_read_after_all():
    agent = create_memagent(Finding("walrus"), config=SKIM)

    events = [*agent.stream(ASKED, stream_mode="custom")]

    kinds = [event["event"] for event in events]
    read = kinds.index("fallback")
    assert (kinds[0], kinds[-1]) == ("opened", "answer")
    assert {*kinds[1:read]} == {"skip", "chunk"}
    assert {*kinds[read + 1 : -1]} == {"chunk"}
    assert kinds.count("skip") == kinds[read + 1 :].count("chunk")
    positions = [event["position"] for event in events if "position" in event]
    assert positions[-1] == len(TEXT)
    last = [event for event in events if event["event"] == "chunk"][-1]
    assert last["chunk"] == last["chunks"] == len(cut(TEXT))


@pytest.mark.slow
def test_the_record_of_what_is_skipped_is_bounded():
    text = "".join(f"{'Yes' if n % 2 else 'No'}, {n} is one of the lines.\n" for n in range(620))

    out = ask(Finding("619"), YES, text)

    assert len(out["skipped"]) == 256


# Resuming


@pytest.mark.parametrize("word", ["Husum", "walrus"])
@pytest.mark.parametrize("segments", [1, 3])
def test_asking_again_is_one_call_with_the_same_record(word, segments):
    reader, store = Finding(word), InMemoryStore()
    config = SKIM.model_copy(update={"segments": segments})
    first = ask(reader, config, store=store)
    done = len(reader.spans), reader.answers

    again = ask(reader, config, store=store)

    assert (len(reader.spans), reader.answers) == (done[0], done[1] + 1)
    assert again["usage"]["calls"] == 1
    same = ("answer", "memory", "coverage", "skipped", "version", "stopped")
    assert {key: again[key] for key in same} == {key: first[key] for key in same}
    assert again["usage"]["document_tokens"] == first["usage"]["document_tokens"]


def test_a_stored_memory_says_what_was_not_read_and_is_not_read_further():
    store, other = InMemoryStore(), Finding("walrus")
    first = ask(Finding(), store=store)

    out = create_memagent(other, config=SKIM, store=store).invoke(
        {"question": QUESTION, "version": first["version"]}
    )

    assert out["skipped"]
    assert out["skipped"] == first["skipped"][: len(out["skipped"])]
    assert other.spans == []


def test_a_named_memory_ends_with_what_was_read_and_skipped_chunks_write_no_versions():
    reader, bank = Finding(), MemoryBank(InMemoryStore())
    agent = create_memagent(reader, config=SKIM, store=bank.store)

    out = agent.invoke({**ASKED, "memory_name": "notes"})

    assert bank.get("notes").id == out["version"]
    assert FACT in bank.get("notes").text
    assert [version.span for version in reversed(bank.history("notes"))] == reader.spans
