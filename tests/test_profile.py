"""A memory with a shape: a pydantic model, of which each field has its evidence."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from datetime import UTC, date, datetime
from enum import Enum
from typing import Literal

import pytest
from doubles import Hearing
from hypothesis import given
from hypothesis import strategies as st
from langchain.agents import create_agent
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI
from langgraph.store.memory import InMemoryStore
from pydantic import BaseModel, Field, model_validator
from servers.openai_server import OpenAIServer

from memagent_graph import ConversationMemory, MemAgentMiddleware, ReadingConfig
from memagent_graph.conversation.profile import (
    Fields,
    FieldValue,
    ProfileEntry,
    read_entries,
    write_entries,
)
from memagent_graph.conversation.user_memory import UserMemory
from memagent_graph.errors import ConfigurationError, ModelError
from memagent_graph.memory.version import MemoryVersion
from memagent_graph.models.endpoint import ChatEndpoint


class Diet(Enum):
    VEGAN = "vegan"
    ANYTHING = "anything"


class Pet(BaseModel):
    name: str
    kind: str | None = None
    age: int | None = Field(None, ge=0)


class Address(BaseModel):
    city: str | None = None
    street: str | None = None


class Job(BaseModel):
    title: str
    company: str | None = None


class Trip(BaseModel):
    begins: date
    ends: date


class Profile(BaseModel):
    name: str | None = None
    diet: Diet | None = None
    born: date | None = None
    pets: list[Pet] = []
    address: Address = Address()
    hobbies: set[str] = set()
    trip: Trip | None = None
    nicknames: list[str] = Field([], max_length=2)


def change(field, value, message=1, action=None):
    action = action or ("add" if field in ("pets", "hobbies", "nicknames") else "set")
    return {"field": field, "action": action, "value": value, "message": message}


def changes(*items):
    return json.dumps({"changes": [*items]})


def keeper(*replies, schema=Profile, **options):
    """A memory whose model replies so, and what that was asked."""
    model = Hearing(messages=iter([AIMessage(reply) for reply in replies]), heard=[])
    return ConversationMemory(model, schema=schema, **options), model.heard


def said(text, day="2026-03-05", ident=None):
    return HumanMessage(text, additional_kwargs={"told_at": day}, id=ident)


def tell(memory, *texts, day="2026-03-05", thread="monday"):
    messages = [said(text, day, f"{thread} {day} {n}") for n, text in enumerate(texts)]
    memory.save(messages, user="ann", thread=thread)
    return memory.load("ann")


def test_fields_are_merged_one_by_one_and_each_has_its_evidence():
    memory, _ = keeper(
        changes(change("name", "Ann"), change("address.city", "Paris", 2)),
        changes(change("address.street", "Rue Cler 1"), change("pets", {"name": "Minou"})),
    )

    tell(memory, "I am Ann.", "I live in Paris.")
    found = tell(memory, "In the Rue Cler 1, with Minou.", day="2026-04-01", thread="tuesday")

    assert found == Profile(
        name="Ann", address=Address(city="Paris", street="Rue Cler 1"), pets=[Pet(name="Minou")]
    )
    assert memory.load("ann") == found
    city = next(entry for entry in memory.entries("ann") if entry.field == "address.city")
    assert city == ProfileEntry(
        "address.city", "Paris", "monday 2026-03-05 1", "monday", "2026-03-05"
    )


def test_a_user_of_whom_nothing_is_known_has_an_empty_profile():
    memory, _ = keeper()

    assert memory.load("ann") == Profile()
    assert memory.entries("ann") == []
    assert memory.prompt("ann") == []


def test_of_a_contradiction_the_newest_stays_and_that_is_said_without_a_word_of_it(caplog):
    memory, _ = keeper(
        changes(change("address.city", "Paris")), changes(change("address.city", "Berlin"))
    )
    tell(memory, "I live in Paris.")
    assert memory.history("ann")[0].warnings == ()

    with caplog.at_level(logging.WARNING):
        found = tell(memory, "I moved to Berlin.", day="2026-04-01")

    assert found.address.city == "Berlin"
    (warning,) = memory.history("ann")[0].warnings
    assert "address.city" in warning
    assert "newest" in warning
    assert warning in caplog.text
    assert not re.search("Paris|Berlin", caplog.text)
    now, before = memory.entries("ann")
    assert (now.value, now.told_at, now.until) == ("Berlin", "2026-04-01", "")
    assert (before.value, before.told_at, before.until) == ("Paris", "2026-03-05", "2026-04-01")


@pytest.mark.parametrize("action", ["set", "remove"])
def test_what_was_said_before_does_not_overwrite_what_was_said_since(action):
    memory, _ = keeper(
        changes(change("address.city", "Berlin")),
        changes(change("address.city", "Paris", action=action)),
    )
    tell(memory, "I moved to Berlin.", day="2026-04-01")

    found = tell(memory, "I live in Paris.", day="2026-03-05", thread="an older one")

    assert found.address.city == "Berlin"
    assert "address.city" in memory.history("ann")[0].warnings[0]


def test_a_list_has_each_item_once_and_what_is_learned_of_it_is_added_to_it():
    memory, _ = keeper(
        changes(change("pets", {"name": "Minou", "kind": "cat"}), change("hobbies", "chess")),
        changes(change("pets", {"name": "minou", "age": 4}), change("hobbies", " Chess")),
        changes(change("hobbies", "chess", action="remove"), change("hobbies", "go")),
    )

    tell(memory, "My cat is Minou, I play chess.")
    found = tell(memory, "Minou is 4 now.", day="2026-04-01")
    assert [(pet.kind, pet.age) for pet in found.pets] == [("cat", 4)]
    assert len(found.hobbies) == 1
    assert memory.history("ann")[0].warnings == ()

    assert tell(memory, "I gave up chess for go.", day="2026-05-01").hobbies == {"go"}


def test_values_that_only_fit_together_are_taken_together():
    class Span(BaseModel):
        least: int = 0
        most: int = 0

        @model_validator(mode="after")
        def _in_order(self):
            if self.least > self.most:
                raise ValueError("least is more than most")
            return self

    class Budget(BaseModel):
        span: Span = Span()

    memory, heard = keeper(
        changes(change("span.least", 5), change("span.most", 9)),
        changes(change("span.least", 12)),
        changes(change("span.least", 11)),
        schema=Budget,
    )

    assert tell(memory, "From 5 to 9.").span == Span(least=5, most=9)
    assert len(heard) == 1
    assert tell(memory, "At least 12.", day="2026-04-01").span == Span(least=5, most=9)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (change("diet", "veggie"), "'vegan' or 'anything'"),
        (change("pets", {"name": "Minou", "age": -1}), "greater than or equal to 0"),
        (change("pets", {"kind": "cat"}), "name"),
        (change("trip", {"begins": "2026-05-01"}), "ends"),
        (change("religion", "none"), "religion"),
        (change("born", "in May"), "date"),
    ],
)
def test_a_value_that_does_not_fit_is_sent_back_once_and_then_left_out(wrong, why):
    both = changes(change("name", "Ann"), wrong)
    memory, heard = keeper(both, both)

    found = tell(memory, "I am Ann, and so on.")

    assert found == Profile(name="Ann")
    assert len(heard) == 2
    assert why in heard[1]
    assert any("does not fit the schema" in w for w in memory.history("ann")[0].warnings)


def test_a_reply_that_is_mended_is_taken_whole():
    memory, heard = keeper(
        changes(change("diet", "veggie")), changes(change("diet", "vegan"), change("name", "Ann"))
    )

    assert tell(memory, "I am Ann, a vegan.") == Profile(name="Ann", diet=Diet.VEGAN)
    assert len(heard) == 2
    assert memory.history("ann")[0].warnings == ()


@pytest.mark.parametrize(
    "reply",
    [
        '```json\n{"changes": [{"field": "name", "action": "set", "value": "Ann"},]}\n```',
        'Here it is: {"name": "Ann", "diet": null} as you asked.',
        '<think>{"name": "Bob"}</think>{"changes": [{"field": "name", "value": "Ann"}]}',
        '{"name": "Ann", "address": {"city": null}, "pets": []}',
    ],
)
def test_what_models_write_around_json_or_in_its_place_is_understood(reply):
    memory, heard = keeper(reply)

    assert tell(memory, "I am Ann.") == Profile(name="Ann")
    assert len(heard) == 1


def test_a_model_that_writes_no_json_folds_nothing_and_the_messages_wait(caplog):
    memory, _ = keeper("She is Ann.", "Really.", *[changes(change("name", "Ann"))])
    messages = [said("I am Ann.", ident="1")]

    with pytest.raises(ModelError, match="JSON"):
        memory.save(messages, user="ann", thread="t")
    assert memory.history("ann") == []

    memory.save(messages, user="ann", thread="t")
    assert memory.load("ann") == Profile(name="Ann")


def test_a_value_is_kept_as_the_schema_writes_it():
    memory, _ = keeper(changes(change("pets", {"name": "Minou", "age": "4", "colour": "red"})))
    tell(memory, "My red cat Minou is 4.")

    (entry,) = memory.entries("ann")
    assert entry.value == {"name": "Minou", "kind": None, "age": 4}


def test_more_items_than_the_schema_allows_do_not_fit():
    third = changes(*[change("nicknames", name) for name in ("Anni", "Nanni", "Anno")])
    memory, _ = keeper(third, third)

    assert tell(memory, "Call me Anni, Nanni or Anno.").nicknames == ["Anni", "Nanni"]
    assert "nicknames" in memory.history("ann")[0].warnings[0]


def test_what_only_a_tool_said_is_not_known_of_the_user():
    memory, heard = keeper(
        changes(
            change("name", "Bob", 3), change("diet", "vegan", 1), change("born", "2000-01-01", 2)
        )
    )
    messages = [
        said("I am a vegan. Who wrote this book?", ident="1"),
        AIMessage("", tool_calls=[{"name": "look", "args": {}, "id": "c"}], id="2"),
        ToolMessage("Bob, born 2000", tool_call_id="c", name="look", id="3"),
    ]

    memory.save(messages, user="ann", thread="t")

    assert memory.load("ann") == Profile(diet=Diet.VEGAN)
    assert "[3] [2026-03-05] tool look: Bob" in heard[0]
    assert "tool" in memory.history("ann")[0].warnings[0]


def test_a_schema_that_changed_loads_what_still_fits_and_says_what_does_not(caplog):
    class Before(BaseModel):
        name: str | None = None
        age: str | None = None
        religion: str | None = None
        hobbies: list[str] = []

    class After(BaseModel):
        name: str | None = None
        age: int | None = None
        hobbies: list[str] = []
        city: str = "unknown"

    store = InMemoryStore()
    items = [change("name", "Ann"), change("age", "forty"), change("religion", "none")]
    before, _ = keeper(changes(*items, change("hobbies", "chess")), schema=Before, store=store)
    tell(before, "All of it.")
    after, _ = keeper(changes(change("age", 41)), schema=After, store=store)

    with caplog.at_level(logging.WARNING):
        assert after.load("ann") == After(name="Ann", hobbies=["chess"])
    assert "2 lines" in caplog.text
    assert "After" in caplog.text
    assert "forty" not in caplog.text
    assert {e.field for e in after.entries("ann") if not e.fits} == {"age", "religion"}
    assert "religion" not in after.prompt("ann")[0].text

    assert tell(after, "I am 41.", day="2026-04-01").age == 41
    assert {e.field for e in after.entries("ann") if not e.fits and not e.until} == {"religion"}
    assert before.load("ann") == Before(name="Ann", religion="none", hobbies=["chess"])


def test_notes_that_were_kept_as_a_text_are_shown_to_the_model_that_fills_in_the_profile():
    store = InMemoryStore()
    text = ConversationMemory(
        GenericFakeChatModel(messages=iter([AIMessage("2026-01-01: Her name is Ann.")])),
        store=store,
    )
    tell(text, "I am Ann.", thread="before")
    memory, heard = keeper(changes(change("name", "Ann", 0)), store=store)
    assert memory.load("ann") == Profile()

    assert tell(memory, "Hello again.", day="2026-04-01").name == "Ann"
    assert "Her name is Ann." in heard[0]


def test_a_profile_is_not_overwritten_with_notes():
    store = InMemoryStore()
    memory, _ = keeper(changes(change("name", "Ann")), store=store)
    tell(memory, "I am Ann.")

    with pytest.raises(ConfigurationError, match="schema"):
        tell(ConversationMemory(store=store), "I keep llamas.", day="2026-04-01")

    assert memory.load("ann") == Profile(name="Ann")


def test_a_profile_over_its_budget_is_asked_for_again_and_then_loses_the_oldest_items():
    config = ReadingConfig(memory_tokens=60)
    first = changes(change("name", "Ann"), *[change("hobbies", f"hobby {n}") for n in range(3)])
    many = changes(*[change("hobbies", f"sport number {n}") for n in range(8)])
    memory, heard = keeper(first, many, many, config=config)
    tell(memory, "Three hobbies.")

    found = tell(memory, "Eight sports.", day="2026-04-01")

    assert len(heard) == 3
    assert "longer than there is room for" in heard[2]
    assert found.name == "Ann"  # older than any of them, but no item of a list
    assert found.hobbies
    assert not any(name.startswith("hobby") for name in found.hobbies)
    assert memory.history("ann")[0].tokens <= 60
    warnings = " ".join(memory.history("ann")[0].warnings)
    assert "asked once more" in warnings
    assert "had to go" in warnings


def test_a_profile_from_which_all_is_taken_is_empty():
    memory, _ = keeper(
        changes(change("name", "Ann")), changes(change("name", None, action="remove"))
    )
    tell(memory, "I am Ann.")

    assert tell(memory, "Forget my name.", day="2026-04-01") == Profile()
    assert memory.prompt("ann") == []
    assert [entry.until for entry in memory.entries("ann")] == ["2026-04-01"]


def test_no_change_is_no_change():
    memory, _ = keeper(changes(change("name", "Ann")), changes())
    tell(memory, "I am Ann.")
    before = memory.entries("ann")

    assert tell(memory, "Nice weather.", day="2026-04-01") == Profile(name="Ann")
    assert memory.entries("ann") == before
    fresh, _ = keeper(changes())
    tell(fresh, "Nice weather.")
    assert fresh.history("ann")[0].text == ""


def test_the_profile_is_told_readably():
    pets = change("pets", {"name": "Minou", "kind": "cat", "age": None})
    memory, _ = keeper(changes(pets, change("address.city", "Paris"), change("diet", "vegan")))
    tell(memory, "All of it.")

    (told,) = memory.prompt("ann")

    assert "2026-03-05: pets: name Minou, kind cat\n" in told.text
    assert "2026-03-05: address city: Paris" in told.text


def test_a_message_that_goes_on_in_the_next_chunk_is_evidence_there_too():
    config = ReadingConfig(chunk_tokens=2000)
    memory, heard = keeper(
        changes(), *[changes(change("name", "Ann", 1))] * 9, schema=Profile, config=config
    )

    tell(memory, "First.", "I talk and talk. " * 700 + "I am Ann.")

    assert len(heard) > 2
    assert "user, going on: " in heard[-1]
    (entry,) = memory.entries("ann")
    assert entry.message == "monday 2026-03-05 1"


def test_as_many_earlier_values_are_kept_as_versions():
    days = [f"2026-03-{n:02}" for n in range(1, 9)]
    memory, _ = keeper(
        *[changes(change("address.city", f"City {n}")) for n in range(8)], keep_versions=3
    )
    for n, day in enumerate(days):
        tell(memory, f"I live in City {n}.", day=day)

    assert [entry.value for entry in memory.entries("ann")] == ["City 7", "City 6", "City 5"]
    assert len(memory.history("ann")) == 3


def test_values_that_were_replaced_long_ago_go_with_the_versions():
    today = datetime.now(UTC).date().isoformat()
    memory, _ = keeper(
        *[changes(change("address.city", f"City {n}")) for n in range(3)], keep_days=30
    )
    for n, day in enumerate(["2025-01-01", "2025-02-01", today]):
        tell(memory, f"I live in City {n}.", day=day)

    assert [entry.value for entry in memory.entries("ann")] == ["City 2", "City 1"]


def test_forgetting_a_user_forgets_the_profile_and_its_evidence():
    store = InMemoryStore()
    memory, _ = keeper(changes(change("name", "Ann")), store=store)
    tell(memory, "I am Ann.")

    assert memory.forget("ann").items > 0

    assert memory.load("ann") == Profile()
    assert memory.entries("ann") == []
    assert "ann" not in str(store.search((), limit=100)).casefold()


def test_what_is_redacted_reaches_neither_the_model_nor_the_profile():
    memory, heard = keeper(
        changes(change("name", "Ann")), redact=lambda text: text.replace("saffron", "[card]")
    )
    tell(memory, "I am Ann, my card is saffron.")

    assert "[card]" in heard[0]
    assert "saffron" not in heard[0] + str(memory.history("ann"))


def test_what_never_to_remember_is_part_of_the_question():
    memory, heard = keeper(changes(), keep="allergies", never="what they earn")
    tell(memory, "I earn a lot.")

    assert "Remember above all: allergies" in heard[0]
    assert "what they earn" in heard[0]


def test_an_edit_of_a_person_counts_and_has_no_evidence():
    store = InMemoryStore()
    memory, _ = keeper(changes(change("name", "Ann"), change("address.city", "Paris")), store=store)
    tell(memory, "I am Ann, in Paris.")
    bank = UserMemory(store, ("memagent",), "ann").bank

    bank.edit("memory", bank.head("memory").text.replace("Paris", "Rome"))

    assert memory.load("ann").address.city == "Rome"
    name, rome, paris = memory.entries("ann")
    assert name.message
    assert (rome.value, rome.message, rome.told_at) == ("Rome", "", "2026-03-05")
    assert paris.value == "Paris"
    assert paris.until


async def test_two_turns_of_one_user_at_once_lose_nothing():
    class Slow(GenericFakeChatModel):
        async def _agenerate(self, messages, *args, **options):
            await asyncio.sleep(0.01)
            hobby = re.findall(r"I like (\w+)", messages[0].text)[-1]
            self.messages = iter([AIMessage(changes(change("hobbies", hobby)))])
            return self._generate(messages)

    memory = ConversationMemory(Slow(messages=iter([])), schema=Profile)

    await asyncio.gather(
        *(memory.asave([said(f"I like h{n}")], user="ann", thread=str(n)) for n in range(6))
    )

    assert (await memory.aload("ann")).hobbies == {f"h{n}" for n in range(6)}


class Required(BaseModel):
    name: str


class Anything(BaseModel):
    call: type = int


class Nothing(BaseModel):
    pass


class Undefined(BaseModel):
    home: Nowhere | None = None  # noqa: F821 - that is the point


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (Required, "default to name"),
        (Anything, "JSON"),
        (Nothing, "no fields"),
        (Undefined, "Nowhere"),
        (dict, "pydantic model"),
        (Profile(), "pydantic model"),
    ],
)
def test_a_schema_that_cannot_be_a_profile_is_refused(schema, why):
    with pytest.raises(ConfigurationError, match=why):
        keeper(schema=schema)


def test_a_schema_that_leaves_no_room_for_what_was_said_is_refused():
    with pytest.raises(ConfigurationError, match="more than half"):
        keeper(config=ReadingConfig(chunk_tokens=200))


def test_a_profile_takes_a_chat_model_and_a_text_has_no_entries():
    with pytest.raises(ConfigurationError, match="chat model"):
        ConversationMemory("extractive", schema=Profile)
    with pytest.raises(ConfigurationError, match="schema"):
        ConversationMemory().entries("ann")


class Person(BaseModel):
    name: str | None = None
    partner: Person | None = None


def test_models_within_themselves_have_an_end():
    memory, _ = keeper(changes(change("partner", {"name": "Bob"})), schema=Person)

    assert tell(memory, "My partner is Bob.") == Person(partner=Person(name="Bob"))


@pytest.fixture
def server():
    server = OpenAIServer(lambda body: changes(change("name", "Ann")))
    yield server
    server.close()


def endpoint(server):
    return ChatEndpoint(model="small", base_url=server.base_url)


def chat_openai(server):
    return ChatOpenAI(model="small", base_url=server.base_url, api_key="none", max_retries=0)


@pytest.mark.parametrize("model", [endpoint, chat_openai])
def test_a_server_is_asked_to_hold_the_reply_to_the_schema(server, model):
    memory = ConversationMemory(model(server), schema=Profile)

    assert tell(memory, "I am Ann.") == Profile(name="Ann")
    (request,) = server.requests
    wanted = request["response_format"]["json_schema"]["schema"]
    assert wanted == Fields(Profile).changes | {
        key: wanted[key] for key in ("title", "description") if key in wanted
    }


@pytest.mark.parametrize("model", [endpoint, chat_openai])
def test_a_server_that_takes_no_schema_is_asked_without_one(server, model):
    refusal = {"message": "response_format is not supported", "type": "invalid_request_error"}
    server.script = [{"status": 400, "error": refusal}]
    memory = ConversationMemory(model(server), schema=Profile)

    assert tell(memory, "I am Ann.") == Profile(name="Ann")
    tell(memory, "Still Ann.", day="2026-04-01")
    assert ["response_format" in request for request in server.requests] == [True, False, False]


async def test_no_stream_of_a_run_has_what_the_model_notes(server):
    server.reply = lambda body: (
        changes(change("name", "Xanthippe")) if "You keep the profile" in str(body) else "Hello."
    )
    memory = ConversationMemory(endpoint(server), schema=Profile, remember_within=1e6, window=1)
    agent = create_agent(endpoint(server), [], middleware=[MemAgentMiddleware(memory)])
    config = {"configurable": {"user_id": "ann", "thread_id": "t"}}
    messages = {"messages": [("human", "It is me."), ("ai", "Hello."), ("human", "Yes, me.")]}

    heard = [
        str(part)
        async for part in agent.astream(
            messages, config, stream_mode=["messages", "updates", "custom", "values"]
        )
    ]

    assert (await memory.aload("ann")).name == "Xanthippe"
    assert heard
    assert "Xanthippe" not in "".join(heard)
    assert "changes" not in "".join(heard)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=6,
)
NAMES = st.from_regex(r"\A[a-z_]+(\.[a-z_]+)?\Z")
DAYS = st.sampled_from(["", "2026-03-05", "2025-12-31"])


@pytest.mark.slow
@given(st.lists(st.builds(FieldValue, NAMES, JSON, DAYS)))
def test_entries_are_read_as_they_were_written(entries):
    assert read_entries(write_entries(entries)) == (entries, [])


@pytest.mark.slow
@given(st.lists(st.builds(FieldValue, st.sampled_from([*Fields(Profile).by_path]), JSON, DAYS)))
def test_whatever_is_stored_a_profile_is_made_of_what_fits(entries):
    fitted = Fields(Profile).fit(entries)

    assert isinstance(fitted.profile, Profile)
    assert len(fitted.entries) + len(fitted.misfits) == len(entries)
    assert Fields(Profile).fit(fitted.entries).misfits == []


def test_who_told_what_survives_the_store():
    memory, _ = keeper(changes(change("name", "Ann")), changes(change("name", "Anna")))
    tell(memory, "I am Ann.")
    tell(memory, "I am Anna.", day="2026-04-01")
    (version, _) = memory.history("ann")

    assert MemoryVersion.from_record(version.to_record()) == version
    assert len(version.told) == 2


EARLIER, LATER = "2026-01-02T01:00:00+00:00", "2026-01-01T23:00:00-08:00"


@pytest.mark.parametrize(("first", "second"), [(EARLIER, LATER), (LATER, EARLIER)])
def test_of_two_values_told_in_two_time_zones_the_one_of_the_later_instant_stays(first, second):
    told = {EARLIER: "Husum", LATER: "Berlin"}
    memory, _ = keeper(*(changes(change("address.city", told[at])) for at in (first, second)))

    tell(memory, "I live there.", day=first)
    tell(memory, "I live there.", day=second)

    assert memory.load("ann").address.city == "Berlin"


def test_of_two_values_in_one_conversation_the_one_of_the_later_instant_stays():
    cities = [change("address.city", "Berlin", 1), change("address.city", "Husum", 2)]
    memory, _ = keeper(changes(*cities))

    memory.save([said("Berlin.", LATER, "1"), said("Husum.", EARLIER, "2")], user="ann", thread="t")

    assert memory.load("ann").address.city == "Berlin"


PETS = [{"name": "Minou", "kind": "cat", "age": 4}]


class Whole(BaseModel):
    name: str | None = None
    diet: Literal["vegan", "none", "unknown"] = "unknown"
    level: Diet | None = None
    age: int | None = None
    pets: list[Pet] = []
    job: Job | None = None
    address: Address = Address()
    hobbies: set[str] = set()


WHOLE = {
    "name": "Ann",
    "diet": "vegan",
    "level": "anything",
    "age": 41,
    "pets": PETS,
    "job": {"title": "miller", "company": "Mill Ltd"},
    "address": {"city": "Husum", "street": "Markt 1"},
    "hobbies": ["chess"],
}


@pytest.mark.parametrize(
    "reply",
    [
        {"name": "unbekannt", "hobbies": ["keine Angabe"], "level": "nicht angegeben"},
        {"name": "inconnu", "job": {"title": "non précisé", "company": "null"}},
        {"name": "未知", "address": {"city": "不明", "street": "-"}},
        {"age": "unknown", "diet": "unknown", "pets": [{"name": "unknown", "kind": None}]},
        {"age": None, "diet": "unknown", "pets": [], "hobbies": [], "address": None, "job": None},
        {"job": {"title": "miller", "company": "not specified"}, "hobbies": ["chess", "N/A"]},
        {"pets": [{"name": "Minou", "kind": "unknown", "age": None}], "address": "unknown"},
        {"changes": [{"field": "name", "action": "set", "value": None, "message": 1}]},
        {"changes": [{"field": "hobbies", "action": "set", "value": ["unknown"], "message": 1}]},
        {"changes": [{"field": "hobbies", "action": "set", "value": [], "message": 1}]},
        {"changes": [{"field": "diet", "action": "set", "value": "unknown", "message": 1}]},
    ],
    ids=lambda reply: json.dumps(reply, ensure_ascii=False)[:60],
)
def test_a_value_that_says_nothing_replaces_none_and_joins_none(reply):
    memory, heard = keeper(json.dumps(WHOLE), json.dumps(reply), schema=Whole)
    tell(memory, "I am Ann, 41, a vegan miller.")
    before = memory.load("ann")

    found = tell(memory, "What a nice day!", day="2026-04-01", thread="tuesday")

    assert found == before
    assert memory.history("ann")[0].warnings == ()
    assert len(heard) == 2


def test_a_word_for_none_is_a_value_where_it_is_one_of_the_choices():
    memory, _ = keeper(
        json.dumps(WHOLE), changes(change("diet", "none", action="set")), schema=Whole
    )
    tell(memory, "I am a vegan.")

    assert tell(memory, "I keep to no diet now.", day="2026-04-01").diet == "none"


def test_a_value_that_says_nothing_fills_a_field_until_there_is_another():
    memory, _ = keeper(
        changes(change("name", "Unknown"), change("hobbies", "none")),
        changes(change("name", "Ann"), change("hobbies", "chess")),
    )
    tell(memory, "I do not say.", day="2026-04-01")

    found = tell(memory, "I am Ann, and play chess.", thread="tuesday")

    assert (found.name, found.hobbies) == ("Ann", {"chess"})
    assert memory.history("ann")[0].warnings == ()


def at(hour):
    return f"2026-03-05T{hour:02}:00:00+00:00"


@pytest.mark.parametrize("late", ["remove", "set"])
def test_what_was_said_earlier_the_same_day_and_is_folded_later_changes_nothing_newer(late):
    value = {"remove": None, "set": "Paris"}[late]
    memory, _ = keeper(
        changes(change("address.city", "Berlin")),
        changes(change("address.city", value, action=late)),
    )
    tell(memory, "I moved to Berlin.", day=at(18))

    assert tell(memory, "Words.", day=at(9), thread="early").address.city == "Berlin"


def test_what_was_removed_does_not_come_back_from_what_was_said_before():
    memory, _ = keeper(
        changes(change("name", "Ann"), change("hobbies", "chess"), change("hobbies", "golf")),
        changes(
            change("name", None, action="remove"),
            change("hobbies", "chess", action="remove"),
            change("diet", "vegan", 2),
        ),
        changes(change("name", "Anna"), change("hobbies", "chess")),
        changes(change("name", "Anne"), change("hobbies", "chess")),
    )
    tell(memory, "I am Ann, and play chess and golf.", day=at(8))
    tell(memory, "Forget my name. No chess any more.", day=at(12), thread="noon")

    early = tell(memory, "I am Anna, and play chess.", day=at(10), thread="early")
    late = tell(memory, "I am Anne, and play chess.", day=at(13), thread="late")

    assert (early.name, early.hobbies) == (None, {"golf"})
    assert (late.name, late.hobbies) == ("Anne", {"chess", "golf"})


def test_a_list_that_is_removed_late_keeps_what_was_said_since():
    memory, _ = keeper(
        changes(change("hobbies", "chess")),
        changes(change("hobbies", "golf")),
        changes(change("hobbies", None, action="remove")),
    )
    tell(memory, "I play chess.", day=at(8))
    tell(memory, "I play golf.", day=at(18), thread="evening")

    assert tell(memory, "I gave up all hobbies.", day=at(12), thread="noon").hobbies == {"golf"}
