"""A long series of days that are much the same, in a memory that has no room for all of them."""

from __future__ import annotations

import random
import re
from datetime import date, timedelta

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from memagent_graph import ConversationMemory

FIRST = date(2026, 1, 5)


def told(text, day):
    return HumanMessage(text, additional_kwargs={"told_at": str(day)})


def day_of(number, dated=True):
    return FIRST + timedelta(days=number if dated else 0)


def soup(number, chance):
    return f"On day {number} I ate soup at Rossi's."


def meals(number, chance):
    dish = chance.choice(["soup", "pasta", "risotto", "a salad", "fish"])
    place = chance.choice(["Rossi's", "the canteen", "Luigi's", "home"])
    friend = chance.choice(["", " with Ann", " with my boss", " in the rain"])
    return f"On day {number} I ate {dish} at {place}{friend}."


def lives(number, chance):
    """Nothing is said twice."""
    names = ["".join(chance.choices("abdegiklmnorstu", k=7)).capitalize() for _ in range(3)]
    said = chance.choice(["I met {} and {} in {}", "My train to {} was late, {} and {} waited"])
    return f"On day {number} {said.format(*names)}."


def remember(diary, count=300, dated=True, at_once=1, **options):
    chance = random.Random(7)
    memory = ConversationMemory(**options)
    said = [
        [told(diary(number, chance), day_of(number, dated)), AIMessage("Thanks for telling me.")]
        for number in range(count)
    ]
    for start in range(0, count, at_once):
        messages = [message for day in said[start : start + at_once] for message in day]
        memory.save(messages, user="ann", thread=f"{start}")
    return memory


def days_in(text):
    return sorted(int(number) for number in re.findall(r"(?m)^On day (\d+)", text))


@pytest.mark.parametrize("at_once", [1, 30, 300])
@pytest.mark.parametrize("dated", [True, False])
@pytest.mark.parametrize("diary", [soup, meals])
def test_the_last_days_are_remembered_and_a_spread_of_the_others(diary, dated, at_once):
    memory = remember(diary, dated=dated, at_once=at_once)

    days = days_in(memory.load("ann"))
    assert days[-20:] == [*range(280, 300)]
    others = [day for day in days if day < 280]
    assert len(others) >= 15
    assert {day // 70 for day in others} == {0, 1, 2, 3}


@pytest.mark.parametrize("at_once", [1, 30])
def test_the_last_days_are_remembered_however_they_differ(at_once):
    days = days_in(remember(lives, at_once=at_once).load("ann"))

    assert {*range(290, 300)} <= {*days}
    assert len([day for day in days if day < 200]) >= 15


def test_what_was_corrected_is_gone_from_the_memory_and_stands_in_its_history():
    def diary(number, chance):
        said = {
            10: "I live in Vienna.",
            60: "I moved to Graz.",
            120: "My dentist appointment is on Thursday.",
            121: "My dentist appointment is on Friday, not Thursday.",
            200: "My flight is on 3 May.",
            210: "My flight was moved to 5 May.",
        }
        return f"{said.get(number, '')} {meals(number, chance)}".strip()

    memory = remember(diary, count=240, keep_versions=None)

    text = memory.load("ann")
    past = "\n".join(version.text for version in memory.history("ann"))
    for fact in ("I moved to Graz.", "My dentist appointment is on Friday, not Thursday."):
        assert fact in text
    for fact in ("I live in Vienna.", "My dentist appointment is on Thursday.", "3 May."):
        assert fact not in text
        assert fact in past


def test_facts_that_stand_alone_outlive_days_that_are_all_the_same():
    def diary(number, chance):
        if number == 3:
            return "My daughter Mia plays the oboe. I am allergic to walnuts."
        return meals(number, chance)

    text = remember(diary, at_once=10).load("ann")

    assert "My daughter Mia plays the oboe." in text
    assert "I am allergic to walnuts." in text
