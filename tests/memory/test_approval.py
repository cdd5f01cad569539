"""What a fold learns counts when somebody has approved it: in memory, in SQLite and in Redis."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from datetime import UTC, datetime
from threading import Event
from time import monotonic

import pytest
from doubles import ScriptedReader
from langchain.agents import create_agent
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import SqliteStore
from langgraph.types import Command
from pydantic import BaseModel

from memagent_graph import (
    ApprovalNode,
    ConversationMemory,
    ConversationNode,
    ConversationState,
    MemAgentMiddleware,
    ReadingConfig,
    create_memory_tools,
)
from memagent_graph.conversation.proposal import (
    Decision,
    decide,
    list_proposals,
    propose_edit,
)
from memagent_graph.conversation.users import Users
from memagent_graph.errors import (
    ConfigurationError,
    MemoryConflictError,
    MemoryNotFoundError,
    ModelError,
)
from memagent_graph.readers.base import Update


def approving(store, *script, **options):
    reader = ScriptedReader(*script) if script else "extractive"
    return ConversationMemory(reader, store=store, approve=True, **options)


class Runtime:
    state, config, store, context, tool_call_id = {}, {"configurable": {}}, None, None, "c1"


def say(memory, *texts, thread="monday", day="2026-03-05"):
    told = {"told_at": f"{day}T08:00+00:00"}
    said = [HumanMessage(t, id=f"{thread}-{t}", additional_kwargs=told) for t in texts]
    memory.save(said, user="ann", thread=thread)
    return memory.load("ann")


def dump(store):
    return repr([(i.namespace, i.key, i.value) for i in store.search((), limit=10_000)])


def prompted(memory, about):
    return "".join(message.text for message in memory.prompt("ann", about=about))


def test_a_fold_proposes_and_prompts_know_what_was_accepted(store):
    memory = approving(store)

    assert say(memory, "I live in Husum.") == ""
    (proposal,) = memory.proposals("ann")
    assert str(proposal) == "+ 5 Mar 2026\n+ I live in Husum."
    assert proposal.thread == "monday"
    assert prompted(memory, "Where do I live? Husum?") == ""
    assert memory.history("ann") == []

    assert "I live in Husum." in memory.accept("ann", proposal.id)
    assert memory.proposals("ann") == []
    assert "I live in Husum." in prompted(memory, "Where do I live?")
    changes = Users(store).history("ann")[1]
    assert [(c.what, c.by) for c in changes] == [
        ("accepted", "application"),
        ("proposed", "conversation"),
    ]
    assert say(memory, "I live in Husum.") == memory.load("ann")
    assert memory.proposals("ann") == []


def test_what_is_refused_does_not_come_back(store):
    memory = approving(store)
    say(memory, "I live in Husum.")
    (proposal,) = memory.proposals("ann")
    say(memory, "My sister breeds goats.", thread="tuesday")

    memory.refuse("ann", proposal.id)
    say(memory, "I live in Husum.")  # resent
    (other,) = memory.proposals("ann")
    text = memory.accept("ann", other.id)

    assert "goats" in text
    assert "Husum" not in text
    assert "Husum" not in prompted(memory, "Where do I live? In Husum?")
    assert "live in Husum" not in "".join(
        repr(i.value) for i in store.search((), limit=10_000) if "threads" not in i.namespace
    ).replace("monday-I live in Husum.", "")


@pytest.mark.parametrize("keep", [1, 10])
def test_several_that_are_accepted_in_one_call_all_count(store, keep):
    memory = approving(store, keep_versions=keep)
    say(memory, "I live in Husum.")
    say(memory, "My sister breeds goats.", thread="tuesday", day="2026-03-06")
    say(memory, "I sail.", thread="wednesday", day="2026-03-07")

    text = memory.accept("ann", *memory.proposals("ann"))

    assert all(word in text for word in ("Husum", "goats", "sail"))
    assert memory.proposals("ann") == []
    assert len(memory.history("ann")) == min(3, keep)
    assert "goats" in prompted(memory, "What does my sister breed?")
    changes = [change.what for change in Users(store).history("ann")[1]]
    assert changes == [*["accepted"] * 3, *["proposed"] * 3]


def test_one_made_for_an_earlier_memory_is_folded_again_and_proposed_anew(store):
    memory = approving(store)
    say(memory, "I live in Husum.")
    say(memory, "My sister breeds goats.", thread="tuesday", day="2026-03-06")
    first, second = memory.proposals("ann")
    memory.accept("ann", first)

    with pytest.raises(MemoryConflictError, match="folded again: look at") as raised:
        memory.accept("ann", second)

    (again,) = memory.proposals("ann")
    assert again.id in str(raised.value)
    assert str(again) == "+ 6 Mar\n+ My sister breeds goats."
    assert "Husum" in again.version.text
    assert (again.messages, again.said) == (second.messages, second.said)
    with pytest.raises(MemoryNotFoundError, match="folded again"):
        memory.accept("ann", second)
    text = memory.accept("ann", again)
    assert "Husum" in text
    assert "goats" in text


def test_without_a_model_one_made_for_an_earlier_memory_waits_for_the_chatbot(store):
    memory = approving(store)
    say(memory, "I live in Husum.")
    say(memory, "My sister breeds goats.", thread="tuesday", day="2026-03-06")
    first, second = memory.proposals("ann")
    own = Users(store).of("ann")

    with pytest.raises(MemoryConflictError, match="Only one"):
        asyncio.run(decide(own, Decision(accept=[first.id, second.id]), by="olga"))
    asyncio.run(decide(own, Decision(accept=[first.id]), by="olga"))
    with pytest.raises(MemoryConflictError, match="next turn"):
        asyncio.run(decide(own, Decision(accept=[second.id]), by="olga"))
    say(memory, "Hello, I sail.", thread="wednesday")  # the next turn

    waiting = asyncio.run(list_proposals(own))
    assert len(waiting) == 2
    assert all("Husum" in one.version.text for one in waiting)
    asyncio.run(
        decide(own, Decision(accept=[one.id for one in waiting if "goats" in str(one)]), by="o")
    )
    assert "goats" in memory.load("ann")


def test_one_that_would_change_nothing_any_more_is_deleted(store):
    memory = approving(store)
    say(memory, "I live in Husum.")
    say(memory, "I live in Husum.", thread="tuesday")
    first, _ = memory.proposals("ann")

    memory.accept("ann", first)

    assert memory.proposals("ann") == []


def test_if_the_model_fails_a_proposal_for_an_earlier_memory_waits_as_it_is(store, caplog):
    memory = approving(store, "Lives in Husum.", "Sails.", ModelError("It is away."))
    say(memory, "One.")
    say(memory, "Two.", thread="tuesday")
    first, second = memory.proposals("ann")
    memory.accept("ann", first)

    assert memory.proposals("ann") == [second]
    assert "It is away." in caplog.text


def test_an_edited_text_is_accepted_in_the_place_of_the_proposed_one(store):
    memory = approving(store, redact=lambda text: text.replace("4711", "[PIN]"), never="yoghurt")
    say(memory, "I live in Husum.", "My sister breeds goats.")
    (proposal,) = memory.proposals("ann")

    text = memory.accept("ann", proposal, text="Lives in Kiel.\nPIN 4711.\nEats yoghurt.")

    assert text == "Lives in Kiel.\nPIN [PIN]."
    assert memory.proposals("ann") == []
    assert "goats" in prompted(memory, "What does my sister breed?")
    (version,) = memory.history("ann")
    assert version.edited
    assert say(memory, "I sail.", thread="tuesday") == text


def test_an_edited_text_is_one_whole_memory_within_the_budget(store):
    memory = approving(store, config=ReadingConfig(memory_tokens=60, chunk_tokens=400))
    say(memory, "I live in Husum.")
    say(memory, "I sail.", thread="tuesday")
    first, second = waiting = memory.proposals("ann")

    with pytest.raises(ConfigurationError, match="shorten it"):
        memory.accept("ann", first, text="I sail to Husum. " * 60)
    with pytest.raises(ConfigurationError, match="edit one at a time"):
        memory.accept("ann", first, second, text="Sails.")

    assert memory.proposals("ann") == waiting


def test_proposals_are_named_once_by_themselves_or_by_their_ids():
    memory = approving(InMemoryStore())
    say(memory, "I live in Husum.")
    say(memory, "My sister breeds goats.", thread="tuesday")
    first, second = memory.proposals("ann")
    own = Users(memory.users().store).of("ann")

    with pytest.raises(ConfigurationError, match="once"):
        asyncio.run(decide(own, Decision(accept=[first.id], refuse=[first.id]), by="olga"))
    for decide_nothing in (memory.accept, memory.refuse):
        with pytest.raises(ConfigurationError, match="Name each proposal"):
            decide_nothing("ann")
    with pytest.raises(MemoryNotFoundError, match="'x' does not wait"):
        memory.accept("ann", first, "x")
    assert memory.proposals("ann") == [first, second]
    text = memory.accept("ann", first, second.id)

    assert "Husum" in text
    assert "goats" in text


def test_a_replaced_statement_is_replaced_by_each_that_is_accepted(store):
    memory = approving(
        store, "Lives in Husum.", "Lives in Kiel.", "Lives in Bonn.", "Lives in Bonn. Sails."
    )
    say(memory, "One.")
    memory.accept("ann", *memory.proposals("ann"))
    say(memory, "Two.", thread="tuesday")
    say(memory, "Three.", thread="wednesday")
    kiel, bonn = memory.proposals("ann")

    assert str(kiel) == "- Lives in Husum.\n+ Lives in Kiel."
    assert str(bonn) == "- Lives in Husum.\n+ Lives in Bonn."
    assert memory.accept("ann", kiel, bonn) == "Lives in Bonn. Sails."


def test_an_edit_meanwhile_stays_beside_what_is_accepted(store):
    memory = approving(store)
    say(memory, "I live in Husum.")
    memory.accept("ann", *memory.proposals("ann"))
    say(memory, "My sister breeds goats.", thread="tuesday")
    Users(store).edit("ann", "Has two dogs.", by="olga")

    text = memory.accept("ann", *memory.proposals("ann"))

    assert "Has two dogs." in text
    assert "goats" in text
    assert "Husum" not in text


def test_more_than_there_is_room_for_is_accepted_and_then_thinned_by_a_proposal():
    config = ReadingConfig(memory_tokens=60, chunk_tokens=400)
    memory = approving(InMemoryStore(), config=config)
    for n in range(12):
        say(memory, f"I breed {n} goats in the large meadow of Husum.", thread=f"t{n}")
    memory.accept("ann", *(one.id for one in memory.proposals("ann")))

    say(memory, "I sail.", thread="t")
    (proposal,) = memory.proposals("ann")
    text = memory.accept("ann", proposal.id)

    assert "I sail." in text
    assert len(text.splitlines()) < 12


def test_a_forgotten_message_leaves_what_was_proposed_from_it(store):
    memory = approving(store)
    say(memory, "I live in Husum.", "My sister breeds goats.")

    memory.forget_messages("ann", ["monday-I live in Husum."], thread="monday")

    (proposal,) = memory.proposals("ann")
    assert str(proposal).splitlines()[1:] == ["+ My sister breeds goats."]
    assert [one.text for one in proposal.said] == ["My sister breeds goats."]
    assert "live in Husum" not in dump(store).replace("monday-I live in Husum.", "")
    assert "goats" in memory.accept("ann", proposal.id)


def test_a_forgotten_subject_leaves_proposals(store):
    memory = approving(store)
    say(memory, "My phone number is quinoa.", "I live in Husum.")
    memory.forget_about("ann", "phone number")

    (proposal,) = memory.proposals("ann")
    assert str(proposal) == "+ 5 Mar 2026\n+ I live in Husum."
    memory.forget_about("ann", "Husum")

    assert memory.proposals("ann") == []
    assert "quinoa" not in dump(store).replace("monday-My phone number is quinoa.", "")


@pytest.mark.parametrize("how", ["subject", "message", "tool"])
def test_what_was_forgotten_does_not_come_back_through_a_proposal(store, how):
    memory = approving(store)
    say(memory, "I live in Husum.")
    memory.accept("ann", *memory.proposals("ann"))
    say(memory, "My number is quinoa.", "I sail.", thread="tuesday", day="2026-03-06")
    say(memory, "I breed goats.", thread="wednesday", day="2026-03-07")
    shown = memory.proposals("ann")

    if how == "subject":
        memory.forget_about("ann", "number quinoa")
    elif how == "message":
        memory.forget_messages("ann", ["tuesday-My number is quinoa."])
    else:
        (tool,) = (
            t for t in create_memory_tools(memory, user=lambda *_: "ann") if t.name == "forget"
        )
        tool.func(subject="number quinoa", runtime=Runtime)

    assert "number is quinoa" not in dump(store).replace("tuesday-My number is quinoa.", "")
    with suppress(MemoryConflictError, MemoryNotFoundError):
        memory.accept("ann", *shown)
    while waiting := memory.proposals("ann"):
        memory.accept("ann", *waiting)
    text = memory.load("ann")
    assert "quinoa" not in text
    assert all(word in text for word in ("Husum", "sail", "goats"))
    assert "number" not in prompted(memory, "What is my number quinoa?")


def test_a_subject_that_was_accepted_leaves_proposals_that_have_it(store):
    memory = approving(store)
    say(memory, "My number is quinoa.")
    memory.accept("ann", *memory.proposals("ann"))
    say(memory, "I breed goats.", thread="tuesday", day="2026-03-06")

    memory.forget_about("ann", "number quinoa")

    (before,) = asyncio.run(list_proposals(Users(store).of("ann")))
    assert "quinoa" not in before.version.text
    assert "quinoa" not in memory.accept("ann", *memory.proposals("ann"))


def test_a_forgotten_user_has_no_proposals(store):
    memory = approving(store)
    say(memory, "I live in Husum.")

    done = memory.forget("ann")

    assert done.items
    assert memory.proposals("ann") == []
    assert "Husum" not in dump(store)


def test_an_edited_message_replaces_what_was_proposed_from_it(store):
    memory = approving(store)
    memory.save([HumanMessage("I live in Husum.", id="1")], user="ann", thread="t")
    memory.save([HumanMessage("I live in Kiel.", id="1")], user="ann", thread="t")

    (proposal,) = memory.proposals("ann")
    text = memory.accept("ann", proposal.id)

    assert "Kiel" in text
    assert "Husum" not in prompted(memory, "Do I live in Husum or Kiel?")


def test_an_edited_message_leaves_a_proposal_which_is_folded_again(store):
    memory = approving(store)
    memory.save(
        [HumanMessage("I live in Husum.", id="1"), HumanMessage("I sail.", id="2")],
        user="ann",
        thread="t",
    )
    memory.save([HumanMessage("I live in Kiel.", id="1")], user="ann", thread="t")

    text = memory.accept("ann", *memory.proposals("ann"))

    assert "Kiel" in text
    assert "sail" in text
    assert "Husum" not in text


@pytest.mark.parametrize("now", ["I live in Kiel.", ""])
def test_an_edit_of_what_was_accepted_is_folded_again_as_an_edit(store, now):
    memory = approving(store)
    memory.save([HumanMessage("I live in Husum.", id="1")], user="ann", thread="t")
    memory.accept("ann", *memory.proposals("ann"))
    memory.save([HumanMessage("I live in Bonn.", id="1")], user="ann", thread="t")
    memory.save([HumanMessage(now, id="1")], user="ann", thread="t")
    memory.save([HumanMessage("I sail.", id="2")], user="ann", thread="t")
    sail = next(one for one in memory.proposals("ann") if "sail" in str(one))
    memory.accept("ann", sail)

    text = memory.accept("ann", *memory.proposals("ann"))

    assert "Husum" not in text
    assert "Bonn" not in text
    assert ("Kiel" in text) == bool(now)
    assert "sail" in text


@pytest.mark.parametrize(
    ("verdict", "known", "waits"),
    [(True, True, 0), (False, False, 0), (None, False, 1), (ModelError("No."), False, 1)],
)
@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_function_decides_and_its_failure_loses_nothing(store, verdict, known, waits, how):
    def sync(proposal):
        if isinstance(verdict, Exception):
            raise verdict
        return verdict

    async def coroutine(proposal):
        await asyncio.sleep(0)
        return sync(proposal)

    approve = sync if how == "sync" else coroutine
    memory = ConversationMemory("extractive", store=store, approve=approve)

    assert ("Husum" in say(memory, "I live in Husum.")) == known
    assert len(memory.proposals("ann")) == waits


def test_a_function_edits_the_memory(store):
    def approve(proposal):
        lines = proposal.version.text.splitlines()
        return "\n".join(line for line in lines if "PIN" not in line)

    memory = ConversationMemory("extractive", store=store, approve=approve)

    text = say(memory, "I live in Husum.", "My PIN is yoghurt.")

    assert "Husum" in text
    assert "yoghurt" not in text
    assert memory.proposals("ann") == []


def test_a_function_that_returns_something_else_decides_nothing(store, caplog):
    memory = ConversationMemory("extractive", store=store, approve=lambda one: [one.id])

    assert say(memory, "I live in Husum.") == ""
    assert len(memory.proposals("ann")) == 1
    assert "True, False, a text or None" in caplog.text


def test_a_fold_without_news_proposes_nothing(store):
    memory = approving(store, Update(None))

    say(memory, "Hello.")

    assert memory.proposals("ann") == []
    assert say(memory, "Hello.") == ""


def test_workers_that_fold_the_same_messages_make_one_proposal(store):
    memories = [approving(store) for _ in range(4)]
    said = [HumanMessage(f"Fact {n} is {n * 7}.", id=str(n)) for n in range(3)]

    async def fold():
        await asyncio.gather(*(m.asave(said, user="ann", thread="t") for m in memories))

    if isinstance(store, SqliteStore):  # which has a sync face only
        for memory in memories:
            memory.save(said, user="ann", thread="t")
    else:
        asyncio.run(fold())

    assert len(memories[0].proposals("ann")) == 1


def test_of_two_who_decide_at_once_one_does(store):
    memory = approving(store)
    say(memory, "I live in Husum.")
    (proposal,) = memory.proposals("ann")
    own = Users(store).of("ann")

    async def both():
        return await asyncio.gather(
            decide(own, Decision(accept=[proposal.id]), by="olga"),
            decide(own, Decision(refuse=[proposal.id]), by="otto"),
            return_exceptions=True,
        )

    done = asyncio.run(both())

    assert [type(one) for one in done if one] == [
        type(next(one for one in done if one is not None))
    ]
    assert isinstance(next(one for one in done if one), MemoryNotFoundError | MemoryConflictError)
    accepted = "Husum" in memory.load("ann")
    assert ("Husum" in prompted(memory, "Husum?")) == accepted
    assert [c.what for c in Users(store).history("ann")[1]].count(
        "accepted" if accepted else "refused"
    ) == 1


def test_proposals_move_with_a_user(store):
    memory = approving(store)
    say(memory, "I live in Husum.", "My sister breeds goats.")
    lines = Users(store).export(["ann"])
    other = InMemoryStore()

    Users(other).import_(lines, by="olga")

    there = approving(other)
    assert there.proposals("ann") == memory.proposals("ann")
    assert "goats" in there.accept("ann", there.proposals("ann")[0].id)


def test_a_bad_proposal_costs_itself(store, caplog):
    memory = approving(store)
    say(memory, "I live in Husum.")
    say(memory, "My sister breeds goats.", thread="tuesday")
    bad, good = memory.proposals("ann")
    place = (*Users(store).of("ann").bank.namespace, "proposals")
    store.put(place, bad.id, {"changes": "none"})

    assert memory.proposals("ann") == [good]
    assert bad.id in caplog.text
    findings = Users(store).of("ann").bank.check(repair=True)
    assert [(found.kind, found.key) for found in findings] == [("bad", bad.id)]
    assert "goats" in memory.accept("ann", good.id)


def test_old_proposals_are_pruned(store):
    memory = approving(store)
    say(memory, "I live in Husum.")

    preview = Users(store).prune(days=0, by="olga", preview=True)
    assert preview.messages == {"ann": 1}
    assert len(memory.proposals("ann")) == 1
    assert Users(store).prune(days=0, by="olga").messages == {"ann": 1}
    assert memory.proposals("ann") == []


def test_a_user_for_whom_something_waits_is_not_idle(store, monkeypatch):
    memory = approving(store)
    memory.save([HumanMessage("I live in Husum.", id="1")], user="ann", thread="t")
    memory.accept("ann", memory.proposals("ann")[0].id)
    since = datetime.now(UTC).isoformat()
    monkeypatch.setattr("memagent_graph.conversation.users.days_ago", lambda days: since)
    assert Users(store).prune(idle_days=1, by="olga", preview=True).forgotten == ["ann"]

    memory.save([HumanMessage("I breed goats.", id="2")], user="ann", thread="t")

    assert Users(store).prune(idle_days=1, by="olga", preview=True).forgotten == []


def test_the_tools_of_an_agent_propose(store):
    memory = approving(store)
    say(memory, "I live in Husum.")
    memory.accept("ann", memory.proposals("ann")[0].id)
    tools = {tool.name: tool for tool in create_memory_tools(memory, user=lambda *_: "ann")}
    kept = tools["remember"].func(statement="I breed goats.", runtime=Runtime)
    gone = tools["forget"].func(subject="Husum", runtime=Runtime)

    assert kept == "Remembered, once it is approved."
    assert gone.startswith("Forgotten, once it is approved:")
    assert "Husum" in memory.load("ann")
    assert memory.proposals("ann")[1].messages == ()
    tools["forget"].func(subject="5 Husum", runtime=Runtime)
    text = memory.accept("ann", *memory.proposals("ann"))
    assert "goats" in text
    assert "Husum" not in text


def test_an_edit_of_an_agent_is_made_again_unless_it_adds_something(store):
    memory = approving(store)
    say(memory, "I live in Husum.", "I sail.")
    memory.accept("ann", *memory.proposals("ann"))
    tools = {tool.name: tool for tool in create_memory_tools(memory, user=lambda *_: "ann")}
    tools["forget"].func(subject="Husum", runtime=Runtime)
    text = memory.load("ann")
    personal = memory.people.of("ann", None)
    head = asyncio.run(personal.head())
    asyncio.run(propose_edit(personal, head, f"{text}\nI knit.", by="assistant"))
    say(memory, "I breed goats.", thread="tuesday", day="2026-03-06")
    goats = next(one for one in memory.proposals("ann") if "goats" in str(one))

    memory.accept("ann", goats)

    changes = [str(one) for one in memory.proposals("ann")]
    assert changes[0] == "- I live in Husum."
    with pytest.raises(MemoryConflictError, match="an edit of an earlier memory: refuse it"):
        memory.accept("ann", memory.proposals("ann")[1])
    text = memory.accept("ann", memory.proposals("ann")[0])
    assert "Husum" not in text
    assert "sail" in text
    assert "goats" in text


class Profile(BaseModel):
    city: str | None = None
    pets: list[str] = []


def test_a_profile_is_approved_with_its_evidence(store):
    replies = [
        [("city", "set", "Husum"), ("pets", "add", "dog")],
        [("city", "set", "Kiel")],
        [("pets", "add", "cat")],
        [("pets", "add", "cat")],
    ]
    keys = ("field", "action", "value", "message")
    texts = [
        json.dumps({"changes": [dict(zip(keys, (*row, 1), strict=True)) for row in reply]})
        for reply in replies
    ]
    model = GenericFakeChatModel(messages=iter(texts))
    memory = ConversationMemory(model, store=store, approve=True, schema=Profile)
    say(memory, "I live in Husum and have a dog.")
    (proposal,) = memory.proposals("ann")
    city = proposal.version.text.splitlines()[0]
    assert memory.accept("ann", proposal, text=city) == Profile(city="Husum")
    say(memory, "I moved to Kiel.", thread="tuesday")
    say(memory, "I have a cat.", thread="wednesday")

    assert memory.accept("ann", *memory.proposals("ann")) == Profile(city="Kiel", pets=["cat"])

    entries = {e.field: e.message for e in memory.entries("ann") if not e.until}
    assert entries == {
        "city": "tuesday-I moved to Kiel.",
        "pets": "wednesday-I have a cat.",
    }


def test_a_memory_without_approval_reads_no_proposals():
    class Watched(InMemoryStore):
        seen: set = set()

        def batch(self, ops):
            self.seen |= {op.namespace for op in ops if hasattr(op, "key")}
            self.seen |= {op.namespace_prefix for op in ops if hasattr(op, "namespace_prefix")}
            return super().batch(ops)

        async def abatch(self, ops):
            return self.batch(ops)

    store = Watched()
    memory = ConversationMemory("extractive", store=store)

    say(memory, "I live in Husum.")
    memory.prompt("ann", about="Husum?")

    assert not any("proposals" in place for place in store.seen)
    assert asyncio.run(list_proposals(Users(store).of("ann"))) == []


def reviewing(memory, kind):
    """A graph, or an agent, whose turns begin with a review."""
    if kind == "agent":
        middleware = [MemAgentMiddleware(memory, review=True)]
        model = GenericFakeChatModel(messages=iter([AIMessage("Hello.")] * 9))
        return create_agent(model, middleware=middleware, checkpointer=InMemorySaver())
    builder = StateGraph(ConversationState).add_node("approve", ApprovalNode(memory))
    return builder.add_edge(START, "approve").compile(InMemorySaver())


def invoke(graph, given, how="sync", user="ann"):
    config = {"configurable": {"user_id": user, "thread_id": "tuesday"}}
    run = graph.ainvoke(given, config) if how == "async" else None
    return graph.invoke(given, config) if run is None else asyncio.run(run)


@pytest.mark.parametrize("how", ["sync", "async"])
@pytest.mark.parametrize("kind", ["graph", "agent"])
def test_a_graph_is_interrupted_for_approval(kind, how):
    memory = approving(InMemoryStore(), remember_within=1e6)
    for number, text in enumerate(("I live in Husum.", "My PIN is yoghurt.", "I live in Bonn.")):
        say(memory, text, thread=f"t{number}")
    graph = reviewing(memory, kind)
    hello = {"messages": [HumanMessage("Hello.")]}

    out = invoke(graph, hello, how)

    (asked,) = out["__interrupt__"]
    first, second, third = asked.value["proposals"]
    assert first["memory"] == "5 Mar 2026\nI live in Husum."
    assert first["changes"] == "+ 5 Mar 2026\n+ I live in Husum."
    assert {*asked.response_schema["properties"]} == {"accept", "refuse", "edit"}
    edit = {third["id"]: "5 Mar 2026\nI live in Kiel."}
    reply = {"accept": [first["id"]], "refuse": [second["id"]], "edit": edit}
    out = invoke(graph, Command(resume=reply), how)
    assert "__interrupt__" not in out
    text = memory.load("ann")
    assert "Husum" in text
    assert "Kiel" in text
    assert "yoghurt" not in text
    assert memory.proposals("ann") == []
    assert "__interrupt__" not in invoke(graph, hello, how)


@pytest.mark.parametrize(
    "reply",
    [
        "yes",
        {"accept": "all"},
        {"accepted": []},
        {"accept": ["x"]},
        {"accept": [7]},
        {"edit": ["x"]},
        {"edit": {"x": "Sails."}},
        [],
        0,
    ],
)
def test_a_reply_that_is_none_decides_nothing(reply):
    memory = approving(InMemoryStore())
    say(memory, "I live in Husum.")
    graph = reviewing(memory, "graph")
    out = invoke(graph, {"messages": [HumanMessage("Hello.")]})
    asked = out["__interrupt__"][0].value

    out = invoke(graph, Command(resume=reply))

    assert out["__interrupt__"][0].value["error"]
    assert len(memory.proposals("ann")) == 1
    done = invoke(graph, Command(resume={"accept": [asked["proposals"][0]["id"]]}))
    assert "__interrupt__" not in done
    assert "Husum" in memory.load("ann")


def test_a_decision_about_what_was_decided_meanwhile_is_refused_with_a_reason():
    memory = approving(InMemoryStore())
    say(memory, "I live in Husum.")
    graph = reviewing(memory, "graph")
    out = invoke(graph, {"messages": [HumanMessage("Hello.")]})
    key = out["__interrupt__"][0].value["proposals"][0]["id"]
    memory.accept("ann", key)

    out = invoke(graph, Command(resume={"refuse": [key]}))

    asked = out["__interrupt__"][0].value
    assert asked["proposals"] == []
    assert "decided" in asked["error"]
    assert "__interrupt__" not in invoke(graph, Command(resume={"accept": []}))
    assert "Husum" in memory.load("ann")


def test_one_that_another_memory_overtook_is_asked_about_again():
    memory = approving(InMemoryStore())
    say(memory, "I live in Husum.")
    say(memory, "I sail.", thread="monday")
    graph = reviewing(memory, "graph")
    out = invoke(graph, {"messages": [HumanMessage("Hello.")]})
    home, sail = (one["id"] for one in out["__interrupt__"][0].value["proposals"])
    memory.accept("ann", home)

    out = invoke(graph, Command(resume={"accept": [sail]}))

    asked = out["__interrupt__"][0].value
    (again,) = (one["id"] for one in asked["proposals"])
    assert again in asked["error"]
    assert "__interrupt__" not in invoke(graph, Command(resume={"accept": [again]}))
    assert "Husum" in memory.load("ann")
    assert "sail" in memory.load("ann")


@pytest.mark.parametrize("how", ["sync", "async"])
@pytest.mark.parametrize("kind", ["graph", "agent"])
def test_the_decision_of_another_user_is_refused_unless_the_state_names_the_user(kind, how):
    memory = approving(InMemoryStore(), remember_within=1e6)
    say(memory, "I live in Husum.")
    graph = reviewing(memory, kind)
    out = invoke(graph, {"messages": [HumanMessage("Hello.")]}, how)
    key = out["__interrupt__"][0].value["proposals"][0]["id"]

    out = invoke(graph, Command(resume={"accept": [key]}), how, user="olga")

    assert "whose id must resume it" in out["__interrupt__"][0].value["error"]
    assert memory.load("ann") == ""
    assert "__interrupt__" not in invoke(graph, Command(resume={"accept": [key]}), how)
    assert "Husum" in memory.load("ann")


@pytest.mark.parametrize("how", ["sync", "async"])
def test_the_decision_of_a_reviewer_counts_for_the_user_of_the_turn(how):
    memory = approving(InMemoryStore(), remember_within=1e6)
    say(memory, "I live in Husum.")
    builder = StateGraph(ConversationState).add_node("remember", ConversationNode(memory))
    builder = builder.add_node("approve", ApprovalNode(memory))
    builder = builder.add_edge(START, "remember").add_edge("remember", "approve")
    graph = builder.compile(InMemorySaver())
    out = invoke(graph, {"messages": [HumanMessage("Hello.")]}, how)
    key = out["__interrupt__"][0].value["proposals"][0]["id"]

    out = invoke(graph, Command(resume={"accept": [key]}), how, user="olga")

    assert "__interrupt__" not in out
    assert "Husum" in memory.load("ann")
    assert memory.load("olga") == ""


@pytest.mark.parametrize("how", ["sync", "async"])
@pytest.mark.parametrize("kind", ["graph", "agent"])
def test_a_new_message_goes_on_while_proposals_wait(kind, how):
    memory = approving(InMemoryStore(), remember_within=1e6)
    say(memory, "I live in Husum.")
    graph = reviewing(memory, kind)
    hello = {"messages": [HumanMessage("Hello.")]}
    assert "__interrupt__" in invoke(graph, hello, how)

    assert "__interrupt__" not in invoke(graph, hello, how)

    assert len(memory.proposals("ann")) == 1
    say(memory, "I sail.", thread="friday")
    (asked,) = invoke(graph, hello, how)["__interrupt__"]
    assert len(asked.value["proposals"]) == 2
    reply = {"accept": [one["id"] for one in asked.value["proposals"]]}
    assert "__interrupt__" not in invoke(graph, Command(resume=reply), how)
    assert "Husum" in memory.load("ann")
    assert "sail" in memory.load("ann")


@pytest.mark.parametrize("how", ["sync", "async"])
@pytest.mark.parametrize("kind", ["graph", "agent"])
def test_a_model_that_hangs_does_not_hold_a_review(kind, how):
    goes_on = Event()

    class Hanging(ScriptedReader):
        async def update(self, *_, **__):
            while not goes_on.is_set():  # noqa: ASYNC110 - set by another thread
                await asyncio.sleep(0.05)
            return Update(None)

    store = InMemoryStore()
    say(approving(store), "I live in Husum.")
    memory = ConversationMemory(Hanging(), store=store, approve=True, remember_within=0.1)
    memory.observe([HumanMessage("I sail.", id="1")], user="ann", thread="friday")
    graph = reviewing(memory, kind)
    begun = monotonic()

    (asked,) = invoke(graph, {"messages": [HumanMessage("Hello.")]}, how)["__interrupt__"]

    assert monotonic() - begun < 3
    goes_on.set()
    assert ["Husum" in one["memory"] for one in asked.value["proposals"]] == [True]
