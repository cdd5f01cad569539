"""What an answer is shown of the text, beside the notes or instead of a reading."""

import re

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore

from memagent_graph import MemoryBank, Prompts, ReadingConfig, create_memagent
from memagent_graph.graph.reading import Observer
from memagent_graph.testing import ScriptedChatModel
from memagent_graph.text.tokens import EstimatingTokenizer

QUESTION = "What is the rent of Lease 7?"
SIGNED = "Lease 7 was signed by Ann Kestrel."
RENT = "The rent of Lease 7 is 900 euros."
RAIN = "\n\n".join(f"It rained for {day} days in the harbour of the town." for day in range(13, 99))
TEXT = f"{SIGNED}\n\n{RAIN}\n\n{RENT}\n\n{RAIN}\n"
SMALL = {"chunk_tokens": 500, "memory_tokens": 64, "answer_tokens": 32, "question_tokens": 64}
ASKED = {"question": QUESTION, "document": TEXT}
PASSAGES = re.compile(r"<passages>\n(.*)\n</passages>", re.DOTALL)


class Model(ScriptedChatModel):
    """Notes only who signed, and answers from what it is shown; if `blind`, not from passages."""

    def __init__(self, *, blind=False):
        def reply(messages):
            prompt = messages[0].text
            sees = RENT in prompt and ("<notes>" in prompt or not blind)
            if "<section>" in prompt:
                return SIGNED
            if '"rent"' in prompt:
                return {"rent": 900 if sees else None}
            return r"\boxed{900 euros}" if sees else "The notes do not hold the answer."

        super().__init__(reply)

    @property
    def readings(self):
        return sum("<section>" in prompt for prompt in self.prompts)


def made(model=None, store=None, checkpointer=None, **config):
    kept = {"store": store, "checkpointer": checkpointer}
    return create_memagent(model or Model(), config=ReadingConfig(**SMALL | config), **kept)


def shown(model):
    return PASSAGES.search(model.prompts[-1])[1]


def test_an_answer_that_no_note_has_is_found_in_the_text_and_cited_there():
    out = made(model := Model()).invoke(ASKED)

    assert (out["answer"], out["found"], out["how"]) == ("900 euros", True, "read")
    [place] = out["citations"]
    assert TEXT[place["start"] : place["end"]] == place["text"] == RENT
    assert out["memory"] == SIGNED
    spans = [TEXT[start:end].strip() for start, end in out["passages"]]
    assert shown(model) == "\n\n[...]\n\n".join(spans)  # in the document's order
    assert SIGNED in spans[0]  # where the notes stand
    assert RENT in spans[-1]


@pytest.mark.parametrize("config", [{"exact_cuts": True}, {"answer_passages": 0}])
def test_the_paper_s_way_has_the_prompts_of_the_paper_s_way(config):
    out = made(model := Model(), **config).invoke(ASKED)

    assert model.prompts[-1] == Prompts().for_answer(QUESTION, SIGNED)
    assert (out["found"], out["passages"], out["citations"]) == (False, [], [])


class Recorder(BaseCallbackHandler, Observer):
    """Sees a run, as what records it for training does."""


def test_a_recorded_run_is_answered_from_its_notes():
    made(model := Model(), how="auto").invoke(ASKED, {"callbacks": [Recorder()]})

    assert model.prompts[-1] == Prompts().for_answer(QUESTION, SIGNED)


@pytest.mark.parametrize("most", [None, 300])
def test_no_prompt_is_longer_than_the_window(most):
    text = "\n\n".join(f"{TEXT} The rent of Lease {number} is high." for number in range(25))
    config = ReadingConfig(**SMALL, answer_passages=most)
    create_memagent(model := Model(), config=config).invoke({**ASKED, "document": text})

    longest = max(map(EstimatingTokenizer().count, model.prompts))
    assert longest <= config.window_tokens - config.answer_tokens
    room = EstimatingTokenizer().count(shown(model))
    assert room <= (most or config.window_tokens)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "a.txt").write_text(f"{SIGNED}\n{RAIN}", "utf-8")
    (tmp_path / "b.txt").write_text(f"{RAIN}\n{RENT}", "utf-8")
    return tmp_path


def test_of_several_files_each_passage_has_its_place(folder):
    out = made(model := Model()).invoke({**ASKED, "document": folder})

    assert out["answer"] == "900 euros"
    assert re.search(r"^\S*b\.txt:\d+$", shown(model), re.MULTILINE)
    [place] = out["citations"]
    assert place["source"].endswith("b.txt")


def test_a_memory_of_another_run_is_answered_from_alone():
    store = InMemoryStore()
    made(store=store).invoke({**ASKED, "memory_name": "lease"})

    out = made(model := Model(), store=store).invoke({"question": QUESTION, "version": "lease"})

    assert (out["passages"], out["usage"]["calls"], out["found"]) == ([], 1, False)
    assert len(model.prompts) == 1


THREAD = {"configurable": {"thread_id": "1"}}


@pytest.mark.parametrize(("rent", "found"), [("900", True), ("950", False)])
def test_a_resumed_run_opens_its_file_again_for_the_answer_unless_it_changed(tmp_path, rent, found):
    file, saver = tmp_path / "lease.txt", InMemorySaver()
    file.write_text(TEXT, "utf-8")
    config = ReadingConfig(**SMALL)
    stopping = create_memagent(
        Model(), config=config, checkpointer=saver, interrupt_before=["write_answer"]
    )
    stopping.invoke({**ASKED, "document": file}, THREAD)
    file.write_text(TEXT.replace("900", rent), "utf-8")

    out = made(checkpointer=saver).invoke(None, THREAD)

    assert (bool(out["passages"]), out["found"], out["memory"]) == (found, found, SIGNED)
    assert (out["answer"] == "900 euros") is found


@pytest.mark.parametrize("shows", [False, True])
def test_own_prompts_say_whether_they_show_passages(shows):
    answer = "Text: {passages}\n" * shows + "Notes: {memory}\nQuestion: {question}"
    config, prompts = ReadingConfig(**SMALL), Prompts(answer=answer)
    agent = create_memagent(model := Model(), config=config, prompts=prompts)

    assert bool(agent.invoke(ASKED)["passages"]) is shows
    assert (RENT in model.prompts[-1]) is shows


# --- One way that chooses


def test_a_text_that_the_window_holds_is_read_in_one_call():
    out = made(model := Model(), how="auto").invoke({**ASKED, "document": f"{SIGNED}\n{RENT}"})

    assert (out["answer"], out["how"], out["coverage"]) == ("900 euros", "whole", 1)
    assert (out["usage"]["calls"], model.readings, out["memory"]) == (1, 0, "")


def test_of_a_longer_one_the_passages_of_a_search_are_read():
    out = made(model := Model(), how="auto").invoke(ASKED)

    assert (out["answer"], out["how"], model.readings) == ("900 euros", "passages", 0)
    shown = sum(end - start for start, end in out["passages"])
    assert out["coverage"] == pytest.approx(shown / len(TEXT))
    assert RENT in {place["text"] for place in out["citations"]}


def test_what_no_passage_has_is_looked_for_chunk_by_chunk():
    agent = made(model := Model(blind=True), how="auto", store=InMemoryStore())

    parts = [*agent.stream(ASKED, stream_mode=["values", "custom"])]

    events = [part["event"] for mode, part in parts if mode == "custom"]
    out = [part for mode, part in parts if mode == "values"][-1]
    assert (out["answer"], out["how"]) == ("900 euros", "read")
    assert model.readings
    assert events.index("fallback") < events.index("chunk")
    assert out["usage"]["calls"] == len(model.prompts)


@pytest.mark.parametrize(
    ("question", "how"),
    [
        ("Which Bremen bank collects the rent from foreign tenants?", "read"),
        ("What rent is due for Lease 7 to the bank?", "passages"),
    ],
)
def test_an_answer_beside_few_of_the_question_s_words_is_not_taken(question, how):
    out = made(how="auto").invoke({**ASKED, "question": question})

    assert out["how"] == how


@pytest.mark.parametrize(
    "question", ["How many days did it rain in total?", "List all leases.", "Who signed last?"]
)
def test_questions_about_more_than_one_place_are_read_for(question):
    out = made(model := Model(), how="auto").invoke({**ASKED, "question": question})

    assert out["how"] == "read"
    assert "<section>" in model.prompts[0]


def test_a_named_memory_is_continued_and_nothing_is_stored_by_a_search():
    store = InMemoryStore()
    made(how="auto", store=store).invoke(ASKED)
    assert store.search(()) == []

    out = made(how="auto", store=store).invoke({**ASKED, "memory_name": "lease"})

    assert out["how"] == "read"
    assert MemoryBank(store).get("lease").text == SIGNED


async def test_a_discarded_answer_is_in_no_stream():
    agent = made(Model(blind=True), how="auto")
    parts = [part async for part, _ in agent.astream(ASKED, stream_mode="messages")]
    said = [part.text for part in parts if isinstance(part, AIMessage)]

    assert "".join(said) == "900 euros"


def test_a_reading_after_a_search_is_resumed():
    saver, model = InMemorySaver(), Model(blind=True)
    config = ReadingConfig(**SMALL, how="auto")
    stopping = create_memagent(
        model, config=config, checkpointer=saver, interrupt_after=["overwrite_memory"]
    )
    stopping.invoke(ASKED, THREAD)
    asked = len(model.prompts)

    out = made(model, checkpointer=saver, how="auto").invoke(None, THREAD)

    assert out["answer"] == "900 euros"
    assert out["usage"]["calls"] == len(model.prompts) > asked
