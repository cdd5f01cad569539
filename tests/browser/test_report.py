"""The page that `memagent eval` writes, in a real browser."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from statistics import mean

import pytest
from servers.warm_python import SERVERS, warm_python

from memagent_graph.evaluation.report import write_report
from memagent_graph.evaluation.run import SampleResult, load
from memagent_graph.evaluation.samples import short

pytestmark = pytest.mark.browser

DESKTOP = {"viewport": {"width": 1280, "height": 800}}
PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}

RUNS_WHEN_RAW = {
    "script": "<script>window.ran = 1</script>",
    "image": '<img src="missing:" onerror="window.ran = 1">',
    "end of the table": '</td></tr></table><svg onload="window.ran = 1"></svg>',
    "end of the title": "</title></h1><script>window.ran = 1</script>",
    "end of an attribute": '"><img src="missing:" onerror="window.ran = 1">',
}
ODD = {
    "column": "yes | no",
    "line": "one\ntwo",
    "formula": r"$\nonsense$",
    "entity": "&lt;b&gt; & <b>",
}


def evaluate(out: Path, *words: str) -> None:
    command = [sys.executable, "-m", "memagent_graph", "eval", "--out", out, *words]
    command += ["--model", "extractive"]
    done = warm_python(*SERVERS).run(command)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """A run whose second length has one task only."""
    out = tmp_path_factory.mktemp("run")
    words = ["--samples", "2", "--methods", "memagent,truncate"]
    evaluate(out, "--tasks", "niah_single_1,vt", "--lengths", "2k", *words)
    evaluate(out, "--tasks", "niah_single_1", "--lengths", "4k", *words)
    return out


def result(name: str, method: str) -> SampleResult:
    return SampleResult(
        id=name,
        method=method,
        task=name,
        length=2048,
        question=name,
        answers=[name],
        answer=name,
        score=1.0,
        depths=[0.5],
        calls=2,
        seconds=0.1,
        error=name,
    )


def tables(page) -> list[list[list[str]]]:
    """The text of every cell, by table and row."""
    return page.locator("table").evaluate_all(
        "tables => tables.map(t => [...t.rows].map(row => [...row.cells].map(c => c.innerText)))"
    )


def tables_of_markdown(text: str) -> list[list[list[str]]]:
    blocks = [block.splitlines() for block in text.split("\n\n") if block.startswith("|")]
    return [
        [[cell.strip() for cell in line.split("|")[1:-1]] for line in (head, *rows)]
        for head, _, *rows in blocks
    ]


def test_the_page_stands_alone_and_the_browser_has_nothing_to_complain_of(run, visit):
    report = visit(run / "report.html")

    files = [url for url in report.requests if not url.startswith("data:")]
    assert files == [(run / "report.html").as_uri()]
    assert not report.complaints
    assert report.page.title() == "extractive, chunks of 5000, memory of 1024 tokens"
    assert report.page.get_by_role("heading").inner_text() == report.page.title()


def test_every_plot_is_drawn(run, visit):
    images = visit(run / "report.html").page.get_by_role("img")

    drawn = images.evaluate_all("all => all.map(image => [image.alt, image.naturalWidth > 0])")
    assert sorted(drawn) == [[file.stem, True] for file in sorted(run.glob("*.png"))]
    assert len(drawn) == 3


def test_the_tables_are_those_of_the_markdown(run, visit):
    shown = tables(visit(run / "report.html").page)

    assert shown == tables_of_markdown((run / "report.md").read_text())


def test_every_row_has_a_cell_below_each_heading(run, visit):
    for head, *rows in tables(visit(run / "report.html").page):
        assert rows
        assert {len(row) for row in rows} == {len(head)}


def test_the_scores_are_the_means_of_the_samples(run, visit):
    scores = defaultdict(list)
    for sample in load(run):
        scores[sample.task, sample.method, short(sample.length)].append(100 * sample.score)

    (_, _, _, *lengths), *rows = tables(visit(run / "report.html").page)[0]

    shown = {
        (task, method, length): cell.split(" ")[0]
        for task, _, method, *cells in rows
        for length, cell in zip(lengths, cells, strict=False)
        if cell
    }
    assert shown == {place: f"{mean(values):.0f}" for place, values in scores.items()}


@pytest.mark.parametrize("name", RUNS_WHEN_RAW.values(), ids=RUNS_WHEN_RAW)
def test_names_run_no_script(tmp_path, visit, name):
    results = [result(name, name), result(name, "memagent")]
    write_report(tmp_path, results, title=name)

    report = visit(tmp_path / "report.html")

    assert report.page.evaluate("window.ran") is None
    assert report.page.locator("script, svg, [onerror], [onload]").count() == 0
    assert report.page.title() == name
    assert tables(report.page)[0][1][0] == name
    assert not report.complaints


@pytest.mark.parametrize("name", RUNS_WHEN_RAW.values(), ids=RUNS_WHEN_RAW)
def test_the_same_names_do_run_where_nothing_escapes_them(tmp_path, visit, name):
    page = f'<!doctype html><title>{name}</title><table><tr><td alt="{name}">{name}</td></table>'
    (tmp_path / "raw.html").write_text(page)

    raw = visit(tmp_path / "raw.html")

    assert raw.page.wait_for_function("window.ran").json_value() == 1


@pytest.mark.parametrize("name", ODD.values(), ids=ODD)
def test_a_name_stays_in_its_cell_letter_for_letter(tmp_path, visit, name):
    write_report(tmp_path, [result(name, name), result(name, "memagent")], title="odd names")

    for head, *rows in tables(visit(tmp_path / "report.html").page):
        assert [row[0] for row in rows] == [" ".join(name.splitlines())] * 2
        assert {len(row) for row in rows} == {len(head)}


def test_a_file_of_questions_with_markup_in_its_name_and_its_text_is_shown_as_it_is(
    tmp_path, visit
):
    name = '<img src=x onerror="window.ran = 1">'
    context = "The lease <script>window.ran = 1</script> was signed by Ann Kestrel in Husum."
    asked = {"question": f"Who signed the lease {name}?", "answers": [{"text": "Ann Kestrel"}]}
    questions = {"data": [{"paragraphs": [{"context": context, "qas": [asked]}]}]}
    (tmp_path / f"{name}.json").write_text(json.dumps(questions))
    (tmp_path / "essay.txt").write_text("The rain went on over the harbour. " * 2000)

    words = ["--tasks", f"qa:{tmp_path / name}.json", "--essays", str(tmp_path / "essay.txt")]
    evaluate(tmp_path / "out", *words, "--lengths", "2k", "--samples", "1")
    report = visit(tmp_path / "out" / "report.html")

    assert report.page.evaluate("window.ran") is None
    assert report.page.get_by_role("cell", name=f"qa_{name}", exact=True).count() == 2
    assert not report.complaints


@pytest.mark.parametrize("screen", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_the_page_is_as_wide_as_the_screen_and_its_tables_scroll_by_themselves(run, visit, screen):
    page = visit(run / "report.html", **screen).page

    width = screen["viewport"]["width"]
    assert page.evaluate("window.innerWidth") == width  # a phone does not shrink the page
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    images = page.get_by_role("img").evaluate_all("all => all.map(i => i.clientWidth)")
    assert max(images) <= width


def test_the_long_name_of_a_model_does_not_widen_the_page(tmp_path, visit):
    write_report(tmp_path, [result("vt", "memagent")], title=f"/{'very_long_' * 20}model")

    page = visit(tmp_path / "report.html", **PHONE).page

    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["viewport"]["width"]


def test_a_finger_reaches_the_last_column_on_a_phone(run, visit):
    page = visit(run / "report.html", **PHONE).page
    last = page.locator("table").last.get_by_role("columnheader").last

    last.scroll_into_view_if_needed()

    box = last.bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= PHONE["viewport"]["width"]
