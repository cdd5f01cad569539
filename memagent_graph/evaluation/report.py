"""Report a run: tables with intervals, as text, Markdown and a page of HTML with plots."""

from __future__ import annotations

import base64
import html
from collections import defaultdict
from dataclasses import dataclass
from math import isnan
from typing import TYPE_CHECKING

from memagent_graph.evaluation.intervals import Mean, mean_cost, mean_score
from memagent_graph.evaluation.samples import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from memagent_graph.evaluation.plots import Plots
    from memagent_graph.evaluation.results import Result
    from memagent_graph.evaluation.samples import Unit


@dataclass(frozen=True)
class Cell:
    """The results of one method on one task at one length.

    Attributes:
        task: the task.
        unit: unit of the length.
        length: length of the documents.
        method: the method.
        metric: metric of the score, as `Result.metric`.
        samples: number of scored samples.
        failed: number of samples that ended with an error; they count as zero.
        score: mean of the task's score.
        low: lower end of its 95% interval.
        high: upper end of that interval.
        raw: mean score of whole replies.
        exact_match: mean exact match, as SQuAD compares.
        f1: mean token F1.
        kept: share of the answers in the final memory, None for other methods than MemAgent.
        lost_at: place in the document, 0 to 1, after which an answer that the memory had was
            gone; None when none was.
        calls: mean number of model calls.
        tokens: mean number of tokens of prompts and replies.
        seconds: mean time, in seconds.
    """

    task: str
    unit: Unit
    length: int
    method: str
    metric: str
    samples: int
    failed: int
    score: float
    low: float
    high: float
    raw: Mean
    exact_match: Mean
    f1: Mean
    kept: Mean | None
    lost_at: Mean | None
    calls: Mean
    tokens: Mean
    seconds: Mean


def cells(results: Iterable[Result]) -> list[Cell]:
    """The results by task, length and method, in that order; what no judge scored is left out."""
    groups: dict[tuple[str, Unit, int, str, str], list[Result]] = defaultdict(list)
    for result in results:
        if result.score is not None:
            place = (result.task, result.unit, result.length, result.method, result.metric)
            groups[place].append(result)
    return [_cell(*key, group) for key, group in sorted(groups.items())]


def _cell(
    task: str, unit: Unit, length: int, method: str, metric: str, group: list[Result]
) -> Cell:
    clusters = [result.cluster for result in group]

    def mean(values: list[float]) -> Mean:
        return mean_score(values, clusters)

    score = mean([result.score or 0.0 for result in group])
    kept = [result.kept[-1] for result in group if result.kept]
    lost = [place for result in group if (place := _lost_at(result.kept or [])) is not None]
    return Cell(
        task=task,
        unit=unit,
        length=length,
        method=method,
        metric=metric,
        samples=len(group),
        failed=sum(result.error is not None for result in group),
        score=score.value,
        low=score.low,
        high=score.high,
        raw=mean([result.raw_score for result in group]),
        exact_match=mean([result.exact_match for result in group]),
        f1=mean([result.f1 for result in group]),
        kept=mean_score(kept) if kept else None,
        lost_at=mean_cost(lost) if lost else None,
        calls=mean_cost([result.calls for result in group]),
        tokens=mean_cost([result.input_tokens + result.output_tokens for result in group]),
        seconds=mean_cost([result.seconds for result in group]),
    )


def _lost_at(kept: list[float]) -> float | None:
    """After which share of the chunks the memory had less of the answers than ever before."""
    falls = [place for place in range(1, len(kept)) if kept[place] < kept[place - 1]]
    return (falls[0] + 1) / len(kept) if falls else None


def markdown(found: Sequence[Cell]) -> str:
    """A table of scores: a row for each task and method, a column for each length."""
    return in_markdown(_scores(found))


def details(found: Sequence[Cell]) -> str:
    """A table of what each cell cost, and of what became of the evidence."""
    return in_markdown(_costs(found))


def in_markdown(rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first row is its head."""
    head, *body = rows
    lines = [[" ".join(cell.split()).replace("|", r"\|") for cell in row] for row in (head, *body)]
    lines.insert(1, ["---"] * len(head))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _scores(found: Sequence[Cell]) -> list[list[str]]:
    lengths = sorted({(cell.unit, cell.length) for cell in found})
    by_place = {(_row(cell), (cell.unit, cell.length)): cell for cell in found}
    rows = [["task", "score", "method", *(shown(length, unit) for unit, length in lengths)]]
    rows += [
        [*row, *(_shown(by_place.get((row, length))) for length in lengths)]
        for row in dict.fromkeys(map(_row, found))
    ]
    return rows


def _row(cell: Cell) -> tuple[str, str, str]:
    return cell.task, cell.metric, cell.method


def _costs(found: Sequence[Cell]) -> list[list[str]]:
    head = [
        "task",
        "method",
        "length",
        "samples",
        "failed",
        "raw score",
        "EM",
        "F1",
        "in memory",
        "lost at",
        "calls",
        "tokens",
        "seconds",
    ]
    rows = [head]
    for cell in found:
        row = [cell.task, cell.method, shown(cell.length, cell.unit)]
        row += [str(cell.samples), str(cell.failed)]
        figures: list[tuple[Mean | None, str]] = [
            *((mean, ".2f") for mean in (cell.raw, cell.exact_match, cell.f1)),
            *((mean, ".0%") for mean in (cell.kept, cell.lost_at)),
            *((cell.calls, ".1f"), (cell.tokens, ",.0f"), (cell.seconds, ".2f")),
        ]
        rows.append(row + [_with_interval(*figure) for figure in figures])
    return rows


def _with_interval(mean: Mean | None, form: str) -> str:
    if mean is None:
        return ""
    if isnan(mean.low) or mean.low == mean.high:
        return format(mean.value, form)
    return f"{mean.value:{form}} ({mean.low:{form}} to {mean.high:{form}})"


def write_report(out: Path, results: Sequence[Result], title: str) -> list[str]:
    """Write report.md, report.html and the plots into a folder.

    Args:
        out: the folder.
        results: the results of the run.
        title: heading that names model and budgets.

    Returns:
        A line for each plot that could not be drawn; the report has it in the plot's place.
    """
    from memagent_graph.evaluation.plots import draw

    found = cells(results)
    plots = draw(out, found, results)
    note = (
        "Means with 95% intervals: Wilson's of scores, for clusters where questions share a "
        "conversation or paragraph, Student's of the others. Failed samples count as zero. Scores "
        "are of the final answer; the raw score is of the whole reply.\n"
    )
    parts = [f"# {title}\n", note, markdown(found), details(found)]
    (out / "report.md").write_text("\n".join([*parts, *pictures(plots)]), "utf-8")
    (out / "report.html").write_text(_page(title, note, found, plots), "utf-8")
    return plots.failures


def pictures(plots: Plots) -> list[str]:
    """The plots in Markdown, and a line for each that is missing."""
    drawn = [f"![{file.stem}]({file.name})\n" for file in plots.files]
    return drawn + [f"{failure}\n" for failure in plots.failures]


def _shown(cell: Cell | None) -> str:
    if cell is None:
        return ""
    return f"{100 * cell.score:.0f} ({100 * cell.low:.0f}-{100 * cell.high:.0f})"


def _page(title: str, note: str, found: Sequence[Cell], plots: Plots) -> str:
    tables = "".join(map(_table, (_scores(found), _costs(found))))
    images = "".join(
        f'<img alt="{html.escape(file.stem)}" '
        f'src="data:image/png;base64,{base64.b64encode(file.read_bytes()).decode()}">'
        for file in plots.files
    )
    images += "".join(f"<p>{html.escape(failure)}</p>" for failure in plots.failures)
    return _HTML.format(
        title=html.escape(title), note=html.escape(note), tables=tables, pictures=images
    )


_HTML = """\
<!doctype html><html lang="en"><meta charset="utf-8">
<meta name="viewport" content="width=device-width"><title>{title}</title>
<style>body{{font:16px/1.5 system-ui;margin:2rem auto;max-width:70rem;padding:0 1rem}}
h1{{overflow-wrap:anywhere}}div{{overflow-x:auto}}
table{{border-collapse:collapse;margin:1rem 0}}td,th{{border:1px solid #ccc;padding:.2rem .6rem}}
img{{max-width:100%;margin:1rem 0}}</style>
<h1>{title}</h1><p>{note}</p>{tables}{pictures}</html>
"""


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    lines = ["".join(f"<th>{html.escape(cell)}</th>" for cell in head)]
    lines += ["".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in body]
    return f"<div><table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table></div>"
