"""A memory with a shape: a pydantic model, of which each field has its evidence."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from enum import Enum
from functools import partial
from typing import Literal

import pytest
from conversations import calling, dated, prompted, words_in
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import ToolMessage
from langchain_openai import ChatOpenAI
from langgraph.store.memory import InMemoryStore
from pydantic import BaseModel, Field, model_validator

from memagent_graph import ConversationMemory, ReadingConfig
from memagent_graph.conversation.profile import (
    Fields,
    FieldValue,
    ProfileEntry,
    read_entries,
    write_entries,
)
from memagent_graph.errors import ConfigurationError, ModelError
from memagent_graph.models.endpoint import ChatEndpoint
from memagent_graph.testing import ScriptedChatModel


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


def change(field, value, message=1, action=None):
    action = action or ("add" if field in ("pets", "hobbies") else "set")
    return {"field": field, "action": action, "value": value, "message": message}


def changes(*items):
    return json.dumps({"changes": [*items]})


def keeper(*replies, schema=Profile, **options):
    model = ScriptedChatModel(*replies or ["Noted."])
    return ConversationMemory(model, schema=schema, **options), model


def tell(memory, *texts, day="2026-03-05", thread="monday"):
    messages = [dated(text, day, f"{thread} {day} {n}") for n, text in enumerate(texts)]
    memory.save(messages, user="ann", thread=thread)
    return memory.load("ann")


def warnings(memory):
    return memory.history("ann")[0].warnings


def test_fields_are_merged_one_by_one_and_each_has_its_evidence():
    memory, _ = keeper(
        changes(change("name", "Ann"), change("address.city", "Paris", 2)),
        changes(change("address.street", "Rue Cler 1"), change("pets", {"name": "Minou"})),
    )

    tell(memory, "I am Ann.", "I live in Paris.")
    found = tell(memory, "In the Rue Cler 1, with Minou.", day="2026-04-01", thread="tuesday")

    address = Address(city="Paris", street="Rue Cler 1")
    assert found == Profile(name="Ann", address=address, pets=[Pet(name="Minou")])
    city = "address.city", "Paris", "monday 2026-03-05 1", "monday", "2026-03-05"
    assert [e for e in memory.entries("ann") if e.field == city[0]] == [ProfileEntry(*city)]


def test_of_a_contradiction_the_newest_stays_and_that_is_said_without_a_word_of_it(caplog):
    memory, _ = keeper(*(changes(change("address.city", city)) for city in ("Paris", "Berlin")))
    tell(memory, "I live in Paris.")
    assert warnings(memory) == ()

    found = tell(memory, "I moved to Berlin.", day="2026-04-01")

    assert found.address.city == "Berlin"
    (warning,) = warnings(memory)
    assert words_in(warning, "address.city", "newest") == ["address.city", "newest"]
    assert words_in(caplog.text, warning, "Paris", "Berlin") == [warning]
    assert [(one.value, one.told_at, one.until) for one in memory.entries("ann")] == [
        ("Berlin", "2026-04-01", ""),
        ("Paris", "2026-03-05", "2026-04-01"),
    ]


def at(hour):
    return f"2026-03-05T{hour:02}:00:00+00:00"


@pytest.mark.parametrize("action", ["set", "remove"])
@pytest.mark.parametrize(
    ("before", "since"), [("2026-03-05", "2026-04-01"), (at(9), at(18))], ids=["day", "hour"]
)
def test_what_was_said_before_does_not_overwrite_what_was_said_since(before, since, action):
    older = change("address.city", "Paris", action=action)
    memory, _ = keeper(changes(change("address.city", "Berlin")), changes(older))
    tell(memory, "I moved to Berlin.", day=since)

    found = tell(memory, "I live in Paris.", day=before, thread="an older one")

    assert found.address.city == "Berlin"
    assert "address.city" in warnings(memory)[0]


EARLIER, LATER = "2026-01-02T01:00:00+00:00", "2026-01-01T23:00:00-08:00"


@pytest.mark.parametrize(("first", "second"), [(EARLIER, LATER), (LATER, EARLIER)])
def test_of_two_values_told_in_two_time_zones_the_one_of_the_later_instant_stays(first, second):
    told = {EARLIER: "Husum", LATER: "Berlin"}
    memory, _ = keeper(*(changes(change("address.city", told[day])) for day in (first, second)))

    tell(memory, "I live there.", day=first)
    tell(memory, "I live there.", day=second)

    assert memory.load("ann").address.city == "Berlin"


def test_what_was_removed_does_not_come_back_from_what_was_said_before():
    removed = change("name", None, action="remove"), change("hobbies", "chess", action="remove")
    memory, _ = keeper(
        changes(change("name", "Ann"), change("hobbies", "chess"), change("hobbies", "golf")),
        changes(*removed, change("diet", "vegan", 2)),
        changes(change("name", "Anna"), change("hobbies", "chess")),
        changes(change("name", "Anne"), change("hobbies", "chess")),
    )
    tell(memory, "I am Ann, and play chess and golf.", day=at(8))
    tell(memory, "Forget my name. No chess any more.", day=at(12), thread="noon")

    assert [entry.until for entry in memory.entries("ann") if entry.field == "name"] == [at(12)]
    early = tell(memory, "I am Anna, and play chess.", day=at(10), thread="early")
    late = tell(memory, "I am Anne, and play chess.", day=at(13), thread="late")

    assert (early.name, early.hobbies) == (None, {"golf"})
    assert (late.name, late.hobbies) == ("Anne", {"chess", "golf"})


def test_a_list_has_each_item_once_and_what_is_learned_of_it_is_added_to_it():
    memory, _ = keeper(
        changes(change("pets", {"name": "Minou", "kind": "cat"}), change("hobbies", "chess")),
        changes(change("pets", {"name": "minou", "age": 4}), change("hobbies", " Chess")),
        changes(change("hobbies", "chess", action="remove"), change("hobbies", "go")),
    )

    tell(memory, "My cat is Minou, I play chess.")
    found = tell(memory, "Minou is 4 now.", day="2026-04-01")

    pets = [(pet.kind, pet.age) for pet in found.pets]
    assert (pets, len(found.hobbies), warnings(memory)) == ([("cat", 4)], 1, ())
    assert tell(memory, "I gave up chess for go.", day="2026-05-01").hobbies == {"go"}


def test_values_that_only_fit_together_are_taken_together():
    class Span(BaseModel):
        least: int = 0
        most: int = 0

        @model_validator(mode="after")
        def _in_order(self):
            assert self.least <= self.most, "least is more than most"
            return self

    class Budget(BaseModel):
        span: Span = Span()

    replies = (
        changes(change("span.least", 5), change("span.most", 9)),
        *(changes(change("span.least", least)) for least in (12, 11)),
    )
    memory, model = keeper(*replies, schema=Budget)

    assert (tell(memory, "From 5 to 9.").span, len(model.calls)) == (Span(least=5, most=9), 1)
    assert tell(memory, "At least 12.", day="2026-04-01").span == Span(least=5, most=9)


@pytest.mark.parametrize(("wrong", "why"), [
    (change("diet", "veggie"), "'vegan' or 'anything'"),
    (change("pets", {"name": "Minou", "age": -1}), "greater than or equal to 0"),
    (change("pets", {"kind": "cat"}), "name"), (change("trip", {"begins": "2026-05-01"}), "ends"),
    (change("religion", "none"), "religion"), (change("born", "in May"), "date"),
])  # fmt: skip
def test_a_value_that_does_not_fit_is_sent_back_once_and_then_left_out(wrong, why):
    memory, model = keeper(changes(change("name", "Ann"), wrong))

    assert tell(memory, "I am Ann, and so on.") == Profile(name="Ann")

    assert len(model.calls) == 2
    assert why in model.prompts[1]
    assert any("does not fit the schema" in warning for warning in warnings(memory))


@pytest.mark.parametrize("reply", [
    '```json\n{"changes": [{"field": "name", "action": "set", "value": "Ann"},]}\n```',
    'Here it is: {"name": "Ann", "diet": null} as you asked.',
    '<think>{"name": "Bob"}</think>{"changes": [{"field": "name", "value": "Ann"}]}',
    '{"name": "Ann", "address": {"city": null}, "pets": []}',
])  # fmt: skip
def test_what_models_write_around_json_or_in_its_place_is_understood(reply):
    memory, model = keeper(reply)

    assert (tell(memory, "I am Ann."), len(model.calls)) == (Profile(name="Ann"), 1)


def test_a_model_that_writes_no_json_folds_nothing_and_the_messages_wait():
    memory, _ = keeper("She is Ann.", "Really.", changes(change("name", "Ann")))

    with pytest.raises(ModelError, match="JSON"):
        tell(memory, "I am Ann.")

    assert (memory.history("ann"), tell(memory, "I am Ann.")) == ([], Profile(name="Ann"))


def test_what_only_a_tool_said_is_not_known_of_the_user():
    said = change("name", "Bob", 3), change("diet", "vegan", 1), change("born", "2000-01-01", 2)
    memory, model = keeper(changes(*said))
    messages = [
        dated("I am a vegan. Who wrote this book?", key="1"),
        calling("look"),
        ToolMessage("Bob, born 2000", tool_call_id="1", name="look", id="3"),
    ]

    memory.save(messages, user="ann", thread="t")

    assert memory.load("ann") == Profile(diet=Diet.VEGAN)
    assert "[3] [2026-03-05] tool look: Bob" in model.prompts[0]
    assert "tool" in warnings(memory)[0]


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

    def misfits():
        return {e.field for e in after.entries("ann") if not e.fits and not e.until}

    assert after.load("ann") == After(name="Ann", hobbies=["chess"])
    assert words_in(caplog.text, "2 lines", "After", "forty") == ["2 lines", "After"]
    assert misfits() == {"age", "religion"}
    assert "religion" not in prompted(after, "")

    assert (tell(after, "I am 41.", day="2026-04-01").age, misfits()) == (41, {"religion"})
    assert before.load("ann") == Before(name="Ann", religion="none", hobbies=["chess"])


def test_a_profile_is_not_overwritten_with_notes():
    store = InMemoryStore()
    memory, _ = keeper(changes(change("name", "Ann")), store=store)
    tell(memory, "I am Ann.")

    with pytest.raises(ConfigurationError, match="schema"):
        tell(ConversationMemory(store=store), "I keep llamas.", day="2026-04-01")

    assert memory.load("ann") == Profile(name="Ann")


def test_a_profile_over_its_budget_is_asked_for_again_and_then_loses_the_oldest_items():
    first = changes(change("name", "Ann"), *[change("hobbies", f"hobby {n}") for n in range(3)])
    many = changes(*[change("hobbies", f"sport number {n}") for n in range(8)])
    memory, model = keeper(first, many, many, config=ReadingConfig(memory_tokens=60))
    tell(memory, "Three hobbies.")

    found = tell(memory, "Eight sports.", day="2026-04-01")

    assert len(model.calls) == 3
    assert "longer than there is room for" in model.prompts[2]
    assert found.name == "Ann"  # older than any of them, but no item of a list
    assert {name.split()[0] for name in found.hobbies} == {"sport"}
    assert memory.history("ann")[0].tokens <= 60
    told = " ".join(warnings(memory))
    assert words_in(told, "asked once more", "had to go") == ["asked once more", "had to go"]


def test_no_change_is_no_change():
    memory, _ = keeper(changes(), changes(change("name", "Ann")), changes())
    assert memory.load("ann") == tell(memory, "Nice weather.") == Profile()
    assert memory.history("ann")[0].text == ""
    assert memory.entries("ann") == memory.prompt("ann") == []
    tell(memory, "I am Ann.", day="2026-03-06")
    before = memory.entries("ann")

    assert tell(memory, "Nice weather.", day="2026-04-01") == Profile(name="Ann")
    assert memory.entries("ann") == before


@pytest.mark.parametrize(
    ("limit", "kept"), [({"keep_versions": 3}, [4, 3, 2]), ({"keep_days": 30}, [4, 3])]
)
def test_earlier_values_are_kept_as_versions_are(limit, kept):
    today = datetime.now(UTC).date().isoformat()
    memory, _ = keeper(*[changes(change("address.city", f"City {n}")) for n in range(5)], **limit)
    for n, day in enumerate([*(f"2025-01-0{n}" for n in range(1, 5)), today]):
        tell(memory, f"I live in City {n}.", day=day)

    assert [entry.value for entry in memory.entries("ann")] == [f"City {n}" for n in kept]


def test_an_edit_of_a_person_counts_and_has_no_evidence():
    memory, _ = keeper(changes(change("name", "Ann"), change("address.city", "Paris")))
    tell(memory, "I am Ann, in Paris.")
    users = memory.users()

    users.edit("ann", users.get("ann").text.replace("Paris", "Rome"), by="olga")

    assert memory.load("ann").address.city == "Rome"
    name, rome, paris = memory.entries("ann")
    assert (rome.value, rome.message, rome.told_at) == ("Rome", "", "2026-03-05")
    assert (bool(name.message), paris.value, bool(paris.until)) == (True, "Paris", True)


class Anything(BaseModel):
    call: type = int


class Undefined(BaseModel):
    home: Nowhere | None = None  # noqa: F821 - that is the point


@pytest.mark.parametrize(("schema", "why"), [
    (Pet, "default to name"), (Anything, "JSON"), (type("Nothing", (BaseModel,), {}), "no fields"),
    (Undefined, "Nowhere"), (dict, "pydantic model"), (Profile(), "pydantic model"),
])  # fmt: skip
def test_a_schema_that_cannot_be_a_profile_is_refused(schema, why):
    with pytest.raises(ConfigurationError, match=why):
        keeper(schema=schema)


def test_a_profile_needs_room_for_what_was_said_and_a_chat_model_and_only_it_has_entries():
    for make, why in (
        (lambda: keeper(config=ReadingConfig(chunk_tokens=200)), "more than half"),
        (lambda: ConversationMemory("extractive", schema=Profile), "chat model"),
        (lambda: ConversationMemory().entries("ann"), "schema"),
    ):
        with pytest.raises(ConfigurationError, match=why):
            make()


@pytest.fixture(params=[ChatEndpoint, partial(ChatOpenAI, api_key="none", max_retries=0)])
def model(request, openai_server):
    openai_server.reply = lambda body: changes(change("name", "Ann"))
    return request.param(model="small", base_url=openai_server.base_url)


def test_a_server_is_asked_to_hold_the_reply_to_the_schema_until_it_refuses(openai_server, model):
    memory = ConversationMemory(model, schema=Profile)
    assert tell(memory, "I am Ann.") == Profile(name="Ann")
    refusal = {"message": "response_format is not supported", "type": "invalid_request_error"}
    openai_server.script = [{"status": 400, "error": refusal}]

    for day in ("2026-04-01", "2026-05-01"):
        assert tell(memory, "Still Ann.", day=day) == Profile(name="Ann")

    first, *others = openai_server.requests
    wanted = first["response_format"]["json_schema"]["schema"]
    own = {key: wanted[key] for key in ("title", "description") if key in wanted}
    assert wanted == Fields(Profile).changes | own
    assert ["response_format" in request for request in others] == [True, False, False]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=6,
)
NAMES = st.from_regex(r"\A[a-z_]+(\.[a-z_]+)?\Z")
PATHS = st.sampled_from([*Fields(Profile).by_path])
DAYS = st.sampled_from(["", "2026-03-05", "2025-12-31"])


@pytest.mark.slow
@given(st.lists(st.builds(FieldValue, NAMES, JSON, DAYS), max_size=5))
def test_entries_are_read_as_they_were_written(entries):
    assert read_entries(write_entries(entries)) == (entries, [])


@pytest.mark.slow
@given(st.lists(st.builds(FieldValue, PATHS, JSON, DAYS), max_size=5))
def test_whatever_is_stored_a_profile_is_made_of_what_fits(entries):
    fitted = Fields(Profile).fit(entries)

    assert isinstance(fitted.profile, Profile)
    assert len(fitted.entries) + len(fitted.misfits) == len(entries)
    assert Fields(Profile).fit(fitted.entries).misfits == []


class Whole(BaseModel):
    name: str | None = None
    diet: Literal["vegan", "none", "unknown"] = "unknown"
    level: Diet | None = None
    age: int | None = None
    pets: list[Pet] = []
    job: Job | None = None
    address: Address = Address()
    hobbies: set[str] = set()


WHOLE = Whole(
    name="Ann",
    diet="vegan",
    level=Diet.ANYTHING,
    age=41,
    pets=[Pet(name="Minou", kind="cat", age=4)],
    job=Job(title="miller", company="Mill Ltd"),
    address=Address(city="Husum", street="Markt 1"),
    hobbies={"chess"},
)


@pytest.mark.parametrize("reply", [
    {"name": "unbekannt", "hobbies": ["keine Angabe"], "level": "nicht angegeben"},
    {"name": "inconnu", "job": {"title": "non précisé", "company": "null"}},
    {"name": "未知", "address": {"city": "不明", "street": "-"}},
    {"age": None, "diet": "unknown", "pets": [], "hobbies": [], "address": None, "job": None},
    {"job": {"title": "miller", "company": "not specified"}, "hobbies": ["chess", "N/A"]},
    {"pets": [{"name": "Minou", "kind": "unknown", "age": None}], "address": "unknown"},
    {"changes": [change("name", None)]},
    {"changes": [change("hobbies", ["unknown"], action="set")]},
    {"changes": [change("hobbies", [], action="set")]}, {"changes": [change("diet", "unknown")]},
], ids=lambda reply: json.dumps(reply, ensure_ascii=False)[:60])  # fmt: skip
def test_a_value_that_says_nothing_replaces_none_and_joins_none(reply):
    memory, model = keeper(WHOLE.model_dump_json(), json.dumps(reply), schema=Whole)
    before = tell(memory, "I am Ann, 41, a vegan miller.")

    found = tell(memory, "What a nice day!", day="2026-04-01", thread="tuesday")

    assert found == before == WHOLE
    assert (warnings(memory), len(model.calls)) == ((), 2)


def test_a_value_that_says_nothing_fills_a_field_until_there_is_another():
    memory, _ = keeper(
        changes(change("name", "Unknown"), change("hobbies", "none")),
        changes(change("name", "Ann"), change("hobbies", "chess")),
    )
    tell(memory, "I do not say.", day="2026-04-01")

    found = tell(memory, "I am Ann, and play chess.", thread="tuesday")

    assert (found.name, found.hobbies, warnings(memory)) == ("Ann", {"chess"}, ())
