import asyncio
import json

import pytest
from fixed_readers import ScriptedReader
from vaults import VaultTask

from memagent_graph.config import ReadingConfig
from memagent_graph.errors import ConfigurationError, ModelError
from memagent_graph.evaluation.questions import QuestionTask
from memagent_graph.evaluation.run import RESULTS, SampleResult, evaluate, load, tabulate
from memagent_graph.evaluation.samples import parse_length, short
from memagent_graph.readers.resolve import resolve_reader
from memagent_graph.rl.recorder import CallRecord
from memagent_graph.rl.traces import load as load_traces
from memagent_graph.testing import ScriptedChatModel
from memagent_graph.text.source import TextSource

CONFIG = ReadingConfig()


def run(out, *, reader=None, tasks=None, lengths=(2_000,), samples=3, **settings):
    async def through():
        return [result async for result in begin(out, reader, tasks, lengths, samples, **settings)]

    return asyncio.run(through())


def begin(out, reader=None, tasks=None, lengths=(2_000,), samples=3, **settings):
    reader = reader or resolve_reader("extractive", config=CONFIG)
    tasks = tasks or [VaultTask("one"), VaultTask("two")]
    given = {"methods": ("memagent",), "samples": samples, "out": out, "config": CONFIG, **settings}
    return evaluate(reader, tasks, lengths=lengths, **given)


def places(results):
    return sorted((result.id, result.method) for result in results)


@pytest.mark.parametrize("concurrency", [1, 5])
def test_every_sample_meets_every_method_and_is_kept(tmp_path, concurrency):
    methods = "memagent", "truncate"

    results = run(tmp_path, methods=methods, concurrency=concurrency)

    ids = [f"{task}/2000/{n}" for task in ("one", "two") for n in range(3)]
    wanted = sorted((one, method) for one in ids for method in methods)
    assert places(results) == places(load(tmp_path)) == wanted
    found = {result.id: result for result in results if result.method == "memagent"}
    assert (found["one/2000/0"].score, found["one/2000/0"].kept[-1]) == (1, 1)
    assert found["two/2000/0"].calls == 2


def test_what_is_done_is_not_done_again(tmp_path):
    run(tmp_path, samples=2)
    with (tmp_path / RESULTS).open("a") as file:
        file.write('{"id": "torn')

    again = run(tmp_path, samples=3)

    assert places(again) == [("one/2000/2", "memagent"), ("two/2000/2", "memagent")]
    assert len(load(tmp_path)) == 6


def test_a_sample_that_fails_is_told_and_run_again(tmp_path):
    failing = ScriptedReader(*[ModelError("The model is away.")] * 2)
    failing.identity = resolve_reader("extractive", config=CONFIG).identity

    failed = run(tmp_path, reader=failing, samples=1)
    again = run(tmp_path, samples=1)

    assert all("The model is away." in result.error for result in failed)
    assert (len(again), [result.error for result in load(tmp_path)]) == (2, [None, None])


def test_every_call_is_kept_with_what_it_cost_also_of_samples_that_fail(tmp_path):
    def reply(messages):
        if "<section>" in messages[-1].text:
            return "The code is 7."
        raise ValueError("The key is invalid.")

    reader = resolve_reader(ScriptedChatModel(reply), config=CONFIG)
    record = {"calls": CallRecord(tmp_path / "calls.jsonl"), "methods": ("memagent", "truncate")}

    results = run(tmp_path, reader=reader, tasks=[VaultTask("one")], samples=1, **record)

    calls = load_traces(tmp_path / "calls.jsonl").calls
    assert len(results) == 2
    for result in results:
        own = [call for call in calls if call.rollout == f"{result.id} {result.method}"]
        assert len(own) == result.calls > 0
        assert "The key is invalid." in result.error
        assert "The key is invalid." in own[-1].error
        assert sum(call.usage["input_tokens"] for call in own if call.usage) == result.input_tokens
    (whole,) = [call for call in calls if call.rollout == "one/2000/0 truncate"]
    assert ScriptedChatModel("7").invoke(whole.prompt).text == "7"  # it can be asked again


@pytest.mark.parametrize(("changed", "said"), [
    ({"reader": ScriptedReader()}, "another reader"), ({"seed": 7}, "another seed"),
])  # fmt: skip
def test_a_folder_holds_the_results_of_one_model_and_seed(tmp_path, changed, said):
    run(tmp_path, samples=1)

    with pytest.raises(ConfigurationError, match=said):
        run(tmp_path, samples=1, **changed)


def squad(file, answer):
    asked = {"question": "Who?", "answers": [{"text": answer, "answer_start": 0}]}
    paragraph = {"context": f"It was {answer}.", "qas": [asked]}
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps({"data": [{"title": "t", "paragraphs": [paragraph]}]}))
    return QuestionTask(file, TextSource("It rained over the harbour. " * 50))


def test_another_file_of_the_same_name_does_not_get_the_old_one_s_results(tmp_path):
    old, new = squad(tmp_path / "a" / "dev.json", "Ann"), squad(tmp_path / "b" / "dev.json", "Bo")
    run(tmp_path / "out", tasks=[old], lengths=(60,))

    for out, tasks, said in (
        ("out", [new], "another qa_dev"),
        ("both", [old, new], "Two of the tasks are called qa_dev"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            run(tmp_path / out, tasks=tasks, lengths=(60,))

    assert [found.answers for found in load(tmp_path / "out")] == [("Ann",)]


@pytest.mark.parametrize(
    ("what", "name"), [("scores", "run.SCORES"), ("methods", "methods.VERSION")]
)
def test_results_of_other_scores_or_methods_are_not_mixed_in(tmp_path, monkeypatch, what, name):
    run(tmp_path, samples=1)
    monkeypatch.setattr(f"memagent_graph.evaluation.{name}", 99)

    with pytest.raises(ConfigurationError, match=f"another {what}"):
        run(tmp_path, samples=1)


def test_a_stopped_run_leaves_no_task_behind(tmp_path):
    async def stop():
        running = begin(tmp_path, tasks=[VaultTask()], samples=9, concurrency=3)
        await anext(running)
        await running.aclose()
        return asyncio.all_tasks() - {asyncio.current_task()}

    assert asyncio.run(stop()) == set()
    assert 1 <= len(load(tmp_path)) <= 3


def result(score, *, length=8192, method="memagent", kept=None, **more):
    asked = {"id": "a", "task": "vt", "question": "q", "answers": ("x",), "metric": "all"}
    given = {"length": length, "method": method, "kept": kept, "answer": "y", **asked, **more}
    return SampleResult(score=score, **given)


def test_the_table_has_a_row_for_each_task_length_and_method_with_intervals():
    rows = [result(1, seconds=seconds, kept=[1]) for seconds in (1, 2, 3, 4)]
    rows.append(result(0.5, length=2**20, method="bm25"))

    assert tabulate(rows).splitlines()[2:] == [
        (
            "| vt | all | memagent | 8K | 4 | 0 | 100% (51% to 100%) | 0% (0% to 49%) "
            "| 100% (51% to 100%) | 0.0 | 0 | 2.50 |"
        ),
        "| vt | all | bm25 | 1M | 1 | 0 | 50% (5% to 95%) | 0% (0% to 79%) |  | 0.0 | 0 | 0.00 |",
    ]


@pytest.mark.parametrize(("text", "tokens"), [
    ("8k", 8192), ("128K", 131072), ("1m", 2**20), ("3.5m", 3670016), ("100", 100),
])  # fmt: skip
def test_lengths_are_said_as_people_say_them(text, tokens):
    assert (parse_length(text), parse_length(short(tokens))) == (tokens, tokens)


@pytest.mark.parametrize("text", ["", "k", "-8k", "0", "eight"])
def test_what_is_no_length_is_refused(text):
    with pytest.raises(ValueError):  # noqa: PT011 - whatever Python says of a bad number
        parse_length(text)
