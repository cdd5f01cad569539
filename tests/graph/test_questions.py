"""Several questions over one document, which is read once for all of them."""

import asyncio
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from threading import Event

import pytest
from fixed_readers import Watched, numbered
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore

from memagent_graph import MemoryBank, ReadingConfig, create_memagent
from memagent_graph.errors import ConfigurationError, ModelError, QuestionError
from memagent_graph.evidence.places import Memory
from memagent_graph.graph.lineage import versions_in
from memagent_graph.text.chunks import Cutter
from memagent_graph.text.source import TextSource
from memagent_graph.text.tokens import EstimatingTokenizer

SMALL = ReadingConfig(chunk_tokens=50, retry_interval=0.001)
TEXT = numbered(60)
QUESTIONS = [f"What is number {number}?" for number in range(16)]


class Asked(Watched):
    async def read(self, step):
        memory = step.memory if step.memory.text else Memory(step.question)
        return await super().read(replace(step, memory=memory))


def ask(reader, questions, store=None, **changes):
    config = SMALL.model_copy(update=changes)
    agent = create_memagent(reader, config=config, store=store)
    return agent.invoke({"questions": questions, "document": TEXT})


def alone(question):
    out = create_memagent(Asked(), config=SMALL).invoke({"question": question, "document": TEXT})
    return out["answer"]


def run(agent, asked, how):
    if how == "invoke":
        return agent.invoke(asked)
    return asyncio.run(agent.ainvoke(asked))


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
    cutter = Cutter(source, shared=3, tokenizer=Slow(), chunk_tokens=300)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(asyncio.run, cutter.chunk(0))
        assert entered.wait(60)
        for position in range(100, 2100, 100):
            asyncio.run(cutter.chunk(position))
        second = pool.submit(asyncio.run, cutter.chunk(0))
        wait([second], timeout=0.2)
        go.set()

        assert second.result() is first.result()
    assert len(cuts) == len(set(cuts))


def test_a_question_that_fails_says_why_and_takes_no_other_with_it():
    def fails(step):
        return ModelError("No.") if step.question == QUESTIONS[1] and step.chunk.start else None

    first, failed, last = ask(Asked(fails), QUESTIONS[:3])["answers"]

    assert (first["answer"], last["answer"]) == (alone(QUESTIONS[0]), alone(QUESTIONS[2]))
    assert failed["error"] == (
        "Reading chunk 2 for question 2 failed: No. The memory of the chunk before it is kept."
    )
    assert "answer" not in failed


def test_with_a_store_each_question_has_its_version_and_is_not_read_again():
    store, reader = InMemoryStore(), Asked()
    first = ask(Asked(), QUESTIONS[:4], store)

    again = ask(reader, QUESTIONS[:4], store)

    versions = [record["version"] for record in first["answers"]]
    assert len(set(versions)) == 4
    assert [record["version"] for record in again["answers"]] == versions
    assert (reader.spans, reader.answers) == ([], 4)
    bank = MemoryBank(store)
    assert [bank.get(version).question for version in versions] == QUESTIONS[:4]
    agent = create_memagent(Asked(), config=SMALL, store=store)
    asked = {"questions": QUESTIONS[:3], "version": versions[0]}
    memory = first["answers"][0]["memory"]
    assert [record["answer"] for record in agent.invoke(asked)["answers"]] == [memory] * 3
    given = agent.invoke({**asked, "document": numbered(9)})["answers"]  # it is read, not left
    assert memory not in [record["answer"] for record in given]


def test_several_questions_show_nothing_of_the_last_reading_of_their_thread():
    saver, thread = InMemorySaver(), {"configurable": {"thread_id": "1"}}
    agent = create_memagent(Asked(), config=SMALL, checkpointer=saver, store=InMemoryStore())
    agent.invoke({"question": "Who?", "document": TEXT}, thread)
    kept = versions_in(saver)

    out = agent.invoke({"questions": QUESTIONS[:2], "document": numbered(9)}, thread)

    assert {name for name, value in out.items() if value is not None} == {"answers"}
    assert {one.id for one in kept} < {one.id for one in versions_in(saver)}


def test_max_calls_holds_for_all_questions_together():
    reader = Asked()

    out = ask(reader, QUESTIONS[:4], max_calls=14)

    assert [record["stopped"] for record in out["answers"]] == ["max_calls"] * 4
    assert len(reader.spans) + reader.answers <= 14
    assert [record["usage"]["calls"] for record in out["answers"]] == [3] * 4
    with pytest.raises(ConfigurationError, match="32 or more"):
        ask(reader, QUESTIONS, max_calls=14)


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
