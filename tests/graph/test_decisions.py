"""A decision model of LangChain chooses what is read, and what is supported."""

from functools import cache
from typing import Any

import pytest
from fixed_readers import QuotingReader
from pydantic import PrivateAttr

from memagent_graph import ReadingConfig, create_memagent
from memagent_graph.errors import ConfigurationError, ModelError
from memagent_graph.evidence.places import Memory
from memagent_graph.readers.base import Step
from memagent_graph.readers.chat import ChatReader
from memagent_graph.testing import ScriptedChatModel
from memagent_graph.text.chunks import Chunk
from memagent_graph.text.source import TextSource

decisions = pytest.importorskip("langchain_core.decisions", reason="since langchain-core 1.8")
Decider = pytest.importorskip("sparrow_decider").Decider

TEXT = "Mary Okafor was a painter in Oslo.\n\nThe harbour was closed for the winter, as ever."
LINES = ["Mary Okafor painted in Oslo.", "The harbour was never closed for the winter."]
load = cache(Decider.load)


class Sparrow(decisions.BaseDecisionModel):
    """A real decision model, of three megabytes."""

    model: str = "sparrow-nano-general-v1.1"
    _asked: list[tuple[Any, float]] = PrivateAttr(default_factory=list)

    @property
    def _provider(self) -> str:
        return "sparrow"

    def _classify(self, state, questions):
        asked = {name: question.model_dump() for name, question in questions.items()}
        answers = load(self.model).ask(state, asked)
        for answer in answers.values():
            self._asked.append((state, answer["probabilities"]["first"]))
        return decisions.ClassifierResponse(model=self.model, answers=answers)


async def test_statements_are_marked_as_it_chooses():
    model = Sparrow()
    reader = ChatReader(ScriptedChatModel("\n".join(LINES)), verify=model)
    chunk = Chunk(TEXT, 0, len(TEXT), 20, TextSource(TEXT))

    update = await reader.update(Step("Who?", Memory(), chunk))

    chosen = {state["passage"]: probability for state, probability in model._asked}
    assert {*chosen} == {*TEXT.split("\n\n")}
    pairs = zip(LINES, TEXT.split("\n\n"), strict=True)
    refused = {line for line, passage in pairs if chosen[passage] < 0.5}
    assert {one.text for one in update.memory.unsupported} == refused


def test_chunks_are_read_as_it_chooses():
    model = Sparrow()
    config = ReadingConfig(chunk_tokens=30, memory_tokens=200, skim=model)
    text = "\n\n".join(
        f"{n}. The ferry to Husum leaves at {n} o'clock, in all weathers." for n in range(12)
    )

    out = create_memagent(QuotingReader(), config=config).invoke(
        {"question": "When does the ferry leave?", "document": text}
    )

    read = [state["section"] for state, probability in model._asked if probability >= 0.5]
    assert len(model._asked) > len(read)
    assert out["coverage"] == pytest.approx(sum(map(len, read)) / len(text), abs=0.05)
    assert {*model._asked[0][0]} == {"question", "notes", "section"}


def test_one_that_fails_is_an_error_of_the_model():
    class Down(Sparrow):
        def _classify(self, state, questions):
            raise ConnectionError("No such host.")

    reader = ChatReader(ScriptedChatModel(*LINES), verify=Down())
    agent = create_memagent(reader, config=ReadingConfig(max_attempts=1))

    with pytest.raises(ModelError, match="decision model failed: No such host"):
        agent.invoke({"question": "Who painted?", "document": TEXT})


def test_another_runnable_is_refused():
    model = ScriptedChatModel(".")

    with pytest.raises(ConfigurationError, match="a function or a decision model, not"):
        ChatReader(model, verify=model)


def test_memories_of_two_models_are_told_apart():
    model = ScriptedChatModel(".")
    nano, robot = Sparrow(), Sparrow(model="sparrow-nano-robot-v1.2")

    prints = {ChatReader(model, verify=one).identity.fingerprint for one in (nano, robot)}
    names = {ReadingConfig(skim=one).skim_name for one in (nano, robot)}

    assert len(prints) == len(names) == 2
