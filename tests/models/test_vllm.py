"""vLLM in this process, as it runs on a CPU: `make test-vllm`."""

import asyncio
import gc
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import active_children, forkserver, resource_tracker
from pathlib import Path
from pydoc_data.topics import topics

import psutil
import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # those of vLLM's own imports
    pytest.importorskip("vllm.sampling_params", reason="vLLM is not installed: make test-vllm")
    from memagent_graph.models.vllm import ChatVLLM

from fixed_readers import Once
from langgraph.store.memory import InMemoryStore
from snippets import snippets
from tiny_model import tiny_adapter, tiny_model

from memagent_graph import MemoryBank, ReadingConfig, create_memagent
from memagent_graph.errors import (
    ConfigurationError,
    ContextLengthError,
    ModelError,
    TransientModelError,
)

pytestmark = pytest.mark.vllm

ENGINE = {"dtype": "float32", "max_model_len": 1024, "max_num_seqs": 64, "enforce_eager": True}
BUDGETS = {"question_tokens": 32, "chunk_tokens": 150, "memory_tokens": 24, "answer_tokens": 24}
CONFIG = ReadingConfig(**BUDGETS)
QUESTION = "What is a class?"
TEXT = topics["class"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(tiny_model(tmp_path_factory.mktemp("tiny")))


@pytest.fixture(scope="module")
def model(folder):
    model = ChatVLLM(model=folder, logprobs=True, **ENGINE)
    yield model
    model.close()


def document(number, length=1500):
    return f"Document {number}. {TEXT[number * 37 :][:length]}"


def left(before):
    give_up = time.monotonic() + 120
    while (found := processes() - before) and time.monotonic() < give_up:
        time.sleep(0.1)
        active_children()  # asks for the exit codes of those that have ended
    return found


def processes():
    """All below this one, with Python's own, which are no part of an engine."""
    forkserver.ensure_running()
    resource_tracker.ensure_running()
    return {*psutil.Process().children(recursive=True)}


def test_a_string_names_it_and_its_window_is_checked_before_the_first_call(folder):
    with pytest.raises(ConfigurationError, match="holds 16384"):
        create_memagent(f"vllm:{folder}", config=ReadingConfig(chunk_tokens=50_000))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"model": "./no-such-model"}, "no-such-model"),
        ({"model": "x", "tensor_paralel_size": 2}, "tensor_paralel_size"),
        ({"model": "x", "temperature": "warm"}, "temperature"),
        ({"model": "x", "adapter": "."}, "adapter_config.json"),
    ],
)
def test_what_cannot_be_is_said_without_starting_an_engine(fields, words):
    with pytest.raises(ConfigurationError, match=words):
        _ = ChatVLLM(**fields).window_tokens


def test_a_reply_is_the_same_whole_and_streamed_and_says_how_it_came_about(model):
    whole = model.invoke("Hello there", max_tokens=12)
    parts = list(model.stream("Hello there", max_tokens=12))

    found = whole.response_metadata["generation"]
    assert len(parts) > 3
    assert "".join(part.content for part in parts) == whole.content
    streamed = parts[-1].response_metadata["generation"]
    assert streamed == found
    tokenizer = model._engine.tokenizer
    assert tokenizer.decode(found["token_ids"]) == whole.content
    assert "Hello there" in tokenizer.decode(found["prompt_token_ids"])
    assert len(found["logprobs"]) == 12
    assert all(logprob < 0 for logprob in found["logprobs"])
    assert found["finish_reason"] == "length"
    assert whole.usage_metadata["output_tokens"] == 12


def test_seed_stop_and_sampling_parameters_are_obeyed(model):
    greedy = model.invoke("Hello", max_tokens=16).content
    word = greedy.split()[3]

    def sampled(seed, **options):
        return model.invoke("Hello", max_tokens=16, temperature=1.5, seed=seed, **options).content

    assert sampled(1) == sampled(1)
    assert sampled(1) != sampled(2)
    assert sampled(3, top_k=1) == greedy
    assert model.invoke("Hello", max_tokens=16, stop=[word]).content == greedy.split(word)[0]
    with pytest.raises(ConfigurationError, match="top_p"):
        model.invoke("Hello", top_p=7.0)


def test_a_prompt_over_the_window_is_an_error_and_the_graph_halves_the_chunk(model):
    with pytest.raises(ContextLengthError, match="holds 1024"):
        model.invoke("word " * 2000)

    class Unchecked(ChatVLLM):
        @property
        def window_tokens(self):
            return None

    budgets = CONFIG.model_copy(update={"chunk_tokens": 1000})
    agent = create_memagent(Unchecked(model=model.model, **ENGINE), config=budgets)
    output = agent.invoke({"question": QUESTION, "document": document(1, 4000)})

    assert output["coverage"] == 1


def test_two_hundred_readings_at_once_from_threads_and_loops(model):
    agent = create_memagent(model, config=CONFIG)
    inputs = [{"question": QUESTION, "document": document(i % 20, 700)} for i in range(200)]

    async def at_once(some):
        return await asyncio.gather(*(agent.ainvoke(asked) for asked in some))

    with ThreadPoolExecutor(4) as pool:
        jobs = [
            pool.submit(asyncio.run, at_once(inputs[:70])),
            pool.submit(asyncio.run, at_once(inputs[70:140])),
            pool.submit(agent.batch, inputs[140:]),
        ]
        outputs = [output for job in jobs for output in job.result()]

    assert len(outputs) == 200
    for number in range(20):
        assert len({output["memory"] for output in outputs[number::20]}) == 1


async def test_a_cancelled_run_leaves_no_request_in_the_engine(model):
    agent = create_memagent(model, config=CONFIG)
    task = asyncio.create_task(agent.ainvoke({"question": QUESTION, "document": TEXT}))
    llm = await model._engine.thread.run(model._engine._ensure_started())
    while not llm.output_processor.get_num_unfinished_requests():  # noqa: ASYNC110 - it has no event
        await asyncio.sleep(0.001)

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    await asyncio.sleep(0.2)
    assert llm.output_processor.get_num_unfinished_requests() == 0
    assert (await model.ainvoke("Still there?", max_tokens=2)).content


def test_a_full_queue_is_worth_another_attempt_and_the_readings_complete(folder):
    model = ChatVLLM(model=folder, **ENGINE | {"max_num_seqs": 2}, max_num_queued_reqs=2)
    model.invoke("Start", max_tokens=1)
    patient = CONFIG.model_copy(update={"retry_interval": 0.05, "max_attempts": 10})

    refused = model.batch(["Hello"] * 20, max_tokens=50, return_exceptions=True)
    outputs = create_memagent(model, config=patient).batch(
        [{"question": QUESTION, "document": document(number)} for number in range(8)]
    )
    model.close()

    errors = [reply for reply in refused if isinstance(reply, Exception)]
    assert errors
    assert all(isinstance(error, TransientModelError) for error in errors)
    assert all(output["coverage"] == 1 for output in outputs)


def test_an_engine_that_dies_is_started_again_and_the_readings_complete(folder):
    reading = threading.Event()

    class Telling(Once):
        async def update(self, step, **options):
            found = await super().update(step, **options)
            reading.set()
            return found

    model = ChatVLLM(model=folder, **ENGINE, seed=7, max_num_batched_tokens=2048)
    store = InMemoryStore()
    agent = create_memagent(Telling(model, config=CONFIG), config=CONFIG, store=store)
    inputs = [{"question": QUESTION, "document": document(i, 4000)} for i in range(6)]
    before = processes()
    model.invoke("Start", max_tokens=1)
    mine = processes() - before

    def kill_when_reading():
        reading.wait()
        for process in mine:
            process.kill()

    killer = threading.Thread(target=kill_when_reading)
    killer.start()
    outputs = agent.batch(inputs)
    killer.join()
    model.close()

    assert all(output["coverage"] == 1 for output in outputs)
    for output in outputs:
        updates = len(MemoryBank(store).history(output["version"]))
        assert output["usage"]["calls"] == updates + 1
    assert not left(before)


# vLLM leaves a context of ZeroMQ to the garbage collector when it does not start.
@pytest.mark.filterwarnings(
    "ignore:Exception ignored in.*Context:pytest.PytestUnraisableExceptionWarning"
)
def test_a_start_without_enough_memory_says_what_to_do_and_leaves_no_process(folder, monkeypatch):
    before = processes()
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "9999")
    model = ChatVLLM(model=folder, **ENGINE | {"max_num_seqs": 8})

    with pytest.raises(ModelError, match="VLLM_CPU_KVCACHE_SPACE") as failure:
        model.invoke("Hello")

    assert not isinstance(failure.value, TransientModelError)
    assert not left(before)
    del failure
    gc.collect()


def test_an_adapter_changes_what_is_written(folder, model, tmp_path):
    adapter = tiny_adapter(folder, tmp_path)

    adapted = ChatVLLM(model=folder, adapter=str(adapter), **ENGINE)
    text = adapted.invoke("Hello there", max_tokens=12).content
    adapted.close()

    assert text != model.invoke("Hello there", max_tokens=12).content
    assert adapted._identifying_params != model._identifying_params


def test_the_code_of_the_page_about_models_reads_as_a_script(folder, tmp_path):
    page = Path(__file__).parents[2] / "docs" / "models.md"
    (code,) = [code for code, _ in snippets(page) if "memagent_graph.models.vllm" in code]
    script = tmp_path / "script.py"
    script.write_text(code.replace("Qwen/Qwen2.5-7B-Instruct", folder))

    done = subprocess.run(
        [sys.executable, "-W", "ignore", script], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip()
