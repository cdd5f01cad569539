import re

import pytest
from fixed_readers import ScriptedReader, numbered
from hypothesis import given
from hypothesis import strategies as st

from memagent_graph import ConversationMemory, ReadingConfig, create_memagent
from memagent_graph.errors import ConfigurationError, ModelError
from memagent_graph.graph.reading import check_window
from memagent_graph.models.endpoint import ChatEndpoint

ASKED = {"question": "What is where?", "document": numbered(20)}
CONFIG = ReadingConfig(chunk_tokens=60, retry_interval=0.001)


async def read(model, config=CONFIG, asked=ASKED):
    return await create_memagent(model, config=config).ainvoke(asked)


async def test_budgets_over_the_server_s_window_are_refused_before_a_call(openai_server, model):
    openai_server.models = [{"id": "small", "max_model_len": 4096}]

    with pytest.raises(ConfigurationError, match="8328.*holds 4096.*to 768 or less"):
        await read(model, ReadingConfig())

    assert openai_server.requests == []
    out = await read(model, ReadingConfig(chunk_tokens=768))
    assert out["coverage"] == 1.0


@given(
    budgets=st.fixed_dictionaries(
        {
            name: st.integers(1, 9000)
            for name in ("question_tokens", "chunk_tokens", "memory_tokens", "answer_tokens")
        }
    ),
    window=st.integers(1, 20_000),
    share=st.floats(0, 1),
)
def test_a_window_is_refused_if_the_budgets_do_not_fit_and_the_advice_holds(budgets, window, share):
    config = ReadingConfig(**budgets)
    question = int(share * config.question_tokens)
    reader = ScriptedReader(window_tokens=window)

    try:
        check_window(reader.identity, config, question)
    except ConfigurationError as error:
        assert window < config.window_tokens - config.question_tokens + question
        found = re.search(r"Lower chunk_tokens to (\d+)", str(error))
        if found:
            fitting = config.model_copy(update={"chunk_tokens": int(found[1])})
            assert int(found[1]) > 0
            check_window(reader.identity, fitting, config.question_tokens)
    else:
        assert window >= config.window_tokens - config.question_tokens + question


@pytest.mark.parametrize(
    "models",
    [
        [],
        [{"id": "small"}],
        [{"id": name, "max_model_len": 100} for name in ("another", "a third")],
        [{"id": "small", "max_model_len": "much"}],
    ],
)
async def test_a_server_that_does_not_tell_is_read_with_all_the_same(openai_server, model, models):
    openai_server.models = models

    out = await read(model)

    assert out["coverage"] == 1.0
    assert model.window_tokens is None


async def test_a_server_that_does_not_list_its_models_is_asked_for_them_once(openai_server, model):
    openai_server.listing = 404

    outs = await create_memagent(model, config=CONFIG).abatch([ASKED] * 5)

    assert [out["coverage"] for out in outs] == [1.0] * 5
    assert openai_server.asked == 1


@pytest.mark.parametrize(
    "name", ["max_model_len", "context_length", "context_window", "max_context_length"]
)
async def test_the_window_is_found_by_each_kind_of_server_s_name(openai_server, model, name):
    openai_server.models = [{"id": "small", name: 1234}]

    assert await model.adiscover() == 1234
    assert await model.amodels() == {"small": 1234}


async def test_a_name_that_vllm_does_not_serve_is_told_the_right_ones_at_once(openai_server):
    openai_server.models = [
        {"id": name, "max_model_len": 9000, "owned_by": "vllm"} for name in ("small", "adapter")
    ]
    model = ChatEndpoint(model="smal", base_url=openai_server.base_url)

    with pytest.raises(ModelError, match="'smal': it serves small, adapter"):
        await read(model)

    assert openai_server.requests == []
    openai_server.models.append({"id": "smal", "max_model_len": 9000, "owned_by": "vllm"})
    out = await read(model)  # an adapter that was loaded meanwhile
    assert out["coverage"] == 1.0


@pytest.mark.parametrize(
    ("listed", "adds"),
    [
        ({"meta": {"n_params": 1_543_714_304}}, True),  # llama.cpp
        ({"meta": {"n_params": 7_615_616_512}}, False),
        ({"root": "Qwen/Qwen2.5-0.5B-Instruct"}, True),  # vLLM
        ({"root": "small"}, False),
        ({"meta": None, "root": 3}, False),
    ],
)
@pytest.mark.parametrize("served", ["small", "/models/the-only-one.gguf"])
async def test_a_model_is_asked_as_its_server_s_size_wants(
    openai_server, model, served, listed, adds
):
    openai_server.models = [{"id": served, **listed}]
    await read(model)
    memory = ConversationMemory(model)
    await memory.asave("My sister Edda breeds goats in Husum.", user="ann", thread="monday")

    requests = openai_server.requests
    asked = [one.get("prompt") or one["messages"][-1]["content"] for one in requests]
    shown = ["<notes>" in prompt for prompt in asked if "Edda" in prompt or "<section>" in prompt]
    assert shown
    assert set(shown) == {not adds}
    assert ("unchanged" in next(prompt for prompt in asked if "<section>" in prompt)) == adds
