"""A prompt without the memory asks what a chunk adds, and the library adds it."""

import pytest

from memagent_graph import Prompts, ReadingConfig, create_memagent
from memagent_graph.prompts import default_prompts
from memagent_graph.readers.resolve import resolve_reader
from memagent_graph.testing import ScriptedChatModel

CHUNKS = (
    "Ann Kestrel signed the lease of the mill in 1901.",
    "The harbour was dredged twice that year, and again in the next.",
    "Ann Kestrel sold the mill to Bo Lind for 900 crowns.",
)
QUESTION = "To whom did Ann Kestrel sell the mill?"
SIGNED, SOLD = "Ann Kestrel signed the lease in 1901.", "Ann Kestrel sold the mill to Bo Lind."


def read(*replies: str, **settings):
    model = ScriptedChatModel(*replies)
    config = ReadingConfig(**{"chunk_tokens": 18, "memory_tokens": 64} | settings)
    agent = create_memagent(model, config=config, prompts=Prompts.additive())
    document = "\n\n".join(CHUNKS)
    return agent.invoke({"question": QUESTION, "document": document}), model.prompts


def test_what_a_chunk_says_is_added_with_its_place():
    out, prompts = read(SIGNED, "unchanged", SOLD, "\\boxed{Bo Lind}")

    assert out["memory"].splitlines() == [SIGNED, SOLD]
    assert out["answer"] == "Bo Lind"
    assert out["found"]
    assert not out["warnings"]
    assert out["usage"]["calls"] == 4
    assert [item["text"] for item in out["evidence"]] == [SIGNED, SOLD]
    assert not any(SIGNED in prompt for prompt in prompts[:3]), "an update was shown the notes"
    assert all('"unchanged"' in prompt for prompt in prompts[:3])


def test_a_full_memory_is_merged_by_one_more_call():
    merged = "Ann Kestrel signed the lease in 1901 and sold the mill to Bo Lind."
    out, prompts = read(SIGNED, "unchanged", SOLD, merged, "Bo Lind", memory_tokens=20)

    assert out["memory"] == merged
    assert out["usage"]["calls"] == 5
    assert SIGNED in prompts[3]
    assert SOLD in prompts[3]


@pytest.mark.parametrize("reply", ["I can't help with that.", "(empty: this is the first section)"])
def test_a_merge_that_is_no_notes_loses_nothing_that_fits(reply):
    out, _ = read(SIGNED, "unchanged", SOLD, reply, SOLD, reply, "Bo Lind", memory_tokens=20)
    assert "Ann Kestrel" in out["memory"]
    assert reply not in out["memory"]


def close_the_gate(messages):
    if '"unchanged"' in messages[0].text:
        return "unchanged"
    return SOLD if "900 crowns" in messages[0].text else "Bo Lind"


def test_a_model_that_closes_the_gate_where_the_answer_stands_is_asked_without_it():
    model = ScriptedChatModel(close_the_gate)
    config = ReadingConfig(chunk_tokens=18, memory_tokens=64)
    agent = create_memagent(model, config=config, prompts=Prompts.additive())

    out = agent.invoke({"question": QUESTION, "document": "\n\n".join(CHUNKS[1:])})

    assert SOLD in out["memory"].splitlines()
    assert any("update gate was switched off" in warning for warning in out["warnings"])


SMALL = (
    "hf:/models/smollm2-135m-instruct/ vllm:Qwen/Qwen2.5-0.5B-Instruct google/gemma-3-270m-it "
    "some-0.5b-instruct-128k"
)
LARGE = (
    "openai:gpt-4o Qwen/Qwen2.5-7B-Instruct-1M Qwen/Qwen3-30B-A3B /runs/memagent-1.5b "
    "/models-0.5b/final anthropic:claude-haiku-4-5"
)


@pytest.mark.parametrize("name", [*SMALL.split(), *LARGE.split(), ""])
def test_a_small_model_adds_by_default_and_another_writes_its_whole_memory_again(name):
    assert default_prompts(name).adds == (name in SMALL.split())
    assert not default_prompts(name, exact=True).adds


def test_prompts_that_are_given_stand_for_a_small_model_too():
    small = ScriptedChatModel("", name="x")
    object.__setattr__(small, "model", "tiny-0.5b")

    assert resolve_reader(small, config=ReadingConfig()).prompts.adds
    assert not resolve_reader(small, config=ReadingConfig(), prompts=Prompts()).prompts.adds
