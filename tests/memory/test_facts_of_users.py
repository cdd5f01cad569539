"""A memory of a user with `schema=Facts`: facts with the messages that say them."""

from __future__ import annotations

import pytest
from doubles import Hearing, Stating
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.store.memory import InMemoryStore
from pydantic import BaseModel

from memagent_graph import ConversationMemory, Facts
from memagent_graph.errors import ConfigurationError

IDS = {"user": "ann", "thread": "monday"}


def said(*texts, first=1):
    return [
        HumanMessage(text, id=f"m{at}", additional_kwargs={"told_at": f"2026-03-{at:02}T10:00"})
        for at, text in enumerate(texts, first)
    ]


def stating(store=None, **more):
    return ConversationMemory(Stating(), store=store or InMemoryStore(), schema=Facts, **more)


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

    found = {fact.object: fact for fact in memory.facts("ann", history=True)}
    assert [found[name].message for name in ("Husum", "tea", "coffee", "chess", "Frisian")] == [
        "m1", "m2", "m3", "", "m4",
    ]  # fmt: skip


def test_what_was_said_last_holds_also_where_it_was_said_before():
    memory = stating()

    memory.save(said("I live in Rome.", "I live in Bern.", "I live in Rome."), **IDS)

    assert [fact.object for fact in memory.facts("ann", relation="lives in")] == ["Rome"]
    assert not any(fact.disputed for fact in memory.facts("ann"))


def test_a_model_is_asked_for_what_a_conversation_adds_and_a_schema_bounds_it():
    class Person(BaseModel):
        lives_in: str

    model = Hearing(
        messages=iter(
            [AIMessage("user | lives in | Husum\nuser | likes | tea"), AIMessage("unchanged")]
        ),
        heard=[],
    )
    memory = ConversationMemory(model, store=InMemoryStore(), schema=Facts(Person))

    memory.save(said("I live in Husum and like tea."), **IDS)
    memory.save(said("Hm.", first=2), **IDS)

    (fact,) = memory.facts("ann")
    assert (fact.object, fact.message) == ("Husum", "m1")
    assert "Person: lives in" in model.heard[0]
    assert "user | lives in | Husum" in model.heard[1]
    assert "1 (a fact outside the schema)" in memory.history("ann")[-1].warnings[0]


def test_what_a_user_never_said_is_marked():
    model = Hearing(messages=iter([AIMessage("user | works at | Zorn Mills")]), heard=[])
    memory = ConversationMemory(model, store=InMemoryStore(), schema=Facts)

    memory.save(said("I live in Husum."), **IDS)

    assert [fact.unsupported for fact in memory.facts("ann")] == [True]


def by(name, text, at):
    return HumanMessage(text, id=f"m{at}", name=name)


CHAT = [
    by("Ann", "I live in Rome. The deadline of Atlas is Friday.", 1),
    by("Bob", "Ann lives in Bern. The deadline of Atlas is Monday.", 2),
]


@pytest.mark.parametrize("folds", [1, 2], ids=["one fold", "two folds"])
def test_speakers_who_differ_are_in_conflict(folds):
    said = [
        "Ann | lives in | Rome\nAtlas | deadline | Friday",
        "Ann | lives in | Bern\nAtlas | deadline | Monday",
    ]
    said = said if folds == 2 else ["\n".join(said)]
    model = Hearing(messages=iter(map(AIMessage, said)), heard=[])
    memory = ConversationMemory(model, store=InMemoryStore(), schema=Facts)

    for end in (1, 2)[-folds:]:
        memory.save(CHAT[:end], **IDS)

    found = {fact.object: fact for fact in memory.facts("ann")}
    assert all(fact.disputed for fact in found.values())
    assert [found[name].speaker for name in ("Rome", "Bern", "Friday", "Monday")] == [
        "", "Bob", "Ann", "Bob",
    ]  # fmt: skip
    assert [found[name].message for name in ("Rome", "Bern")] == ["m1", "m2"]


def test_a_speaker_who_corrects_himself_updates():
    memory = stating()

    memory.save([CHAT[0], by("Ann", "The deadline of Atlas is Sunday.", 2)], **IDS)

    (fact,) = memory.facts("ann", relation="deadline")
    assert (fact.object, fact.disputed, fact.speaker) == ("Sunday", False, "Ann")


def test_facts_about_a_subject_are_forgotten():
    memory = stating(store=(store := InMemoryStore()))
    memory.save(said("I live in Husum. I like tea. I like black tea."), **IDS)

    gone = memory.forget_about("ann", "tea")

    assert "user | likes | tea" in gone
    assert [fact.object for fact in memory.facts("ann")] == ["Husum"]
    assert "tea" not in repr(store.search((), limit=1_000))
    assert memory.facts("ann")[0].message == "m1"


def test_an_edited_message_amends_what_it_said():
    memory = stating()
    memory.save(said("I live in Husum."), **IDS)

    memory.save(said("I live in Bern."), **IDS)

    assert [fact.object for fact in memory.facts("ann")] == ["Bern"]


def test_a_fold_that_waits_for_approval_proposes_facts_with_their_messages():
    memory = stating(approve=True)
    memory.save(said("I live in Husum."), **IDS)

    (proposal,) = memory.proposals("ann")
    before = memory.facts("ann")
    memory.accept("ann", proposal)

    assert before == []
    assert proposal.messages == ("m1",)
    assert memory.facts("ann")[0].message == "m1"


def test_only_facts_near_a_message_are_shown_beside_passages():
    memory = stating()
    lines = [f"The owner of Mill {at} is Bo Lund{at}." for at in range(120)]
    memory.save(said(*[" ".join(lines[at : at + 10]) for at in range(0, 120, 10)]), **IDS)

    (prompt,) = memory.prompt("ann", about="Who is the owner of Mill 77?")

    told = prompt.text.partition("<memory>")[2].partition("</memory>")[0]
    assert "Mill 77 | owner | Bo Lund77" in told
    assert "Mill 12 |" not in told


@pytest.mark.parametrize(
    "schema", [str, type("Profile", (BaseModel,), {"__annotations__": {"a": str}, "a": ""})]
)
def test_facts_are_not_overwritten_by_another_form(schema):
    store = InMemoryStore()
    stating(store).save(said("I live in Husum."), **IDS)
    model = Hearing(messages=iter([AIMessage("Ann likes tea.")]), heard=[])
    other = ConversationMemory(model, store=store, schema=schema)

    with pytest.raises(ConfigurationError, match="schema"):
        other.save(said("I like tea.", first=2), **IDS)


def test_only_a_memory_of_facts_has_facts():
    with pytest.raises(ConfigurationError, match="schema=Facts"):
        ConversationMemory().facts("ann")
    with pytest.raises(ConfigurationError, match="facts"):
        stating().entries("ann")


def test_without_a_model_the_error_names_what_to_pass():
    with pytest.raises(ConfigurationError, match='model="openai:gpt-4o-mini"'):
        ConversationMemory(schema=Facts).save(said("I like tea."), **IDS)
