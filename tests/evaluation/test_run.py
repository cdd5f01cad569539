from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest
from doubles import ScriptedReader

from memagent_graph.config import ReadingConfig
from memagent_graph.errors import ConfigurationError, ModelError
from memagent_graph.evaluation.comparison import differences, table
from memagent_graph.evaluation.report import (
    cells,
    details,
    markdown,
    write_report,
)
from memagent_graph.evaluation.run import RESULTS, Result, evaluate, load
from memagent_graph.evaluation.samples import parse_length, short
from memagent_graph.evaluation.tasks import make_task
from memagent_graph.readers.resolve import resolve_reader

CONFIG = ReadingConfig()


def run(out, *, reader=None, lengths=(2_000,), methods=("memagent",), samples=3, concurrency=1):
    async def through():
        running = evaluate(
            reader or resolve_reader("extractive", config=CONFIG),
            [make_task("niah_single_1"), make_task("vt")],
            lengths=lengths,
            methods=methods,
            samples=samples,
            out=out,
            config=CONFIG,
            concurrency=concurrency,
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
        for task in ("niah_single_1", "vt")
        for n in range(3)
        for m in ("memagent", "truncate")
    ]
    assert places(results) == places(load(tmp_path)) == sorted(wanted)
    found = {result.id: result for result in results if result.method == "memagent"}
    assert found["niah_single_1/2000/0"].score == 1
    assert found["niah_single_1/2000/0"].kept[-1] == 1
    assert 0 <= found["niah_single_1/2000/0"].depths[0] <= 1
    assert found["vt/2000/0"].calls == 2


def test_what_is_done_is_not_done_again(tmp_path):
    run(tmp_path, samples=2)
    with (tmp_path / RESULTS).open("a") as file:
        file.write('{"id": "torn')

    again = run(tmp_path, samples=3)

    assert places(again) == [("niah_single_1/2000/2", "memagent"), ("vt/2000/2", "memagent")]
    assert len(load(tmp_path)) == 6


def test_a_sample_that_fails_is_told_and_run_again(tmp_path):
    failing = ScriptedReader(*[ModelError("The model is away.")] * 2)

    failing.identity = resolve_reader("extractive", config=CONFIG).identity

    failed = run(tmp_path, reader=failing, samples=1)
    again = run(tmp_path, samples=1)

    assert all("The model is away." in result.error for result in failed)
    assert len(again) == 2
    assert [result.error for result in load(tmp_path)] == [None, None]


def test_a_folder_holds_the_samples_of_one_model(tmp_path):
    run(tmp_path, samples=1)

    with pytest.raises(ConfigurationError, match="another model"):
        run(tmp_path, reader=ScriptedReader(), samples=1)


def test_a_stopped_run_leaves_no_task_behind(tmp_path):
    async def stop():
        running = evaluate(
            resolve_reader("extractive", config=CONFIG),
            [make_task("vt")],
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
    return Result(
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


def test_cells_tell_the_mean_with_its_interval_and_where_answers_were_lost():
    (cell,) = cells([result(1, kept=[0, 1, 1, 1]), result(0, kept=[1, 1, 0, 0], error="gone")])

    assert (cell.samples, cell.failed, cell.score) == (2, 1, 0.5)
    assert cell.low < 0.5 < cell.high
    assert cell.kept.value == 0.5
    assert cell.lost_at.value == 0.75


def test_tables_have_a_column_for_each_length():
    table = markdown(cells([result(1), result(0.5, length=2**20, method="bm25")]))

    assert table.splitlines() == [
        "| task | method | 8K | 1M |",
        "| --- | --- | --- | --- |",
        "| vt | memagent | 100 (21-100) |  |",
        "| vt | bm25 |  | 50 (5-95) |",
    ]


def test_costs_and_f1_have_their_intervals_too():
    results = [result(1, f1=1.0, seconds=seconds, kept=[1]) for seconds in (1, 2, 3, 4)]

    (row,) = details(cells(results)).splitlines()[2:]

    assert "| 1.00 (0.51 to 1.00) | 100% (51% to 100%) |" in row
    assert row.endswith("| 0.0 | 0 | 2.50 (0.45 to 4.55) |")


def test_two_runs_are_compared_where_both_have_the_same_sample():
    before = [replace(result(0), id=str(number)) for number in range(30)]
    other = replace(result(1), id="0", question="another, of another seed")
    after = [replace(one, score=1.0) for one in before[1:]] + [other, result(1, length=2**20)]

    (found,) = differences(before, after)

    assert (found.samples, found.before, found.after) == (29, 0, 1)
    assert found.is_clear
    assert (
        table([found]).splitlines()[2].startswith("| vt | memagent | 8K | 29 | 0 | 100 | +100.0*")
    )


def test_runs_that_share_no_sample_cannot_be_compared():
    with pytest.raises(ConfigurationError, match="seed"):
        differences([result(1)], [result(1, method="bm25")])


def test_the_report_is_markdown_a_page_without_links_and_plots(tmp_path):
    results = run(tmp_path, lengths=(2_000, 4_000), methods=("memagent", "truncate"))

    write_report(tmp_path, results, "extractive <b>")

    page = (tmp_path / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 3
    assert "http" not in page
    assert "extractive &lt;b&gt;" in page
    text = (tmp_path / "report.md").read_text()
    for plot in ("accuracy", "cost", "depth"):
        assert f"({plot}.png)" in text
        assert (tmp_path / f"{plot}.png").read_bytes().startswith(b"\x89PNG")


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
