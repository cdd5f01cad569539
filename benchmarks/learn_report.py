"""The table and the plots of `learn.py`."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure

if TYPE_CHECKING:
    from pathlib import Path

TASKS = {"1": "one hop", "2": "two hops"}


def write_report(found: dict[str, Any], folder: Path) -> str:
    """Draw `learning.png` and `extrapolation.png`; return the tables in Markdown.

    Args:
        found: what `learn.py` has measured.
        folder: of the plots, made if it is not there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _draw_learning(found["online"], folder / "learning.png")
    _draw_lengths(found["online"], folder / "extrapolation.png")
    return "\n".join([*_runs(found["online"]), "", *_lengths(found["online"]), ""])


def _runs(runs: list[dict[str, Any]]) -> list[str]:
    lines = [
        "| seed | | seconds in all | one hop | two hops |",
        "|---|---|---|---|---|",
    ]
    for run in runs:
        spent = run["warm_up_seconds"]
        rows = [("warm-up", 0.0, run["sampled_before"])]
        rows += [
            (f"{stop['iterations']} iterations", stop["seconds"], stop["sampled"])
            for stop in run["stops"]
        ]
        for name, seconds, sampled in rows:
            figures = " | ".join(f"{sampled[hops]:.3f}" for hops in TASKS)
            lines.append(f"| {run['seed']} | {name} | {spent + seconds:.0f} | {figures} |")
    return lines


def _lengths(runs: list[dict[str, Any]]) -> list[str]:
    lengths = list(runs[0]["scores"]["trained"]["1"])
    lines = [
        f"| task | reader | {' | '.join(lengths)} |",
        f"|---|---|{'---|' * len(lengths)}",
    ]
    for hops, task in TASKS.items():
        for reader in runs[0]["scores"]:
            known = [run["scores"][reader][hops] for run in runs if reader in run["scores"]]
            cells = [_cell([scores.get(at) for scores in known]) for at in lengths]
            lines.append(f"| {task} | {reader} | {' | '.join(cells)} |")
    return lines


def _cell(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return f"{known[0]:.2f}" if known else "-"
    return f"{fmean(known):.2f} ({min(known):.2f} to {max(known):.2f})"


def _draw_learning(runs: list[dict[str, Any]], path: Path) -> None:
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for run in runs:
        lines = [line for line in run["curve"] if "held_out_reward" in line]
        axes.plot(
            [line["iteration"] for line in lines],
            [line["held_out_reward"] for line in lines],
            marker="o",
            label=f"seed {run['seed']}",
        )
    axes.set(
        xlabel="iteration (16 questions, 8 readings each)",
        ylabel="sampled reward, held out",
        ylim=(0, 1.02),
        title="Documents of 4 chunks as trained on, both tasks",
    )
    axes.legend(frameon=False, loc="lower right")
    figure.savefig(path, dpi=120)


def _draw_lengths(runs: list[dict[str, Any]], path: Path) -> None:
    figure = Figure(figsize=(10, 4), layout="constrained")
    for axes, (hops, task) in zip(figure.subplots(1, 2, sharey=True), TASKS.items(), strict=True):
        for reader in runs[0]["scores"]:
            scores = [run["scores"][reader][hops] for run in runs if reader in run["scores"]]
            lengths = list(scores[0])
            values = [[one[at] for one in scores] for at in lengths]
            places = [int(at) for at in lengths]
            (line,) = axes.plot(places, [fmean(one) for one in values], marker="o", label=reader)
            axes.fill_between(
                places,
                [min(one) for one in values],
                [max(one) for one in values],
                color=line.get_color(),
                alpha=0.15,
                linewidth=0,
            )
        axes.axvline(4, color="grey", linestyle=":", linewidth=1)
        axes.set(xscale="log", xlabel="chunks of the document", title=task, ylim=(0, 1.02))
        axes.set_xticks(places := [int(at) for at in runs[0]["scores"]["trained"]["1"]], places)
        axes.minorticks_off()
    figure.axes[0].set_ylabel("right answers")
    figure.axes[0].legend(frameon=False, loc="center right")
    figure.savefig(path, dpi=120)
