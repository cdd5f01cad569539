import runpy
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memagent_graph.evaluation.scores import mean_score

PAIRED = Path(__file__).parents[2] / "benchmarks" / "intervals.py"
compute_paired_interval = runpy.run_path(str(PAIRED))["compute_paired_interval"]
ROUNDED = st.sampled_from([0.0, 1.0, 0.1 * 3, 1 / 3, 0.7, 5e-324, 1 - 2**-53])
"""Values of which sums, shares and square roots are rounded."""
grades = st.floats(0, 1) | ROUNDED
scores = st.lists(grades, min_size=1, max_size=60) | st.builds(
    lambda grade, number: [grade] * number, grades, st.integers(1, 200)
)


def interval(scores):
    return mean_score(scores)[1:]


def test_the_interval_agrees_with_a_published_table():
    # Newcombe (1998), Statistics in Medicine 17, table I: 81 of 263, and 0 of 20.
    assert interval([1.0] * 81 + [0.0] * 182) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert interval([0.0] * 20) == pytest.approx((0.0, 0.1611), abs=5e-5)


@given(scores)
def test_the_interval_of_a_score_holds_it_to_the_last_digit(values):
    value, low, high = mean_score(values)

    assert 0 <= low <= value <= high <= 1


def test_nothing_has_no_mean_and_no_interval():
    with pytest.raises(ValueError, match="at least one data point"):
        mean_score([])


def test_the_interval_of_a_difference_agrees_with_a_case_worked_by_hand():
    # Right both times 9, only before 1, only after 6, never 4: the corrected phi is 0.2309.
    before = [1.0] * 9 + [1.0] * 1 + [0.0] * 6 + [0.0] * 4
    after = [1.0] * 9 + [0.0] * 1 + [1.0] * 6 + [0.0] * 4

    assert compute_paired_interval(before, after) == pytest.approx((-0.0105, 0.4658), abs=2e-4)
