import asyncio
from collections import Counter
from importlib.util import find_spec

import pytest
from fixed_readers import Once, numbered
from langchain_core.callbacks import AsyncCallbackHandler
from langgraph.store.memory import InMemoryStore

from memagent_graph import MemoryBank, ReadingConfig, create_memagent
from memagent_graph.errors import ConfigurationError, ContextLengthError, ModelError
from memagent_graph.models.endpoint import ChatEndpoint

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vllm is not installed: make test-vllm"),
]

CONTEXT = 2048
CONFIG = ReadingConfig(chunk_tokens=100, memory_tokens=16, answer_tokens=16)


@pytest.fixture
async def model(vllm):
    model = ChatEndpoint(model=vllm.name, base_url=vllm.base_url)
    yield model
    await model.aclose()


async def test_the_server_is_healthy_and_tells_its_models_and_their_windows(vllm, model):
    assert await model.ahealth()
    assert await model.amodels() == {vllm.name: CONTEXT}
    assert await model.adiscover() == model.window_tokens == CONTEXT


async def test_token_ids_and_log_probabilities_are_those_of_the_model(vllm, tiny):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny)
    model = ChatEndpoint(
        model=vllm.name, base_url=vllm.base_url, logprobs=True, return_token_ids=True
    )

    whole = await model.ainvoke("What is a list?", max_tokens=12)
    streamed = await model.ainvoke("What is a list?", max_tokens=12, stream=True)
    await model.aclose()

    found = whole.response_metadata["generation"]
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is a list?"}],
        add_generation_prompt=True,
        return_dict=False,
    )
    assert found["prompt_token_ids"] == prompt
    assert tokenizer.decode(found["token_ids"], skip_special_tokens=True) == whole.text
    assert len(found["logprobs"]) == len(found["token_ids"]) == 12
    assert max(found["logprobs"]) <= 0
    assert whole.usage_metadata["output_tokens"] == 12
    again = streamed.response_metadata["generation"]
    assert (again["prompt_token_ids"], again["token_ids"]) == (prompt, found["token_ids"])
    assert again["logprobs"] == pytest.approx(found["logprobs"], abs=1e-3)


async def test_a_wrong_name_is_told_the_right_one_by_a_call_and_before_a_reading(vllm):
    model = ChatEndpoint(model="wrong", base_url=vllm.base_url)
    agent = create_memagent(model, config=CONFIG)

    with pytest.raises(ModelError, match=f"404.*it serves {vllm.name}"):
        await model.ainvoke("Hello")
    with pytest.raises(ModelError, match=f"'wrong': it serves {vllm.name}"):
        await agent.ainvoke({"question": "?", "document": numbered(5)})
    await model.aclose()


async def test_a_prompt_over_the_window_is_a_context_length_error(model):
    with pytest.raises(ContextLengthError):
        await model.ainvoke("word " * CONTEXT)


async def test_a_chunk_that_turns_out_too_long_is_halved(model, tiny):
    # The estimate of another tokenizer is wrong for this text, as it happens.
    config = CONFIG.model_copy(update={"chunk_tokens": 1200})
    text = "".join(f"{number * number:x}" for number in range(2000))

    out = await create_memagent(model, config=config).ainvoke({"question": "?", "document": text})

    assert out["coverage"] == 1.0
    assert out["usage"]["calls"] > out["usage"]["document_tokens"] / 1200 + 1


async def test_budgets_over_the_window_are_refused_before_the_first_call(model):
    with pytest.raises(ConfigurationError, match=f"holds {CONTEXT}"):
        await create_memagent(model).ainvoke({"question": "?", "document": numbered(5)})


class Calls(AsyncCallbackHandler):
    """Counts the model's calls by their prompts, and kills the server after some replies."""

    def __init__(self, replies: int, server, group: asyncio.TaskGroup) -> None:
        self.prompts: Counter[str] = Counter()
        self.left = replies
        self.server = server
        self.group = group

    async def on_chat_model_start(self, serialized, messages, **_):
        self.prompts[messages[0][0].text] += 1

    async def on_llm_end(self, response, **_):
        self.left -= 1
        if self.left == 0:
            self.server.kill()
            self.group.create_task(asyncio.to_thread(self.server.start))


@pytest.mark.slow
async def test_a_batch_goes_on_when_the_server_is_killed_and_started_again(vllm, model, tiny):
    documents = 16
    asked = [
        {"question": f"What is where in {number}?", "document": numbered(60)}
        for number in range(documents)
    ]
    reader = Once(model, config=CONFIG)
    expected = await create_memagent(reader, config=CONFIG, tokenizer=str(tiny)).abatch(asked)
    store = InMemoryStore()
    agent = create_memagent(reader, config=CONFIG, tokenizer=str(tiny), store=store)

    async with asyncio.TaskGroup() as group:  # ends the batch with the reason of a failed start
        calls = Calls(3 * documents, vllm, group)
        outs = await agent.abatch(asked, {"callbacks": [calls]})

    total = sum(out["usage"]["calls"] for out in expected)
    assert [out["memory"] for out in outs] == [out["memory"] for out in expected]
    assert [out["answer"] for out in outs] == [out["answer"] for out in expected]
    assert total > 6 * documents
    assert len(calls.prompts) == total
    repeated = [count for count in calls.prompts.values() if count > 1]
    assert 1 <= len(repeated) <= documents  # those under way, until the server is back
    bank = MemoryBank(store)
    for out in outs:
        assert len(await bank.ahistory(out["version"])) == out["usage"]["calls"] - 1
