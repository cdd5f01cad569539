import asyncio
from concurrent.futures import ThreadPoolExecutor
from pydoc_data.topics import topics
from threading import current_thread

import pytest
from langchain_core.messages import HumanMessage
from lazy_module import LazyModule
from tiny_model import tiny_adapter, tiny_model

from memagent_graph.errors import ConfigurationError, ContextLengthError, ModelError
from memagent_graph.readers.resolve import resolve_model

torch, transformers = LazyModule("torch"), LazyModule("transformers")
ENGINE = "memagent_graph.models.transformers"
engine = LazyModule(ENGINE)
TEXT = topics["class"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(tiny_model(tmp_path_factory.mktemp("tiny"), max_length=1024))


@pytest.fixture(scope="module")
def model(folder):
    model = engine.ChatTransformers(model=folder, logprobs=True)
    yield model
    model.close()


@pytest.fixture(scope="module")
def reference(folder):
    """Greedy token ids by `generate` of transformers, of one prompt alone."""
    network = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()

    def generate(prompt, tokens):
        given = {"max_new_tokens": tokens, "do_sample": False, "pad_token_id": 1}
        output = network.generate(torch.tensor([prompt]), **given)
        return output[0, len(prompt) :].tolist()

    return generate


@pytest.mark.slow
async def test_a_batch_of_many_lengths_gives_what_each_gives_alone(model, reference, monkeypatch):
    monkeypatch.setattr(f"{ENGINE}._GATHERING", 2)  # one batch on a busy machine, too
    prompts = ["Hi", "Hello there", "word " * 300, TEXT[:900], "a"]
    lengths = [40, 7, 20, 33, 1]

    replies = await asyncio.gather(
        *(model.ainvoke(p, max_tokens=n) for p, n in zip(prompts, lengths, strict=True))
    )

    assert max(model._engine.batches) == 5
    for reply, length in zip(replies, lengths, strict=True):
        found = reply.response_metadata["generation"]
        assert found["token_ids"] == reference(found["prompt_token_ids"], length)
        assert found["finish_reason"] == "length"
        assert reply.usage_metadata["output_tokens"] == length


def test_a_plain_text_is_continued_as_it_stands_with_the_chance_of_each_token(folder, reference):
    model = engine.ChatTransformers(model=folder)

    found = model.invoke(TEXT[:90], plain=True, max_tokens=3).response_metadata["generation"]

    assert found["prompt_token_ids"] == model._engine.tokenizer.encode(TEXT[:90])
    assert found["token_ids"] == reference(found["prompt_token_ids"], 3)
    assert [chance < 0 for chance in found["logprobs"]] == [True] * 3


ROPE = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
YARN = {"max_position_embeddings": 4096, "rope_parameters": ROPE}


def test_yarn_by_configuration_is_what_transformers_makes_of_it(folder, model):
    stretched = engine.ChatTransformers(model=folder, hf_overrides=YARN)
    config = transformers.AutoConfig.from_pretrained(folder)
    config.max_position_embeddings = 4096
    config.rope_parameters = {**config.rope_parameters, **ROPE}
    network = transformers.AutoModelForCausalLM.from_pretrained(folder, config=config).eval()

    reply = stretched.invoke("word " * 3000, max_tokens=12)

    assert (model.window_tokens, stretched.window_tokens) == (1024, 4096)
    found = reply.response_metadata["generation"]
    prompt = torch.tensor([found["prompt_token_ids"]])
    expected = network.generate(prompt, max_new_tokens=12, do_sample=False, pad_token_id=1)
    assert found["token_ids"] == expected[0, prompt.shape[1] :].tolist()
    assert stretched._identifying_params != model._identifying_params
    with pytest.raises(ContextLengthError):
        model.invoke("word " * 3000)
    stretched.close()


def test_log_probabilities_are_those_of_the_model_itself(folder, model):
    reply = model.invoke("Hello there", max_tokens=9, temperature=1.3, top_p=0.9, seed=3)

    found = reply.response_metadata["generation"]
    network = transformers.AutoModelForCausalLM.from_pretrained(folder)
    prompt, written = found["prompt_token_ids"], found["token_ids"]
    with torch.no_grad():
        logits = network(torch.tensor([prompt + written])).logits[0, len(prompt) - 1 : -1]
    expected = torch.log_softmax(logits.float(), -1)[range(9), written]
    assert found["logprobs"] == pytest.approx(expected.tolist(), abs=1e-4)


async def test_sampling_with_a_seed_does_not_depend_on_who_else_is_in_the_batch(model):
    options = {"max_tokens": 12, "temperature": 1.0}
    alone = (await model.ainvoke("Hello", seed=5, **options)).content

    together = await asyncio.gather(*(model.ainvoke("Hello", seed=s, **options) for s in range(8)))

    assert together[5].content == alone
    assert len({reply.content for reply in together}) > 4
    narrow = await model.ainvoke("Hello", seed=5, top_p=1e-6, **options)
    assert narrow.content == (await model.ainvoke("Hello", max_tokens=12)).content


def test_a_stop_string_ends_a_reply_and_is_never_streamed(model):
    whole = model.invoke("Hello", max_tokens=20).content
    stop = whole[15:19]

    reply = model.invoke("Hello", max_tokens=20, stop=[stop])
    parts = list(model.stream("Hello", max_tokens=20, stop=[stop]))

    assert reply.content == whole.split(stop)[0] == "".join(part.content for part in parts)
    assert reply.response_metadata["finish_reason"] == "stop"
    assert len(reply.response_metadata["generation"]["token_ids"]) < 20


async def test_streams_say_at_the_end_what_whole_replies_say(model):
    whole = await model.ainvoke("Hello there", max_tokens=12)

    streamed = [part async for part in model.astream("Hello there", max_tokens=12)]

    assert len(streamed) > 5
    assert "".join(part.content for part in streamed) == whole.content
    records = [message.response_metadata["generation"] for message in (streamed[-1], whole)]
    assert records[0] == records[1]
    assert len(records[0]["logprobs"]) == 12


def test_an_end_token_ends_the_reply_and_is_in_its_ids_but_not_its_text(tmp_path):
    folder = tiny_model(tmp_path / "ending")
    network = transformers.AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        network.lm_head.weight[3] = network.lm_head.weight.mean(0) * 0 + 100  # <|im_end|>
    network.save_pretrained(folder)
    model = engine.ChatTransformers(model=str(folder), temperature=1.0)

    replies = [model.invoke("Hello", seed=seed, max_tokens=50) for seed in range(20)]
    model.close()

    ended = [reply for reply in replies if reply.response_metadata["finish_reason"] == "stop"]
    assert ended
    for reply in ended:
        assert reply.response_metadata["generation"]["token_ids"][-1] == 3
        assert "<|im_end|>" not in reply.content


def test_threads_and_event_loops_share_one_copy_of_the_weights_and_a_thread(folder, model):
    seen, other = set(), resolve_model(f"hf:{folder}", temperature=1.0)
    hook = model._engine.model.register_forward_pre_hook(lambda *_: seen.add(current_thread()))
    assert other._engine is model._engine
    expected = model.invoke("Hello", max_tokens=8).content

    async def at_once():
        return await asyncio.gather(*(model.ainvoke("Hello", max_tokens=8) for _ in range(5)))

    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(asyncio.run, at_once()) for _ in range(2)]
        jobs += [pool.submit(lambda: [model.invoke("Hello", max_tokens=8)]) for _ in range(2)]
        replies = [reply.content for job in jobs for reply in job.result()]

    hook.remove()
    assert replies == [expected] * 12
    assert len(seen) == 1  # each that has computed keeps memory, a gigabyte with 1.5B


async def test_a_cancelled_call_leaves_the_batch_and_a_closed_model_breaks_off_its_calls(folder):
    model = engine.ChatTransformers(model=folder, max_batch=7)
    await model.ainvoke("Load", max_tokens=1)
    calls = [asyncio.create_task(model.ainvoke("Hello", max_tokens=900)) for _ in range(2)]
    first = anext(model.astream("Hello", max_tokens=900))
    await first  # now they are being decoded

    calls[0].cancel()
    await asyncio.to_thread(model.close)

    with pytest.raises(asyncio.CancelledError):
        await calls[0]
    with pytest.raises(ModelError, match="closed"):
        await calls[1]
    assert (await model.ainvoke("Again", max_tokens=2)).content
    model.close()


def test_a_prompt_over_the_window_is_an_error_and_a_reply_is_limited_to_what_is_left(model):
    with pytest.raises(ContextLengthError, match="holds 1024"):
        model.invoke("word " * 2000)

    prompt = model._encode([HumanMessage("word " * 900)])
    reply = model.invoke("word " * 900, max_tokens=500)

    assert len(reply.response_metadata["generation"]["token_ids"]) <= 1024 - len(prompt)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"model": "./no-such-model"}, "no-such-model"),
        ({"model": "x", "temperature": -1}, "temperature"),
        ({"model": "x", "max_batch": 0}, "max_batch"),
    ],
)
def test_what_cannot_be_is_said_at_once(fields, words):
    with pytest.raises(ConfigurationError, match=words):
        _ = engine.ChatTransformers(**fields).window_tokens


def test_a_model_without_a_chat_template_says_so(folder, tmp_path):
    transformers.AutoModelForCausalLM.from_pretrained(folder).save_pretrained(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = None
    tokenizer.save_pretrained(tmp_path)

    with pytest.raises(ConfigurationError, match="chat template"):
        engine.ChatTransformers(model=str(tmp_path)).invoke("Hello")


def test_a_batch_that_memory_is_too_small_for_is_halved(folder, monkeypatch):
    model = engine.ChatTransformers(model=folder, max_batch=6)
    decode = engine.decode

    def little_memory(network, tokenizer, ends, rows):
        if len(rows) > most:
            raise torch.OutOfMemoryError
        decode(network, tokenizer, ends, rows)

    monkeypatch.setattr(f"{ENGINE}.decode", little_memory)
    most = 2
    replies = model.batch(["Hello"] * 6, {"max_concurrency": 6}, max_tokens=4)
    most = 0

    assert len({reply.content for reply in replies}) == 1
    with pytest.raises(ModelError, match="max_batch"):
        model.invoke("Hello")
    model.close()


@pytest.mark.slow
def test_new_weights_and_an_adapter_change_replies_and_what_may_be_reused(folder, tmp_path):
    model = engine.ChatTransformers(model=folder, max_batch=5)
    adapted = engine.ChatTransformers(model=folder, adapter=str(tiny_adapter(folder, tmp_path)))
    before, identity = model.invoke("Hello", max_tokens=8).content, model._identifying_params
    before_it = transformers.AutoModelForCausalLM.from_pretrained(folder).state_dict()
    weights = {name: weight + 0.05 for name, weight in before_it.items()}

    model.load_weights(weights)

    assert adapted.invoke("Hello", max_tokens=8).content != before
    assert model.invoke("Hello", max_tokens=8).content != before
    assert model._identifying_params != identity
    with pytest.raises(ConfigurationError, match="weights"):
        model.load_weights({"other": torch.zeros(1)})
    model.close()
    adapted.close()


def test_tokens_are_drawn_as_often_as_they_are_likely_and_never_what_cannot_be():
    chances = torch.tensor([0.0, 0.5, 0.2, 0.3, 0.0])

    def drawn(**fields):
        rows = [engine.DecodingRow([0], 1, seed=seed, **fields) for seed in range(4000)]
        chosen = engine.choose(chances.log().expand(4000, -1), rows)
        return torch.tensor(chosen).bincount(minlength=5)

    assert (drawn(temperature=1.0) / 4000).tolist() == pytest.approx(chances.tolist(), abs=0.03)
    sharper = chances**2 / (chances**2).sum()
    assert (drawn(temperature=0.5) / 4000).tolist() == pytest.approx(sharper.tolist(), abs=0.03)
    likeliest = (drawn(temperature=1.0, top_p=0.7) / 4000).tolist()
    assert likeliest == pytest.approx([0, 0.625, 0, 0.375, 0], abs=0.03)
    assert drawn(temperature=0.0).tolist() == [0, 4000, 0, 0, 0]
