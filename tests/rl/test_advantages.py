import math
import statistics
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rl.rollouts import records

from memagent_graph.errors import TraceError
from memagent_graph.rl.grpo import (
    Baseline,
    GRPOSettings,
    group_advantages,
    informative,
    make_training_rows,
)
from memagent_graph.rl.traces import Rollout, join

rewards = st.floats(-10, 10, allow_nan=False).map(lambda number: round(number, 6))
graded = st.lists(st.tuples(rewards, st.sampled_from("abc")), min_size=1, max_size=40)


def by_group(values, groups):
    return {
        name: [value for value, group in zip(values, groups, strict=True) if group == name]
        for name in groups
    }


@given(graded, st.booleans())
def test_advantages_of_a_group_sum_to_zero(rows, scale):
    given_rewards, groups = zip(*rows, strict=True)

    found = group_advantages(given_rewards, groups, scale=scale)

    for advantages in by_group(found, groups).values():
        assert math.fsum(advantages) == pytest.approx(0, abs=1e-8)


@given(graded)
def test_an_advantage_is_the_reward_less_the_mean_of_its_group(rows):
    given_rewards, groups = zip(*rows, strict=True)
    own = by_group(given_rewards, groups)

    found = by_group(group_advantages(given_rewards, groups), groups)

    assert found.keys() == own.keys()
    for name, advantages in found.items():
        mean = sum(map(Fraction, own[name])) / len(own[name])
        assert advantages == pytest.approx([float(Fraction(one) - mean) for one in own[name]])


@given(graded, st.booleans(), st.randoms(use_true_random=False))
def test_advantages_do_not_depend_on_the_order(rows, scale, rng):
    order = rng.sample(range(len(rows)), len(rows))

    found = group_advantages(*zip(*rows, strict=True), scale=scale)
    shuffled = group_advantages(*zip(*(rows[place] for place in order), strict=True), scale=scale)

    assert shuffled == [found[place] for place in order]


@given(rewards, st.integers(2, 20), st.booleans())
def test_equal_rewards_have_no_advantage_not_even_by_rounding(reward, count, scale):
    assert group_advantages([reward / 3] * count, ["g"] * count, scale=scale) == [0.0] * count


def test_rewards_that_differ_by_rounding_alone_are_not_blown_up():
    assert max(map(abs, group_advantages([0.3, 0.1 + 0.2], ["g", "g"], scale=True))) < 1e-9


@given(st.lists(st.tuples(rewards, st.integers(0, 6)), min_size=1, max_size=8))
def test_all_conversations_have_the_advantage_of_their_rollout_however_many_they_are(rows):
    rollouts = join(
        one
        for number, (reward, updates) in enumerate(rows)
        for one in records(f"r{number}", updates=updates, reward=reward)
    ).rollouts
    groups = [rollout.group for rollout in rollouts]

    advantages = group_advantages([rollout.reward for rollout in rollouts], groups)

    assert advantages == group_advantages([reward for reward, _ in rows], groups)
    vocabulary = rollouts[0].conversations[0].tokenizer
    options = {"settings": GRPOSettings(), "baseline": Baseline()}
    found, _ = make_training_rows(rollouts, vocabulary=vocabulary, **options)
    each = zip(advantages, rows, strict=True)
    expected = [advantage for advantage, (_, updates) in each for _ in range(updates + 1)]
    assert [row.advantage for row in found] == expected


def test_a_lone_rollout_is_measured_against_the_baseline():
    baseline = Baseline().with_rewards([0.0, 1.0, 0.5])

    found = group_advantages([1.0, 0.2, 0.4], ["lone", "pair", "pair"], baseline=baseline)

    assert found == pytest.approx([0.5, -0.1, 0.1])


@pytest.mark.parametrize("baseline", [None, Baseline()])
def test_a_lone_rollout_with_nothing_to_measure_against_has_no_advantage(baseline):
    assert group_advantages([1.0], ["lone"], baseline=baseline) == [0.0]


@given(st.lists(rewards, min_size=1, max_size=50))
def test_a_baseline_is_the_mean_until_its_horizon(values):
    whole, one_by_one = Baseline().with_rewards(values), Baseline()
    for value in values:
        one_by_one = one_by_one.with_rewards([value])

    assert whole.mean == pytest.approx(statistics.fmean(values), abs=1e-9)
    assert one_by_one.mean == pytest.approx(whole.mean, abs=1e-9)
    assert whole.count == one_by_one.count == len(values)


def test_beyond_its_horizon_a_baseline_follows_what_is_new():
    baseline = Baseline(horizon=10).with_rewards([0.0] * 1000)

    for _ in range(30):
        baseline = baseline.with_rewards([1.0])

    assert (baseline.mean, baseline.with_rewards([])) == (pytest.approx(1 - 0.9**30), baseline)
    assert baseline.with_rewards([5.0] * 100).mean == 5.0


@given(graded)
def test_groups_with_a_spread_are_kept_whole_and_the_others_counted(rows):
    spreads = {name: len({*own}) > 1 for name, own in by_group(*zip(*rows, strict=True)).items()}
    rollouts = [Rollout(f"r{n}", group, "q", (), "", r, 0) for n, (r, group) in enumerate(rows)]

    kept, dropped = informative(rollouts)

    assert kept == [one for one in rollouts if spreads[one.group]]
    assert dropped == sum(not spread for spread in spreads.values())


def test_nothing_to_compare_is_an_error():
    with pytest.raises(TraceError, match="at least one"):
        group_advantages([], [])
    with pytest.raises(TraceError, match="2 rewards and 1 groups"):
        group_advantages([1.0, 2.0], ["g"])
