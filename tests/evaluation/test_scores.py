import json
import os
import random
import runpy
from dataclasses import astuple
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memagent_graph.evaluation.samples import (
    Sample,
    exact_match,
    final_answer,
    grade,
    hedges,
    holds,
    mean_score,
    substring_match,
)
from memagent_graph.text.tokens import EstimatingTokenizer

TOKENIZER = EstimatingTokenizer()


@pytest.mark.parametrize(("answer", "wanted", "every", "one"), [
    ("It is 42.", ["42"], 1, 1), ("AB and cd", ["ab", "CD", "ef", "gh"], 0.5, 1),
    ("nothing", ["42"], 0, 0), ("", ["42"], 0, 0), ("42", [], 0, 0),
])  # fmt: skip
def test_a_wanted_string_counts_wherever_it_stands_in_any_case(answer, wanted, every, one):
    assert substring_match(answer, wanted, "all") == every
    assert substring_match(answer, wanted, "any") == one


@pytest.mark.parametrize(("answer", "wanted", "exact"), [
    ("The Eiffel Tower!", ["eiffel tower"], 1), ("in Paris, France", ["Paris"], 0),
    ("Paris", ["Rome", "Paris"], 1), ("", [""], 1), ("x", [], 0), ("a theatre", ["theatre"], 1),
])  # fmt: skip
def test_exact_matches_agree_with_cases_worked_by_hand(answer, wanted, exact):
    assert exact_match(answer, wanted) == exact


def scored(reply, *answers, metric="any", most=None, template=None, **given):
    named = "a/1/0", "a", 1, "What?", answers, metric, lambda: iter(()), template
    return grade(reply, Sample(*named, answer_tokens=most), TOKENIZER, **given)


@pytest.mark.parametrize(("reply", "answer"), [
    (r"The notes say so. \boxed{Paris}", "Paris"),
    (r"\boxed{London} was my first idea. It is \boxed{Paris}.", "Paris"),
    (r"\boxed{Paris} or \boxed{London}", "Paris or London"),
    (r"They are \boxed{A}, \boxed{B}, and \boxed{C}.", "A, B, and C"),
    (r"\boxed{\text{Paris}}", "Paris"), (r"\boxed{{a} of {b}}", "{a} of {b}"),
    (r"\boxed{cut off", "cut off"),
    ("I read it twice. The answer is Paris.\nIt lies on the Seine.", "Paris."),
    ("**Answer:** Paris", "Paris"), ("Answer:\n\nParis", "Paris"),
    ("An answer: one. Correct answer is: two", "two"), ("", ""),
])  # fmt: skip
def test_the_answer_of_a_reply_is_what_it_boxes_or_announces(reply, answer):
    assert final_answer(reply) == answer


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        ("It is Paris, or London.", "Paris"),
        ("London or Paris", "Paris"),
        ("either 1912 or 1914", "1912"),
        ("1912 and 1914", "1914"),
        ("John C. Messenger, or else Bo", "John C. Messenger"),
        ("It is 5672073. Another number is 5672074.", "5672073"),
        ("可能是北京，或者上海", "北京"),
        (
            "366eb16f-508e-4ad7-b7c9-3acfe059a0ee, 366eb16f-508e-4ad7-b7c9-3acfe059a0ef",
            "366eb16f-508e-4ad7-b7c9-3acfe059a0ee",
        ),
    ],
)
def test_an_answer_that_offers_others_beside_the_right_one_scores_nothing(answer, wanted):
    assert (scored(answer, wanted).score, scored(answer, wanted).raw_score) == (0, 1)


def test_places_that_a_reader_puts_behind_its_answer_are_no_other_answers():
    reply = "It is 5672073. [novel.txt:123456]"

    assert scored(reply, "5672073", final="It is 5672073.").score == 1
    assert scored(r"\boxed{5672073}", "5672073", final="other").score == 1


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        ("On 3 May 1912, after 20 years", ["1912"]),
        ("NYC or New York", ["New York", "NYC"]),
        ("Romeo or Juliet", ["Romeo or Juliet"]),
        ("12 or more", ["12"]),
        ("more or less 40 km/h", ["40 km/h"]),
        ("1,776", ["1,776"]),
        ("It is 5672073, as the number 5672073 stands there.", ["5672073"]),
        ("Paris, France", ["Paris"]),
        (
            "It was Ada who wrote it, as those who saw her at the time or heard of it later said.",
            ["Ada"],
        ),
    ],
)
def test_what_only_looks_like_a_choice_counts(answer, wanted):
    assert scored(answer, *wanted).score == 1


@pytest.mark.parametrize(("answer", "wanted", "there"), [
    ("I do not know", "no", False), ("No, never", "no", True), ("in 19120", "1912", False),
    ("Paris's", "paris", True), ("他住在北京市", "北京", True), ("iPhone 4S", "iPhone 4", False),
    ("C++", "C++", True), ("anything", " ", False),
])  # fmt: skip
def test_a_wanted_string_stands_by_itself_in_an_answer(answer, wanted, there):
    assert holds(answer, wanted) == there


def test_no_more_of_an_answer_counts_than_the_task_allows():
    words = " ".join(f"{number * 10_000_019}" for number in range(1, 60))
    whole, cut = (
        scored(words, "10000019", "590001121", metric="all", most=most) for most in (None, 30)
    )

    assert (whole.score, cut.score, cut.raw_score) == (1, 0.5, 1)


def test_a_reply_may_repeat_how_the_task_s_own_prompt_begins_the_answer():
    lead = " Answer: According to the long text above, the variables with that value are: "
    asked = {"metric": "all", "most": 4, "template": "{memory} {question}" + lead}

    assert scored(f"Well.{lead}ABC DEF", "ABC", "DEF", **asked).score == 1


@given(st.text(alphabet="\\boxed{}or /.12a ", max_size=60), st.text(alphabet="ab1 ", max_size=4))
def test_scores_are_between_0_and_1_whatever_is_said(reply, wanted):
    assert all(0 <= score <= 1 for score in astuple(scored(reply, wanted))[1:])


FORMS = ["%s", "The answer is %s.", "So it is.\n\n\\boxed{%s}", "**Answer:** %s", "It is %s."]


def gold():
    folder = Path(os.environ.get("MEMAGENT_DATA", ""))
    files = folder / "xquad.en.json", folder / "nq_open.jsonl"
    if not all(file.exists() for file in files):
        pytest.skip("MEMAGENT_DATA has no xquad.en.json and nq_open.jsonl")
    articles, rows = (file.read_text("utf-8") for file in files)
    paragraphs = (part for one in json.loads(articles)["data"] for part in one["paragraphs"])
    asked = (asked for paragraph in paragraphs for asked in paragraph["qas"])
    found = [[answer["text"] for answer in one["answers"]] for one in asked]
    return found + [json.loads(row)["answers"] for row in rows.splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_every_right_answer_to_real_questions_counts_as_people_and_models_give_it(form):
    wrong = [answers for answers in gold() if scored(form % answers[0], *answers).score != 1]

    assert wrong == []


def test_of_two_real_answers_joined_by_or_hardly_any_passes_for_one():
    rng, answers = random.Random(0), gold()
    pairs = [(right, rng.choice(answers)[0]) for right in answers]

    passed = [1 for r, other in pairs if scored(f"It is {r[0]}, or {other}", *r).score]

    assert len(passed) < 0.06 * len(pairs)
    assert hedges("It is this, or that", ["this"])


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
