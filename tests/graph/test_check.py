"""No reply overwrites notes that is none, and no answer stands on nothing without saying so."""

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore

from memagent_graph import ConversationMemory, ReadingConfig, create_memagent
from memagent_graph.graph.events import NOTHING_SUPPORTED
from memagent_graph.templates import MERGE_PROMPT, REPEAT_PROMPT, SHORTER_PROMPT, UPDATE_PROMPT
from memagent_graph.testing import ScriptedChatModel

FIRST = "Ann Kestrel signed the lease in Husum. The rent is 1,480 euros a month."
SECOND = "The harbour was dredged in spring. Gulls came back to the quay."
DOCUMENT = f"{FIRST}\n\n{SECOND}"
NOTES = "Ann Kestrel signed the lease in Husum."
ASKED = "Who signed the lease?"
CONFIG = ReadingConfig(chunk_tokens=20, memory_tokens=100, retry_interval=0.001)
SORRY = "I'm sorry, but I can't assist with that."
NOTHING_TO_DO_WITH_IT = "Bananas grow on tall plants in warm countries everywhere."


def read(*replies, config=None, asked=ASKED, document=DOCUMENT, **changes):
    model = ScriptedChatModel(*replies)
    agent = create_memagent(model, config=CONFIG.model_copy(update=changes))
    return agent.invoke({"question": asked, "document": document}, config), model.prompts


def warned(out):
    return [one for one in out["warnings"] if "no notes" in one]


@pytest.mark.parametrize(
    ("reply", "memory"),
    [
        (SORRY, NOTES),
        ("None", NOTES),
        (NOTHING_TO_DO_WITH_IT, NOTES),
        ("The quay has gulls.", f"{NOTES}\nThe quay has gulls."),
    ],
)
def test_a_reply_that_is_no_notes_is_asked_for_again_or_the_old_notes_stay(reply, memory):
    better = f"{NOTES} The harbour was dredged."

    mended, heard = read(NOTES, reply, better, r"\boxed{Ann Kestrel}")
    out, _ = read(NOTES, reply, reply, r"\boxed{Ann Kestrel}")

    assert mended["memory"] == better
    assert mended["usage"]["calls"] == len(heard) == 4
    assert "of no use as notes" in heard[2]
    assert not warned(mended)
    assert (out["memory"], out["answer"]) == (memory, "Ann Kestrel")
    (warning,) = warned(out)
    assert warning.startswith("1 reply was no notes")


def test_an_empty_reply_on_top_of_notes_is_asked_for_again_and_then_they_stay():
    mended, _ = read(NOTES, "", f"{NOTES} Gulls came.", r"\boxed{Ann Kestrel}")
    kept, heard = read(NOTES, " ", "<think>Hm.</think>", "", "Ann Kestrel", max_attempts=2)

    assert mended["memory"] == f"{NOTES} Gulls came."
    assert not warned(mended)
    assert kept["memory"] == NOTES
    assert len(heard) == 5
    assert heard[1] == heard[2] != heard[3]
    assert len(warned(kept)) == 1


def test_a_model_that_is_known_to_reply_nothing_is_not_asked_as_if_its_server_had_failed():
    document = f"{DOCUMENT}\n\nThe pilot boat was painted green by two brothers from Ribe."

    out, heard = read(NOTES, *[""] * 5, "Ann Kestrel", max_attempts=2, document=document)

    assert (out["memory"], out["answer"]) == (NOTES, "Ann Kestrel")
    assert len(heard) == 1 + 3 + 2 + 1


@pytest.mark.parametrize(
    ("limit", "reply", "memory"),
    [
        ({"memory_tokens": 12}, "The quay has gulls.", "The quay has gulls."),
        ({"max_calls": 3}, SORRY, NOTES),
        ({"exact_cuts": True}, SORRY, SORRY),
    ],
    ids=["no room for both notes", "no call is left", "word for word"],
)
def test_notes_are_not_asked_for_again_where(limit, reply, memory):
    out, heard = read(NOTES, reply, "Ann Kestrel", **limit)

    assert out["memory"] == memory
    assert len(heard) == 3
    assert ("taken anyway" in str(warned(out))) == ("exact_cuts" in limit)


def test_the_count_survives_a_resume():
    model = ScriptedChatModel(NOTES, SORRY, SORRY, "Ann")
    agent = create_memagent(model, config=CONFIG, checkpointer=InMemorySaver())
    thread, asked = {"configurable": {"thread_id": "1"}}, {"question": ASKED, "document": DOCUMENT}
    agent.invoke(asked, thread, interrupt_before=["write_answer"])

    assert len(warned(agent.invoke(None, thread))) == 1


@pytest.mark.parametrize("reply", [SORRY, "None", NOTHING_TO_DO_WITH_IT, ""])
def test_a_merge_that_is_no_notes_keeps_what_was_to_be_merged(reply):
    out, _ = read(NOTES, "Gulls came.", reply, reply, "Ann Kestrel", segments=2)

    assert sorted(out["memory"].splitlines()) == [NOTES, "Gulls came."]
    assert len(warned(out)) == 1


@pytest.mark.parametrize("echo", [UPDATE_PROMPT, SHORTER_PROMPT, REPEAT_PROMPT, MERGE_PROMPT])
@pytest.mark.parametrize("segments", [1, 2])
def test_the_prompt_s_own_sentences_are_never_memory(echo, segments):
    lines = echo.replace("{words}", "71").splitlines()

    for line in (line for line in lines if len(line.split()) > 8):
        out, _ = read(*[f"{line}\n{NOTES}"] * 9, segments=segments, memory_tokens=400)
        assert set(out["memory"].splitlines()) == {NOTES}


class TestAnswer:
    def test_with_nothing_noted_the_model_is_not_asked(self):
        out, heard = read("None", "None")

        assert (out["memory"], out["found"]) == ("", False)
        assert out["answer"].startswith("Nothing in what was read")
        assert out["usage"]["calls"] == len(heard) == 2

    @pytest.mark.parametrize(
        ("answer", "found"),
        [
            ("Beyoncé", False),
            ("The rent is 17 euros.", False),
            ("Unknown.", False),
            (ASKED, False),
            ("Kestrel, in Husum", True),
            ("Yes", True),
            ("ann kestrel", True),
        ],
    )
    def test_what_the_memory_has_is_found(self, answer, found):
        out, _ = read(NOTES, NOTES, rf"\boxed{{{answer}}}")

        assert (out["answer"], out["found"]) == (answer, found)
        assert (out["unsupported"] == []) or not found

    @pytest.mark.parametrize("answer", [SORRY, "(empty: this is the first section)", "Bo Tern."])
    def test_an_answer_that_gives_nothing_of_the_memory_is_warned_of_or_dropped(self, answer):
        out, _ = read(NOTES, NOTES, answer)
        dropped, _ = read(NOTES, NOTES, answer, unsupported="drop")
        recorded, _ = read(NOTES, NOTES, answer, unsupported="drop", exact_cuts=True)

        assert (out["answer"], out["found"]) == (answer, False)
        assert out["warnings"][-1].startswith("The answer has no support in what was read: ")
        assert (dropped["answer"], dropped["found"]) == (NOTHING_SUPPORTED, False)
        assert dropped["response"] == answer == recorded["answer"]
        assert dropped["warnings"][-1].startswith("Left out of the answer, without support")

    def test_of_an_answer_the_statements_without_support_are_marked_or_dropped(self):
        answer = "Ann Kestrel signed the lease. Bo Tern witnessed it in 1999."
        config = CONFIG.model_copy(update={"unsupported": "drop"})
        agent = create_memagent(ScriptedChatModel(NOTES, NOTES, answer), config=config)

        pieces = [*agent.stream({"question": ASKED, "document": DOCUMENT}, stream_mode="messages")]
        kept, _ = read(NOTES, NOTES, answer)
        out, _ = read(NOTES, NOTES, answer, unsupported="drop")

        assert out["answer"] == "Ann Kestrel signed the lease."
        assert "".join(piece.text for piece, _ in pieces) == out["answer"]
        assert (kept["answer"], kept["found"]) == (answer, True)
        assert any("Bo Tern" in warning for warning in kept["warnings"])
        for found in (out, kept):
            (mark,) = found["unsupported"]
            assert mark["text"] == "Bo Tern witnessed it in 1999."
            assert {"Tern", "1999"} <= {*mark["missing"]}

    def test_notes_without_a_word_of_the_question_hold_no_answer_to_it(self):
        gulls = "In spring the gulls of Husum came back to the quay in the harbour."

        beside, _ = read(gulls, gulls, "Husum", asked="Who painted the ceiling of the chapel?")
        summed, _ = read(gulls, gulls, "Gulls came back.", asked="Summarize what the parts say")

        assert beside["found"] is False
        assert summed["found"] is True


class TestConversation:
    OLD = "2026-03-01: Lives in Husum.\n2026-03-01: Allergic to peanuts.\n2026-03-02: Breeds goats."

    def fold(self, *replies):
        memory = ConversationMemory(ScriptedChatModel(*replies), store=InMemoryStore())
        memory.save([HumanMessage("I live in Husum.", id="1")], user="u", thread="t")
        memory.save([HumanMessage("I like tea.", id="2")], user="u", thread="t")
        return memory.load("u"), memory.history("u")[0].warnings

    @pytest.mark.parametrize("reply", [SORRY, "None", "2026-03-03: Likes tea."])
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
        said, ending = "2026-03-01: Lives in Husum.\n2026-03-01: Aller", {"finish_reason": "length"}
        cut = AIMessage(said, response_metadata=ending)

        text, _ = self.fold(self.OLD, cut, cut)

        assert set(self.OLD.splitlines()) <= set(text.splitlines())
