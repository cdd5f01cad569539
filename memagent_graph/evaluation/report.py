"""Report a run: tables with intervals, as text, Markdown HTML and pictures; compare runs."""

from __future__ import annotations

import base64
import html
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from math import isnan
from operator import itemgetter
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from memagent_graph.errors import ConfigurationError, install_hint
from memagent_graph.evaluation.samples import format_length
from memagent_graph.evaluation.scores import Mean, compute_paired_interval, mean_cost, mean_score
from memagent_graph.templates import escape_controls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from memagent_graph.evaluation.run import SampleResult
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


def cells(results: Iterable[SampleResult]) -> list[Cell]:
    """The results by task, length and method, in that order; what no judge scored is left out."""
    groups: dict[tuple[str, Unit, int, str, str], list[SampleResult]] = defaultdict(list)
    for result in results:
        if result.score is not None:
            place = (result.task, result.unit, result.length, result.method, result.metric)
            groups[place].append(result)
    return [_cell(*key, group) for key, group in sorted(groups.items())]


def _cell(
    task: str, unit: Unit, length: int, method: str, metric: str, group: list[SampleResult]
) -> Cell:
    clusters = [result.cluster for result in group]

    def mean(values: list[float]) -> Mean:
        return mean_score(values, clusters)

    score = mean([result.score or 0.0 for result in group])
    kept = [result.kept[-1] for result in group if result.kept]
    lost = [place for result in group if (place := _find_loss(result.kept or [])) is not None]
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


def _find_loss(kept: list[float]) -> float | None:
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
    lines = [
        [escape_controls(" ".join(cell.split())).replace("|", r"\|") for cell in row]
        for row in (head, *body)
    ]
    lines.insert(1, ["---"] * len(head))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _scores(found: Sequence[Cell]) -> list[list[str]]:
    lengths = sorted({(cell.unit, cell.length) for cell in found})
    by_place = {(_row(cell), (cell.unit, cell.length)): cell for cell in found}
    rows = [["task", "score", "method", *(format_length(length, unit) for unit, length in lengths)]]
    rows += [
        [*row, *(_format_cell(by_place.get((row, length))) for length in lengths)]
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
        row = [cell.task, cell.method, format_length(cell.length, cell.unit)]
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


def write_report(out: Path, results: Sequence[SampleResult], title: str) -> list[str]:
    """Write report.md, report.html and the plots into a folder.

    Args:
        out: the folder.
        results: the results of the run.
        title: heading that names model and budgets.

    Returns:
        A line for each plot that could not be drawn; the report has it in the plot's place.
    """
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


def _format_cell(cell: Cell | None) -> str:
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


_DEPTHS = 10
_PANELS = 3
_COLOURS = [*(f"C{number}" for number in range(10)), "black", "gold"]


class Plots(NamedTuple):
    """The plots of a report.

    Attributes:
        files: those that were drawn.
        failures: a line for each that could not be drawn, with the reason.
    """

    files: list[Path]
    failures: list[str]


def draw(out: Path, cells: Sequence[Cell], results: Sequence[SampleResult]) -> Plots:
    """Draw score and cost by length, the score by depth, and that of documents left as they are."""
    whole = [cell for cell in cells if cell.unit == "whole"]
    by_length = [cell for cell in cells if cell.unit != "whole"]
    of_length = [result for result in results if result.unit != "whole"]
    panels = len({cell.task for cell in by_length}) if _several_methods(by_length) else 1
    height = max(5, 2.4 * -(-panels // _PANELS))
    return _draw_all(
        out,
        ("accuracy", (10, height), partial(_accuracy, cells=by_length)),
        ("whole", (8, 1 + 0.25 * len(whole)), partial(_whole, cells=whole)),
        ("cost", (10, 4), partial(_cost, cells=by_length, results=of_length)),
        ("depth", (10, 4), partial(_depth, results=of_length)),
    )


def draw_differences(out: Path, found: Sequence[Difference]) -> Plots:
    """Draw each change with its interval, those that are clear in colour."""
    size = (8, 1 + 0.25 * len(found))
    return _draw_all(out, ("comparison", size, partial(_changes, found=found)))


_Plot: TypeAlias = "tuple[str, tuple[float, float], Callable[[Figure], bool]]"


def _draw_all(out: Path, *plots: _Plot) -> Plots:
    """Draw each plot, which has a name and a size in inches, unless it has nothing to show."""
    drawn = Plots([], [])
    for name, size, paint in plots:
        file = out / f"{name}.png"
        try:
            figure = figure_kind()(figsize=size, dpi=80, layout="constrained")
            if paint(figure):
                figure.savefig(file)
                drawn.files.append(file)
        except Exception as error:  # noqa: BLE001 - no plot is worth the tables, whatever it is
            file.unlink(missing_ok=True)  # half of it, or that of an earlier report
            reason = f"{type(error).__name__}: {error}".removesuffix(".")
            drawn.failures.append(f"{file.name} could not be drawn ({reason}).")
    return drawn


def _changes(figure: Figure, found: Sequence[Difference]) -> bool:
    names = [f"{one.task} {format_length(one.length, one.unit)} {one.method}" for one in found]
    spans = [(one.change, one.low, one.high) for one in found]
    axes = _rows(figure, names, spans, ["C3" if one.is_clear else "grey" for one in found])
    axes.axvline(0, color="black", linewidth=0.5)
    axes.set(xlabel="change of the score, points")
    return True


def _whole(figure: Figure, cells: Sequence[Cell]) -> bool:
    """A row for each task and method whose documents have their own length."""
    names = [f"{cell.task} {cell.method} ({cell.metric})" for cell in cells]
    spans = [(cell.score, cell.low, cell.high) for cell in cells]
    if cells:
        axes = _rows(figure, names, spans, ["C0"] * len(cells))
        axes.set(xlabel="score, %, with its 95% interval", xlim=(-2, 102))
    return bool(cells)


def _rows(
    figure: Figure,
    names: Sequence[str],
    spans: Sequence[tuple[float, float, float]],
    colours: Sequence[str],
) -> Axes:
    """Each value with its interval in a row of its own, in percent."""
    axes = figure.add_subplot()
    for row, ((value, low, high), colour) in enumerate(zip(spans, colours, strict=True)):
        axes.errorbar(
            100 * value,
            row,
            xerr=[[100 * (value - low)], [100 * (high - value)]],
            marker="o",
            markersize=4,
            elinewidth=1,
            color=colour,
        )
    axes.set_yticks(range(len(names)), [_plain(name) for name in names])
    axes.invert_yaxis()
    axes.grid(alpha=0.3, axis="x")
    return axes


def figure_kind() -> type[Figure]:
    """The class of matplotlib's that plots are made of.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    with install_hint('To draw plots: pip install "memagent-graph[eval]"'):
        from matplotlib.figure import Figure
    return Figure


def _accuracy(figure: Figure, cells: Sequence[Cell]) -> bool:
    """Tasks in one panel if there is one method, else a panel for each task."""
    tasks = list(dict.fromkeys(cell.task for cell in cells))
    methods = list(dict.fromkeys(cell.method for cell in cells))
    if not cells:
        return False
    if not _several_methods(cells):
        axes = figure.add_subplot()
        _lines(axes, {task: [c for c in cells if c.task == task] for task in tasks})
        figure.legend(*axes.get_legend_handles_labels(), fontsize=8, loc="outside right center")
        return True
    rows = -(-len(tasks) // _PANELS)
    panels = figure.subplots(rows, min(_PANELS, len(tasks)), squeeze=False, sharey=True)
    for axes, task in zip(panels.flat, tasks, strict=False):
        own = [cell for cell in cells if cell.task == task]
        _lines(axes, {name: [c for c in own if c.method == name] for name in methods}, task)
    for axes in panels.flat[len(tasks) :]:
        axes.remove()
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=8, loc="outside right center")
    return True


def _several_methods(cells: Sequence[Cell]) -> bool:
    return len({cell.method for cell in cells}) > 1


def _lines(axes: Axes, lines: dict[str, list[Cell]], title: str = "Score by length") -> None:
    """Scores with their intervals; a little apart, so that equal ones do not hide each other."""
    for number, (name, line) in enumerate(lines.items()):
        scores = [100 * cell.score for cell in line]
        below = [100 * (cell.score - cell.low) for cell in line]
        above = [100 * (cell.high - cell.score) for cell in line]
        axes.errorbar(
            [cell.length * (1 + 0.02 * (number - len(lines) / 2)) for cell in line],
            scores,
            yerr=(below, above),
            label=_plain(name),
            marker="osv^D<>*pXPh"[number % 12],
            markersize=4,
            linewidth=1,
            elinewidth=0.4,
            color=_COLOURS[number % len(_COLOURS)],
        )
    _by_length(axes, [cell for line in lines.values() for cell in line])
    axes.set(ylabel="score, %", ylim=(-5, 105), title=_plain(title))


def _cost(figure: Figure, cells: Sequence[Cell], results: Sequence[SampleResult]) -> bool:
    if not cells:
        return False
    left, right = figure.subplots(1, 2)
    for method in sorted({cell.method for cell in cells}):
        own = [result for result in results if result.method == method]
        lengths = sorted({result.length for result in own})
        for axes, field in ((left, "seconds"), (right, "calls")):
            means = [
                mean_cost([getattr(r, field) for r in own if r.length == length])
                for length in lengths
            ]
            values = [m.value for m in means]
            axes.plot(lengths, values, marker="o", markersize=4, label=_plain(method))
            lows, highs = [m.low for m in means], [m.high for m in means]
            axes.fill_between(lengths, lows, highs, alpha=0.15)
    for axes, field in ((left, "seconds"), (right, "calls")):
        _by_length(axes, cells)
        if any(getattr(result, field) > 0 for result in results):  # else all have failed
            axes.set_yscale("log")
        axes.set(title=f"{field.capitalize()} a document, with 95% intervals")
    left.legend(fontsize=8)
    return True


def _depth(figure: Figure, results: Sequence[SampleResult]) -> bool:
    """Draw the mean score by the place of the evidence, for samples with one piece of it."""
    single = [r for r in results if r.depths and len(r.depths) == 1]
    methods = sorted({result.method for result in single})
    lengths = _lengths(single)
    if not single:
        return False
    for axes, method in zip(
        figure.subplots(1, len(methods), squeeze=False)[0], methods, strict=True
    ):
        grid = [[float("nan")] * len(lengths) for _ in range(_DEPTHS)]
        scores: dict[tuple[int, int], list[float]] = defaultdict(list)
        for result in single:
            if result.method == method and result.depths:
                row = min(_DEPTHS - 1, int(result.depths[0] * _DEPTHS))
                scores[row, [*lengths].index(result.length)].append(result.score or 0.0)
        for (row, column), values in scores.items():
            grid[row][column] = 100 * sum(values) / len(values)
        picture = axes.imshow(grid, vmin=0, vmax=100, cmap="RdYlGn", aspect="auto")
        axes.set_xticks(range(len(lengths)), lengths.values())
        axes.set_yticks(range(_DEPTHS), [f"{10 * row}%" for row in range(_DEPTHS)])
        axes.set(title=_plain(method), ylabel="depth of the evidence")
    figure.colorbar(picture, ax=figure.axes, label="score, %")
    return True


def _by_length(axes: Axes, cells: Sequence[Cell]) -> None:
    lengths = _lengths(cells)
    axes.set_xscale("log", base=2)
    axes.set_xticks([*lengths], lengths.values())
    axes.minorticks_off()
    axes.set_xlabel("length of the document")
    axes.grid(alpha=0.3)


def _lengths(some: Sequence[Cell] | Sequence[SampleResult]) -> dict[int, str]:
    """The lengths, in order, and what to call them."""
    return dict(sorted({one.length: format_length(one.length, one.unit) for one in some}.items()))


def _plain(name: str) -> str:
    """A name as it is: between two dollars, matplotlib reads a formula."""
    return name.replace("$", r"\$")


_HEAD = ["task", "method", "length", "samples", "before", "after", "change", "95%"]
_NOTE = "Paired by sample; a star where the 95% interval of the change leaves out zero."


@dataclass(frozen=True)
class Difference:
    """The change in the scores of one method on one task at one length.

    Attributes:
        task: the task.
        method: the method.
        unit: unit of the length.
        length: length of the documents.
        samples: number of samples that both runs have; failed ones count as zero.
        before: mean score of the first run on these samples.
        after: mean score of the second run on them.
        low: lower end of the 95% interval of `after - before`.
        high: upper end of that interval.
    """

    task: str
    method: str
    unit: Unit
    length: int
    samples: int
    before: float
    after: float
    low: float
    high: float

    @property
    def change(self) -> float:
        """The mean difference, from -1 to 1."""
        return self.after - self.before

    @property
    def is_clear(self) -> bool:
        """Whether chance hardly explains it."""
        return not self.low <= 0 <= self.high


def differences(before: Iterable[SampleResult], after: Iterable[SampleResult]) -> list[Difference]:
    """Pair the samples of two runs: the same question of the same document, by the same score.

    Raises:
        ConfigurationError: They have no sample in common.
    """
    known = {_question_of(result): result for result in before}
    pairs: dict[tuple[str, str, Unit, int], list[tuple[SampleResult, SampleResult]]] = defaultdict(
        list
    )
    for new in after:
        old = known.get(_question_of(new))
        if old and old.score is not None and new.score is not None:
            pairs[new.task, new.method, new.unit, new.length].append((old, new))
    if not pairs:
        message = "The two runs have no sample in common: same tasks, lengths, methods and seed?"
        raise ConfigurationError(message)
    return [_difference(*place, found) for place, found in sorted(pairs.items(), key=itemgetter(0))]


def _question_of(result: SampleResult) -> tuple[str, ...]:
    asked = (result.task, result.method, result.metric, result.document)
    return (*asked, result.question, *result.answers)


def _difference(
    task: str, method: str, unit: Unit, length: int, found: list[tuple[SampleResult, SampleResult]]
) -> Difference:
    old, new = ([pair[side].score or 0.0 for pair in found] for side in (0, 1))
    low, high = compute_paired_interval(old, new, [after.cluster for _, after in found])
    means = (
        fmean(old),
        fmean(new),
    )  # as `compute_paired_interval` takes them: it holds their difference
    return Difference(task, method, unit, length, len(found), *means, low, high)


def table(found: Sequence[Difference]) -> str:
    """The differences in Markdown, in percent."""
    rows = [_HEAD]
    for one in found:
        means = [f"{100 * one.before:.0f}", f"{100 * one.after:.0f}"]
        change = f"{100 * one.change:+.1f}{'*' if one.is_clear else ''}"
        span = f"{100 * one.low:+.1f} to {100 * one.high:+.1f}"
        place = [one.task, one.method, format_length(one.length, one.unit), str(one.samples)]
        rows.append([*place, *means, change, span])
    return in_markdown(rows)


def write_comparison(out: Path, found: Sequence[Difference], title: str) -> list[str]:
    """Write comparison.md and comparison.png into a folder, which is made if it is missing.

    Args:
        out: the folder.
        found: the changes.
        title: heading that names the runs.

    Returns:
        A line that says why there is no plot, if there is none.
    """
    out.mkdir(parents=True, exist_ok=True)
    plots = draw_differences(out, found)
    parts = [f"# {title}\n", f"{_NOTE}\n", table(found), *pictures(plots)]
    (out / "comparison.md").write_text("\n".join(parts), "utf-8")
    return plots.failures
