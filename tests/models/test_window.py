from __future__ import annotations

import asyncio
import re

import pytest
from doubles import ScriptedReader, numbered
from hypothesis import given
from hypothesis import strategies as st

from memagent_graph import ReadingConfig, create_memagent
from memagent_graph.errors import ConfigurationError, ModelError
from memagent_graph.graph.reading import check_window
from memagent_graph.models.endpoint import ChatEndpoint

ASKED = {"question": "What is where?", "document": numbered(20)}
CONFIG = ReadingConfig(chunk_tokens=60, retry_interval=0.001)


@pytest.fixture
def model(openai_server):
    return ChatEndpoint(model="small", base_url=openai_server.base_url)


async def read(model, config=CONFIG, asked=ASKED):
    try:
        return await create_memagent(model, config=config).ainvoke(asked)
    finally:
        await model.aclose()


async def test_budgets_over_what_the_server_says_are_refused_before_the_first_call(
    openai_server, model
):
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
def test_a_window_is_refused_exactly_when_the_budgets_do_not_fit_and_the_advice_holds(
    budgets, window, share
):
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


async def test_a_window_that_no_chunk_size_fits_says_to_lower_the_other_budgets(
    openai_server, model
):
    openai_server.models = [{"id": "small", "max_model_len": 2048}]

    with pytest.raises(
        ConfigurationError, match="holds 2048. Lower question_tokens, memory_tokens"
    ):
        await read(model, ReadingConfig())


async def test_the_default_budgets_fit_a_window_of_8192_with_a_question_of_usual_length(
    openai_server, model
):
    openai_server.models = [{"id": "small", "max_model_len": 8192}]

    out = await read(model, ReadingConfig())

    assert out["coverage"] == 1.0


@pytest.mark.parametrize(
    "models",
    [
        [],
        [{"id": "small"}],
        [{"id": "another", "max_model_len": 100}],
        [{"id": "small", "max_model_len": None}],
        [{"id": "small", "max_model_len": "much"}],
    ],
)
async def test_a_server_that_does_not_tell_is_read_with_all_the_same(openai_server, model, models):
    openai_server.models = models

    out = await read(model)

    assert out["coverage"] == 1.0
    assert model.window_tokens is None


async def test_a_server_that_does_not_list_its_models_is_asked_once_and_read_with_all_the_same(
    openai_server, model
):
    openai_server.listing = 404

    outs = await create_memagent(model, config=CONFIG).abatch([ASKED] * 20)

    assert [out["coverage"] for out in outs] == [1.0] * 20
    assert openai_server.asked == 1
    await model.aclose()


@pytest.mark.parametrize(
    "name", ["max_model_len", "context_length", "context_window", "max_context_length"]
)
async def test_the_window_is_found_by_the_name_that_each_kind_of_server_gives_it(
    openai_server, model, name
):
    openai_server.models = [{"id": "small", name: 1234}]

    assert await model.adiscover() == 1234
    assert await model.amodels() == {"small": 1234}
    await model.aclose()


async def test_a_name_that_vllm_does_not_serve_is_told_the_right_ones_before_the_first_call(
    openai_server,
):
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


@pytest.mark.slow
def test_many_readings_at_once_on_several_loops_ask_once(openai_server, model):
    async def several():
        await create_memagent(model, config=CONFIG).abatch([ASKED] * 20)

    for _ in range(2):
        asyncio.run(several())

    assert openai_server.asked == 1


def test_nothing_is_asked_when_a_model_or_a_graph_is_made(openai_server, model):
    create_memagent(model)

    assert (openai_server.asked, model.window_tokens) == (0, None)
