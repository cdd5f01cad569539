"""Rollouts recorded from a real vLLM, behind a server and in this process."""

import asyncio
import warnings
from importlib.util import find_spec

import pytest
from fixed_readers import Once, numbered
from servers.vllm_server import vllm_server
from tiny_model import tiny_model

from memagent_graph import ReadingConfig, create_memagent
from memagent_graph.models.endpoint import ChatEndpoint
from memagent_graph.rl.recorder import TraceRecorder
from memagent_graph.rl.rollouts import make_served_policy
from memagent_graph.rl.traces import ListSink, join

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vllm is not installed: make test-vllm"),
]

CONFIG = ReadingConfig(chunk_tokens=100, memory_tokens=16, answer_tokens=16)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("models") / "tiny", spread=0.1)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """One that serves the same model, and fills in what its generation config says."""
    place = tmp_path_factory.mktemp("served")
    folder = tiny_model(place / "greedy", spread=0.1)
    (folder / "generation_config.json").write_text('{"top_k": 1, "repetition_penalty": 5.0}')
    with vllm_server(folder, place / "vllm.log", "--max-model-len", "2048") as server:
        yield server


@pytest.fixture(params=["server", "engine"])
def model(request, folder):
    """A model that samples, on each engine."""
    sampling = {"logprobs": True, "temperature": 0.8, "top_p": 0.9}
    if request.param == "server":
        server = request.getfixturevalue("server")
        whole = {"top_k": -1, "repetition_penalty": 1.0}
        place = {"model": server.name, "base_url": server.base_url}
        yield ChatEndpoint(**place, return_token_ids=True, extra_body=whole, **sampling)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of vLLM and of what it imports
        from memagent_graph.models.vllm import ChatVLLM

    engine = {"dtype": "float32", "max_model_len": 2048, "enforce_eager": True}
    model = ChatVLLM(model=str(folder), **engine, **sampling)
    yield model
    model.close()


async def test_rollouts_hold_what_the_engine_wrote_and_how_likely_the_model_found_it(model, folder):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    sink = ListSink()
    recorder = TraceRecorder(sink, tokenizer=tokenizer)
    agent = create_memagent(Once(model, config=CONFIG), config=CONFIG, tokenizer=folder)
    asked = {"question": "Which line?", "document": numbered(20)}

    outputs = await asyncio.gather(
        *(agent.ainvoke(asked, recorder.config(rollout=f"r{n}")) for n in range(8))
    )

    loaded = join(sink.take())
    assert not loaded.skipped
    assert len({rollout.group for rollout in loaded.rollouts}) == 1
    for rollout in loaded.rollouts:
        output = outputs[int(rollout.rollout[1:])]
        assert len(rollout.conversations) == output["usage"]["calls"]
        for one in rollout.conversations:
            assert one.logprobs == pytest.approx(forced(folder, one), abs=1e-3)
            assert one.sampling["temperature"] == 0.8
            assert one.sampling["top_p"] == 0.9
    if isinstance(model, ChatEndpoint):
        await model.aclose()


async def test_a_policy_samples_as_it_is_whatever_its_generation_config_says(server, folder):
    from transformers import AutoTokenizer

    sink = ListSink()
    recorder = TraceRecorder(sink, tokenizer=AutoTokenizer.from_pretrained(folder))
    asked = {"question": "Which line?", "document": numbered(20)}
    tells = {"logprobs": True, "return_token_ids": True}
    greedy = ChatEndpoint(
        model=server.name, base_url=server.base_url, temperature=1.0, max_tokens=8
    )
    policy = make_served_policy(server.name, server.base_url, **tells)
    agent = create_memagent(Once(policy, config=CONFIG), config=CONFIG, tokenizer=folder)

    replies = {(await greedy.ainvoke("Which line?")).text for _ in range(4)}
    runs = (agent.ainvoke(asked, recorder.config(rollout=f"r{n}")) for n in range(8))
    await asyncio.gather(*runs)
    await greedy.aclose()
    await policy.aclose()

    assert len(replies) == 1  # the server does fill in what is left out
    first = [rollout.conversations[0] for rollout in join(sink.take()).rollouts]
    assert len({one.completion_ids for one in first}) == len(first) == 8
    for one in first:
        assert one.logprobs == pytest.approx(forced(folder, one), abs=1e-3)


def forced(folder, conversation):
    """Log-probabilities of a completion's tokens under the model, by teacher forcing."""
    import torch
    from transformers import AutoModelForCausalLM

    weights = AutoModelForCausalLM.from_pretrained(folder)
    prompt, completion = conversation.prompt_ids, conversation.completion_ids
    with torch.no_grad():
        logits = weights(torch.tensor([prompt + completion])).logits[0]
    chances = logits.log_softmax(-1)[len(prompt) - 1 : -1]
    return chances.gather(1, torch.tensor(completion)[:, None])[:, 0].tolist()
