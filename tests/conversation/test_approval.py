"""What a fold learns counts when somebody has approved it: in memory, in SQLite and in Redis."""

import asyncio
from contextlib import suppress

import pytest
from conversations import (
    NEVER,
    Keeper,
    agent_with,
    dated,
    dump,
    graph_with,
    of,
    prompted,
    run,
    words_in,
)
from fixed_readers import ScriptedReader
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import SqliteStore
from langgraph.types import Command

from memagent_graph import (
    ApprovalMiddleware,
    ApprovalNode,
    ConversationMemory,
    ConversationState,
    ReadingConfig,
    create_memory_tools,
)
from memagent_graph.conversation.proposal import Decision, decide, list_proposals, propose_edit
from memagent_graph.errors import (
    ConfigurationError,
    MemoryConflictError,
    MemoryNotFoundError,
    ModelError,
)

HUSUM, GOATS, SAIL = "I live in Husum.", "I breed goats.", "I sail."


def approving(store=None, *script, **options):
    reader = ScriptedReader(*script) if script else "extractive"
    store = InMemoryStore() if store is None else store
    return ConversationMemory(reader, store=store, approve=True, **options)


def tell(memory, *texts, thread="monday"):
    """Fold messages, which are as old as their thread's first letter."""
    day = 5 + "mtwf".index(thread[0])
    said = [dated(t, f"2026-03-0{day}T08:00+00:00", f"{thread}-{t}") for t in texts]
    memory.save(said, user="ann", thread=thread)
    return memory.load("ann")


def tell_in_turn(memory, *texts):
    """Fold each in a thread of its own; return what is proposed."""
    for thread, text in zip(("monday", "tuesday", "wednesday"), texts, strict=False):
        tell(memory, text, thread=thread)
    return memory.proposals("ann")


def send(memory, **said):
    """Fold messages whose ids are their names."""
    memory.save([HumanMessage(text, id=key) for key, text in said.items()], user="ann", thread="t")


def accept_all(memory):
    return memory.accept("ann", *memory.proposals("ann"))


def decided_by(memory, by="olga", **decision):
    """A decision by somebody who has the store alone."""
    return decide(memory.users().of("ann"), Decision(**decision), by=by)


class Runtime:
    state, config, store, context, tool_call_id = {}, {"configurable": {}}, None, None, "c1"


def call(memory, name, **given):
    """Call a tool of an agent."""
    tools = {tool.name: tool for tool in create_memory_tools(memory, user=lambda *_: "ann")}
    return tools[name].func(**given, runtime=Runtime)


def changes_of(memory):
    return [(change.what, change.by) for change in memory.users().history("ann")[1]]


def test_a_fold_proposes_and_prompts_know_what_was_accepted(store):
    memory = approving(store)

    assert tell(memory, HUSUM) == ""
    (proposal,) = memory.proposals("ann")
    assert str(proposal) == f"+ 5 Mar 2026\n+ {HUSUM}"
    assert proposal.thread == "monday"
    assert prompted(memory, "Where do I live? Husum?") == ""
    assert memory.history("ann") == []

    assert HUSUM in memory.accept("ann", proposal.id)
    assert memory.proposals("ann") == []
    assert HUSUM in prompted(memory, "Where do I live?")
    assert changes_of(memory) == [("accepted", "application"), ("proposed", "conversation")]
    assert tell(memory, HUSUM) == memory.load("ann")
    assert memory.proposals("ann") == []


def test_what_is_refused_does_not_come_back(store):
    memory = approving(store)
    (proposal, _) = tell_in_turn(memory, HUSUM, GOATS)

    memory.refuse("ann", proposal.id)
    tell(memory, HUSUM)  # resent
    (other,) = memory.proposals("ann")
    text = memory.accept("ann", other.id)

    assert "goats" in text
    assert "Husum" not in text + prompted(memory, "Where do I live? In Husum?")
    assert "live in Husum" not in "".join(
        repr(i.value) for i in store.search((), limit=10_000) if "threads" not in i.namespace
    ).replace(f"monday-{HUSUM}", "")


@pytest.mark.parametrize("keep", [1, 10])
def test_several_that_are_accepted_in_one_call_all_count(store, keep):
    memory = approving(store, keep_versions=keep)
    tell_in_turn(memory, HUSUM, GOATS, SAIL)

    text = accept_all(memory)

    assert all(word in text for word in ("Husum", "goats", "sail"))
    assert memory.proposals("ann") == []
    assert len(memory.history("ann")) == min(3, keep)
    assert "goats" in prompted(memory, "What do I breed?")
    assert [what for what, _ in changes_of(memory)] == [*["accepted"] * 3, *["proposed"] * 3]


def test_one_made_for_an_earlier_memory_is_folded_again_and_proposed_anew(store):
    memory = approving(store)
    first, second = tell_in_turn(memory, HUSUM, GOATS)
    memory.accept("ann", first)

    with pytest.raises(MemoryConflictError, match="folded again: look at") as raised:
        memory.accept("ann", second)

    (again,) = memory.proposals("ann")
    assert again.id in str(raised.value)
    assert str(again) == f"+ 6 Mar\n+ {GOATS}"
    assert "Husum" in again.version.text
    assert (again.messages, again.said) == (second.messages, second.said)
    with pytest.raises(MemoryNotFoundError, match="folded again"):
        memory.accept("ann", second)
    text = memory.accept("ann", again)
    assert words_in(text, "Husum", "goats") == ["Husum", "goats"]


def test_without_a_model_one_made_for_an_earlier_memory_waits_for_the_chatbot():
    memory = approving()
    first, second = tell_in_turn(memory, HUSUM, GOATS)

    with pytest.raises(MemoryConflictError, match="Only one"):
        asyncio.run(decided_by(memory, accept=[first.id, second.id]))
    asyncio.run(decided_by(memory, accept=[first.id]))
    with pytest.raises(MemoryConflictError, match="next turn"):
        asyncio.run(decided_by(memory, accept=[second.id]))
    tell(memory, "Hello, I sail.", thread="wednesday")  # the next turn

    waiting = asyncio.run(list_proposals(memory.users().of("ann")))
    assert len(waiting) == 2
    assert all("Husum" in one.version.text for one in waiting)
    goats = [one.id for one in waiting if "goats" in str(one)]
    asyncio.run(decided_by(memory, accept=goats))
    assert "goats" in memory.load("ann")


def test_an_edited_text_is_accepted_in_the_place_of_the_proposed_one(store):
    memory = approving(store, redact=lambda text: text.replace("4711", "[PIN]"), never="yoghurt")
    tell(memory, HUSUM, GOATS)
    (proposal,) = memory.proposals("ann")

    text = memory.accept("ann", proposal, text="Lives in Kiel.\nPIN 4711.\nEats yoghurt.")

    assert text == "Lives in Kiel.\nPIN [PIN]."
    assert memory.proposals("ann") == []
    assert "goats" in prompted(memory, "What do I breed?")
    (version,) = memory.history("ann")
    assert version.edited
    assert tell(memory, SAIL, thread="tuesday") == text


def test_proposals_are_named_once_by_themselves_or_by_their_ids_and_edited_one_at_a_time():
    memory = approving(config=ReadingConfig(memory_tokens=60, chunk_tokens=400))
    first, second = tell_in_turn(memory, HUSUM, GOATS)

    with pytest.raises(ConfigurationError, match="once"):
        asyncio.run(decided_by(memory, accept=[first.id], refuse=[first.id]))
    for decide_nothing in (memory.accept, memory.refuse):
        with pytest.raises(ConfigurationError, match="Name each proposal"):
            decide_nothing("ann")
    with pytest.raises(MemoryNotFoundError, match="'x' does not wait"):
        memory.accept("ann", first, "x")
    with pytest.raises(ConfigurationError, match="shorten it"):
        memory.accept("ann", first, text="I sail to Husum. " * 60)
    with pytest.raises(ConfigurationError, match="edit one at a time"):
        memory.accept("ann", first, second, text="Sails.")
    assert memory.proposals("ann") == [first, second]
    text = memory.accept("ann", first, second.id)

    assert words_in(text, "Husum", "goats") == ["Husum", "goats"]


def test_a_forgotten_message_or_subject_leaves_what_was_proposed_from_it(store):
    memory = approving(store)
    tell(memory, HUSUM, GOATS, "My number is quinoa.")

    memory.forget_messages("ann", [f"monday-{HUSUM}"], thread="monday")
    memory.forget_about("ann", "number quinoa")

    (proposal,) = memory.proposals("ann")
    assert str(proposal).splitlines()[1:] == [f"+ {GOATS}"]
    assert [one.text for one in proposal.said] == [GOATS]
    left = dump(store).replace(f"monday-{HUSUM}", "").replace("monday-My number is quinoa.", "")
    assert words_in(left, "live in Husum", "quinoa") == []
    memory.forget_about("ann", "goats")
    assert memory.proposals("ann") == []


@pytest.mark.parametrize("how", ["subject", "message", "tool"])
def test_what_was_forgotten_does_not_come_back_through_a_proposal(store, how):
    memory = approving(store)
    tell(memory, HUSUM)
    accept_all(memory)
    tell(memory, "My number is quinoa.", SAIL, thread="tuesday")
    tell(memory, GOATS, thread="wednesday")
    shown = memory.proposals("ann")

    if how == "subject":
        memory.forget_about("ann", "number quinoa")
    elif how == "message":
        memory.forget_messages("ann", ["tuesday-My number is quinoa."])
    else:
        call(memory, "forget", subject="number quinoa")

    assert "number is quinoa" not in dump(store).replace("tuesday-My number is quinoa.", "")
    with suppress(MemoryConflictError, MemoryNotFoundError):
        memory.accept("ann", *shown)
    while memory.proposals("ann"):
        accept_all(memory)
    text = memory.load("ann")
    assert "quinoa" not in text
    assert all(word in text for word in ("Husum", "sail", "goats"))
    assert "number" not in prompted(memory, "What is my number quinoa?")


@pytest.mark.parametrize("now", ["I live in Kiel.", ""])
def test_an_edit_of_what_was_accepted_is_folded_again_as_an_edit(now):
    memory = approving()
    send(memory, a=HUSUM)
    accept_all(memory)
    send(memory, a="I live in Bonn.")
    send(memory, a=now)
    send(memory, b=SAIL)
    sail = next(one for one in memory.proposals("ann") if "sail" in str(one))
    memory.accept("ann", sail)

    text = accept_all(memory)

    assert words_in(text, "Husum", "Bonn") == []
    assert ("Kiel" in text) == bool(now)
    assert "sail" in text


@pytest.mark.parametrize(
    ("verdict", "known", "waits", "logged"),
    [
        (True, f"5 Mar 2026\n{HUSUM}", 0, ""),
        (False, "", 0, ""),
        ("I live in Kiel.", "I live in Kiel.", 0, ""),
        (None, "", 1, ""),
        (ModelError("No."), "", 1, "No."),
        (["something else"], "", 1, "True, False, a text or None"),
    ],
)
@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_function_decides_or_edits_and_its_failure_loses_nothing(
    verdict, known, waits, logged, how, caplog
):
    def sync(proposal):
        if isinstance(verdict, Exception):
            raise verdict
        return verdict

    async def coroutine(proposal):
        await asyncio.sleep(0)
        return sync(proposal)

    approve = sync if how == "sync" else coroutine
    memory = ConversationMemory("extractive", store=InMemoryStore(), approve=approve)

    assert tell(memory, HUSUM) == known
    assert len(memory.proposals("ann")) == waits
    assert logged in caplog.text


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
    tell(memory, HUSUM)
    (proposal,) = memory.proposals("ann")

    async def both():
        return await asyncio.gather(
            decided_by(memory, accept=[proposal.id]),
            decided_by(memory, refuse=[proposal.id], by="otto"),
            return_exceptions=True,
        )

    (error,) = (one for one in asyncio.run(both()) if one is not None)

    assert isinstance(error, MemoryNotFoundError | MemoryConflictError)
    accepted = "Husum" in memory.load("ann")
    assert ("Husum" in prompted(memory, "Husum?")) == accepted
    done = [what for what, _ in changes_of(memory)]
    assert done.count("accepted" if accepted else "refused") == 1


def test_a_bad_proposal_costs_itself(store, caplog):
    memory = approving(store)
    bad, good = tell_in_turn(memory, HUSUM, GOATS)
    bank = memory.users().of("ann").bank
    store.put((*bank.namespace, "proposals"), bad.id, {"changes": "none"})

    assert memory.proposals("ann") == [good]
    assert bad.id in caplog.text
    findings = bank.check(repair=True)
    assert [(found.kind, found.key) for found in findings] == [("bad", bad.id)]
    assert "goats" in memory.accept("ann", good.id)


def test_the_tools_of_an_agent_propose():
    memory = approving()
    tell(memory, HUSUM)
    accept_all(memory)

    kept = call(memory, "remember", statement=GOATS)
    gone = call(memory, "forget", subject="Husum")

    assert kept == "Remembered, once it is approved."
    assert gone.startswith("Forgotten, once it is approved:")
    assert "Husum" in memory.load("ann")
    assert memory.proposals("ann")[1].messages == ()
    call(memory, "forget", subject="5 Husum")
    text = accept_all(memory)
    assert words_in(text, "goats", "Husum") == ["goats"]


def test_an_edit_of_an_agent_is_made_again_unless_it_adds_something():
    memory = approving()
    tell(memory, HUSUM, SAIL)
    accept_all(memory)
    call(memory, "forget", subject="Husum")
    personal = memory.people.of("ann", None)
    head = asyncio.run(personal.head())
    edited = f"{memory.load('ann')}\nI knit."
    asyncio.run(propose_edit(personal, head, edited, by="assistant"))
    tell(memory, GOATS, thread="tuesday")
    goats = next(one for one in memory.proposals("ann") if "goats" in str(one))

    memory.accept("ann", goats)

    again, stale = memory.proposals("ann")
    assert str(again) == f"- {HUSUM}"
    with pytest.raises(MemoryConflictError, match="an edit of an earlier memory: refuse it"):
        memory.accept("ann", stale)
    text = memory.accept("ann", again)
    assert words_in(text, "Husum", "sail", "goats") == ["sail", "goats"]


# reviews


def graph_of(memory):
    builder = StateGraph(ConversationState).add_node("approve", ApprovalNode(memory))
    return builder.add_edge(START, "approve").compile(InMemorySaver())


def agent_of(memory):
    return agent_with(memory, ApprovalMiddleware(memory))


REVIEWS = pytest.mark.parametrize("make", [graph_of, agent_of])
HOWS = pytest.mark.parametrize("how", ["sync", "async"])


def hello(graph, how="sync"):
    """A turn; return what its review asks, or None."""
    return asked_in(run(graph, {"messages": [HumanMessage("Hello.")]}, of("ann"), how))


def resume(graph, reply, how="sync", user="ann"):
    """Answer a review; return what it asks then, or None."""
    return asked_in(run(graph, Command(resume=reply), of(user), how))


def asked_in(out):
    return out["__interrupt__"][0].value if "__interrupt__" in out else None


def ids_of(asked):
    return [one["id"] for one in asked["proposals"]]


@HOWS
@REVIEWS
def test_a_graph_is_interrupted_for_approval(make, how):
    memory = approving(**NEVER)
    tell_in_turn(memory, HUSUM, "My PIN is yoghurt.", "I live in Bonn.")
    graph = make(memory)

    out = run(graph, {"messages": [HumanMessage("Hello.")]}, of("ann"), how)

    (asked,) = out["__interrupt__"]
    first, second, third = asked.value["proposals"]
    assert first["memory"] == f"5 Mar 2026\n{HUSUM}"
    assert first["changes"] == f"+ 5 Mar 2026\n+ {HUSUM}"
    assert {*asked.response_schema["properties"]} == {"accept", "refuse", "edit"}
    edit = {third["id"]: "5 Mar 2026\nI live in Kiel."}
    reply = {"accept": [first["id"]], "refuse": [second["id"]], "edit": edit}
    assert resume(graph, reply, how) is None
    text = memory.load("ann")
    assert words_in(text, "Husum", "Kiel", "yoghurt") == ["Husum", "Kiel"]
    assert memory.proposals("ann") == []
    assert hello(graph, how) is None


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
    memory = approving()
    tell(memory, HUSUM)
    graph = graph_of(memory)
    key = ids_of(hello(graph))

    assert resume(graph, reply)["error"]
    assert len(memory.proposals("ann")) == 1
    assert resume(graph, {"accept": key}) is None
    assert "Husum" in memory.load("ann")


@HOWS
@REVIEWS
def test_the_decision_of_another_user_is_refused_unless_the_state_names_the_user(make, how):
    memory = approving(**NEVER)
    tell(memory, HUSUM)
    graph = make(memory)
    reply = {"accept": ids_of(hello(graph, how))}

    assert "whose id must resume it" in resume(graph, reply, how, user="olga")["error"]
    assert memory.load("ann") == ""
    assert resume(graph, reply, how) is None
    assert "Husum" in memory.load("ann")


@HOWS
def test_the_decision_of_a_reviewer_counts_for_the_user_of_the_turn(how):
    memory = approving(**NEVER)
    tell(memory, HUSUM)
    graph = graph_with(memory, ApprovalNode(memory), behind=False)
    reply = {"accept": ids_of(hello(graph, how))}

    assert resume(graph, reply, how, user="olga") is None
    assert "Husum" in memory.load("ann")
    assert memory.load("olga") == ""


@HOWS
@REVIEWS
def test_a_new_message_goes_on_while_proposals_wait(make, how):
    memory = approving(**NEVER)
    tell(memory, HUSUM)
    graph = make(memory)
    assert hello(graph, how)

    assert hello(graph, how) is None

    assert len(memory.proposals("ann")) == 1
    tell(memory, SAIL, thread="friday")
    keys = ids_of(hello(graph, how))
    assert len(keys) == 2
    assert resume(graph, {"accept": keys}, how) is None
    assert words_in(memory.load("ann"), "Husum", "sail") == ["Husum", "sail"]


@HOWS
@REVIEWS
def test_a_model_that_hangs_does_not_hold_a_review(make, how):
    tell(approving(store := InMemoryStore()), HUSUM)
    memory = ConversationMemory(reader := Keeper(), store=store, approve=True, remember_within=0.1)
    reader.may_reply.clear()
    memory.observe([HumanMessage(SAIL, id="1")], user="ann", thread="friday")

    asked = hello(make(memory), how)

    assert reader.calls == []
    reader.may_reply.set()
    assert ["Husum" in one["memory"] for one in asked["proposals"]] == [True]
