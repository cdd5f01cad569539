import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memagent_graph import ReadingConfig, create_memagent
from memagent_graph.evidence.places import Evidence, Memory
from memagent_graph.readers.base import Step
from memagent_graph.readers.extractive import NOTHING_FOUND, ExtractiveReader
from memagent_graph.text.chunks import next_chunk
from memagent_graph.text.files import open_source
from memagent_graph.text.tokens import EstimatingTokenizer

RAIN = [
    "The rain went on over the harbour and nobody spoke of it.",
    "A cart with two barrels stood before the inn until dusk.",
    "Somebody had painted the gate green in the spring.",
    "The keeper counted his lamps twice and went to bed.",
    "Bread was dear that year, and the mill stood still.",
]
FILLER = "\n\n".join(" ".join(RAIN[(i + j) % 5] for j in range(5)) for i in range(60))


def ask(question, document, **budgets):
    agent = create_memagent("extractive", config=ReadingConfig(**budgets))
    return agent.invoke({"question": question, "document": document})


@pytest.mark.parametrize("place", [0, 30, 60])
def test_a_planted_fact_is_found_wherever_it_stands(place):
    paragraphs = FILLER.split("\n\n")
    fact = "The access code of the Kestrel vault is 49-17-63."
    paragraphs.insert(place, fact)
    document = "\n\n".join(paragraphs)

    out = ask("What is the access code of the Kestrel vault?", document, chunk_tokens=300)

    assert out["answer"].splitlines()[0] == fact
    found = out["citations"][0]
    assert document[found["start"] : found["end"]] == fact
    assert found["line"] == document[: found["start"]].count("\n") + 1


DIVER = "a film about a diver who hears voices"
FILM = f"Harbour of Glass, {DIVER}, was directed by Ilse Varga. It won two prizes."
HOME = "Ilse Varga has lived in Trieste since her second marriage, in a house above the railway."
DISTRACTORS = [
    "The film Stone Orchard was directed by Petra Lund, who paid for it herself.",
    "Petra Lund lives in Malmö with her three dogs.",
    "Critics called the film Winter Ledger the worst of its year.",
    "Tomas Reyes, a director of short films, has lived in Lima all his life.",
]
TOLD_BY_PRONOUN = (
    "Harbour of Glass is a drama film about a diver. It was directed by Ilse Varga.",
    "In spring the painter Ilse Varga left. She settled in Trieste after the war.",
)
TOLD_IN_CHINESE = ("《玻璃港》是一部电影，导演是林晓岚。", "林晓岚婚后一直住在青岛。")
TOWN = "In which town does the director of the film Harbour of Glass live?"


@pytest.mark.parametrize(
    ("question", "first", "second", "place"),
    [
        (TOWN, FILM, HOME, "Trieste"),
        (TOWN, HOME, FILM, "Trieste"),
        ("Where does the director of Harbour of Glass live?", *TOLD_BY_PRONOUN, "Trieste"),
        ("电影《玻璃港》的导演住在哪个城市？", *TOLD_IN_CHINESE, "青岛"),
    ],
)
def test_a_second_hop_is_followed_in_either_order(question, first, second, place):
    paragraphs = FILLER.split("\n\n")
    paragraphs[5], paragraphs[50] = first, second
    for at, text in zip((3, 12, 25, 55), DISTRACTORS, strict=True):
        paragraphs[at] = text

    out = ask(question, "\n\n".join(paragraphs), chunk_tokens=300)

    assert place in out["answer"]


CODE = '''
import os

DEFAULT_RETRY_LIMIT = 7

class ConnectionPool:
    """Keeps sockets open."""

    def drainIdleSockets(self, max_age):
        """Close sockets that were idle for longer than max_age seconds."""
        return [s for s in self.sockets if s.age > max_age]
'''


@pytest.mark.parametrize(
    ("question", "line"),
    [
        ("What is the default retry limit?", "DEFAULT_RETRY_LIMIT = 7"),
        ("What does DEFAULT_RETRY_LIMIT hold?", "DEFAULT_RETRY_LIMIT = 7"),
        ("Which method closes idle sockets?", "def drainIdleSockets(self, max_age):"),
        ("where is drain_idle_sockets", "def drainIdleSockets(self, max_age):"),
    ],
)
def test_identifiers_are_found_by_their_parts_and_as_they_are(question, line):
    out = ask(question, (FILLER + "\n\n" + CODE + "\n\n" + FILLER), chunk_tokens=400)

    assert line in out["answer"].splitlines()[0]


def test_a_document_that_says_nothing_of_it_gets_an_honest_answer():
    out = ask("What is photosynthesis?", FILLER)

    assert out["answer"] == NOTHING_FOUND
    assert (out["memory"], out["citations"]) == ("", [])


def update(reader, question, text, memory=None):
    source = open_source(text)
    chunk = next_chunk(source, 0, tokenizer=EstimatingTokenizer(), chunk_tokens=5000)
    step = Step(question, memory or Memory(), chunk)
    return asyncio.run(reader.update(step)).memory


def test_a_line_that_a_person_wrote_stays_while_the_reading_goes_on_and_has_no_place():
    note = Memory("Note to myself: the ferry leaves from pier four.")

    out = update(
        ExtractiveReader(), "When does the ferry leave?", "The ferry leaves at nine.", note
    )

    assert out.text.splitlines() == [note.text, "The ferry leaves at nine."]
    assert [item.text for item in out.evidence] == ["The ferry leaves at nine."]


PLAIN = "ferry leaves nine The Varga harbour. is at snake_case 漢字 。 3.5 Who She ! { é"
WORDS = st.sampled_from([*PLAIN.split(), "\n", "\n\n", "\t", "a" * 30])
TEXTS = st.lists(WORDS, min_size=1, max_size=200).map(" ".join).filter(str.strip)


@settings(max_examples=60)
@given(TEXTS, st.integers(10, 120))
def test_memory_keeps_to_its_budget_and_each_line_stands_where_its_evidence_says(text, budget):
    config = ReadingConfig(chunk_tokens=60, memory_tokens=budget)
    counter = EstimatingTokenizer()
    source = open_source(text)
    reader = ExtractiveReader(config)

    async def read():
        question = "When does the ferry leave?"
        memory, offset = Memory(), 0
        while chunk := next_chunk(source, offset, tokenizer=counter, chunk_tokens=60):
            update = await reader.update(Step(question, memory, chunk))
            memory = update.memory or memory
            offset = chunk.end
        return memory

    memory = asyncio.run(read())

    assert asyncio.run(read()) == memory
    assert counter.count(memory.text) <= budget
    assert [item.text for item in memory.evidence] == memory.text.splitlines()
    for item in memory.evidence:
        assert " ".join(text[item.start : item.end].split()) == item.text


def test_memories_of_several_parts_are_merged_within_the_budget_each_line_with_its_place():
    question = "When does the last ferry to the island leave?"
    lines = ["The island is small and green all year round.", "The last ferry leaves at nine."]
    parts = [Memory(line, (Evidence(line, f"{line[4]}.txt", 1, 0, len(line)),)) for line in lines]

    def merged(budget, memories):
        reader = ExtractiveReader(ReadingConfig(memory_tokens=budget))
        return asyncio.run(reader.merge(question, memories)).memory

    both = merged(60, [*parts, parts[0]])
    best = merged(12, parts)

    assert both == Memory("\n".join(lines), parts[0].evidence + parts[1].evidence)
    assert best == parts[1]
