from __future__ import annotations

from dataclasses import replace

import pytest
from rl.rollouts import conversation

from memagent_graph.errors import ConfigurationError
from memagent_graph.rl.rewards import Case, make_rescore
from memagent_graph.rl.traces import End, join

CASES = {"g": Case("Who?", ("Edda",), ((12, 14),))}


def reading(name, reward, *changed, response="Edda"):
    found = [
        conversation(name, step, start=10 * step, end=10 * (step + 1), changed=one)
        for step, one in enumerate(changed)
    ]
    found.append(conversation(name, len(changed), final=True))
    end = End(name, len(found), "Edda", reward, response=response)
    return join([*found, end]).rollouts[0]


def more_for_the_first(rollouts, _cases):
    first, *others = rollouts
    return [replace(first, reward=first.reward + 5), *others]


def test_each_named_reward_is_added_times_its_weight():
    rescore = make_rescore(
        {"exit": 2.0, "boxed": 0.25, "update": 0.5, "information": 0.1}, more_for_the_first
    )
    late = reading("r1", 1.0, True, True, True, response="\\boxed{Edda}")
    exact = reading("r2", 1.0, False, True)

    one, other = rescore([late, exact], CASES)

    assert one.reward == pytest.approx(1 + 2 * -0.5 + 0.25 + 0.1 * 5)
    assert one.step_rewards == (-0.5, 0.5, -0.5, None)
    assert other.reward == 1
    assert other.step_rewards == (0.5, 0.5, None)


def test_of_two_right_answers_that_of_fewer_calls_and_fewer_tokens_is_worth_more():
    rescore = make_rescore({"calls": 0.3, "written": 0.1}, more_for_the_first)
    short, long, wrong = (
        reading("r1", 1.0, True),
        reading("r2", 1.0, True, False, True),
        reading("r3", 0.0, True),
    )

    found = [one.reward for one in rescore([short, long, wrong], CASES)]

    assert found == pytest.approx([1 - 0.3 * 0.5 - 0.1 * 0.5, 1 - 0.3 - 0.1, 0])


def test_without_a_name_nothing_changes_and_an_unknown_one_is_refused():
    found = [reading("r1", 1.0, True)]
    assert make_rescore({}, more_for_the_first)(found, CASES) == found
    with pytest.raises(ConfigurationError, match="shaping has no exits"):
        make_rescore({"exits": 1.0}, more_for_the_first)
