from __future__ import annotations

import math
import random
import runpy
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memagent_graph.evaluation.scores import interval, mean_cost, mean_score

PAIRED = Path(__file__).parents[2] / "benchmarks" / "paired.py"
compute_paired_interval = runpy.run_path(str(PAIRED))["compute_paired_interval"]
ROUNDED = st.sampled_from([0.0, 1.0, 0.1 * 3, 1 / 3, 0.7, 5e-324, 1 - 2**-53])
"""Values of which sums, shares and square roots are rounded."""
grades = st.floats(0, 1) | ROUNDED
scores = st.lists(grades, min_size=1, max_size=60) | st.builds(
    lambda grade, number: [grade] * number, grades, st.integers(1, 200)
)
CLUSTERS = st.sampled_from(["a", "b", "c", ""])


def test_the_interval_agrees_with_a_published_table():
    # Newcombe (1998), Statistics in Medicine 17, table I: 81 of 263, and 0 of 20.
    assert interval([1.0] * 81 + [0.0] * 182) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert interval([0.0] * 20) == pytest.approx((0.0, 0.1611), abs=5e-5)


def test_the_interval_of_a_cost_agrees_with_a_case_worked_by_hand():
    # Student's quantile for 3 degrees of freedom is 3.182, the standard deviation 1.2910.
    assert mean_cost([1, 2, 3, 4]) == pytest.approx((2.5, 0.446, 4.554), abs=1e-3)
    assert mean_cost([7.0] * 50) == (7, 7, 7)


def test_of_a_single_cost_no_interval_is_known():
    mean, low, high = mean_cost([3])

    assert mean == 3
    assert math.isnan(low)
    assert math.isnan(high)


@given(scores)
def test_a_mean_score_comes_with_its_interval(values):
    value, *ends = mean_score(values)

    assert value == pytest.approx(sum(values) / len(values))
    assert tuple(ends) == interval(values)


@given(scores, st.data())
def test_the_interval_of_a_score_holds_it_to_the_last_digit(values, data):
    clusters = data.draw(st.lists(CLUSTERS, min_size=len(values), max_size=len(values)))

    for value, low, high in (mean_score(values), mean_score(values, clusters)):
        assert 0 <= low <= value <= high <= 1


@pytest.mark.parametrize("grade", [0.0, 1.0, 0.1 * 3])
def test_as_many_equal_scores_as_there_may_be_lie_within_their_interval(grade):
    for number in range(1, 300):
        value, low, high = mean_score([grade] * number)

        assert low <= value <= high
        assert value == pytest.approx(grade, abs=0, rel=1e-15)


@given(st.lists(st.floats(0, 1e100) | st.integers(0, 10**9) | ROUNDED, min_size=2, max_size=60))
def test_the_interval_of_a_cost_holds_it_to_the_last_digit(values):
    value, low, high = mean_cost(values)

    assert 0 <= low <= value <= high


@given(scores)
def test_the_interval_narrows_with_more_of_the_same(values):
    low, high = interval(values)
    closer, tighter = interval(values * 4)

    assert tighter - closer <= high - low


@pytest.mark.parametrize("mean", [interval, mean_score, mean_cost])
def test_nothing_has_no_mean_and_no_interval(mean):
    with pytest.raises(ValueError, match="There are no"):
        mean([])


def test_the_interval_of_a_difference_agrees_with_a_case_worked_by_hand():
    # Right both times 9, only before 1, only after 6, never 4: the corrected phi is 0.2309.
    before = [1.0] * 9 + [1.0] * 1 + [0.0] * 6 + [0.0] * 4
    after = [1.0] * 9 + [0.0] * 1 + [1.0] * 6 + [0.0] * 4

    assert compute_paired_interval(before, after) == pytest.approx((-0.0105, 0.4658), abs=2e-4)


pairs = st.lists(st.tuples(grades, grades), min_size=1, max_size=60)


@given(pairs | scores.map(lambda values: [(value, value) for value in values]), st.data())
def test_the_interval_of_a_difference_holds_it_to_the_last_digit(scores, data):
    before, after = zip(*scores, strict=True)
    clusters = data.draw(st.lists(CLUSTERS, min_size=len(scores), max_size=len(scores)))
    change = mean_score(after).value - mean_score(before).value

    for low, high in (
        compute_paired_interval(before, after),
        compute_paired_interval(before, after, clusters),
    ):
        assert -1 <= low <= change <= high <= 1


@given(pairs)
def test_the_interval_of_a_difference_turns_round_with_the_runs(scores):
    before, after = zip(*scores, strict=True)
    low, high = compute_paired_interval(before, after)
    back = compute_paired_interval(after, before)

    assert (-back[1], -back[0]) == pytest.approx((low, high), abs=1e-7)


def test_samples_that_go_together_narrow_the_interval():
    before, after = [0.0, 1.0] * 20, [0.0, 1.0] * 19 + [1.0, 1.0]
    shuffled = [*reversed(after)]

    low, high = compute_paired_interval(before, after)
    wide_low, wide_high = compute_paired_interval(before, shuffled)

    assert high - low < (wide_high - wide_low) / 3


@pytest.mark.parametrize("size", [15, 60])
def test_the_interval_holds_the_true_difference_about_as_often_as_it_says(size):
    rng, held = random.Random(5), 0
    for _ in range(1000):
        hardness = [rng.random() for _ in range(size)]
        before = [float(rng.random() > hard) for hard in hardness]  # right half of the time
        after = [float(rng.random() > hard**2) for hard in hardness]  # two times in three
        low, high = compute_paired_interval(before, after)
        held += low <= 2 / 3 - 1 / 2 <= high

    assert 930 <= held <= 985


def conversations(rng, number=12, questions=20, alike=0.25):
    """Zeros and ones that agree within a conversation more than across, and half are ones."""
    scores, clusters = [], []
    for one in range(number):
        easy = rng.betavariate(0.5 * (1 / alike - 1), 0.5 * (1 / alike - 1))
        scores += [float(rng.random() < easy) for _ in range(questions)]
        clusters += [f"conversation {one}"] * questions
    return scores, clusters


def test_questions_of_one_conversation_count_as_fewer():
    rng, held, naive = random.Random(7), 0, 0
    for _ in range(600):
        scores, clusters = conversations(rng)
        low, high = interval(scores, clusters)
        held += low <= 0.5 <= high
        low, high = interval(scores)
        naive += low <= 0.5 <= high

    assert 560 <= held <= 590
    assert naive < 420


def test_a_change_in_questions_of_one_conversation_is_not_taken_for_sure():
    rng, held = random.Random(8), 0
    for _ in range(600):
        before, clusters = conversations(rng)
        after, _ = conversations(rng)
        low, high = compute_paired_interval(before, after, clusters)
        held += low <= 0 <= high

    assert 555 <= held <= 598


def test_all_right_in_two_conversations_is_hardly_more_than_two_answers():
    twice = ["a"] * 50 + ["b"] * 50

    assert interval([1.0] * 100, twice)[0] < interval([1.0] * 2)[0] < interval([1.0] * 100)[0]


@given(scores, st.data())
def test_clusters_of_one_are_no_clusters(values, data):
    names = data.draw(st.permutations([f"{n}" for n in range(len(values))]))

    assert interval(values, names) == interval(values, [""] * len(values)) == interval(values)


@given(scores, st.data())
def test_with_clusters_the_interval_is_never_narrower(values, data):
    clusters = data.draw(st.lists(CLUSTERS, min_size=len(values), max_size=len(values)))

    low, high = interval(values, clusters)
    alone = interval(values)

    assert 0 <= low <= alone[0] + 1e-9
    assert alone[1] - 1e-9 <= high <= 1


def test_scores_that_are_no_pairs_are_refused():
    with pytest.raises(ValueError, match="as many"):
        compute_paired_interval([1.0], [1.0, 0.0])
