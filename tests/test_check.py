"""No reply overwrites notes that is none, and no answer stands on nothing without saying so."""

from __future__ import annotations

from itertools import repeat

import pytest
from doubles import Hearing
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore

from memagent_graph import ConversationMemory, ReadingConfig, create_memagent
from memagent_graph.errors import ModelError
from memagent_graph.graph.events import Observer
from memagent_graph.graph.reading import NOTHING_SUPPORTED
from memagent_graph.prompts import (
    MERGE_PROMPT,
    REPEAT_PROMPT,
    SHORTER_PROMPT,
    UPDATE_PROMPT,
)

FIRST = "Ann Kestrel signed the lease in Husum. The rent is 1,480 euros a month."
SECOND = "The harbour was dredged in spring. Gulls came back to the quay."
DOCUMENT = f"{FIRST}\n\n{SECOND}"
NOTES = "Ann Kestrel signed the lease in Husum."
ASKED = "Who signed the lease?"
CONFIG = ReadingConfig(chunk_tokens=20, memory_tokens=100, retry_interval=0.001)
SORRY = "I'm sorry, but I can't assist with that."
NOTHING_TO_DO_WITH_IT = "Bananas grow on tall plants in warm countries everywhere."


class Recording(BaseCallbackHandler, Observer):
    """Watches a reading as a recorder of rollouts does."""


def read(*replies, config=CONFIG, **asked):
    model = Hearing(messages=iter([AIMessage(reply) for reply in replies]), heard=[])
    agent = create_memagent(model, config=config)
    out = agent.invoke({"question": ASKED, "document": DOCUMENT, **asked})
    return out, model.heard


def warned(out):
    return [one for one in out["warnings"] if "no notes" in one]


@pytest.mark.parametrize("reply", [SORRY, "None", NOTHING_TO_DO_WITH_IT, "The quay has gulls."])
def test_a_reply_that_is_no_notes_is_asked_for_again_and_what_comes_then_counts(reply):
    better = f"{NOTES} The harbour was dredged."

    out, heard = read(NOTES, reply, better, r"\boxed{Ann Kestrel}")

    assert out["memory"] == better
    assert out["usage"]["calls"] == len(heard) == 4
    assert "of no use as notes" in heard[2]
    assert not warned(out)


@pytest.mark.parametrize("reply", [SORRY, "None", NOTHING_TO_DO_WITH_IT])
def test_if_it_is_none_again_the_old_notes_stay_and_a_warning_says_so(reply):
    out, _ = read(NOTES, reply, reply, r"\boxed{Ann Kestrel}")

    assert out["memory"] == NOTES
    assert out["answer"] == "Ann Kestrel"
    (warning,) = warned(out)
    assert warning.startswith("1 reply was no notes")


def test_an_empty_reply_on_top_of_notes_is_asked_for_again_and_then_they_stay():
    mended, _ = read(NOTES, "", f"{NOTES} Gulls came.", r"\boxed{Ann Kestrel}")
    twice = CONFIG.model_copy(update={"max_attempts": 2})
    kept, heard = read(NOTES, " ", "<think>Hm.</think>", "", r"\boxed{Ann Kestrel}", config=twice)

    assert mended["memory"] == f"{NOTES} Gulls came."
    assert not warned(mended)
    assert kept["memory"] == NOTES
    assert len(heard) == 5
    assert heard[1] == heard[2] != heard[3]
    assert len(warned(kept)) == 1


def test_a_model_that_is_known_to_reply_nothing_is_not_asked_as_if_its_server_had_failed():
    document = f"{DOCUMENT}\n\nThe pilot boat was painted green by two brothers from Ribe."
    twice = CONFIG.model_copy(update={"max_attempts": 2})

    replies = [NOTES, *[""] * 5, r"\boxed{Ann Kestrel}"]
    out, heard = read(*replies, config=twice, document=document)

    assert (out["memory"], out["answer"]) == (NOTES, "Ann Kestrel")
    assert len(heard) == 1 + 3 + 2 + 1


def test_a_model_that_replies_nothing_from_the_beginning_on_is_reported():
    with pytest.raises(ModelError, match="no text"):
        read(*repeat("", 9))


def test_notes_that_lost_the_old_ones_twice_are_kept_beside_them():
    out, _ = read(NOTES, "The quay has gulls.", "Gulls came to the quay.", r"\boxed{Ann Kestrel}")

    assert out["memory"] == f"{NOTES}\nGulls came to the quay."
    assert len(warned(out)) == 1


def test_notes_may_lose_the_old_ones_where_there_is_no_room_for_both():
    config = CONFIG.model_copy(update={"memory_tokens": 12})

    out, heard = read(NOTES, "The quay has gulls.", r"\boxed{Gulls}", config=config)

    assert out["memory"] == "The quay has gulls."
    assert len(heard) == 3


def test_a_call_that_is_not_left_is_not_made():
    config = CONFIG.model_copy(update={"max_calls": 3})

    out, heard = read(NOTES, SORRY, r"\boxed{Ann Kestrel}", config=config)

    assert out["memory"] == NOTES
    assert len(heard) == 3


def test_with_exact_cuts_replies_are_taken_word_for_word_and_only_counted():
    config = CONFIG.model_copy(update={"exact_cuts": True})

    out, heard = read(NOTES, SORRY, r"\boxed{x}", config=config)

    assert out["memory"] == SORRY
    assert len(heard) == 3
    (warning,) = warned(out)
    assert "taken anyway" in warning


def test_in_recorded_rollouts_replies_are_taken_word_for_word():
    model = Hearing(messages=iter(map(AIMessage, [NOTES, SORRY, r"\boxed{x}"])), heard=[])
    agent = create_memagent(model, config=CONFIG)

    out = agent.invoke({"question": ASKED, "document": DOCUMENT}, {"callbacks": [Recording()]})

    assert out["memory"] == SORRY
    assert len(model.heard) == 3


def test_the_count_survives_a_resume():
    model = Hearing(messages=iter(map(AIMessage, [NOTES, SORRY, SORRY, r"\boxed{A}"])), heard=[])
    agent = create_memagent(model, config=CONFIG, checkpointer=InMemorySaver())
    thread = {"configurable": {"thread_id": "1"}}
    agent.invoke(
        {"question": ASKED, "document": DOCUMENT}, thread, interrupt_before=["write_answer"]
    )

    out = agent.invoke(None, thread)

    assert len(warned(out)) == 1


@pytest.mark.parametrize("reply", [SORRY, "None", NOTHING_TO_DO_WITH_IT, ""])
def test_a_merge_that_is_no_notes_keeps_what_was_to_be_merged(reply):
    config = CONFIG.model_copy(update={"segments": 2})

    out, _ = read(NOTES, "Gulls came.", reply, reply, r"\boxed{Ann Kestrel}", config=config)

    assert sorted(out["memory"].splitlines()) == [NOTES, "Gulls came."]
    assert len(warned(out)) == 1


@pytest.mark.parametrize("echo", [UPDATE_PROMPT, SHORTER_PROMPT, REPEAT_PROMPT, MERGE_PROMPT])
@pytest.mark.parametrize("segments", [1, 2])
def test_the_prompt_s_own_sentences_are_never_memory(echo, segments):
    instructions = [line for line in echo.replace("{words}", "71").splitlines() if line.strip()]
    config = CONFIG.model_copy(update={"segments": segments, "memory_tokens": 400})

    for line in (line for line in instructions if len(line.split()) > 8):
        model = Hearing(messages=repeat(AIMessage(f"{line}\n{NOTES}")), heard=[])
        out = create_memagent(model, config=config).invoke(
            {"question": ASKED, "document": DOCUMENT}
        )
        assert set(out["memory"].splitlines()) == {NOTES}


def test_a_model_that_repeats_the_prompt_at_first_is_asked_again():
    asked = UPDATE_PROMPT.partition("<section>")[0]

    out, heard = read(asked, NOTES, NOTES, "Ann Kestrel")

    assert out["memory"] == NOTES
    assert "of no use as notes" in heard[1]


@pytest.mark.parametrize("reply", ["(empty: this is the first section)", "<notes>\n</notes>"])
def test_a_model_that_has_nothing_to_note_at_first_is_not_asked_again(reply):
    _, heard = read(reply, NOTES, "Ann Kestrel")
    assert len(heard) == 3


def test_a_document_may_speak_as_the_prompt_does():
    line = "You cannot go back to earlier sections: only your notes stay."

    out, _ = read(line, line, line, document=line, question="What stays?")

    assert out["memory"] == line


class TestAnswer:
    def test_with_nothing_noted_the_model_is_not_asked(self):
        out, heard = read("None", "None")

        assert (out["memory"], out["found"]) == ("", False)
        assert out["answer"].startswith("Nothing in what was read")
        assert out["usage"]["calls"] == len(heard) == 2

    @pytest.mark.parametrize(
        "answer", ["Beyoncé", "Hannibal Barca", "The rent is 17 euros.", SORRY, "Unknown."]
    )
    def test_what_the_memory_lacks_is_not_found(self, answer):
        out, _ = read(NOTES, NOTES, rf"\boxed{{{answer}}}")

        assert out["answer"] == answer
        assert out["found"] is False

    @pytest.mark.parametrize("answer", ["Ann Kestrel", "Kestrel, in Husum", "Yes", "ann kestrel"])
    def test_what_the_memory_has_is_found(self, answer):
        out, _ = read(NOTES, NOTES, rf"\boxed{{{answer}}}")

        assert out["found"] is True
        assert out["unsupported"] == []

    @pytest.mark.parametrize(
        "answer", [SORRY, "empty", "(empty: this is the first section)", ASKED, "Bo Tern."]
    )
    def test_an_answer_that_gives_nothing_of_the_memory_is_warned_of_or_dropped(self, answer):
        dropping = CONFIG.model_copy(update={"unsupported": "drop"})

        out, _ = read(NOTES, NOTES, answer)
        dropped, _ = read(NOTES, NOTES, answer, config=dropping)

        assert (out["answer"], out["found"]) == (answer, False)
        assert out["warnings"][-1].startswith("The answer has no support in what was read: ")
        assert (dropped["answer"], dropped["found"]) == (NOTHING_SUPPORTED, False)
        assert dropped["response"] == answer
        assert dropped["warnings"][-1].startswith("Left out of the answer, without support")

    def test_the_document_s_own_refusal_is_an_answer(self):
        out, _ = read(f"The clerk said: {SORRY}", f"The clerk said: {SORRY}", SORRY)

        assert out["found"] is True

    def test_of_an_answer_only_the_statements_without_support_are_dropped(self):
        config = CONFIG.model_copy(update={"unsupported": "drop"})
        answer = "Ann Kestrel signed the lease. Bo Tern witnessed it in 1999."
        model = Hearing(messages=iter(map(AIMessage, [NOTES, NOTES, answer])), heard=[])
        agent = create_memagent(model, config=config)

        pieces = [*agent.stream({"question": ASKED, "document": DOCUMENT}, stream_mode="messages")]
        out, _ = read(NOTES, NOTES, answer, config=config)

        assert out["answer"] == "Ann Kestrel signed the lease."
        assert "".join(piece.text for piece, _ in pieces) == out["answer"]
        assert [mark["text"] for mark in out["unsupported"]] == ["Bo Tern witnessed it in 1999."]

    def test_a_recorded_answer_stays_as_it_is(self):
        config = CONFIG.model_copy(update={"unsupported": "drop", "exact_cuts": True})

        out, _ = read(NOTES, NOTES, "Bo Tern.", config=config)

        assert out["answer"] == "Bo Tern."

    def test_it_does_not_stand_on_what_nothing_supports_in_the_memory(self):
        made_up = "Mr Howard signed the lease."

        out, _ = read(made_up, made_up, r"\boxed{Howard}")

        assert out["memory"] == made_up
        assert out["found"] is False
        assert any("Howard" in warning for warning in out["warnings"])

    def test_notes_without_a_word_of_the_question_hold_no_answer_to_it(self):
        gulls = "In spring the gulls of Husum came back to the quay in the harbour."
        asked = "Who painted the ceiling of the chapel?"

        beside, _ = read(gulls, gulls, r"\boxed{Husum}", question=asked)
        summed, _ = read(gulls, gulls, "Gulls came back.", question="Summarize what the parts say")

        assert beside["found"] is False
        assert summed["found"] is True

    def test_a_statement_that_nothing_supports_is_marked_and_warned_of(self):
        answer = "Ann Kestrel signed the lease. Bo Tern witnessed it in 1999."

        out, _ = read(NOTES, NOTES, answer)

        assert out["found"] is True
        (mark,) = out["unsupported"]
        assert mark["text"] == "Bo Tern witnessed it in 1999."
        assert {"Tern", "1999"} <= {*mark["missing"]}
        assert any("Bo Tern" in warning for warning in out["warnings"])


class TestConversation:
    OLD = "2026-03-01: Lives in Husum.\n2026-03-01: Allergic to peanuts.\n2026-03-02: Breeds goats."

    def fold(self, *replies):
        replies = [one if isinstance(one, AIMessage) else AIMessage(one) for one in replies]
        model = Hearing(messages=iter(replies), heard=[])
        memory = ConversationMemory(model, store=InMemoryStore())
        memory.save([HumanMessage("I live in Husum.", id="1")], user="u", thread="t")
        memory.save([HumanMessage("I like tea.", id="2")], user="u", thread="t")
        return memory.load("u"), memory.history("u")[0].warnings

    @pytest.mark.parametrize("reply", [SORRY, "None", "Understood.", "2026-03-03: Likes tea."])
    def test_no_reply_takes_the_place_of_what_is_known(self, reply):
        text, warnings = self.fold(self.OLD, reply, reply)

        assert set(self.OLD.splitlines()) <= set(text.splitlines())
        assert ("Likes tea." in text) == ("tea" in reply)
        assert any("no notes" in one for one in warnings)
        assert not any("shorter" in one for one in warnings)

    @pytest.mark.parametrize("reply", ["No new information.", "unchanged"])
    def test_nothing_new_is_no_fault(self, reply):
        assert self.fold(self.OLD, reply) == (self.OLD, ())

    def test_a_reply_that_was_cut_off_keeps_what_it_did_not_reach(self):
        cut = AIMessage(
            "2026-03-01: Lives in Husum.\n2026-03-01: Aller",
            response_metadata={"finish_reason": "length"},
        )

        text, _ = self.fold(self.OLD, cut, cut)

        assert set(self.OLD.splitlines()) <= set(text.splitlines())
