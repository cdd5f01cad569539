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


@pytest.mark.slow
@pytest.mark.parametrize(("count", "at_once"), [(150, 1), (300, 30), (300, 300)])
@pytest.mark.parametrize("dated", [True, False])
@pytest.mark.parametrize("diary", [soup, meals, lives])
def test_the_last_days_are_remembered(diary, dated, count, at_once):
    memory = remember(diary, count, dated=dated, at_once=at_once)

    days = days_in(memory.load("ann"))
    assert days == [*range(days[0], count)]
    assert 40 <= len(days) < count


def test_a_correction_stands_beside_what_it_corrects_and_below_it():
    def diary(number, chance):
        said = {200: "I live in Vienna.", 210: "I moved to Graz."}
        return f"{said.get(number, '')} {meals(number, chance)}".strip()

    text = remember(diary, count=240, at_once=10).load("ann")

    assert text.index("I live in Vienna.") < text.index("I moved to Graz.")


def test_what_has_no_room_any_more_is_found_among_the_passages():
    def diary(number, chance):
        if number == 3:
            return "My daughter Mia plays the oboe. I am allergic to walnuts."
        return meals(number, chance)

    memory = remember(diary, at_once=10)
    (told_to_the_model,) = memory.prompt("ann", about="What does my daughter Mia play?")

    assert "My daughter Mia plays the oboe." not in memory.load("ann")
    assert "My daughter Mia plays the oboe." in told_to_the_model.text
