"""Report a run: a table with intervals and a plot of scores by length."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from math import isnan
from typing import TYPE_CHECKING

from memagent_graph.errors import install_hint
from memagent_graph.evaluation.samples import format_length
from memagent_graph.evaluation.scores import Mean, mean_cost, mean_score
from memagent_graph.templates import escape_controls

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from matplotlib.figure import Figure

    from memagent_graph.evaluation.run import SampleResult
    from memagent_graph.evaluation.samples import Unit


@dataclass(frozen=True)
class Cell:
    """The results of one method on one task at one length.

    Means are of the task's score, of that of whole replies, of the share of the answers in the
    final memory (None for other methods than MemAgent), of calls, tokens and seconds. Samples that
    `failed` count as zero.
    """

    task: str
    unit: Unit
    length: int
    method: str
    metric: str
    samples: int
    failed: int
    score: Mean
    raw: Mean
    kept: Mean | None
    calls: Mean
    tokens: Mean
    seconds: Mean


def cells(results: Iterable[SampleResult]) -> list[Cell]:
    """The results by task, length and method, in that order."""
    groups: dict[tuple[str, Unit, int, str, str], list[SampleResult]] = defaultdict(list)
    for result in results:
        place = (result.task, result.unit, result.length, result.method, result.metric)
        groups[place].append(result)
    return [_cell(*key, group) for key, group in sorted(groups.items())]


def _cell(
    task: str, unit: Unit, length: int, method: str, metric: str, group: list[SampleResult]
) -> Cell:
    clusters = [result.cluster for result in group]
    kept = [result.kept[-1] for result in group if result.kept]
    return Cell(
        *(task, unit, length, method, metric, len(group)),
        failed=sum(result.error is not None for result in group),
        score=mean_score([result.score for result in group], clusters),
        raw=mean_score([result.raw_score for result in group], clusters),
        kept=mean_score(kept) if kept else None,
        calls=mean_cost([result.calls for result in group]),
        tokens=mean_cost([result.input_tokens + result.output_tokens for result in group]),
        seconds=mean_cost([result.seconds for result in group]),
    )


_COLUMNS = ["task", "score of", "method", "length", "samples", "failed"]
_FIGURES = ["score", "raw score", "in memory", "calls", "tokens", "seconds"]


def markdown(found: Sequence[Cell]) -> str:
    """A table in Markdown: a row for each task, length and method."""
    rows = [[*_COLUMNS, *_FIGURES]]
    for cell in found:
        row = [cell.task, cell.metric, cell.method, format_length(cell.length, cell.unit)]
        row += [str(cell.samples), str(cell.failed)]
        figures: list[tuple[Mean | None, str]] = [
            *((mean, ".0%") for mean in (cell.score, cell.raw, cell.kept)),
            *((cell.calls, ".1f"), (cell.tokens, ",.0f"), (cell.seconds, ".2f")),
        ]
        rows.append(row + [_with_interval(*figure) for figure in figures])
    return in_markdown(rows)


def in_markdown(rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first row is its head."""
    head, *body = rows
    lines = [
        [escape_controls(" ".join(cell.split())).replace("|", r"\|") for cell in row]
        for row in (head, *body)
    ]
    lines.insert(1, ["---"] * len(head))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _with_interval(mean: Mean | None, form: str) -> str:
    if mean is None:
        return ""
    if isnan(mean.low) or mean.low == mean.high:
        return format(mean.value, form)
    return f"{mean.value:{form}} ({mean.low:{form}} to {mean.high:{form}})"


def write_report(out: Path, results: Sequence[SampleResult], title: str) -> None:
    """Write report.md into a folder, and accuracy.png if documents have several lengths.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    found = cells(results)
    note = (
        "Means with 95% intervals: Wilson's of scores, for clusters where questions share a "
        "paragraph, Student's of the others. Failed samples count as zero. Scores are of the final "
        "answer; the raw score is of the whole reply.\n"
    )
    parts = [f"# {title}\n", note, markdown(found)]
    if drawn := [cell for cell in found if cell.unit != "whole"]:
        _draw(out / "accuracy.png", drawn)
        parts.append("![score by length](accuracy.png)\n")
    (out / "report.md").write_text("\n".join(parts), "utf-8")


def figure_kind() -> type[Figure]:
    """The class of matplotlib's that plots are made of."""
    with install_hint('To draw plots: pip install "memagent-graph[eval]"'):
        from matplotlib.figure import Figure
    return Figure


def _draw(file: Path, found: Sequence[Cell]) -> None:
    """Draw the scores by length with their intervals, a line for each task and method."""
    lines: dict[str, list[Cell]] = defaultdict(list)
    for cell in found:
        lines[f"{cell.task} {cell.method}".replace("$", r"\$")].append(cell)
    figure = figure_kind()(figsize=(10, 5), dpi=80, layout="constrained")
    axes = figure.add_subplot()
    for name, line in lines.items():
        scores = [100 * cell.score.value for cell in line]
        below = [100 * (cell.score.value - cell.score.low) for cell in line]
        above = [100 * (cell.score.high - cell.score.value) for cell in line]
        lengths = [cell.length for cell in line]
        axes.errorbar(lengths, scores, yerr=(below, above), label=name, marker="o", elinewidth=0.4)
    names = {cell.length: format_length(cell.length, cell.unit) for cell in found}
    axes.set_xscale("log", base=2)
    axes.set_xticks([*names], names.values())
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.set(xlabel="length of the document", ylabel="score, %", ylim=(-5, 105))
    figure.legend(fontsize=8, loc="outside right center")
    figure.savefig(file)
