"""A memory of a user with `schema=Facts`: facts with the messages that say them."""

import pytest
from conversations import dated, dump
from fixed_readers import fact_model
from langchain_core.messages import HumanMessage
from langgraph.store.memory import InMemoryStore
from pydantic import BaseModel

from memagent_graph import ConversationMemory, Facts
from memagent_graph.errors import ConfigurationError
from memagent_graph.testing import ScriptedChatModel

IDS = {"user": "ann", "thread": "monday"}


def said(*texts, first=1):
    return [dated(text, f"2026-03-{at:02}T10:00", f"m{at}") for at, text in enumerate(texts, first)]


def noting(*replies, schema=Facts, **more):
    model = ScriptedChatModel(*replies)
    return ConversationMemory(model, store=InMemoryStore(), schema=schema, **more), model


def stating(store=None, **more):
    return ConversationMemory(fact_model(), store=store or InMemoryStore(), schema=Facts, **more)


def test_facts_have_the_messages_that_say_them_in_every_store(store):
    memory = stating(store)

    memory.save(said("I live in Husum. I like tea.", "I moved to Bern."), **IDS)

    new, old = memory.facts("ann", relation="lives_in", history=True)[::-1]
    assert (new.object, new.message, new.told_at[:10]) == ("Bern", "m2", "2026-03-02")
    assert (old.object, old.status, old.message) == ("Husum", "replaced", "m1")
    assert [fact.object for fact in memory.facts("ann", subject="USER")] == ["tea", "Bern"]
    assert memory.load("ann").splitlines()[0] == "user | lives in | Husum | replaced"


def test_facts_keep_their_messages_over_folds_edits_and_changes():
    memory = stating()
    memory.save(said("I live in Husum.", "I like tea."), **IDS)

    memory.save(said("I live in Husum.", "I like tea.", "I like coffee."), **IDS)
    memory.users().edit("ann", f"{memory.load('ann')}\nuser | plays | chess", by="ann")
    memory.save(said("I speak Frisian.", first=4), **IDS)

    found = {fact.object: fact.message for fact in memory.facts("ann", history=True)}
    messages = {"Husum": "m1", "tea": "m2", "coffee": "m3", "chess": "", "Frisian": "m4"}
    assert found == messages


def test_what_was_said_last_holds_also_where_it_was_said_before():
    memory = stating()

    memory.save(said("I live in Rome.", "I live in Bern.", "I live in Rome."), **IDS)

    assert [fact.object for fact in memory.facts("ann", relation="lives in")] == ["Rome"]
    assert not any(fact.disputed for fact in memory.facts("ann"))


def test_a_model_is_asked_for_what_a_conversation_adds_and_a_schema_bounds_it():
    class Person(BaseModel):
        lives_in: str

    husum = "user | lives in | Husum"
    memory, model = noting(f"{husum}\nuser | likes | tea", "unchanged", schema=Facts(Person))

    memory.save(said("I live in Husum and like tea."), **IDS)
    memory.save(said("Hm.", first=2), **IDS)

    assert [(fact.object, fact.message) for fact in memory.facts("ann")] == [("Husum", "m1")]
    assert "Person: lives in" in model.prompts[0]
    assert husum in model.prompts[1]
    assert "1 (a fact outside the schema)" in memory.history("ann")[-1].warnings[0]


def by(name, text, at):
    return HumanMessage(text, id=f"m{at}", name=name)


CHAT = [
    by("Ann", "I live in Rome. The deadline of Atlas is Friday.", 1),
    by("Bob", "Ann lives in Bern. The deadline of Atlas is Monday.", 2),
]


@pytest.mark.parametrize("folds", [1, 2], ids=["one fold", "two folds"])
def test_speakers_who_differ_are_in_conflict(folds):
    notes = [
        "Ann | lives in | Rome\nAtlas | deadline | Friday",
        "Ann | lives in | Bern\nAtlas | deadline | Monday",
    ]
    memory, _ = noting(*(notes if folds == 2 else ["\n".join(notes)]))

    for end in (1, 2)[-folds:]:
        memory.save(CHAT[:end], **IDS)

    found = {fact.object: fact for fact in memory.facts("ann")}
    told = {name: (fact.speaker, fact.disputed) for name, fact in found.items()}
    speakers = {"Rome": "", "Bern": "Bob", "Friday": "Ann", "Monday": "Bob"}
    assert told == {name: (speaker, True) for name, speaker in speakers.items()}
    assert [found[name].message for name in ("Rome", "Bern")] == ["m1", "m2"]


def test_facts_about_a_subject_are_forgotten():
    memory = stating(store=(store := InMemoryStore()))
    memory.save(said("I live in Husum. I like tea. I like black tea."), **IDS)

    gone = memory.forget_about("ann", "tea")

    assert "user | likes | tea" in gone
    assert [fact.object for fact in memory.facts("ann")] == ["Husum"]
    assert "tea" not in dump(store)
    assert memory.facts("ann")[0].message == "m1"


def test_a_fold_that_waits_for_approval_proposes_facts_with_their_messages():
    memory = stating(approve=True)
    memory.save(said("I live in Husum."), **IDS)

    (proposal,) = memory.proposals("ann")
    assert (memory.facts("ann"), proposal.messages) == ([], ("m1",))
    memory.accept("ann", proposal)

    assert memory.facts("ann")[0].message == "m1"


def test_only_facts_near_a_message_are_shown_beside_passages():
    memory = stating()
    lines = [f"The owner of Mill {at} is Bo Lund{at}." for at in range(120)]
    memory.save(said(*[" ".join(lines[at : at + 10]) for at in range(0, 120, 10)]), **IDS)

    (prompt,) = memory.prompt("ann", about="Who is the owner of Mill 77?")

    told = prompt.text.partition("<memory>")[2].partition("</memory>")[0]
    assert "Mill 77 | owner | Bo Lund77" in told
    assert "Mill 12 |" not in told


class Profile(BaseModel):
    name: str = ""


@pytest.mark.parametrize("schema", [str, Profile])
def test_facts_are_not_overwritten_by_another_form(schema):
    stating(store := InMemoryStore()).save(said("I live in Husum."), **IDS)
    other = ConversationMemory(ScriptedChatModel("Noted."), store=store, schema=schema)

    with pytest.raises(ConfigurationError, match="schema"):
        other.save(said("I like tea.", first=2), **IDS)


def test_only_a_memory_of_facts_has_facts_and_it_needs_a_model():
    with pytest.raises(ConfigurationError, match="schema=Facts"):
        ConversationMemory().facts("ann")
    with pytest.raises(ConfigurationError, match="facts"):
        stating().entries("ann")
    with pytest.raises(ConfigurationError, match='model="openai:gpt-4o-mini"'):
        ConversationMemory(schema=Facts).save(said("I like tea."), **IDS)
