"""The answer in `stream_mode="messages"`: its words as they come, and nothing else."""

from typing import TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langgraph.graph import START, StateGraph
from pydantic import BaseModel

from memagent_graph import MemAgentNode, ReadingConfig, create_memagent, create_reading_tool
from memagent_graph.models.reply import certain_part, find_boxed, without_reasoning
from memagent_graph.prompts import Prompts
from memagent_graph.templates import PLAIN_ANSWER_PROMPT
from memagent_graph.testing import ScriptedChatModel

ASKED = {"question": "Who signed?", "document": "The lease was signed by Ann Kestrel."}
NOTES = "Secret notes of the reader."
REPLY = r"<think>Let me see.</think>The notes say it. \boxed{Ann Kestrel signed {all} of it.}"
ANSWER = "Ann Kestrel signed {all} of it."
PLAIN = Prompts(answer=PLAIN_ANSWER_PROMPT)


class Lease(BaseModel):
    tenant: str


KEYS = {"question": str, "document": str, "answer": object}
State = TypedDict("State", KEYS, total=False)


def model(reply):
    return ScriptedChatModel(NOTES, reply)


def hosting(node):
    builder = StateGraph(State)
    builder.add_node("read", node)
    builder.add_edge(START, "read")
    return builder.compile()


def heard(parts, *, subgraphs):
    pairs = [part[1] if subgraphs else part for part in parts]
    return [message.text for message, _ in pairs], {about["langgraph_node"] for _, about in pairs}


@pytest.mark.slow
@pytest.mark.parametrize("subgraphs", [True, False])
@pytest.mark.parametrize("made", [MemAgentNode, create_memagent])
async def test_a_host_hears_the_answer_of_its_node_and_no_notes_box_or_thoughts(made, subgraphs):
    for reply, options, answer in (
        (REPLY, {}, ANSWER),
        (f"<think>Hm.</think>{ANSWER}", {"prompts": PLAIN}, ANSWER),
        ("There is no box in it.", {}, "There is no box in it."),
        ('Well: {"tenant": "Ann"}', {"response_format": Lease}, '{"tenant": "Ann"}'),
    ):
        options |= {"name": "read"}
        ways = {"stream_mode": "messages", "subgraphs": subgraphs}

        sync = [*hosting(made(model(reply), **options)).stream(ASKED, **ways)]
        later = [p async for p in hosting(made(model(reply), **options)).astream(ASKED, **ways)]

        for parts in (sync, later):
            pieces, nodes = heard(parts, subgraphs=subgraphs)
            assert "".join(pieces) == answer
            assert nodes == {"read"}
        if options.keys() == {"name"} and reply == REPLY:
            assert len(pieces) > 3


def test_what_a_tool_reads_is_not_said_to_the_user():
    def use(state, config):
        read = create_reading_tool(model(REPLY), sources={"lease": ASKED["document"]})
        return {"answer": read.invoke({"questions": ["Who?"], "source": "lease"}, config)}

    assert [*hosting(use).stream(ASKED, stream_mode="messages")] == []


def test_an_answer_that_is_put_aside_to_read_on_is_not_said():
    text = "It rained over the sea, and the ships lay still in the harbour. \n" * 60
    text += "The lease of the Kestrel was signed.\n" + text
    config = ReadingConfig(chunk_tokens=100, memory_tokens=400, skim="lexical")
    answers = iter(["The notes do not say it.", "Ann."])
    model = ScriptedChatModel(lambda said: NOTES if "<section>" in said[0].text else next(answers))
    agent = create_memagent(model, config=config, prompts=PLAIN)
    asked = {"question": "Who signed the lease of the Kestrel?", "document": text}

    parts = [*agent.stream(asked, stream_mode=["messages", "custom"])]

    said = "".join(part[0].text for mode, part in parts if mode == "messages")
    events = [part["event"] for mode, part in parts if mode == "custom"]
    assert "fallback" in events
    assert said == "Ann."


HEADS = [
    *("", "<think>so</think>", "<thinking>", "a <reasoning>", "<th", "the <think> tag", "`<"),
    *("[THINK]so[/THINK]", "<thought>so</thought> ", "<seed:think>so</seed:think>", "<analysis>"),
    *("◁think▷so◁/think▷", "<|channel>thought\nso<channel|>", "[THINK]so", "analysis of ", "[1] "),
    "<|channel|>analysis<|message|>so<|end|><|start|>assistant<|channel|>final<|message|>",
    *("analysisShe so.assistantfinal", "<|im_start|>assistant\n"),
    "Here is my thought process: so. Here is my response: ",
    "<details type='reasoning'><summary>Thought</summary>so</details>",
]


@given(st.text(st.sampled_from(list("ab<>/ {}\\")), max_size=30), st.booleans(), st.data())
def test_what_is_certain_of_a_reply_is_a_beginning_of_its_answer(tail, box, data):
    head = data.draw(st.sampled_from(HEADS))
    ends = data.draw(st.sampled_from(["", "<|eot_id|>", "<|im_end|>", "<｜end▁of▁sentence｜>"]))
    reply = (
        head + (rf"x \boxed{{{tail.replace('{', '').replace('}', '')}}} y" if box else tail) + ends
    )
    text = without_reasoning(reply).strip()
    final = find_boxed(text) if box else text

    for end in range(len(reply) + 1):
        assert final.startswith(certain_part(reply[:end], boxed=box))
