"""The table and the plots of the rows of `learn.py`."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure
from paired import compute_paired_interval

from memagent_graph.evaluation.run import in_markdown
from memagent_graph.evaluation.scores import mean_score
from memagent_graph.rl.training import Journal

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    Row = dict[str, Any]

TASKS = {1: "one hop", 2: "two hops"}
WAYS = {
    "before": "before",
    "labels": "supervised, right labels",
    "last": "GRPO, last conversation alone",
    "ours": "GRPO, all conversations",
}
LONG = 110


def write_report(rows: Sequence[Row], out: Path, folder: Path) -> str:
    """Draw `learning.png` and `extrapolation.png`; return the tables in Markdown.

    Args:
        rows: what `learn.py` has measured.
        out: where it has its models.
        folder: of the plots, made if it is not there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    scores = [row for row in rows if row["kind"] == "score"]
    made = [row for row in rows if row["kind"] == "model"]
    _draw_learning(made, out, folder / "learning.png")
    _draw_lengths(scores, folder / "extrapolation.png")
    tables = [_by_length(scores), _by_seed(scores), _differences(scores), _times(made)]
    return "\n".join(map(in_markdown, tables))


def _by_length(scores: Sequence[Row]) -> list[list[str]]:
    lengths = sorted({row["times"] for row in scores})
    table = [["task", "reader", *(f"{times}x" for times in lengths)]]
    for hops, task in TASKS.items():
        for way, name in WAYS.items():
            cells = [right_answers(scores, way=way, hops=hops, times=times) for times in lengths]
            table.append([task, name, *map(in_words, cells)])
    return table


def _by_seed(scores: Sequence[Row]) -> list[list[str]]:
    """Of the loop as it is, because seeds may differ by more than documents do."""
    lengths = sorted({row["times"] for row in scores})
    table = [["seed", "task", *(f"{times}x" for times in lengths)]]
    for seed in sorted({row["seed"] for row in scores}):
        for hops, task in TASKS.items():
            one = {"way": "ours", "hops": hops, "seed": seed}
            cells = [right_answers(scores, times=times, **one) for times in lengths]
            table.append([str(seed), task, *map(in_words, cells)])
    return table


def _differences(scores: Sequence[Row]) -> list[list[str]]:
    """What the goals are about, with intervals of the difference."""
    table = [["task", f"{WAYS['ours']}, less", "difference (95%)"]]
    for hops, task in TASKS.items():
        for way in ("labels", "last", "before"):
            pair = [right_answers(scores, way=one, hops=hops, times=LONG) for one in (way, "ours")]
            table.append([task, f"{WAYS[way]}, at {LONG}x", difference(*pair)])
        # Documents of another length are others: which goes with which means nothing.
        ends = [right_answers(scores, way="ours", hops=hops, times=times) for times in (1, LONG)]
        table.append([task, f"itself at 1x, at {LONG}x", difference(*ends)])
    return table


def _times(made: Sequence[Row]) -> list[list[str]]:
    table = [["seed", "model", "processor, s", "seconds"]]
    for row in sorted(made, key=lambda row: (row["seed"], [*WAYS].index(row["way"]))):
        name = "warm-up" if row["way"] == "before" else WAYS[row["way"]]
        spent = (f"{row['processor']:.0f}", f"{row['seconds']:.0f}")
        table.append([str(row["seed"]), name, *spent])
    return table


def right_answers(rows: Iterable[Row], **about: object) -> list[float]:
    """The scores of all rows that are about that, seed by seed."""
    found = [row for row in rows if about.items() <= row.items()]
    return [one for row in sorted(found, key=lambda row: row["seed"]) for one in row["right"]]


def in_words(right: Sequence[float]) -> str:
    """Return the mean with its 95% interval, as text."""
    if not right:
        return "-"
    mean = mean_score(right)
    return f"{mean.value:.3f} ({mean.low:.3f} to {mean.high:.3f})"


def difference(before: Sequence[float], after: Sequence[float]) -> str:
    """Return the change of the mean in points, with its 95% interval, as text."""
    if not before or len(before) != len(after):
        return "-"
    low, high = compute_paired_interval(before, after)
    change = fmean(after) - fmean(before)
    return f"{100 * change:+.1f} points ({100 * low:+.1f} to {100 * high:+.1f})"


def _draw_learning(made: Sequence[Row], out: Path, path: Path) -> None:
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for number, way in enumerate(("ours", "last")):
        runs = [row for row in made if row["way"] == way]
        for at, row in enumerate(runs):
            lines = Journal(out / f"seed{row['seed']}" / way).metrics()
            known = [line for line in lines if "held_out_reward" in line]
            axes.plot(
                [line["iteration"] for line in known],
                [line["held_out_reward"] for line in known],
                color=f"C{number}",
                label=None if at else f"{WAYS[way]} ({len(runs)} seeds)",
            )
    axes.set(
        xlabel="iteration (16 questions, 8 readings each)",
        ylabel="sampled reward",
        ylim=(0, 1.02),
        title="Documents of 4 chunks, in words never seen, both tasks",
    )
    axes.legend(frameon=False, loc="center right", bbox_to_anchor=(1, 0.62))
    figure.savefig(path, dpi=120)


def _draw_lengths(scores: Sequence[Row], path: Path) -> None:
    figure = Figure(figsize=(10, 4), layout="constrained")
    for axes, (hops, task) in zip(figure.subplots(1, 2, sharey=True), TASKS.items(), strict=True):
        for way, name in WAYS.items():
            lengths = sorted(
                {row["times"] for row in scores if row["way"] == way and row["hops"] == hops}
            )
            found = [right_answers(scores, way=way, hops=hops, times=times) for times in lengths]
            means = [mean_score(right) for right in found]
            (line,) = axes.plot(lengths, [one.value for one in means], marker="o", label=name)
            low, high = [one.low for one in means], [one.high for one in means]
            axes.fill_between(lengths, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
        axes.set(
            xscale="log", xlabel="times as long as learned from", title=task, ylim=(-0.02, 1.02)
        )
        axes.set_xticks(places := sorted({row["times"] for row in scores}), places)
        axes.minorticks_off()
    figure.axes[0].set_ylabel("right answers")
    figure.axes[0].legend(frameon=False)
    figure.savefig(path, dpi=120)
