from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rl.rollouts import conversation, records

from memagent_graph.errors import TraceError
from memagent_graph.rl.shaping import (
    boxed_once,
    exit_reward,
    information_gain,
    information_rewards,
    length_penalty,
    update_reward,
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
    assert boxed_once(replace(rollout((1,)), response=response)) == worth


def test_updates_are_right_where_memory_changed_for_evidence_and_only_there():
    found = rollout((1,), (1,), (2,), (3,), (9,))

    assert update_reward(found, [True, False, True, True]) == 1
    assert update_reward(found, [True, True, True, False]) == 0.5
    with pytest.raises(TraceError, match="4 updates"):
        update_reward(found, [True])
    with pytest.raises(TraceError, match="0 updates"):
        update_reward(rollout((1,)), [])


@pytest.mark.parametrize(
    ("read", "needed", "chunks", "worth"),
    [(4, 4, 10, 1), (3, 4, 10, 0), (7, 4, 10, 0.5), (10, 4, 10, 0), (10, 10, 10, 1)],
)
def test_stopping_is_worth_most_right_after_the_last_evidence(read, needed, chunks, worth):
    assert exit_reward(read, needed, chunks) == worth


@pytest.mark.parametrize("numbers", [(0, 1, 2), (1, 0, 2), (3, 1, 2), (1, 3, 2)])
def test_numbers_of_chunks_that_do_not_fit_are_an_error(numbers):
    with pytest.raises(TraceError, match="chunks"):
        exit_reward(*numbers)


def test_information_gain_is_nats_per_token_of_the_right_answer():
    assert information_gain([-1.0, -0.5], [-3.0, -1.5]) == 1.5
    assert information_gain([-3.0], [-1.0]) == -2.0
    for told in ([], [-1.0, -2.0]):
        with pytest.raises(TraceError, match="log-probabilities"):
            information_gain(told, [-1.0])


def test_only_successful_rollouts_are_rewarded_for_information_from_0_to_1_in_a_group():
    found = information_rewards(
        gains=[3.0, 1.0, 2.0, 99.0, 5.0, 5.0],
        rewards=[1.0, 1.0, 1.0, 0.0, 1.0, 1.0],
        groups=["a", "a", "a", "a", "b", "b"],
    )

    assert found == [1.0, 0.0, 0.5, 0.0, 0.0, 0.0]
