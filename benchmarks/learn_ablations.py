"""What each setting of the loop is worth on the small task: one is changed, the rest stays.

All runs of a seed start from its warm-up of `learn.py`, ask the same questions, and are shorter
than those of `learn.py`. Rows, resuming and `--report` are as there.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from learn import Run
from learn_report import difference, in_words, right_answers
from learn_rows import Rows, make_anew, prepare, read_rows
from learn_scores import HOPS, held_out, score

from memagent_graph.evaluation.run import in_markdown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from learn_rows import Row

ITERATIONS = 40
AS_IS = "as it is"
CHANGES: dict[str, Row] = {
    AS_IS: {},
    "16 updates an iteration, not 4": {"updates": 16, "decay_steps": 16 * ITERATIONS},
    "no dual clip": {"dual_clip": 1e6},
    "completions that were cut off are masked": {"mask_overlong": True},
    "not divided by the group's deviation": {"scale_advantages": False},
    "divergence term, weight 1e-3": {"kl_weight": 1e-3},
    "half of the groups start from one memory": {"shared_start": 0.5},
    "all groups start from one memory": {"shared_start": 1.0},
}
TIMES = {1: 400, 16: 200}
"""How many times as long the documents are that are asked about, and how many of each task."""


def ablate(
    seed: int,
    out: Path,
    *,
    only: str = "",
    times: Mapping[int, int] = TIMES,
    **fields: object,
) -> None:
    """Train and score with each change, as far as the rows lack it.

    Args:
        seed: of everything.
        out: folder of rows and models, where `learn.py` may have been before.
        only: words of the changes to try; as it is, the loop is always tried.
        times: documents of each length.
        fields: change the settings of all runs.
    """
    rows = Rows(out / "ablations.jsonl", seed=seed)
    shorter = {"iterations": ITERATIONS, "decay_steps": 4 * ITERATIONS, "evaluate_every": 0}
    for number, (name, change) in enumerate(CHANGES.items()):
        if only not in name and name != AS_IS:
            continue
        run = Run(seed, out, **shorter | change | fields)
        run.models(["before"])
        folder = out / f"ablations{seed}" / str(number)
        rows.once({"kind": "model", "way": name}, partial(make_anew, folder, run.learn))
        for at, documents in times.items():
            for hops in HOPS:
                about: Row = {"kind": "score", "way": name, "hops": hops, "times": at}
                rows.once(about, partial(_scored, folder, hops, at, documents, seed))


def report(rows: Sequence[Row]) -> str:
    """The table in Markdown: right answers of both tasks, and the difference to no change."""
    scores = [row for row in rows if row["kind"] == "score"]
    lengths = sorted({row["times"] for row in scores})
    table = [["change", *(f"{at}x{more}" for at in lengths for more in ("", ", difference"))]]
    for name in CHANGES:
        if not any(row["way"] == name for row in scores):
            continue
        cells = []
        for at in lengths:
            base, found = (right_answers(scores, way=way, times=at) for way in (AS_IS, name))
            cells += [in_words(found), "" if name == AS_IS else difference(base, found)]
        table.append([name, *cells])
    return in_markdown(table)


def _scored(folder: Path, hops: int, times: int, documents: int, seed: int) -> Row:
    return {"right": score(folder / "model", held_out(hops, times, documents, seed=seed))}


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse arguments and do it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--out", type=Path, default=Path("learned"))
    parser.add_argument("--only", default="", help="words of the changes to try; all by default")
    parser.add_argument("--report", action="store_true", help="measure nothing, and only report")
    asked = parser.parse_args(arguments)
    prepare(threads=1)
    asked.out.mkdir(parents=True, exist_ok=True)
    for seed in () if asked.report else asked.seeds:
        ablate(seed, asked.out, only=asked.only)
    print(report(read_rows(asked.out / "ablations.jsonl")))


if __name__ == "__main__":
    main()
