"""Replies of real small models, each judged by hand: is it notes that may overwrite the old ones?

judged.jsonl has 200 replies of SmolLM2-135M-Instruct and Qwen2.5-0.5B-Instruct to our prompt: the
question, the notes before, what of the text the reply is about, and the verdict. "bad" is a reply
that is no notes (the prompt's words, repetition, nonsense), or that loses or garbles what bears on
the question; whether a statement is true is not judged. The texts are excerpts of Wikipedia (CC
BY-SA 4.0) from Natural Questions, XQuAD and HotpotQA. Earlier rules were made with
these models' replies in sight; since these were judged, none was made by a reply whose number is a
multiple of five.
"""

import json
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage

from memagent_graph import ReadingConfig, create_memagent
from memagent_graph.evidence.places import Memory
from memagent_graph.readers.base import Step
from memagent_graph.readers.chat import ChatReader
from memagent_graph.readers.replies import without_loops
from memagent_graph.templates import NO_MEMORY, UPDATE_PROMPT
from memagent_graph.testing import ScriptedChatModel
from memagent_graph.text.chunks import Chunk
from memagent_graph.text.source import TextSource

LINES = Path(__file__).with_name("judged.jsonl").read_text("utf-8").splitlines()
JUDGED = [json.loads(line) for line in LINES]


def message(row):
    ending = "length" if row["cut"] else "stop"
    return AIMessage(row["reply"], response_metadata={"finish_reason": ending})


async def overwrite(row):
    """The update that a reader makes of a reply."""
    text = row["text"]
    chunk = Chunk(text, 0, len(text), len(text) // 4, TextSource(text))
    reader = ChatReader(ScriptedChatModel(message(row)))
    return await reader.update(Step(row["question"], Memory(row["notes"]), chunk))


async def test_good_overwrites_count_and_bad_ones_hardly_ever():
    refused, taken = [], []
    for number, row in enumerate(JUDGED):
        update = await overwrite(row)
        overwrites = update.fault is None and update.memory is not None
        if row["verdict"] == "good" and update.fault is not None:
            refused.append(number)
        elif row["verdict"] == "bad" and overwrites:
            taken.append(number)

    assert len(JUDGED) == 200
    assert len(refused) <= 2, refused
    assert len(taken) <= 7, taken


@settings(max_examples=30)
@given(st.lists(st.sampled_from(JUDGED), min_size=4, max_size=4), st.sampled_from(JUDGED))
def test_no_order_of_them_leaves_a_memory_that_is_none(rows, other):
    """Each chunk is replied to with a reply; if that is asked for again, with another one."""
    question = rows[0]["question"]
    model = ScriptedChatModel(*map(message, [*rows, other]))
    config = ReadingConfig(chunk_tokens=100, memory_tokens=400, retry_interval=0.001)
    document = "\n\n".join(f"{row['text']}" for row in rows[:3])

    memories = [""]
    agent = create_memagent(model, config=config)
    for part in agent.stream({"question": question, "document": document}, stream_mode="values"):
        if part.get("memory") and part["memory"] != memories[-1]:
            memories.append(part["memory"])

    for memory in memories:
        assert NO_MEMORY not in memory
        assert UPDATE_PROMPT[:60] not in memory
        assert "<notes>" not in memory
        assert without_loops(memory) == memory.strip()
