from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memagent_graph.evaluation.scores import interval, mean_cost, mean_score, paired_interval

scores = st.lists(st.floats(0, 1), min_size=1, max_size=60)


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
    assert mean_score(values) == (sum(values) / len(values), *interval(values))


@given(scores)
def test_the_interval_holds_the_mean_and_narrows_with_more_of_the_same(values):
    low, high = interval(values)
    closer, tighter = interval(values * 4)

    mean = sum(values) / len(values)
    assert 0 <= low <= mean + 1e-9
    assert mean - 1e-9 <= high <= 1
    assert tighter - closer <= high - low


def test_no_scores_have_no_interval():
    with pytest.raises(ValueError, match="no scores"):
        interval([])


def test_the_interval_of_a_difference_agrees_with_a_case_worked_by_hand():
    # Right both times 9, only before 1, only after 6, never 4: the corrected phi is 0.2309.
    before = [1.0] * 9 + [1.0] * 1 + [0.0] * 6 + [0.0] * 4
    after = [1.0] * 9 + [0.0] * 1 + [1.0] * 6 + [0.0] * 4

    assert paired_interval(before, after) == pytest.approx((-0.0105, 0.4658), abs=2e-4)


pairs = st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=60)


@given(pairs)
def test_the_interval_of_a_difference_holds_it_and_turns_round_with_the_runs(scores):
    before, after = zip(*scores, strict=True)
    low, high = paired_interval(before, after)
    back = paired_interval(after, before)

    change = (sum(after) - sum(before)) / len(scores)
    assert -1 <= low <= change + 1e-9
    assert change - 1e-9 <= high <= 1
    assert (-back[1], -back[0]) == pytest.approx((low, high))


def test_samples_that_go_together_narrow_the_interval():
    before, after = [0.0, 1.0] * 20, [0.0, 1.0] * 19 + [1.0, 1.0]
    shuffled = [*reversed(after)]

    low, high = paired_interval(before, after)
    wide_low, wide_high = paired_interval(before, shuffled)

    assert high - low < (wide_high - wide_low) / 3


@pytest.mark.parametrize("size", [15, 60])
def test_the_interval_holds_the_true_difference_about_as_often_as_it_says(size):
    rng, held = random.Random(5), 0
    for _ in range(1000):
        hardness = [rng.random() for _ in range(size)]
        before = [float(rng.random() > hard) for hard in hardness]  # right half of the time
        after = [float(rng.random() > hard**2) for hard in hardness]  # two times in three
        low, high = paired_interval(before, after)
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
        low, high = paired_interval(before, after, clusters)
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
def test_with_clusters_the_interval_holds_the_mean_and_is_never_narrower(values, data):
    few = st.sampled_from(["a", "b", "c", ""])
    clusters = data.draw(st.lists(few, min_size=len(values), max_size=len(values)))

    low, high = interval(values, clusters)
    alone = interval(values)

    assert 0 <= low <= alone[0] + 1e-9
    assert alone[1] - 1e-9 <= high <= 1


def test_scores_that_are_no_pairs_are_refused():
    with pytest.raises(ValueError, match="as many"):
        paired_interval([1.0], [1.0, 0.0])
