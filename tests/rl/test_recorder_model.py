"""The recorder on a real model: what it records is what the engine read and wrote."""

import asyncio
from pydoc_data.topics import topics

import pytest
from fixed_readers import Once
from lazy_module import LazyModule
from tiny_model import tiny_model

from memagent_graph import ReadingConfig, create_memagent
from memagent_graph.rl.recorder import TraceRecorder
from memagent_graph.rl.traces import JSONLinesSink, fingerprint, load

engine = LazyModule("memagent_graph.models.transformers")
transformers = LazyModule("transformers")
CONFIG = ReadingConfig(question_tokens=32, chunk_tokens=100, memory_tokens=12, answer_tokens=12)
QUESTION = "What is a class?"
TEXT = topics["class"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(tiny_model(tmp_path_factory.mktemp("tiny"), max_length=1024, spread=0.1))


@pytest.fixture(scope="module")
def model(folder):
    model = engine.ChatTransformers(model=folder, logprobs=True, temperature=1.0, top_p=0.95)
    yield model
    model.close()


def asked(number=0, length=600):
    return {"question": QUESTION, "document": f"Document {number}. {TEXT[number * 37 :][:length]}"}


def decoded(model, ids):
    return model._engine.tokenizer.decode(ids, skip_special_tokens=True)


@pytest.mark.slow
async def test_rollouts_at_once_are_each_recorded_whole_and_apart(model, tmp_path):
    sink = JSONLinesSink(tmp_path / "traces.jsonl")
    recorder = TraceRecorder(sink, tokenizer=model.tokenizer)
    agent = create_memagent(Once(model, config=CONFIG), config=CONFIG)

    configs = [recorder.config(rollout=f"r{n}", sample=f"q{n}") for n in range(8)]
    outputs = await asyncio.gather(*(agent.ainvoke(asked(n), c) for n, c in enumerate(configs)))
    sink.close()

    loaded = load(tmp_path / "traces.jsonl")
    assert not loaded.skipped
    found = {rollout.rollout: rollout for rollout in loaded.rollouts}
    assert len(found) == 8
    for number, output in enumerate(outputs):
        rollout, usage = found[f"r{number}"], output["usage"]
        assert (rollout.sample, rollout.answer) == (f"q{number}", output["answer"])
        assert rollout.tokens == usage["output_tokens"]
        assert [one.step for one in rollout.conversations] == list(range(usage["calls"]))
        last = decoded(model, rollout.conversations[-1].completion_ids)
        assert last.strip() == output["response"]
        texts = [decoded(model, one.prompt_ids) for one in rollout.conversations]
        assert f"Document {number}." in texts[0]
        assert output["memory"] in texts[-1]


def test_the_fingerprint_is_that_of_the_vocabulary_with_any_tokenizer_class(model, folder):
    own = transformers.AutoTokenizer.from_pretrained(folder)

    assert fingerprint(model.tokenizer) == fingerprint(own) == fingerprint(own.backend_tokenizer)

    own.add_tokens(["one more"])
    assert fingerprint(model.tokenizer) != fingerprint(own)
