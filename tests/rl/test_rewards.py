from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memagent_graph.errors import ConfigurationError, TraceError
from memagent_graph.rl.grpo import REWARDS, exact, make_reward, number, substring

texts = st.text(max_size=40)
truths = st.lists(st.text(min_size=1).filter(str.strip), min_size=1, max_size=4)


@pytest.mark.parametrize(("answer", "wanted", "worth"), [
    ("The answer is \\boxed{paris!}.", ["the Paris"], 1),
    ("\\boxed{Rome}, no: \\boxed{\\text{Paris}}", ["Paris"], 1),
    ("\\boxed{Paris}, no: \\boxed{Rome}", ["Paris"], 0), ("It is Paris.", ["Paris"], 0),
    ("Edda", ["Anna", "edda"], 1), ("1,234.0", ["1234"], 1), ("\\boxed{$42$}", ["42.00"], 1),
    ("3.5", ["35"], 0), ("3,5", ["35"], 0), ("−5", ["-5"], 1), ("1/2", ["12"], 0),
    ("\\frac{1}{2}", ["0.5"], 1), ("50\\%", ["50"], 1), ("007", ["7"], 1), ("", ["x"], 0),
    ("東京", ["東京"], 1),
])  # fmt: skip
def test_exact_compares_numbers_as_numbers_and_all_else_as_squad_does(answer, wanted, worth):
    assert exact(answer, wanted) == worth


@given(st.fractions(), st.integers(0, 6))
def test_a_number_is_read_exactly(value, places):
    assert number(f"{value.numerator}/{value.denominator}") == value
    assert number(f"{value.numerator:,}") == value.numerator
    fixed = f"{float(value):.{places}f}"
    assert number(fixed) == Fraction(fixed)


@given(texts, truths)
def test_rewards_are_between_0_and_1_for_any_text(answer, wanted):
    assert all(0 <= reward(answer, wanted) <= 1 for reward in REWARDS.values())


@given(truths, st.integers(0, 3))
def test_the_best_of_several_right_answers_counts(wanted, place):
    answer = wanted[place % len(wanted)]

    assert substring(answer, wanted) == 1
    assert exact(answer, wanted) == max(exact(answer, [one]) for one in wanted)


@pytest.mark.parametrize("name", REWARDS)
@pytest.mark.parametrize("wanted", [[], [""], ["x", "  "], "x"])
def test_right_answers_that_would_make_every_answer_right_or_none_are_an_error(name, wanted):
    with pytest.raises(TraceError, match="right answers"):
        REWARDS[name]("x", wanted)


def test_a_reward_has_a_name_or_is_a_function():
    def short(answer, wanted):
        return len(answer) < 10

    assert (make_reward("exact")("Paris", ["Paris"]), make_reward(short)("Paris", [])) == (1, 1)


@pytest.mark.parametrize("worth", [float("nan"), float("inf"), None, "1"])
def test_a_reward_that_is_no_number_is_an_error_that_names_the_function(worth):
    def judge(answer, wanted):
        return worth

    with pytest.raises(TraceError, match=r"judge returned .* 'Paris'"):
        make_reward(judge)("Paris", ["Paris"])


def test_an_unknown_reward_is_an_error_that_names_those_there_are():
    with pytest.raises(ConfigurationError, match="exact, substring"):
        make_reward("best")
