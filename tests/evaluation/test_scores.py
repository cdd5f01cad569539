from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memagent_graph.evaluation.scores import exact_match, interval, substring_match, token_f1

scores = st.lists(st.floats(0, 1), min_size=1, max_size=60)


@pytest.mark.parametrize(
    ("answer", "wanted", "every", "one"),
    [
        ("It is 42.", ["42"], 1, 1),
        ("AB and cd", ["ab", "CD", "ef", "gh"], 0.5, 1),
        ("nothing", ["42"], 0, 0),
        ("", ["42"], 0, 0),
        ("42", [], 0, 0),
    ],
)
def test_a_wanted_string_counts_wherever_it_stands_in_any_case(answer, wanted, every, one):
    assert substring_match(answer, wanted, "all") == every
    assert substring_match(answer, wanted, "any") == one


@pytest.mark.parametrize(
    ("answer", "wanted", "exact", "f1"),
    [
        ("The Eiffel Tower!", ["eiffel tower"], 1, 1),
        ("in Paris, France", ["Paris"], 0, 0.5),
        ("Paris", ["Rome", "Paris"], 1, 1),
        ("red blue blue", ["blue green"], 0, 0.4),
        ("", [""], 1, 1),
        ("", ["x"], 0, 0),
        ("x", [], 0, 0),
        ("a theatre", ["theatre"], 1, 1),
    ],
)
def test_exact_match_and_f1_agree_with_cases_worked_by_hand(answer, wanted, exact, f1):
    assert exact_match(answer, wanted) == exact
    assert token_f1(answer, wanted) == pytest.approx(f1)


def test_the_interval_agrees_with_a_published_table():
    # Newcombe (1998), Statistics in Medicine 17, table I: 81 of 263, and 0 of 20.
    assert interval([1.0] * 81 + [0.0] * 182) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert interval([0.0] * 20) == pytest.approx((0.0, 0.1611), abs=5e-5)


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
