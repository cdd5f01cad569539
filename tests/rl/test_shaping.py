from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rl.rollouts import conversation, records

from memagent_graph.errors import TraceError
from memagent_graph.rl.rewards import (
    cost_rewards,
    exit_reward,
    has_one_box,
    information_rewards,
    length_penalty,
    update_rewards,
)
from memagent_graph.rl.traces import End, join


def rollout(*completions, response=""):
    """One whose conversations have these completions; the last is the answer."""
    last = len(completions) - 1
    found = [
        conversation(step=step, final=step == last, completion_ids=ids, logprobs=(-1.0,) * len(ids))
        for step, ids in enumerate(completions)
    ]
    return join([*found, End("r", len(found), "x", response=response)]).rollouts[0]


@pytest.mark.parametrize(
    ("lengths", "penalty"),
    [([80], 0), ([90], -0.5), ([100], -1), ([200], -1), ([80, 100], -0.5)],
)
def test_the_length_penalty_begins_at_the_margin_and_is_whole_at_the_budget(lengths, penalty):
    found = rollout(*[(1,) * length for length in lengths])

    assert length_penalty(found, budget=100, margin=20) == penalty


@given(st.lists(st.integers(1, 60), min_size=1, max_size=5), st.integers(1, 50))
def test_the_length_penalty_is_within_its_bounds(lengths, margin):
    found = rollout(*[(1,) * length for length in lengths])

    assert -1 <= length_penalty(found, budget=50, margin=margin) <= 0


@pytest.mark.parametrize("margin", [0, 101])
def test_a_margin_beyond_the_budget_is_an_error(margin):
    with pytest.raises(TraceError, match="margin"):
        length_penalty(join(records()).rollouts[0], budget=100, margin=margin)


@pytest.mark.parametrize(
    ("response", "worth"),
    [
        ("So \\boxed{42}.", 1),
        ("So \\boxed{a_{1}}.", 1),
        ("So 42.", 0),
        ("\\boxed{}", 0),
        ("\\boxed{ }", 0),
        ("\\boxed{42", 0),
        ("\\boxed{1} or \\boxed{2}", 0),
    ],
)
def test_the_format_is_one_box_that_is_closed_and_not_empty(response, worth):
    assert has_one_box(replace(rollout((1,)), response=response)) == worth


def reading(*changed, chunk=10):
    """One whose updates read chunks of so many code points, and changed the memory or not."""
    found = [
        conversation(step=step, start=chunk * step, end=chunk * (step + 1), changed=one)
        for step, one in enumerate(changed)
    ]
    found.append(conversation(step=len(changed), final=True))
    return join([*found, End("r", len(found), "x")]).rollouts[0]


def test_an_update_gate_is_right_where_memory_changed_for_evidence_and_only_there():
    evidence = [(3, 5), (28, 32)]  # in the first chunk, and across the third and the fourth

    assert update_rewards(reading(True, False, True, True), evidence) == (1, 1, 1, 1, None)
    assert update_rewards(reading(False, True, True, False), evidence) == (-1, -1, 1, -1, None)
    assert update_rewards(reading(True, False), []) == (-1, 1, None)


@pytest.mark.parametrize(
    ("read", "worth"), [(1, -0.75), (2, -0.75), (3, 0.0), (4, -0.5), (9, -0.5)]
)
def test_an_exit_is_right_after_the_chunk_of_the_last_evidence(read, worth):
    assert exit_reward(reading(*[True] * read), [(2, 4), (22, 30)]) == worth


def test_an_exit_that_nobody_can_judge_is_an_error():
    for found, evidence in ((reading(True), []), (rollout((1,), (2,)), [(0, 1)])):
        with pytest.raises(TraceError, match="cannot be judged"):
            exit_reward(found, evidence)


def test_information_is_normalized_among_the_successful_rollouts_of_a_group():
    found = information_rewards(
        gains=[3.0, 1.0, 2.0, 99.0, 5.0, 5.0, 7.0],
        rewards=[1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0],
        groups=["a", "a", "a", "a", "b", "b", "c"],
    )

    # Of 3, 1 and 2: a mean of 2, and a deviation of the root of two thirds.
    assert found == pytest.approx([1.5**0.5, -(1.5**0.5), 0, 0, 0, 0, 0])


def test_a_success_costs_its_share_of_the_most_of_its_group_and_a_failure_nothing():
    found = cost_rewards([10, 5, 20, 3, 0], [1.0, 1.0, 0.0, 1.0, 1.0], ["a", "a", "a", "b", "c"])

    assert found == [-0.5, -0.25, 0.0, -1.0, 0.0]
