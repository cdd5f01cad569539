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
    return asyncio.run(adecided_by(memory, by, **decision))


def adecided_by(memory, by, **decision):
    return decide(memory.users().of("ann"), Decision(**decision), by=by)


class Runtime:
    state, config, store, context, tool_call_id = {}, {"configurable": {}}, None, None, "c1"


def call(memory, name, **given):
    tools = {tool.name: tool for tool in create_memory_tools(memory, user=lambda *_: "ann")}
    return tools[name].func(**given, runtime=Runtime)


def changes_of(memory):
    return [(change.what, change.by) for change in memory.users().history("ann")[1]]


def test_a_fold_proposes_and_prompts_know_what_was_accepted(store):
    memory = approving(store)

    assert tell(memory, HUSUM) == ""
    (proposal,) = memory.proposals("ann")
    assert (str(proposal), proposal.thread) == (f"+ 5 Mar 2026\n+ {HUSUM}", "monday")
    assert (prompted(memory, "Where do I live? Husum?"), memory.history("ann")) == ("", [])

    assert HUSUM in memory.accept("ann", proposal.id)
    assert memory.proposals("ann") == []
    assert HUSUM in prompted(memory, "Where do I live?")
    assert changes_of(memory) == [("accepted", "application"), ("proposed", "conversation")]
    assert (tell(memory, HUSUM), memory.proposals("ann")) == (memory.load("ann"), [])


def test_what_is_refused_does_not_come_back(store):
    memory = approving(store)
    (proposal, _) = tell_in_turn(memory, HUSUM, GOATS)

    memory.refuse("ann", proposal.id)
    tell(memory, HUSUM)  # resent
    text = accept_all(memory) + prompted(memory, "Where do I live? In Husum?")

    assert words_in(text, "goats", "Husum") == ["goats"]
    items = store.search((), limit=10_000)
    left = "".join(repr(item.value) for item in items if "threads" not in item.namespace)
    assert "live in Husum" not in left.replace(f"monday-{HUSUM}", "")


@pytest.mark.parametrize("keep", [1, 10])
def test_several_that_are_accepted_in_one_call_all_count(store, keep):
    memory = approving(store, keep_versions=keep)
    tell_in_turn(memory, HUSUM, GOATS, SAIL)

    text = accept_all(memory)

    assert words_in(text, "Husum", "goats", "sail") == ["Husum", "goats", "sail"]
    assert (memory.proposals("ann"), len(memory.history("ann"))) == ([], min(3, keep))
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
    assert words_in(memory.accept("ann", again), "Husum", "goats") == ["Husum", "goats"]


def test_without_a_model_one_made_for_an_earlier_memory_waits_for_the_chatbot():
    memory = approving()
    first, second = (one.id for one in tell_in_turn(memory, HUSUM, GOATS))

    with pytest.raises(MemoryConflictError, match="Only one"):
        decided_by(memory, accept=[first, second])
    decided_by(memory, accept=[first])
    with pytest.raises(MemoryConflictError, match="next turn"):
        decided_by(memory, accept=[second])
    tell(memory, "Hello, I sail.", thread="wednesday")  # the next turn

    waiting = asyncio.run(list_proposals(memory.users().of("ann")))
    assert ["Husum" in one.version.text for one in waiting] == [True, True]
    decided_by(memory, accept=[one.id for one in waiting if "goats" in str(one)])
    assert "goats" in memory.load("ann")


def test_an_edited_text_is_accepted_in_the_place_of_the_proposed_one(store):
    memory = approving(store, redact=lambda text: text.replace("4711", "[PIN]"), never="yoghurt")
    tell(memory, HUSUM, GOATS)

    edited = "Lives in Kiel.\nPIN 4711.\nEats yoghurt."
    text = memory.accept("ann", *memory.proposals("ann"), text=edited)

    assert (text, memory.proposals("ann")) == ("Lives in Kiel.\nPIN [PIN].", [])
    assert "goats" in prompted(memory, "What do I breed?")
    assert [version.edited for version in memory.history("ann")] == [True]
    assert tell(memory, SAIL, thread="tuesday") == text


def test_proposals_are_named_once_by_themselves_or_by_their_ids_and_edited_one_at_a_time():
    memory = approving(config=ReadingConfig(memory_tokens=60, chunk_tokens=400))
    first, second = tell_in_turn(memory, HUSUM, GOATS)

    with pytest.raises(ConfigurationError, match="once"):
        decided_by(memory, accept=[first.id], refuse=[first.id])
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
    words = words_in(memory.load("ann"), "Husum", "sail", "goats", "quinoa")
    assert words == ["Husum", "sail", "goats"]
    assert "number" not in prompted(memory, "What is my number quinoa?")


@pytest.mark.parametrize("now", ["I live in Kiel.", ""])
def test_an_edit_of_what_was_accepted_is_folded_again_as_an_edit(now):
    memory = approving()
    send(memory, a=HUSUM)
    accept_all(memory)
    for said in ({"a": "I live in Bonn."}, {"a": now}, {"b": SAIL}):
        send(memory, **said)
    memory.accept("ann", next(one for one in memory.proposals("ann") if "sail" in str(one)))

    words = words_in(accept_all(memory), "Husum", "Bonn", "Kiel", "sail")

    assert words == (["Kiel", "sail"] if now else ["sail"])


@pytest.mark.parametrize(("verdict", "known", "waits", "logged"), [
    (True, f"5 Mar 2026\n{HUSUM}", 0, ""), (False, "", 0, ""),
    ("I live in Kiel.", "I live in Kiel.", 0, ""), (None, "", 1, ""),
    (ModelError("No."), "", 1, "No."), (["something else"], "", 1, "True, False, a text or None"),
])  # fmt: skip
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

    assert (tell(memory, HUSUM), len(memory.proposals("ann"))) == (known, waits)
    assert logged in caplog.text


def test_workers_that_fold_the_same_messages_make_one_proposal(store):
    memories = [approving(store) for _ in range(4)]
    said = [HumanMessage(f"Fact {n} is {n * 7}.", id=str(n)) for n in range(3)]
    ids = {"user": "ann", "thread": "t"}

    async def fold():
        await asyncio.gather(*(memory.asave(said, **ids) for memory in memories))

    if isinstance(store, SqliteStore):  # which has a sync face only
        for memory in memories:
            memory.save(said, **ids)
    else:
        asyncio.run(fold())

    assert len(memories[0].proposals("ann")) == 1


def test_of_two_who_decide_at_once_one_does(store):
    memory = approving(store)
    tell(memory, HUSUM)
    ids = [one.id for one in memory.proposals("ann")]

    async def both():
        decisions = (adecided_by(memory, "olga", accept=ids), adecided_by(memory, "ot", refuse=ids))
        return await asyncio.gather(*decisions, return_exceptions=True)

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
    assert [(found.kind, found.key) for found in bank.check(repair=True)] == [("bad", bad.id)]
    assert "goats" in memory.accept("ann", good.id)


def test_the_tools_of_an_agent_propose():
    memory = approving()
    tell(memory, HUSUM)
    accept_all(memory)

    assert call(memory, "remember", statement=GOATS) == "Remembered, once it is approved."
    gone = call(memory, "forget", subject="Husum")
    assert gone.startswith("Forgotten, once it is approved:")
    assert "Husum" in memory.load("ann")
    assert memory.proposals("ann")[1].messages == ()
    call(memory, "forget", subject="5 Husum")

    assert words_in(accept_all(memory), "goats", "Husum") == ["goats"]


def test_an_edit_of_an_agent_is_made_again_unless_it_adds_something():
    memory = approving()
    tell(memory, HUSUM, SAIL)
    accept_all(memory)
    call(memory, "forget", subject="Husum")
    personal, edited = memory.people.of("ann", None), f"{memory.load('ann')}\nI knit."
    head = asyncio.run(personal.head())
    asyncio.run(propose_edit(personal, head, edited, by="assistant"))
    tell(memory, GOATS, thread="tuesday")

    memory.accept("ann", next(one for one in memory.proposals("ann") if "goats" in str(one)))

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
HELLO = {"messages": [("human", "Hello.")]}


def hello(graph, how="sync"):
    """A turn; return what its review asks, or None."""
    return asked_in(run(graph, HELLO, of("ann"), how))


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

    (asked,) = run(graph, HELLO, of("ann"), how)["__interrupt__"]
    first, second, third = asked.value["proposals"]
    known = f"5 Mar 2026\n{HUSUM}", f"+ 5 Mar 2026\n+ {HUSUM}"
    assert (first["memory"], first["changes"]) == known
    assert {*asked.response_schema["properties"]} == {"accept", "refuse", "edit"}
    edit = {third["id"]: "5 Mar 2026\nI live in Kiel."}
    reply = {"accept": [first["id"]], "refuse": [second["id"]], "edit": edit}
    assert resume(graph, reply, how) is None
    assert words_in(memory.load("ann"), "Husum", "Kiel", "yoghurt") == ["Husum", "Kiel"]
    assert memory.proposals("ann") == []
    assert hello(graph, how) is None


@pytest.mark.parametrize("reply", [
    "yes", {"accept": "all"}, {"accepted": []}, {"accept": ["x"]}, {"accept": [7]}, {"edit": ["x"]},
    {"edit": {"x": "Sails."}}, [], 0,
])  # fmt: skip
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
    assert (len(keys), resume(graph, {"accept": keys}, how)) == (2, None)
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
