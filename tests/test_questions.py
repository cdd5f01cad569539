"""Several questions over one document, which is read once for all of them."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from threading import Event

import pytest
from doubles import ChainReader, numbered, until_together
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore

from memagent_graph import MemoryBank, ReadingConfig, create_memagent
from memagent_graph.errors import ConfigurationError, ModelError, QuestionError
from memagent_graph.evidence.places import Memory
from memagent_graph.graph.chunks import Cutter
from memagent_graph.text.source import TextSource
from memagent_graph.text.tokens import EstimatingTokenizer

SMALL = ReadingConfig(chunk_tokens=50, retry_interval=0.001)
TEXT = numbered(60)
QUESTIONS = [f"What is number {number}?" for number in range(16)]


class Asked(ChainReader):
    """Its memories differ by question; fails when told to, and knows how many run at once."""

    def __init__(self, fails=lambda step: None, delay=0.0, together=1):
        super().__init__(delay=delay)
        self.fails, self.together = fails, together
        self.running = self.most = 0
        self.lock = threading.Lock()

    async def update(self, step, *, config=None):
        with self.lock:
            self.running += 1
            self.most = max(self.most, self.running)
        try:
            await until_together(self, self.together)
            error = self.fails(step)
            if error:
                raise error
            memory = step.memory if step.memory.text else Memory(step.question)
            return await super().update(replace(step, memory=memory), config=config)
        finally:
            with self.lock:
                self.running -= 1


def alone(question, text=TEXT):
    out = create_memagent(Asked(), config=SMALL).invoke({"question": question, "document": text})
    return out["answer"]


def run(agent, asked, how, config=None):
    if how == "invoke":
        return agent.invoke(asked, config)
    return asyncio.run(agent.ainvoke(asked, config))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
def test_each_question_gets_the_answer_that_it_gets_alone_in_order_and_all_at_once(how):
    reader = Asked(delay=0.001, together=16)
    agent = create_memagent(reader, config=SMALL)

    out = run(agent, {"questions": QUESTIONS, "document": TEXT}, how)

    assert [record["question"] for record in out["answers"]] == QUESTIONS
    assert [record["answer"] for record in out["answers"]] == [*map(alone, QUESTIONS)]
    assert {record["error"] for record in out["answers"]} == {None}
    chunks = len(set(reader.spans))
    assert [record["usage"]["calls"] for record in out["answers"]] == [chunks + 1] * 16
    assert len(reader.spans) == 16 * chunks
    assert reader.most == 16


def test_a_chunk_that_is_being_cut_is_cut_by_nobody_else_however_many_are_cut_meanwhile():
    cuts, entered, go = [], Event(), Event()

    class Slow(EstimatingTokenizer):
        def prefix(self, text, tokens):
            cuts.append(text)
            if len(cuts) == 1:
                entered.set()
                assert go.wait(60)
            return super().prefix(text, tokens)

    source = TextSource(numbered(900))
    cutter = Cutter(source, Asked(), SMALL.model_copy(update={"chunk_tokens": 300}), Slow(), 3)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(cutter.chunk, 0)
        assert entered.wait(60)
        for position in range(100, 2100, 100):
            cutter.chunk(position)
        second = pool.submit(cutter.chunk, 0)
        wait([second], timeout=0.2)
        go.set()

        assert second.result() is first.result()
    assert len(cuts) == len(set(cuts))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
def test_the_document_is_cut_once_for_all_questions(how):
    class Watched(EstimatingTokenizer):
        def prefix(self, text, tokens):
            if text not in QUESTIONS:
                cuts.append(text)
            return super().prefix(text, tokens)

    class Uneven(Asked):
        async def update(self, step, *, config=None):
            await asyncio.sleep(0.001 * (int(step.question.split()[-1][:-1]) % 4))
            return await super().update(step, config=config)

    cuts = []
    config = SMALL.model_copy(update={"chunk_tokens": 300})
    reader = Uneven()
    agent = create_memagent(reader, config=config, tokenizer=Watched())

    run(agent, {"questions": QUESTIONS, "document": numbered(900)}, how)

    assert len(set(reader.spans)) > 20
    assert len(cuts) == len(set(cuts))


def test_a_question_that_fails_says_why_and_takes_no_other_with_it():
    def fails(step):
        return ModelError("No.") if step.question == QUESTIONS[1] and step.chunk.start else None

    agent = create_memagent(Asked(fails), config=SMALL)

    out = agent.invoke({"questions": QUESTIONS[:3], "document": TEXT})

    first, failed, last = out["answers"]
    assert (first["answer"], last["answer"]) == (alone(QUESTIONS[0]), alone(QUESTIONS[2]))
    assert failed["error"] == (
        "Reading chunk 2 for question 2 failed: No. The memory of the chunk before it is kept."
    )
    assert "answer" not in failed


def test_what_fails_for_another_reason_is_gone_on_from_and_repeats_at_most_a_call_a_question():
    broken = [True]

    def fails(step):
        if broken and step.question == QUESTIONS[2] and step.memory.text and step.chunk.start > 400:
            return ZeroDivisionError()
        return None

    reader = Asked(fails, delay=0.001)
    agent = create_memagent(reader, config=SMALL, checkpointer=InMemorySaver())
    thread = {"configurable": {"thread_id": "1"}}
    with pytest.raises(ZeroDivisionError):
        agent.invoke({"questions": QUESTIONS[:4], "document": TEXT}, thread)
    broken.clear()

    out = agent.invoke(None, thread)

    assert [record["answer"] for record in out["answers"]] == [*map(alone, QUESTIONS[:4])]
    chunks = len(set(reader.spans))
    assert len(reader.spans) <= 4 * (chunks + 1)


def test_a_thread_s_next_questions_begin_with_no_answers():
    agent = create_memagent(Asked(), config=SMALL, checkpointer=InMemorySaver())
    thread = {"configurable": {"thread_id": "1"}}
    agent.invoke({"questions": QUESTIONS[:3], "document": TEXT}, thread)

    out = agent.invoke({"questions": QUESTIONS[3:5], "document": TEXT}, thread)

    assert [record["question"] for record in out["answers"]] == QUESTIONS[3:5]
    assert "answers" not in agent.invoke({"question": QUESTIONS[0], "document": TEXT}, thread)


def test_with_a_store_each_question_has_its_version_and_is_not_read_again():
    store = InMemoryStore()
    asked = {"questions": QUESTIONS[:4], "document": TEXT}
    first = create_memagent(Asked(), config=SMALL, store=store).invoke(asked)
    reader = Asked()

    again = create_memagent(reader, config=SMALL, store=store).invoke(asked)

    versions = [record["version"] for record in first["answers"]]
    assert len(set(versions)) == 4
    assert [record["version"] for record in again["answers"]] == versions
    assert (reader.spans, reader.answers) == ([], 4)
    bank = MemoryBank(store)
    assert [bank.get(version).question for version in versions] == QUESTIONS[:4]


def test_several_questions_are_answered_from_one_stored_memory():
    store = InMemoryStore()
    agent = create_memagent(Asked(), config=SMALL, store=store)
    read = agent.invoke({"question": "What?", "document": TEXT})

    out = agent.invoke({"questions": QUESTIONS[:3], "version": read["version"]})

    assert [record["answer"] for record in out["answers"]] == [read["memory"]] * 3


def test_max_calls_holds_for_all_questions_together():
    reader = Asked()
    agent = create_memagent(reader, config=SMALL.model_copy(update={"max_calls": 14}))

    out = agent.invoke({"questions": QUESTIONS[:4], "document": TEXT})

    assert [record["stopped"] for record in out["answers"]] == ["max_calls"] * 4
    assert len(reader.spans) + reader.answers <= 14
    assert [record["usage"]["calls"] for record in out["answers"]] == [3] * 4
    with pytest.raises(ConfigurationError, match="32 or more"):
        agent.invoke({"questions": QUESTIONS, "document": TEXT})


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ({"questions": []}, QuestionError),
        ({"questions": ["Who?", " "]}, QuestionError),
        ({"questions": ["Who?"], "question": "Why?"}, QuestionError),
        ({"questions": ["Who?"], "memory_name": "ann"}, ConfigurationError),
    ],
)
def test_questions_that_cannot_be_asked_are_refused_before_anything_is_read(asked, error):
    reader = Asked()
    agent = create_memagent(reader, config=SMALL, store=InMemoryStore())

    with pytest.raises(error):
        agent.invoke({**asked, "document": TEXT})

    assert reader.spans == []


def test_a_question_that_hangs_keeps_no_other_waiting():
    others_done = threading.Event()

    class Hanging(Asked):
        async def update(self, step, *, config=None):
            if step.question == QUESTIONS[0]:
                await asyncio.to_thread(others_done.wait)
            return await super().update(step, config=config)

        async def respond(self, question, memory, *, config=None):
            others_done.set()
            return await super().respond(question, memory, config=config)

    out = create_memagent(Hanging(), config=SMALL).invoke(
        {"questions": QUESTIONS[:3], "document": TEXT}
    )

    assert [record["answer"] for record in out["answers"]] == [*map(alone, QUESTIONS[:3])]


@pytest.mark.parametrize("when", ["interrupt_before", "interrupt_after"])
def test_all_questions_stop_and_go_on_where_they_are_told_to(when):
    agent = create_memagent(
        Asked(), config=SMALL, checkpointer=InMemorySaver(), **{when: ["overwrite_memory"]}
    )
    thread = {"configurable": {"thread_id": "1"}}
    agent.invoke({"questions": QUESTIONS[:3], "document": TEXT}, thread)

    stops = 1
    while agent.get_state(thread).next:
        out = agent.invoke(None, thread)
        stops += 1

    assert [record["answer"] for record in out["answers"]] == [*map(alone, QUESTIONS[:3])]
    assert stops > 5
