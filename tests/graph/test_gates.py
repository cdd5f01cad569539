"""The update gate: a chunk that adds nothing costs a word."""

from itertools import pairwise

import pytest
from fixed_readers import ScriptedReader, chain, numbered
from hypothesis import given, settings
from hypothesis import strategies as st
from langgraph.store.memory import InMemoryStore

from memagent_graph import ReadingConfig, create_memagent
from memagent_graph.config import GATE_TOKENS
from memagent_graph.evidence.places import Memory
from memagent_graph.memory.bank import MemoryBank
from memagent_graph.prompts import Prompts
from memagent_graph.readers.base import Identity, Update, Usage
from memagent_graph.testing import ScriptedChatModel
from memagent_graph.text.tokens import EstimatingTokenizer

OFF = ReadingConfig(chunk_tokens=50, retry_interval=0.001)
ON = OFF.model_copy(update={"update_gate": True})
TEXT = numbered(40)
ASKED = {"question": "What?", "document": TEXT}


class Gated(ScriptedReader):
    """Notes a chunk's place, except of the chunks with these numbers, which add nothing."""

    def __init__(self, *closed):
        super().__init__()
        self.closed, self.steps = closed, []
        self.identity = Identity("gated", f"gated {closed}")

    async def update(self, step, *, config=None):
        self.steps.append(step)
        number = step.chunk.start // 150
        if step.update_gate and number in self.closed:
            return Update(None, usage=Usage(1, step.chunk.tokens, 1))
        return Update(Memory(chain(step.memory.text, step.chunk.text)))


def read(reader, store=None, config=ON, **asked):
    return create_memagent(reader, config=config, store=store).invoke({**ASKED, **asked})


class TestChatModel:
    def test_a_model_that_says_unchanged_keeps_its_notes_and_the_usage_counts_it(self):
        model = ScriptedChatModel("The ferry leaves at nine.", "Unchanged.", "unchanged", "nine")

        out = read(model, document=numbered(14))

        assert out["memory"] == "The ferry leaves at nine."
        assert (out["usage"]["calls"], out["usage"]["gated"]) == (4, 2)
        assert out["answer"] == "nine"

    def test_without_the_gate_a_model_is_told_nothing_of_it_and_the_word_is_no_memory(self):
        told, untold = (ScriptedChatModel("Notes.", "unchanged", "x") for _ in range(2))

        read(told, document=numbered(9))
        out = read(untold, document=numbered(9), config=OFF)

        assert (out["memory"], out["usage"]["gated"]) == ("Notes.", 0)
        assert all("single word" not in prompt for prompt in untold.prompts)
        assert ["single word" in prompt for prompt in told.prompts] == [True, True, False]

    def test_notes_that_are_too_long_are_not_unchanged(self):
        long = " ".join(f"The ferry {n} leaves at nine and comes back at ten." for n in range(40))
        config = ON.model_copy(update={"memory_tokens": 40})

        out = read(ScriptedChatModel(long, "unchanged", "x"), document=numbered(4), config=config)

        assert (out["usage"]["calls"], out["usage"]["gated"]) == (3, 0)
        assert out["memory"].startswith("The ferry 0 leaves at nine")
        assert any("lost its end" in warning for warning in out["warnings"])


class TestReading:
    @pytest.mark.slow
    @settings(max_examples=40)
    @given(closed=st.sets(st.integers(0, 15)))
    def test_a_gated_reading_is_one_without_the_chunks_that_add_nothing(self, closed):
        store, reader = InMemoryStore(), Gated(*closed)

        out = read(reader, store)

        memory, gated = "", 0
        for chunk in {step.chunk.start: step.chunk for step in reader.steps}.values():
            gated += chunk.start // 150 in closed
            memory = memory if chunk.start // 150 in closed else chain(memory, chunk.text)
        assert out["memory"] == memory
        assert out["usage"]["gated"] == gated
        assert MemoryBank(store).get(out["version"]).text == memory

    def test_the_window_has_room_for_what_the_gate_adds_to_the_prompt(self):
        count = EstimatingTokenizer().count
        prompts = Prompts()

        assert count(prompts.unchanged) < GATE_TOKENS
        assert ON.instruction_tokens == OFF.instruction_tokens + GATE_TOKENS
        assert ON.window_tokens == OFF.window_tokens + GATE_TOKENS
        assert count(prompts.update) < OFF.template_tokens == OFF.instruction_tokens


class TestStore:
    def test_the_version_of_a_gated_chunk_says_so_and_has_the_text_of_the_one_before(self):
        out = read(Gated(2, 3, 4), store := InMemoryStore())

        history = MemoryBank(store).history(out["version"])
        for after, before in pairwise(history):
            assert after.unchanged == (after.text == before.text)
        assert sum(version.unchanged for version in history) == out["usage"]["gated"] > 2

    def test_asking_again_costs_one_call_and_a_reading_goes_on_from_a_gated_version(self):
        store, closed = InMemoryStore(), (2, 3, 4, 5)
        read(Gated(*closed), store)

        for document, steps in ((TEXT, 0), (TEXT + numbered(9), 4), (TEXT[:740], 1)):
            reader = Gated(*closed)
            out = read(reader, store, document=document)
            assert out["memory"] == read(Gated(*closed), document=document)["memory"]
            assert len(reader.steps) <= steps
        read(off := Gated(*closed), store, OFF)
        assert len(off.steps) > 5  # another gate takes over nothing


CAPTAIN = "The captain of the Tern is Ann Kestrel."
STORY = f"""{numbered(60)}
The crew of the Tern came from Husum.

{CAPTAIN} She has sailed since 1999.

{numbered(9)}"""
WHO = "Who is the captain of the Tern?"


def gate_always(messages):
    """Say "unchanged" wherever that is allowed; otherwise note what there is of the captain."""
    prompt = messages[-1].text
    if "single word" in prompt:
        return "unchanged"
    if "<section>" in prompt:
        section = prompt.partition("<section>")[2].partition("</section>")[0]
        notes = prompt.partition("<notes>")[2].partition("</notes>")[0].strip()
        return CAPTAIN if CAPTAIN in section + notes else section.strip().splitlines()[0]
    if "boxed" not in prompt:  # a merge
        return CAPTAIN
    return "Ann Kestrel" if CAPTAIN in prompt else "Bo Tern"


def shy():
    return ScriptedChatModel(gate_always)


def off(out):
    return [one for one in out["warnings"] if "update gate was switched off" in one]


@pytest.mark.parametrize("segments", [1, 2])
def test_a_gate_that_is_always_closed_is_switched_off_and_everything_is_read(segments):
    model, store = shy(), InMemoryStore()
    config = ON.model_copy(update={"segments": segments})

    out = read(model, store, config, question=WHO, document=STORY)
    ungated = [prompt for prompt in model.prompts if "single word" not in prompt]
    again = read(shy(), store, config, question=WHO, document=STORY)

    assert (out["answer"], out["found"]) == ("Ann Kestrel", True)
    assert CAPTAIN in out["memory"]
    assert out["coverage"] == 1
    assert off(out)
    for number in range(60 if segments == 1 else 0):  # what had been passed over
        assert any(f"Line {number}" in prompt for prompt in ungated)
    assert (again["memory"], again["answer"]) == (out["memory"], out["answer"])
    assert again["usage"]["calls"] == 1


@pytest.mark.parametrize(
    "question", ["Summarize the text.", "What is going on here?", "谁是船长？"]
)
def test_a_gate_is_tried_where_everything_is_asked_for_or_no_word_is_found(question):
    out = read(shy(), question=question, document=STORY)

    assert out["memory"]
    assert off(out)


@pytest.mark.parametrize(
    ("replies", "question", "document", "calls"),
    [
        ("unchanged|At nine.|unchanged|nine", "When does Ann come?", numbered(14), (4, 2)),
        ("unchanged|None|None", WHO, "Who is the captain of the Tern, they asked.", (2, 1)),
        ("unchanged|None", "Who signed the Bordeaux decree?", numbered(9), (2, 2)),
    ],
    ids=["it is used well", "there is nothing to note", "no word of the question is there"],
)
def test_a_gate_stays_where(replies, question, document, calls):
    out = read(ScriptedChatModel(*replies.split("|")), question=question, document=document)

    assert (out["usage"]["calls"], out["usage"]["gated"]) == calls
    assert not off(out)


def test_replies_that_are_taken_word_for_word_are_left_alone():
    config = ON.model_copy(update={"exact_cuts": True})

    out = read(shy(), config=config, question=WHO, document=STORY)

    assert out["memory"] == ""
    assert not off(out)
