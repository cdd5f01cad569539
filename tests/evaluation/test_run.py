from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from math import isnan

import pytest
from doubles import ScriptedReader
from hypothesis import given
from hypothesis import strategies as st
from vaults import VaultTask

from memagent_graph.config import ReadingConfig
from memagent_graph.errors import ConfigurationError, ModelError
from memagent_graph.evaluation.run import (
    RESULTS,
    SampleResult,
    cells,
    evaluate,
    load,
    markdown,
    write_report,
)
from memagent_graph.evaluation.samples import Criterion, Sample, Task, parse_length, short
from memagent_graph.evaluation.tasks.questions import QuestionTask
from memagent_graph.readers.base import Answer
from memagent_graph.readers.resolve import resolve_reader
from memagent_graph.text.source import TextSource

CONFIG = ReadingConfig()


def run(out, *, reader=None, tasks=None, lengths=(2_000,), samples=3, **settings):
    async def through():
        running = evaluate(
            reader or resolve_reader("extractive", config=CONFIG),
            tasks or [VaultTask("one"), VaultTask("two")],
            lengths=lengths,
            samples=samples,
            out=out,
            config=CONFIG,
            **{"methods": ("memagent",), **settings},
        )
        return [result async for result in running]

    return asyncio.run(through())


def places(results):
    return sorted((result.id, result.method) for result in results)


@pytest.mark.parametrize("concurrency", [1, 5])
def test_every_sample_meets_every_method_and_is_kept(tmp_path, concurrency):
    results = run(tmp_path, methods=("memagent", "truncate"), concurrency=concurrency)

    wanted = [
        (f"{task}/2000/{n}", m)
        for task in ("one", "two")
        for n in range(3)
        for m in ("memagent", "truncate")
    ]
    assert places(results) == places(load(tmp_path)) == sorted(wanted)
    found = {result.id: result for result in results if result.method == "memagent"}
    assert found["one/2000/0"].score == 1
    assert found["one/2000/0"].kept[-1] == 1
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
    assert len(again) == 2
    assert [result.error for result in load(tmp_path)] == [None, None]


@pytest.mark.parametrize(
    ("changed", "said"),
    [({"reader": ScriptedReader()}, "another reader"), ({"seed": 7}, "another seed")],
)
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

    with pytest.raises(ConfigurationError, match="another qa_dev"):
        run(tmp_path / "out", tasks=[new], lengths=(60,))
    with pytest.raises(ConfigurationError, match="Two of the tasks are called qa_dev"):
        run(tmp_path / "both", tasks=[old, new], lengths=(60,))

    assert [found.answers for found in load(tmp_path / "out")] == [["Ann"]]


@pytest.mark.parametrize("module", ["scores", "methods"])
def test_results_of_other_scores_or_methods_are_not_mixed_in(tmp_path, monkeypatch, module):
    run(tmp_path, samples=1)
    monkeypatch.setattr(f"memagent_graph.evaluation.{module}.VERSION", 99)

    with pytest.raises(ConfigurationError, match=f"another {module}"):
        run(tmp_path, samples=1)


def test_results_of_which_nobody_knows_what_made_them_are_not_mixed_in(tmp_path):
    run(tmp_path, samples=1)
    (tmp_path / "run.json").unlink()

    with pytest.raises(ConfigurationError, match="another reader"):
        run(tmp_path, samples=1)


def test_a_folder_takes_more_tasks_later(tmp_path):
    run(tmp_path, tasks=[VaultTask("one")], samples=1)
    run(tmp_path, tasks=[VaultTask("two")], samples=1)

    assert run(tmp_path, tasks=[VaultTask("two"), VaultTask("one")], samples=1) == []


def test_a_file_with_fewer_questions_is_asked_each_once(tmp_path):
    task = squad(tmp_path / "dev.json", "Ann")

    results = run(tmp_path / "out", tasks=[task], lengths=(60,), samples=20)

    assert len(results) == 1


class Judged(Task):
    """A conversation that a judge is asked about."""

    name, unit, identity, count = "judged", "whole", "1", 1

    def sample(self, length, index, *, seed, tokenizer):
        return Sample(
            "judged/0/0",
            "judged",
            0,
            "Who rang?",
            ("Ann",),
            "any",
            lambda: iter(["Hello. ", "Ann rang.", " Bye."]),
            criteria=(Criterion(str, {}, float),),
            cluster="one",
        )


class Fixed:
    identity = "fixed"

    async def grade(self, sample, answer):
        return 0.75


def test_a_task_that_no_rule_can_grade_needs_a_judge(tmp_path):
    with pytest.raises(ConfigurationError, match="--judge"):
        run(tmp_path, tasks=[Judged()])


def test_a_judge_s_grade_is_the_score_and_is_not_mixed_with_others(tmp_path):
    (found,) = run(tmp_path, tasks=[Judged()], judge=Fixed())

    assert (found.metric, found.score, found.cluster) == ("judge", 0.75, "one")
    assert (found.length, found.unit) == (0, "whole")
    with pytest.raises(ConfigurationError, match="another judge"):
        run(tmp_path, tasks=[Judged()])


def test_boxed_answers_are_scored_by_the_box_and_the_reply_is_kept(tmp_path):
    class Boxing(ScriptedReader):
        async def respond(self, question, memory, *, config=None):
            return Answer(r"Bo is named, but \boxed{Ann}", "Ann")

    task = squad(tmp_path / "dev.json", "Ann")

    (found,) = run(tmp_path / "out", reader=Boxing(), tasks=[task], lengths=(60,))

    assert (found.answer, found.exact_match, found.f1) == ("Ann", 1, 1)
    assert found.reply == r"Bo is named, but \boxed{Ann}"


def test_a_stopped_run_leaves_no_task_behind(tmp_path):
    async def stop():
        running = evaluate(
            resolve_reader("extractive", config=CONFIG),
            [VaultTask()],
            lengths=[2_000],
            methods=["memagent"],
            samples=9,
            out=tmp_path,
            config=CONFIG,
            concurrency=3,
        )
        async for _ in running:
            break
        await running.aclose()
        return asyncio.all_tasks() - {asyncio.current_task()}

    assert asyncio.run(stop()) == set()
    assert 1 <= len(load(tmp_path)) <= 3


def result(score, *, length=8192, method="memagent", kept=None, **more):
    return SampleResult(
        id="a",
        method=method,
        task="vt",
        length=length,
        question="q",
        answers=["x"],
        answer="y",
        score=score,
        kept=kept,
        **more,
    )


def test_cells_tell_the_mean_with_its_interval_and_what_the_memory_kept():
    (cell,) = cells([result(1, kept=[0, 1, 1, 1]), result(0, kept=[1, 1, 0, 0], error="gone")])

    assert (cell.samples, cell.failed, cell.score.value) == (2, 1, 0.5)
    assert cell.score.low < 0.5 < cell.score.high
    assert cell.kept.value == 0.5


SHARES = st.floats(0, 1) | st.sampled_from([0.0, 1.0, 0.1 * 3])
RESULTS_OF_ALL_KINDS = st.builds(
    result,
    SHARES,
    length=st.sampled_from([0, 8192]),
    metric=st.sampled_from(["all", "any", "judge"]),
    cluster=st.sampled_from(["", "a", "b"]),
    raw_score=SHARES,
    kept=st.none() | st.lists(SHARES, max_size=4),
    calls=st.integers(0, 9),
    input_tokens=st.integers(0, 10**6),
    seconds=st.floats(0, 1e6),
)


@given(st.lists(RESULTS_OF_ALL_KINDS, max_size=30))
def test_every_figure_of_a_cell_lies_within_its_interval(results):
    for cell in cells(results):
        assert 0 <= cell.score.low <= cell.score.value <= cell.score.high <= 1
        for figure in (cell.raw, cell.kept, cell.calls, cell.tokens, cell.seconds):
            assert figure is None or isnan(figure.low) or figure.low <= figure.value <= figure.high


def test_a_report_of_nothing_is_empty(tmp_path):
    write_report(tmp_path, [], "extractive")

    assert markdown([]) in (tmp_path / "report.md").read_text("utf-8")
    assert not (tmp_path / "accuracy.png").exists()


def test_the_table_has_a_row_for_each_task_length_and_method_with_intervals():
    rows = [result(1, seconds=seconds, kept=[1]) for seconds in (1, 2, 3, 4)]
    rows.append(result(0.5, length=2**20, method="bm25"))

    assert markdown(cells(rows)).splitlines()[2:] == [
        (
            "| vt | all | memagent | 8K | 4 | 0 | 100% (51% to 100%) | 0% (0% to 49%) "
            "| 100% (51% to 100%) | 0.0 | 0 | 2.50 (0.45 to 4.55) |"
        ),
        "| vt | all | bm25 | 1M | 1 | 0 | 50% (5% to 95%) | 0% (0% to 79%) |  | 0.0 | 0 | 0.00 |",
    ]


def test_scores_of_one_conversation_are_clustered_in_tables():
    alone = [result(score) for score in [1.0] * 10 + [0.0] * 10]
    together = [replace(one, cluster="ab"[one.score > 0.5]) for one in alone]

    (free,), (bound,) = cells(alone), cells(together)

    assert bound.score.low < free.score.low < free.score.high < bound.score.high


def test_the_report_has_a_table_and_a_plot_of_the_lengths(tmp_path):
    results = [
        replace(result(score, unit=unit, length=length), task=f"of ${number}$")
        for unit, length in (("whole", 0), ("tokens", 2048), ("tokens", 8192))
        for number, score in enumerate((0, 1, 0.1 * 3))
    ]

    write_report(tmp_path, results, "extractive")

    text = (tmp_path / "report.md").read_text("utf-8")
    assert markdown(cells(results)) in text
    assert "(accuracy.png)" in text
    assert (tmp_path / "accuracy.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("8k", 8192), ("128K", 131072), ("1m", 2**20), ("3.5m", 3670016), ("100", 100)],
)
def test_lengths_are_said_as_people_say_them(text, tokens):
    assert parse_length(text) == tokens
    assert parse_length(short(tokens)) == tokens


@pytest.mark.parametrize("text", ["", "k", "-8k", "0", "eight"])
def test_what_is_no_length_is_refused(text):
    with pytest.raises(ValueError):  # noqa: PT011 - whatever Python says of a bad number
        parse_length(text)


def test_lines_of_later_releases_are_read(tmp_path):
    run(tmp_path, samples=1)
    file = tmp_path / RESULTS
    lines = [json.dumps({**json.loads(line), "new": 1}) for line in file.read_text().splitlines()]
    file.write_text("\n".join(lines))

    assert len(load(tmp_path)) == 2
