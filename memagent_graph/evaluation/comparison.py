"""Two runs over the same samples: what changed, and whether it may be chance."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from operator import itemgetter
from statistics import fmean
from typing import TYPE_CHECKING

from memagent_graph.errors import ConfigurationError
from memagent_graph.evaluation.intervals import paired_interval
from memagent_graph.evaluation.report import in_markdown, pictures
from memagent_graph.evaluation.samples import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from memagent_graph.evaluation.results import Result
    from memagent_graph.evaluation.samples import Unit

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


def differences(before: Iterable[Result], after: Iterable[Result]) -> list[Difference]:
    """Pair the samples of two runs: the same question of the same document, by the same score.

    Raises:
        ConfigurationError: They have no sample in common.
    """
    known = {_asked(result): result for result in before}
    pairs: dict[tuple[str, str, Unit, int], list[tuple[Result, Result]]] = defaultdict(list)
    for new in after:
        old = known.get(_asked(new))
        if old and old.score is not None and new.score is not None:
            pairs[new.task, new.method, new.unit, new.length].append((old, new))
    if not pairs:
        message = "The two runs have no sample in common: same tasks, lengths, methods and seed?"
        raise ConfigurationError(message)
    return [_difference(*place, found) for place, found in sorted(pairs.items(), key=itemgetter(0))]


def _asked(result: Result) -> tuple[str, ...]:
    asked = (result.task, result.method, result.metric, result.document)
    return (*asked, result.question, *result.answers)


def _difference(
    task: str, method: str, unit: Unit, length: int, found: list[tuple[Result, Result]]
) -> Difference:
    old, new = ([pair[side].score or 0.0 for pair in found] for side in (0, 1))
    low, high = paired_interval(old, new, [after.cluster for _, after in found])
    means = fmean(old), fmean(new)  # as `paired_interval` takes them: it holds their difference
    return Difference(task, method, unit, length, len(found), *means, low, high)


def table(found: Sequence[Difference]) -> str:
    """The differences in Markdown, in percent."""
    rows = [_HEAD]
    for one in found:
        means = [f"{100 * one.before:.0f}", f"{100 * one.after:.0f}"]
        change = f"{100 * one.change:+.1f}{'*' if one.is_clear else ''}"
        span = f"{100 * one.low:+.1f} to {100 * one.high:+.1f}"
        place = [one.task, one.method, shown(one.length, one.unit), str(one.samples)]
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
    from memagent_graph.evaluation.plots import draw_differences

    out.mkdir(parents=True, exist_ok=True)
    plots = draw_differences(out, found)
    parts = [f"# {title}\n", f"{_NOTE}\n", table(found), *pictures(plots)]
    (out / "comparison.md").write_text("\n".join(parts), "utf-8")
    return plots.failures
