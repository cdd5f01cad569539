"""What a fold learns counts when somebody has approved it: in memory, in SQLite and in Redis."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from datetime import UTC, datetime

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
from pydantic import BaseModel, ValidationError

from memagent_graph import (
    ApprovalNode,
    ConversationMemory,
    ConversationState,
    MemAgentMiddleware,
    ReadingConfig,
    create_memory_tools,
)
from memagent_graph.conversation.approval import _TYPED
from memagent_graph.conversation.proposal import decide, list_proposals
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
    assert str(proposal) == "+ 2026-03-05 I live in Husum."
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


def test_proposals_are_accepted_in_any_order(store):
    memory = approving(store)
    say(memory, "I live in Husum.")
    say(memory, "My sister breeds goats.", thread="tuesday", day="2026-03-06")
    first, second = memory.proposals("ann")

    memory.accept("ann", second.id)
    text = memory.accept("ann", first.id)

    assert "Husum" in text
    assert "goats" in text
    assert len(memory.history("ann")) == 2
    assert "Husum" in prompted(memory, "Where do I live?")


def test_single_changes_are_decided(store):
    memory = approving(store)
    say(memory, "I live in Husum.", "My PIN is yoghurt.", "My sister breeds goats.")
    (proposal,) = memory.proposals("ann")
    home, pin, goats = proposal.changes

    memory.refuse("ann", pin.id)
    assert "Husum" in memory.accept("ann", home.id)
    (left,) = memory.proposals("ann")
    assert [str(change) for change in left.changes] == [str(goats)]
    assert "yoghurt" not in dump(store).replace("monday-My PIN is yoghurt.", "")
    memory.accept("ann", left.id)

    assert "yoghurt" not in prompted(memory, "What is my PIN yoghurt?")
    assert "goats" in prompted(memory, "What does my sister breed?")
    with pytest.raises(MemoryNotFoundError, match="does not wait"):
        memory.accept("ann", goats.id)


def test_a_change_cannot_be_accepted_and_refused(store):
    memory = approving(store)
    say(memory, "I live in Husum.")
    (proposal,) = memory.proposals("ann")
    own = Users(store).of("ann")

    with pytest.raises(ConfigurationError, match="both"):
        asyncio.run(decide(own, [proposal.id], [proposal.changes[0].id], by="olga"))

    assert memory.proposals("ann") == [proposal]


def test_proposals_and_changes_are_named_by_themselves_or_by_their_ids():
    memory = approving(InMemoryStore())
    say(memory, "I live in Husum.", "My PIN is yoghurt.")
    say(memory, "My sister breeds goats.", thread="tuesday")
    first, second = memory.proposals("ann")

    memory.refuse("ann", first.changes[1])
    text = memory.accept("ann", first, second.id)

    assert "Husum" in text
    assert "goats" in text
    assert "yoghurt" not in text
    for decide_nothing in (memory.accept, memory.refuse):
        with pytest.raises(ConfigurationError, match="Name what to decide"):
            decide_nothing("ann")


def test_a_replaced_statement_stays_when_its_replacement_is_refused(store):
    memory = approving(store, "Lives in Husum.\nHas a dog.", "Lives in Kiel.\nHas a dog.\nSails.")
    say(memory, "One.")
    memory.accept("ann", memory.proposals("ann")[0].id)
    say(memory, "Two.", thread="tuesday")
    (proposal,) = memory.proposals("ann")
    move, sail = proposal.changes

    assert str(move) == "- Lives in Husum.\n+ Lives in Kiel."
    memory.refuse("ann", move.id)

    assert memory.accept("ann", sail.id) == "Lives in Husum.\nHas a dog.\nSails."


@pytest.mark.parametrize("first", [0, 1, None])
def test_of_two_that_replace_the_same_statement_the_one_accepted_last_holds(store, first):
    memory = approving(store, "Lives in Husum.", "Lives in Kiel.", "Sails.\nLives in Bonn.")
    say(memory, "One.")
    memory.accept("ann", memory.proposals("ann")[0].id)
    say(memory, "Two.", thread="tuesday")
    say(memory, "Three.", thread="wednesday")
    kiel, bonn = memory.proposals("ann")
    both = [kiel, bonn] if first is None else [[kiel, bonn][first], [kiel, bonn][1 - first]]

    if first is not None:
        memory.accept("ann", both[0].id)
        (left,) = memory.proposals("ann")
        gone = [fact.text for change in left.changes for fact in change.removed]
        assert gone == [["Lives in Kiel.", "Lives in Bonn."][first]]
    text = memory.accept("ann", *both[first is not None :])

    homes = [home for home in ("Husum", "Kiel", "Bonn") if home in text]
    assert homes == ["Kiel" if first == 1 else "Bonn"]
    assert "Sails." in text


@pytest.mark.parametrize("before", ["A.\nB.\nC.\nD.", "A. B. C. D."])
@pytest.mark.parametrize("after", ["A.", "D.", "X.", "A.\nX.", "X.\nY.\nD.", "B.\nA."])
def test_all_changes_together_make_the_proposed_memory(before, after):
    memory = approving(InMemoryStore(), before, after)
    say(memory, "One.")
    memory.accept("ann", *(one.id for one in memory.proposals("ann")))
    say(memory, "Two.", thread="tuesday")
    Users(memory.users().store).edit("ann", f"{before}", by="olga")  # the base is another version
    changes = [change.id for one in memory.proposals("ann") for change in one.changes]

    text = memory.accept("ann", *changes) if changes else memory.load("ann")

    assert sorted(text.split()) == sorted(after.split())


def test_notes_of_a_chat_model_are_lines(store):
    notes = [f"2026-03-0{n}: Breeds {n} goats. Likes them." for n in (4, 5, 6)]
    memory = approving(store, *notes)
    for n in range(3):
        say(memory, f"Number {n}.", thread=f"t{n}")

    text = memory.accept("ann", *(one.id for one in memory.proposals("ann")))

    assert sorted(text.splitlines()) == notes


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


def test_an_edit_meanwhile_stays_beside_what_is_accepted(store):
    memory = approving(store, "Lives in Husum.\nHas a dog.", "Lives in Kiel.\nHas a dog.")
    say(memory, "One.")
    memory.accept("ann", memory.proposals("ann")[0].id)
    say(memory, "Two.", thread="tuesday")
    Users(store).edit("ann", "Lives in Husum.\nHas two dogs.", by="olga")

    (proposal,) = memory.proposals("ann")

    assert memory.accept("ann", proposal.id) == "Lives in Kiel.\nHas two dogs."


def test_a_forgotten_message_leaves_what_was_proposed_from_it(store):
    memory = approving(store)
    say(memory, "I live in Husum.", "My sister breeds goats.")

    memory.forget_messages("ann", ["monday-I live in Husum."], thread="monday")

    (proposal,) = memory.proposals("ann")
    assert [c.added[0].text for c in proposal.changes] == ["My sister breeds goats."]
    assert [one.text for one in proposal.said] == ["My sister breeds goats."]
    assert "live in Husum" not in dump(store).replace("monday-I live in Husum.", "")
    assert "goats" in memory.accept("ann", proposal.id)


def test_a_forgotten_subject_leaves_proposals(store):
    memory = approving(store)
    say(memory, "My phone number is quinoa.", "I live in Husum.")
    memory.forget_about("ann", "phone number")

    texts = [c.added[0].text for p in memory.proposals("ann") for c in p.changes]
    assert texts == ["I live in Husum."]
    memory.forget_about("ann", "Husum")

    assert memory.proposals("ann") == []
    assert "quinoa" not in dump(store).replace("monday-My phone number is quinoa.", "")


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


def test_a_function_accepts_single_changes(store):
    def approve(proposal):
        return [one.id for one in proposal.changes if "PIN" not in str(one)]

    memory = ConversationMemory("extractive", store=store, approve=approve)

    text = say(memory, "I live in Husum.", "My PIN is yoghurt.")

    assert "Husum" in text
    assert "yoghurt" not in text
    assert memory.proposals("ann") == []


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
            decide(own, accept=[proposal.id], by="olga"),
            decide(own, refuse=[proposal.id], by="otto"),
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
    monkeypatch.setattr("memagent_graph.conversation.users._before", lambda days: since)
    assert Users(store).prune(idle_days=1, by="olga", preview=True).forgotten == ["ann"]

    memory.save([HumanMessage("I breed goats.", id="2")], user="ann", thread="t")

    assert Users(store).prune(idle_days=1, by="olga", preview=True).forgotten == []


def test_the_tools_of_an_agent_propose(store):
    memory = approving(store)
    say(memory, "I live in Husum.")
    memory.accept("ann", memory.proposals("ann")[0].id)
    tools = {tool.name: tool for tool in create_memory_tools(memory, user=lambda *_: "ann")}

    class Runtime:
        state, config, store, context, tool_call_id = {}, {"configurable": {}}, None, None, "c1"

    kept = tools["remember"].func(statement="I breed goats.", runtime=Runtime)
    gone = tools["forget"].func(subject="Husum", runtime=Runtime)

    assert kept == "Remembered, once it is approved."
    assert gone.startswith("Forgotten, once it is approved:")
    assert "Husum" in memory.load("ann")
    first, second = memory.proposals("ann")
    text = memory.accept("ann", first.id, second.id)
    assert "goats" in text
    assert "Husum" not in text


class Profile(BaseModel):
    city: str | None = None
    pets: list[str] = []


def test_a_profile_is_approved_by_its_values(store):
    replies = [
        [("city", "set", "Husum"), ("pets", "add", "dog")],
        [("city", "set", "Kiel")],
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
    city = next(one for one in proposal.changes if "city" in str(one))

    assert memory.accept("ann", city.id) == Profile(city="Husum")
    say(memory, "I moved to Kiel.", thread="tuesday")
    first, second = memory.proposals("ann")
    assert memory.accept("ann", second.id) == Profile(city="Kiel")
    assert memory.accept("ann", first.id) == Profile(city="Kiel", pets=["dog"])
    entries = {e.field: e.message for e in memory.entries("ann") if not e.until}
    assert entries == {
        "city": "tuesday-I moved to Kiel.",
        "pets": "monday-I live in Husum and have a dog.",
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


def invoke(graph, given, how):
    config = {"configurable": {"user_id": "ann", "thread_id": "tuesday"}}
    run = graph.ainvoke(given, config) if how == "async" else None
    return graph.invoke(given, config) if run is None else asyncio.run(run)


@pytest.mark.parametrize("how", ["sync", "async"])
@pytest.mark.parametrize("kind", ["graph", "agent"])
def test_a_graph_is_interrupted_for_approval(kind, how):
    memory = approving(InMemoryStore(), remember="end")
    say(memory, "I live in Husum.", "My PIN is yoghurt.")
    graph = reviewing(memory, kind)
    hello = {"messages": [HumanMessage("Hello.")]}

    out = invoke(graph, hello, how)

    (asked,) = out["__interrupt__"]
    (proposal,) = asked.value["proposals"]
    home, pin = (change["id"] for change in proposal["changes"])
    assert [change["add"] for change in proposal["changes"]] == [
        ["I live in Husum."],
        ["My PIN is yoghurt."],
    ]
    if _TYPED:
        assert {*asked.response_schema["properties"]} == {"accept", "refuse"}
    out = invoke(graph, Command(resume={"accept": [home], "refuse": [pin]}), how)
    assert "__interrupt__" not in out
    assert "Husum" in memory.load("ann")
    assert "yoghurt" not in memory.load("ann")
    assert "__interrupt__" not in invoke(graph, hello, how)


@pytest.mark.parametrize(
    "reply",
    ["yes", {"accept": "all"}, {"accepted": []}, {"accept": ["x"]}, {"accept": [7]}, [], 0],
)
def test_a_reply_that_is_none_decides_nothing(reply):
    memory = approving(InMemoryStore())
    say(memory, "I live in Husum.")
    graph = reviewing(memory, "graph")
    out = invoke(graph, {"messages": [HumanMessage("Hello.")]}, "sync")
    asked = out["__interrupt__"][0].value

    with suppress(ValidationError):  # raised by LangGraph, if it validates replies
        out = invoke(graph, Command(resume=reply), "sync")
        assert "__interrupt__" in out

    assert len(memory.proposals("ann")) == 1
    done = invoke(graph, Command(resume={"accept": [asked["proposals"][0]["id"]]}), "sync")
    assert "__interrupt__" not in done
    assert "Husum" in memory.load("ann")


def test_what_was_decided_meanwhile_is_not_asked_again():
    memory = approving(InMemoryStore())
    say(memory, "I live in Husum.")
    graph = reviewing(memory, "graph")
    out = invoke(graph, {"messages": [HumanMessage("Hello.")]}, "sync")
    key = out["__interrupt__"][0].value["proposals"][0]["id"]
    memory.accept("ann", key)

    out = invoke(graph, Command(resume={"refuse": [key]}), "sync")

    assert "__interrupt__" not in out
    assert "Husum" in memory.load("ann")
