"""Gates: a chunk that adds nothing costs a word, and reading ends when there is enough."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from doubles import Hearing, ScriptedReader, chain, numbered
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore

from memagent_graph import ReadingConfig, create_memagent, plan
from memagent_graph.config import GATE_TOKENS
from memagent_graph.errors import ModelError
from memagent_graph.evidence.places import Memory
from memagent_graph.memory.bank import MemoryBank
from memagent_graph.prompts import Prompts
from memagent_graph.readers.base import Identity, Merge, Update, Usage
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


def versions(store):
    return [item.value for item in store.search(("memagent", "versions"), limit=1000)]


def read(reader, store=None, config=ON, **asked):
    return create_memagent(reader, config=config, store=store).invoke({**ASKED, **asked})


def scripted(*replies):
    return Hearing(messages=iter(map(AIMessage, replies)), heard=[])


class TestChatModel:
    def test_a_model_that_says_unchanged_keeps_its_notes_and_the_usage_counts_it(self):
        model = scripted("The ferry leaves at nine.", "Unchanged.", "unchanged", r"\boxed{nine}")

        out = read(model, document=numbered(14))

        assert out["memory"] == "The ferry leaves at nine."
        assert (out["usage"]["calls"], out["usage"]["gated"]) == (4, 2)
        assert out["answer"] == "nine"

    @pytest.mark.parametrize(
        "reply",
        [
            "The plan is unchanged",
            "Unchanged: the ferry leaves at nine.",
            '"unchanged" is what the sign says',
        ],
    )
    def test_a_memory_that_contains_the_word_is_a_memory(self, reply):
        out = read(scripted("The ferry.", reply, "x"), document=numbered(9))

        assert (out["memory"], out["usage"]["gated"]) == (reply, 0)

    def test_without_the_gate_a_model_is_told_nothing_of_it_and_the_word_is_no_memory(self):
        told, untold = scripted("Notes.", "unchanged", "x"), scripted("Notes.", "unchanged", "x")

        read(told, document=numbered(9))
        out = read(untold, document=numbered(9), config=OFF)

        assert (out["memory"], out["usage"]["gated"]) == ("Notes.", 0)
        assert all("single word" not in prompt for prompt in untold.heard)
        assert ["single word" in prompt for prompt in told.heard] == [True, True, False]

    def test_notes_that_are_too_long_are_not_unchanged(self):
        long = " ".join(f"The ferry {n} leaves at nine and comes back at ten." for n in range(40))
        config = ON.model_copy(update={"memory_tokens": 40})

        out = read(scripted(long, "unchanged", "x"), document=numbered(4), config=config)

        assert (out["usage"]["calls"], out["usage"]["gated"]) == (3, 0)
        assert out["memory"].startswith("The ferry 0 leaves at nine")
        assert any("lost its end" in warning for warning in out["warnings"])


class TestReading:
    @pytest.mark.slow
    @settings(max_examples=40)
    @given(closed=st.sets(st.integers(0, 15)))
    def test_a_gated_reading_is_one_without_the_chunks_that_add_nothing(self, closed):
        out = read(Gated(*closed), store := InMemoryStore())

        reader = Gated(*closed)
        memory, gated = "", 0
        for chunk in {step.chunk.start: step.chunk for step in _steps(reader)}.values():
            gated += chunk.start // 150 in closed
            memory = memory if chunk.start // 150 in closed else chain(memory, chunk.text)
        assert out["memory"] == memory
        assert out["usage"]["gated"] == gated
        assert MemoryBank(store).get(out["version"]).text == memory

    @pytest.mark.slow
    @settings(max_examples=40)
    @given(closed=st.sets(st.integers(0, 15)))
    def test_with_the_gate_off_or_never_used_all_is_as_without_it(self, closed):
        stores = [InMemoryStore(), InMemoryStore()]
        off, unused = read(Gated(*closed), stores[0], OFF), read(Gated(), stores[1])

        for out in (off, unused):
            del out["usage"]["seconds"], out["version"]
        assert off == unused
        assert off["usage"]["gated"] == 0
        texts = [sorted(record["memory"] for record in versions(store)) for store in stores]
        assert texts[0] == texts[1]

    def test_events_say_where_the_gate_was_closed(self):
        agent = create_memagent(Gated(2, 3), config=ON)

        events = [e for e in agent.stream(ASKED, stream_mode="custom") if e["event"] == "chunk"]

        closed = [event["chunk"] - 1 for event in events if event["gate"] == "closed"]
        assert closed == [index for index, e in enumerate(events) if not e["added"]]
        assert 0 < len(closed) < len(events)

    def test_a_reading_goes_on_at_its_chunk_with_what_was_gated_counted(self):
        class Failing(Gated):
            async def update(self, step, *, config=None):
                if len(self.steps) == 5:
                    self.steps.append(step)
                    raise ModelError("Out of order.")
                return await super().update(step, config=config)

        reader = Failing(1, 2, 6)
        agent = create_memagent(reader, config=ON, checkpointer=InMemorySaver())
        config = {"configurable": {"thread_id": "1"}}
        with pytest.raises(ModelError):
            agent.invoke(ASKED, config)

        out = agent.invoke(None, config)

        whole = read(Gated(1, 2, 6))
        assert (out["memory"], out["usage"]["gated"]) == (whole["memory"], whole["usage"]["gated"])

    def test_a_gate_costs_no_more_than_was_planned(self):
        planned = plan("What?", TEXT, ON)

        assert read(Gated(0, 3))["usage"]["calls"] <= planned.calls

    def test_the_window_has_room_for_what_the_gates_add_to_the_prompt(self):
        both = ON.model_copy(update={"exit": "safe"})
        count = EstimatingTokenizer().count
        prompts = Prompts()

        for config, added in ((OFF, ""), (ON, prompts.unchanged), (both, prompts.enough)):
            room = config.instruction_tokens - OFF.template_tokens
            assert count(added) < GATE_TOKENS
            assert room == GATE_TOKENS * (config.update_gate + (config.exit != "never"))
            assert config.window_tokens == OFF.window_tokens + room
        assert count(prompts.update) < OFF.template_tokens


class TestStore:
    def test_a_gated_chunk_writes_no_text_and_its_version_has_that_of_the_one_before(self):
        out = read(Gated(2, 3, 4), store := InMemoryStore())

        history = MemoryBank(store).history(out["version"])
        without = [record for record in versions(store) if "memory" not in record]
        assert len(without) == out["usage"]["gated"] > 2
        for after, before in pairwise(history):
            assert (after.unchanged is not None) == (after.text == before.text)
        assert sum(version.unchanged is not None for version in history) == len(without)

    def test_the_last_version_has_its_text_though_its_chunk_added_nothing(self):
        out = read(Gated(*range(1, 20)), store := InMemoryStore())

        (last,) = [record for record in versions(store) if record["id"] == out["version"]]
        assert last["memory"] == out["memory"]
        assert out["usage"]["gated"] > 5

    def test_asking_again_costs_one_call_and_a_reading_goes_on_from_a_gated_version(self):
        store = InMemoryStore()
        first = read(Gated(2, 3, 4, 5), store)
        again, reader = read(again := Gated(2, 3, 4, 5), store), again
        grown, longer = read(more := Gated(2, 3, 4, 5), store, document=TEXT + numbered(9)), more
        cut = read(short := Gated(2, 3, 4, 5), store, document=TEXT[:740])

        assert (again["memory"], reader.steps) == (first["memory"], [])
        assert len(longer.steps) <= 4
        assert grown["memory"] == read(Gated(2, 3, 4, 5), document=TEXT + numbered(9))["memory"]
        assert len(short.steps) <= 1
        assert cut["memory"] == read(Gated(2, 3, 4, 5), document=TEXT[:740])["memory"]

    def test_another_gate_takes_over_nothing(self):
        store = InMemoryStore()
        read(Gated(2), store)

        read(off := Gated(2), store, OFF)

        assert len(off.steps) > 5

    @pytest.mark.parametrize("keep", [1, 2, 3, 5])
    def test_versions_that_stay_keep_their_text_when_the_one_that_has_it_is_thinned_out(self, keep):
        out = read(Gated(*range(4, 9)), store := InMemoryStore())
        whole = MemoryBank(store).history(out["version"])

        thinned = ON.model_copy(update={"keep_versions": keep})
        read(Gated(*range(4, 9)), store := InMemoryStore(), thinned)

        history = MemoryBank(store).history(out["version"])
        assert [version.text for version in history] == [version.text for version in whole[:keep]]
        assert [finding.kind for finding in MemoryBank(store).check()] == ["gap"]

    def test_of_a_lost_text_what_shares_it_is_lost_and_reading_again_mends_it(self):
        out = read(Gated(2, 3), store := InMemoryStore())
        bank = MemoryBank(store)
        sharing = [version for version in bank.history(out["version"]) if version.unchanged]
        store.delete(("memagent", "versions"), sharing[0].unchanged)

        findings = {finding.key for finding in bank.check() if finding.kind == "bad"}

        assert findings == {version.id for version in sharing}
        assert bank.get(out["version"]).text == out["memory"]
        assert read(Gated(2, 3), store)["memory"] == out["memory"]
        assert bank.check() == []

    def test_an_export_has_all_texts_and_comes_back_as_it_was(self):
        out = read(Gated(2, 3, 4), store := InMemoryStore())
        lines = MemoryBank(store).export()

        bank = MemoryBank(InMemoryStore())
        bank.import_(lines)

        exported = [version.text for version in MemoryBank(store).history(out["version"])]
        assert [version.text for version in bank.history(out["version"])] == exported

    def test_what_shares_a_forgotten_document_s_text_is_forgotten_with_it(self):
        out = read(Gated(2, 3, 4), store := InMemoryStore())
        bank = MemoryBank(store)

        forgotten = bank.forget_source(bank.get(out["version"]).document.digest)

        assert forgotten.versions > 5
        assert versions(store) == []

    def test_a_named_memory_lives_on_without_a_forgotten_document_that_added_nothing(self):
        store = InMemoryStore()
        read(Gated(), store, memory_name="ferries")
        last = read(Gated(*range(20)), store, memory_name="ferries", document="Other. " * 300)
        bank = MemoryBank(store)

        bank.forget_source(bank.get(last["version"]).document.digest)

        assert bank.check() == []


class Finding(Gated):
    """Has enough with the chunk of a number, and answers with what it was told for it."""

    def __init__(self, **answers):
        super().__init__()
        self.answers = {int(number[1:]): answer for number, answer in answers.items()}
        self.identity = Identity("finding", f"finding {answers}")

    async def update(self, step, *, config=None):
        update = await super().update(step, config=config)
        number = step.chunk.start // 150
        answer = self.answers.get(number)
        return replace(update, done=answer is not None, answer=answer or "")

    async def merge(self, question, query, memories, *, config=None):
        return Merge(Memory("|".join(memory.text[:6] for memory in memories)))


SAFE = OFF.model_copy(update={"exit": "safe"})


class TestExit:
    @pytest.mark.parametrize(
        ("question", "exit", "stops"),
        [
            ("When does the ferry leave?", "safe", True),
            ("When does the ferry leave?", "never", False),
            ("How many ferries are there?", "safe", False),
            ("How many ferries are there?", "model", True),
            ("List the captains.", "safe", False),
            ("Who was the last captain?", "safe", False),
            ("一共有多少艘渡轮?", "safe", False),
        ],
    )
    def test_reading_ends_when_the_reader_has_enough_where_that_is_allowed(
        self, question, exit, stops
    ):
        config = OFF.model_copy(update={"exit": exit})

        out = read(reader := Finding(n3="nine"), config=config, question=question)

        assert (out["stopped"], out["coverage"] < 1) == (
            ("done", True) if stops else ("end", False)
        )
        assert len(reader.steps) == (5 if stops else 10)
        assert {step.exit_gate for step in reader.steps} == {stops}

    def test_a_chat_model_says_it_with_its_last_line_which_is_no_part_of_the_notes(self):
        model = scripted("Notes.", "The ferry leaves at nine.\nENOUGH: nine", r"\boxed{nine}")

        out = read(model, config=SAFE, question="When does the ferry leave?")

        assert out["memory"] == "The ferry leaves at nine."
        assert (out["stopped"], out["usage"]["calls"]) == ("done", 3)
        assert ["ENOUGH" in prompt for prompt in model.heard] == [True, True, False]

    def test_notes_that_are_unchanged_can_be_enough(self):
        config = SAFE.model_copy(update={"update_gate": True})
        model = scripted("At nine.", "unchanged\nENOUGH: nine", r"\boxed{nine}")

        document = f"The ferry leaves at nine.\n{TEXT}"
        out = read(model, config=config, question="When does the ferry leave?", document=document)

        assert (out["memory"], out["stopped"], out["usage"]["gated"]) == ("At nine.", "done", 1)

    @pytest.mark.parametrize(
        "reply", ["It is ENOUGH: he said.", "ENOUGH:", "ENOUGH: nine\nand more.", "enough: nine"]
    )
    def test_a_memory_that_speaks_of_enough_is_a_memory(self, reply):
        out = read(
            scripted(reply, "End.", "x"), config=SAFE, document=numbered(9), question="When?"
        )

        assert out["stopped"] == "end"

    def test_asking_again_costs_one_call_and_a_longer_document_is_left_at_the_same_place(self):
        store, question = InMemoryStore(), "When does the ferry leave?"
        first = read(Finding(n3="nine"), store, SAFE, question=question)

        again = read(second := Finding(n3="nine"), store, SAFE, question=question)
        grown = read(
            third := Finding(n3="nine"), store, SAFE, question=question, document=TEXT + TEXT
        )

        assert (second.steps, third.steps) == ([], [])
        assert (again["stopped"], again["coverage"]) == ("done", first["coverage"])
        assert (grown["stopped"], grown["memory"]) == ("done", first["memory"])
        read(never := Finding(n3="nine"), store, OFF, question=question)
        assert len(never.steps) == 10

    @pytest.mark.parametrize(
        ("second", "stopped"), [("ten", "end"), ("nine o'clock", "done"), ("nine", "done")]
    )
    def test_segments_with_different_answers_are_read_to_their_end(self, second, stopped):
        config = SAFE.model_copy(update={"segments": 2})
        reader = Finding(n1="nine", n5=second)

        out = read(reader, InMemoryStore(), config, question="When does the ferry leave?")

        spans = [(step.chunk.start, step.chunk.end) for step in reader.steps]
        assert len(spans) == len({*spans})
        assert out["stopped"] == stopped
        assert (out["coverage"] == 1) == (stopped == "end")
        assert (len(spans) == 10) == (stopped == "end")

    @pytest.mark.parametrize("saver", [InMemorySaver(), None])
    def test_a_question_that_was_in_doubt_goes_on_where_it_failed(self, saver):
        class Failing(Finding):
            broken = True

            async def update(self, step, *, config=None):
                if self.broken and step.chunk.start // 150 == 3:
                    raise ModelError("Out of order.")
                return await super().update(step, config=config)

        config = SAFE.model_copy(update={"segments": 2})
        asked = {**ASKED, "question": "When does the ferry leave?"}
        thread = {"configurable": {"thread_id": "1"}}
        store = InMemoryStore()
        agent = create_memagent(
            reader := Failing(n1="nine", n5="ten"), config=config, store=store, checkpointer=saver
        )
        with pytest.raises(ModelError):
            agent.invoke(asked, thread)
        reader.broken = False

        out = agent.invoke(asked if saver is None else None, thread)

        spans = [step.chunk.start for step in reader.steps]
        assert (out["stopped"], out["coverage"]) == ("end", 1)
        assert len(spans) == len({*spans}) == 10

    def test_the_built_in_reader_ends_at_a_statement_with_all_that_is_asked(self):
        line = "The night ferry leaves the old harbour on 12 May 1904.\n"
        text = numbered(40) + line + numbered(400)

        out = read(None, config=SAFE, document=text, question="When does the night ferry leave?")
        whole = read(None, config=OFF, document=text, question="When does the night ferry leave?")

        assert "12 May 1904" in out["answer"]
        assert (out["stopped"], whole["stopped"]) == ("done", "end")
        assert out["coverage"] < 0.2


CAPTAIN = "The captain of the Tern is Ann Kestrel."
STORY = f"""{numbered(60)}
The crew of the Tern came from Husum.

{CAPTAIN} She has sailed since 1999.

{numbered(9)}"""
WHO = "Who is the captain of the Tern?"


class Shy(Hearing):
    """Takes each way out that it is offered; otherwise notes what there is of the captain."""

    ways: tuple[str, ...] = ("unchanged",)

    def _generate(self, messages, *args, **options):
        prompt = str(messages[-1].content)
        self.heard.append(prompt)
        reply = "Ann Kestrel" if CAPTAIN in prompt else "Bo Tern"
        if "boxed" not in prompt:  # a merge
            reply = CAPTAIN
        if "<section>" in prompt:
            section = prompt.partition("<section>")[2].partition("</section>")[0]
            notes = prompt.partition("<notes>")[2].partition("</notes>")[0].strip()
            reply = CAPTAIN if CAPTAIN in section + notes else section.strip().splitlines()[0]
            if "unchanged" in self.ways and "single word" in prompt:
                reply = "unchanged"
            if "enough" in self.ways and "ENOUGH" in prompt:
                reply = "ENOUGH: Bo Tern"
        message = AIMessage(reply)
        return ChatResult(generations=[ChatGeneration(message=message)])


def shy(*ways):
    return Shy(messages=iter(()), heard=[], ways=ways)


class TestMisuse:
    @pytest.mark.parametrize("segments", [1, 2])
    def test_a_gate_that_is_always_closed_is_switched_off_and_everything_is_read(self, segments):
        model = shy("unchanged")
        config = ON.model_copy(update={"segments": segments})

        out = read(model, config=config, question=WHO, document=STORY)

        assert (out["answer"], out["found"]) == ("Ann Kestrel", True)
        assert CAPTAIN in out["memory"]
        assert out["coverage"] == 1
        assert [one for one in out["warnings"] if "update gate was switched off" in one]

    def test_what_had_been_passed_over_is_read_without_the_gate(self):
        model = shy("unchanged")

        read(model, question=WHO, document=STORY)

        ungated = [prompt for prompt in model.heard if "single word" not in prompt]
        for number in range(60):
            assert any(f"Line {number}" in prompt for prompt in ungated)

    @pytest.mark.parametrize(
        "question",
        ["Summarize the text.", "List all that happens.", "What is going on here?", "谁是船长？"],
    )
    def test_a_gate_is_tried_where_everything_is_asked_for_or_no_word_is_found(self, question):
        out = read(shy("unchanged"), question=question, document=STORY)

        assert out["memory"]
        assert [one for one in out["warnings"] if "update gate was switched off" in one]

    def test_asking_again_costs_one_call(self):
        store = InMemoryStore()
        first = read(shy("unchanged"), store, question=WHO, document=STORY)

        again = read(shy("unchanged"), store, question=WHO, document=STORY)

        assert (again["memory"], again["answer"]) == (first["memory"], first["answer"])
        assert again["usage"]["calls"] == 1

    def test_a_resumed_reading_knows_that_the_gate_is_off(self):
        agent = create_memagent(shy("unchanged"), config=ON, checkpointer=InMemorySaver())
        thread, asked = {"configurable": {"thread_id": "1"}}, {"question": WHO, "document": STORY}

        out = agent.invoke(asked, thread, interrupt_after=["overwrite_memory"])
        while out.get("answer") is None:
            out = agent.invoke(None, thread, interrupt_after=["overwrite_memory"])

        whole = read(shy("unchanged"), question=WHO, document=STORY)
        assert (out["memory"], out["warnings"]) == (whole["memory"], whole["warnings"])
        assert out["usage"]["calls"] == whole["usage"]["calls"]

    def test_a_gate_that_is_used_well_costs_no_further_call(self):
        model = scripted("unchanged", "At nine.", "unchanged", r"\boxed{nine}")

        out = read(model, question="When does Ann come?", document=numbered(14))

        assert (out["usage"]["calls"], out["usage"]["gated"]) == (4, 2)
        assert not any("switched off" in warning for warning in out["warnings"])

    def test_a_gate_stays_where_the_section_adds_nothing_to_be_noted(self):
        model = scripted("unchanged", "None", "None")

        out = read(model, question=WHO, document="Who is the captain of the Tern, they asked.")

        assert (out["memory"], out["found"], out["warnings"]) == ("", False, [])

    def test_a_gate_is_not_tried_where_the_text_has_no_word_of_what_is_named(self):
        model = scripted("unchanged", "None")

        out = read(model, question="Who signed the Bordeaux decree?", document=numbered(9))

        assert out["usage"]["calls"] == 2

    @pytest.mark.parametrize("exit", ["model", "safe"])
    def test_an_exit_without_an_answer_in_the_notes_is_not_taken(self, exit):
        config = OFF.model_copy(update={"exit": exit})

        out = read(shy("enough"), config=config, question=WHO, document=STORY)

        assert (out["stopped"], out["coverage"]) == ("end", 1)
        assert out["answer"] == "Ann Kestrel"
        assert any("exit was switched off" in warning for warning in out["warnings"])

    def test_with_both_ways_out_misused_the_document_is_read(self):
        config = ON.model_copy(update={"exit": "model"})

        out = read(shy("enough", "unchanged"), config=config, question=WHO, document=STORY)

        assert (out["answer"], out["coverage"]) == ("Ann Kestrel", 1)

    def test_replies_that_are_taken_word_for_word_are_left_alone(self):
        config = ON.model_copy(update={"exact_cuts": True})

        out = read(shy("unchanged"), config=config, question=WHO, document=STORY)

        assert out["memory"] == ""
        assert not any("switched off" in warning for warning in out["warnings"])


def _steps(reader):
    read(reader)
    return reader.steps
