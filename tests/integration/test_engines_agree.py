"""The same model behind each engine writes the same memories, token for token."""

import warnings
from functools import partial
from pydoc_data.topics import topics

import pytest
import torch
from langchain_core.callbacks import BaseCallbackHandler
from tiny_model import tiny_model
from transformers import AutoModelForCausalLM

from memagent_graph import ReadingConfig, create_memagent
from memagent_graph.errors import ConfigurationError
from memagent_graph.models.endpoint import ChatEndpoint
from memagent_graph.models.transformers import ChatTransformers
from memagent_graph.rl.rollouts import ServedWeights

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # those of vLLM's own imports
    pytest.importorskip("vllm.sampling_params", reason="vLLM is not installed: make test-vllm")
    from memagent_graph.models.vllm import ChatVLLM

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

CONFIG = ReadingConfig(question_tokens=32, chunk_tokens=300, memory_tokens=64, answer_tokens=64)
ENGINE = {"dtype": "float32", "max_model_len": 2048, "enforce_eager": True}


def served(server):
    place = {"model": server.name, "base_url": server.base_url}
    return ChatEndpoint(**place, logprobs=True, return_token_ids=True)


class Recorder(BaseCallbackHandler):
    def __init__(self):
        self.generations = []

    def on_llm_end(self, response, **_):
        message = response.generations[0][0].message
        self.generations.append(message.response_metadata["generation"])


def reading(model, tokenizer, document=topics["class"] + topics["try"]):
    recorder = Recorder()
    agent = create_memagent(model, config=CONFIG, tokenizer=tokenizer)
    asked = {"question": "What is a class?", "document": document}
    return agent.invoke(asked, {"callbacks": [recorder]}), recorder.generations


def test_vllm_in_process_and_served_and_transformers_agree(tiny, vllm):
    here = ChatTransformers(model=str(tiny), logprobs=True)
    tokenizer = here.tokenizer
    expected, generations = reading(here, tokenizer)
    here.close()

    in_process = ChatVLLM(model=str(tiny), logprobs=True, **ENGINE)
    found = {"in process": reading(in_process, tokenizer)}
    in_process.close()
    found["served"] = reading(served(vllm), tokenizer)

    assert len(generations) > 8
    for where, (output, others) in found.items():
        assert output["memory"] == expected["memory"], where
        assert output["answer"] == expected["answer"], where
        assert len(others) == len(generations), where
        for mine, other in zip(generations, others, strict=True):
            assert other["prompt_token_ids"] == mine["prompt_token_ids"], where
            assert other["token_ids"] == mine["token_ids"], where
            assert other["finish_reason"] == mine["finish_reason"], where
            assert other["logprobs"] == pytest.approx(mine["logprobs"], abs=1e-2), where


def test_new_weights_are_what_vllm_reads_with_in_process_and_served(tiny, vllm, tmp_path):
    trained = tiny_model(tmp_path / "trained", seed=1)
    before, weights = (
        AutoModelForCausalLM.from_pretrained(folder).state_dict() for folder in (tiny, trained)
    )
    here = ChatTransformers(model=str(trained), logprobs=True)
    old = ChatTransformers(model=str(tiny), logprobs=True)
    read = partial(reading, tokenizer=here.tokenizer, document=topics["class"])
    expected, _ = read(here)
    stale, _ = read(old)
    assert expected["memory"] != stale["memory"]

    in_process = ChatVLLM(model=str(tiny), logprobs=True, **ENGINE)
    assert read(in_process)[0]["memory"] == stale["memory"]
    in_process.load_weights(weights)
    found = {"in process": read(in_process)}
    with pytest.raises(ConfigurationError, match="not the weights"):
        in_process.load_weights({"some.other.weight": torch.zeros(2)})
    in_process.close()
    found["started again"] = read(in_process)
    in_process.close()
    there = served(vllm)
    assert read(there)[0]["memory"] == stale["memory"]
    load = ServedWeights(vllm.base_url, tmp_path)
    load(weights)
    try:
        found["served"] = read(there)
    finally:
        load(before)

    for where, (output, _) in found.items():
        assert output["memory"] == expected["memory"], where
        assert output["answer"] == expected["answer"], where
