"""Tables of the rows that `benchmarks/ways.py` makes, and whether its goal is met."""

from __future__ import annotations

import json
from statistics import fmean
from typing import TYPE_CHECKING, Any

from paired import compute_paired_interval
from ways import FAST, MOST_CALLS, MOST_CHAIN, MOST_WORSE, WAYS, M, Row, is_reported

from memagent_graph.evaluation.run import in_markdown
from memagent_graph.evaluation.samples import short
from memagent_graph.evaluation.scores import mean_score
from memagent_graph.readers.scope import scope

if TYPE_CHECKING:
    from collections.abc import Sequence

EVERY = "one some all"
COST_GOALS = (
    ("calls", MOST_CALLS, EVERY),
    ("calls", MOST_CALLS, "one some"),
    ("chain", MOST_CHAIN, EVERY),
    ("chain", MOST_CHAIN, "one some"),
)
"""What is compared with MemAgent's, the most of it, and the scopes of the questions."""
LATENCIES = (0.05, 2.0)
"""Seconds of a call."""


def report(rows: Sequence[Row], chosen: dict[str, dict[str, Any]]) -> str:
    """All tables, in Markdown."""
    told = [
        row
        for row in rows
        if is_reported(row.task, row.index)
        and not row.plain
        and row.setting == json.dumps(chosen[row.way])
    ]
    settings = [["way", "setting"], *([way, json.dumps(one)] for way, one in chosen.items())]
    parts = [in_markdown(settings)]
    parts += [costs(told, rows, length) for length in sorted({row.length for row in told})]
    parts += [by_task(told), goals(told)]
    return "\n".join(parts)


def costs(told: Sequence[Row], rows: Sequence[Row], length: int) -> str:
    """What each way costs and scores at one length: means over questions."""
    head = [
        short(length),
        "score (95%)",
        "kept",
        "calls",
        "of MemAgent's",
        "tokens in",
    ]
    head += ["tokens out", "chain, mean", "longest", "at 50 ms", "at 2 s", "processor, s"]
    table, everything = [head], 0.0
    for way in WAYS:
        found = [row for row in told if row.way == way and row.length == length]
        if not found:
            continue
        score = mean_score([row.score for row in found])
        calls, chain = mean(found, "calls"), mean(found, "chain")
        everything = everything or calls
        plain = [r.processor for r in rows if r.plain and r.way == way and r.length == length]
        table.append(
            [
                f"{way} ({len(found)})",
                f"{100 * score.value:.1f} ({100 * score.low:.1f} to {100 * score.high:.1f})",
                f"{100 * fmean(row.kept for row in found):.1f}",
                f"{calls:.1f}",
                f"{calls / everything:.1%}",
                f"{mean(found, 'input_tokens'):,.0f}",
                f"{mean(found, 'output_tokens'):,.0f}",
                f"{chain:.1f}",
                str(max(row.chain for row in found)),
                *(f"{chain * seconds:.1f} s" for seconds in LATENCIES),
                f"{fmean(plain):.2f}" if plain else "-",
            ]
        )
    return in_markdown(table)


def mean(rows: Sequence[Row], field: str) -> float:
    return fmean(getattr(row, field) for row in rows)


def by_task(told: Sequence[Row]) -> str:
    """The score of each task at each length, in percent."""
    table = [["task", "length", "samples", *WAYS]]
    for task, length in dict.fromkeys((row.task, row.length) for row in told):
        found = [row for row in told if (row.task, row.length) == (task, length)]
        scores = [[row.score for row in found if row.way == way] for way in WAYS]
        cells = [f"{100 * fmean(some):.0f}" if some else "-" for some in scores]
        table.append([task, short(length), str(len(scores[0])), *cells])
    return in_markdown([table[0], *sorted(table[1:])])


def goals(told: Sequence[Row]) -> str:
    """Each fast way against the best way, and against MemAgent's calls and chain."""
    head = ["way", "goal", "questions", "best way", "worse by, or share", "most", "met"]
    table = [head]
    for way in FAST:
        table.append([way, *against_best(told, way)])
        table += [[way, *against_memagent(told, way, *goal)] for goal in COST_GOALS]
    return in_markdown(table)


def against_memagent(
    told: Sequence[Row], way: str, field: str, most: float, scopes: str
) -> list[str]:
    """A cost of a way at 1M tokens, as a share of MemAgent's for the same questions."""
    long = [row for row in told if row.length == M and scope(row.question) in scopes.split()]
    ours, theirs = (mean([r for r in long if r.way == one], field) for one in (way, "MemAgent"))
    asked, share = str(len({(row.task, row.index) for row in long})), ours / theirs
    met = "yes" if share <= most else "no"
    which = "" if scopes == EVERY else " (not read in full)"
    return [f"{field}{which}", asked, "", f"{share:.1%}", f"{most:.1%}", met]


def against_best(told: Sequence[Row], way: str) -> list[str]:
    """How a way does, both lengths together, against the best way."""
    scored = {
        one: {(row.task, row.length, row.index): row for row in told if row.way == one}
        for one in WAYS
    }
    best = max(WAYS, key=lambda one: fmean(row.score for row in scored[one].values()))
    places = [*scored[best].keys() & scored[way].keys()]
    before, after = ([scored[one][at].score for at in places] for one in (best, way))
    # The same question at two lengths is not two.
    low, _ = compute_paired_interval(
        before, after, [f"{task} {index}" for task, _, index in places]
    )
    worse = 100 * (fmean(before) - fmean(after))
    met = "yes" if -low <= MOST_WORSE else "no"
    return ["score", str(len(places)), best, f"{worse:.1f}", f"{-100 * low:.1f}", met]
