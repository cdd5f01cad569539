"""The pictures of a report."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from memagent_graph.errors import MissingDependencyError
from memagent_graph.evaluation.intervals import mean_cost
from memagent_graph.evaluation.samples import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from memagent_graph.evaluation.comparison import Difference
    from memagent_graph.evaluation.report import Cell
    from memagent_graph.evaluation.results import Result

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


def draw(out: Path, cells: Sequence[Cell], results: Sequence[Result]) -> Plots:
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
    names = [f"{one.task} {shown(one.length, one.unit)} {one.method}" for one in found]
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
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        message = 'To draw plots: pip install "memagent-graph[eval]"'
        raise MissingDependencyError(message) from error
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


def _cost(figure: Figure, cells: Sequence[Cell], results: Sequence[Result]) -> bool:
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


def _depth(figure: Figure, results: Sequence[Result]) -> bool:
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


def _lengths(some: Sequence[Cell] | Sequence[Result]) -> dict[int, str]:
    """The lengths, in order, and what to call them."""
    return dict(sorted({one.length: shown(one.length, one.unit) for one in some}.items()))


def _plain(name: str) -> str:
    """A name as it is: between two dollars, matplotlib reads a formula."""
    return name.replace("$", r"\$")
