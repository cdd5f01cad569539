"""Prompts continue one another, so that caches know them, and checkpoints stay small."""

from itertools import pairwise

import pytest
from conversations import NEVER, agent_with, answer_with, calling, graph_around, of, run, say
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command, interrupt

from memagent_graph import ConversationMemory
from memagent_graph.errors import ConfigurationError
from memagent_graph.testing import ScriptedChatModel

ANN = of("ann")
TURNS = 50


def remembering(store=None, **options):
    memory = ConversationMemory(store=store or InMemoryStore(), **{**NEVER, **options})
    memory.save([HumanMessage("I keep bees near Lugo.", id="b")], user="ann", thread="before")
    return memory


def agent(memory, model, saver=None):
    return agent_with(memory, model=model, checkpointer=saver or InMemorySaver())


def graph(memory, model, saver=None):
    return graph_around(memory, answer_with(model), checkpointer=saver or InMemorySaver())


HOSTS = pytest.mark.parametrize("host", [agent, graph])


@tool
def weigh() -> str:
    """Weigh the honey."""
    return "The honey weighs 12 kilograms."


def with_tools(memory, _):
    script = [part for number in range(60) for part in (calling("weigh", f"c{number}"), "Noted.")]
    model = ScriptedChatModel(*script)
    return agent_with(memory, model=model, tools=[weigh]), model


def texts(call):
    return [message.text for message in call.messages]


@pytest.mark.parametrize("host", [agent, graph, with_tools])
@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_prompt_continues_the_one_before_until_the_view_begins_elsewhere(host, how):
    memory = remembering(window=12)
    made = host(memory, model := ScriptedChatModel("Noted."))
    made, model = made if isinstance(made, tuple) else (made, model)
    for number in range(16):
        say(made, f"My boat number {number} lies near the bees of Lugo.", ANN, how)
        memory.flush()

    pairs = [*pairwise(map(texts, model.calls))]
    broken = [at for at, (one, two) in enumerate(pairs) if two[: len(one)] != one]
    # A view of 12 messages loses half of them at once, or nearly.
    assert len(broken) <= len(made.get_state(ANN).values["messages"]) / 5
    assert all(two[0] != one[0] for at, (one, two) in enumerate(pairs) if at in broken)
    assert all("My boat number" in text for text in texts(model.calls[-1])[:1])


@HOSTS
def test_nothing_that_is_shown_is_shown_again_and_what_is_new_comes_last(host):
    memory, model = remembering(), ScriptedChatModel("Noted.")
    made = host(memory, model)

    say(made, "Where are my bees?", ANN)
    memory.save("My hives are blue.", user="ann", thread="elsewhere")
    say(made, "What colour are my hives near my bees?", ANN)

    first, _, last = texts(model.calls[-1])
    assert first.count("I keep bees near Lugo.") == 1
    assert "My hives are blue." not in first
    assert "My hives are blue." in last
    assert "I keep bees near Lugo." not in last


@HOSTS
def test_what_another_process_forgets_or_corrects_is_shown_no_more(host):
    store, model = InMemoryStore(), ScriptedChatModel("Noted.")
    made = host(memory := remembering(store), model)
    for act in (
        lambda: memory.users().edit("ann", "My bees are in Vigo.", by="support"),
        lambda: ConversationMemory(store=store).forget_messages("ann", ["b"]),
        lambda: ConversationMemory(store=store).forget("ann"),
    ):
        say(made, "Where are my bees?", ANN)
        act()
        memory.people.backlog("ann", None).last_seen = ""
    say(made, "And now, my bees?", ANN)

    shown = ["\n".join(texts(call)) for call in model.calls]
    assert "Vigo" in shown[1]
    assert shown[2].count("Lugo") == 0
    assert "Vigo" not in shown[3]


@HOSTS
def test_no_state_and_no_stream_has_what_the_model_is_shown(host):
    memory, saver = remembering(), InMemorySaver()
    made = host(memory, ScriptedChatModel("Noted."), saver)
    given = {"messages": [("human", "Where are my bees?")]}
    parts = [*made.stream(given, ANN, stream_mode=["values", "updates", "messages"])]

    assert "Lugo" not in str([parts, *saver.list(None)])


def test_a_node_that_returns_what_it_was_shown_changes_nothing_of_it():
    def reply(state):
        return {"messages": [*state["messages"], AIMessage("Noted.")]}

    out = say(graph_around(remembering(), reply), "Where are my bees?", ANN)

    assert [message.text for message in out["messages"]] == ["Where are my bees?", "Noted."]


def test_a_command_of_the_node_goes_where_it_says():
    def reply(_):
        return Command(goto="behind", update={"messages": [("ai", "Noted.")]})

    def behind(_):
        return {"messages": [AIMessage("And checked.", id="checked")]}

    out = say(graph_around(memory := remembering(), reply, behind=behind), "I sail.", ANN)

    assert [message.text for message in out["messages"]][:2] == ["I sail.", "Noted."]
    assert "sail" in memory.load("ann")


def test_a_state_without_the_keys_is_refused_with_the_reason():
    with pytest.raises(ConfigurationError, match="ConversationState"):
        say(graph_around(remembering(), state=MessagesState), "I sail.", ANN)


@HOSTS
def test_a_new_process_continues_a_thread_and_an_older_checkpoint_of_it(host):
    memory, saver = remembering(window=8), InMemorySaver()
    first = host(memory, ScriptedChatModel("Noted."), saver)
    for number in range(30):
        say(first, f"I own boat {number}.", ANN, id=f"m{number}")
    memory.flush()

    memory = ConversationMemory(store=memory.people.choose_store(None), window=8, **NEVER)
    memory.people.backlog("ann", None).recalled.clear()
    again = host(memory, model := ScriptedChatModel("Noted."), saver)
    out = say(again, "Do I own boat 3?", ANN)
    assert len(out["messages"]) == 62
    history = again.get_state_history(ANN)
    older = next(at for at in history if len(at.values.get("messages", ())) == 40)
    say(again, "Do I own boat 7?", older.config)

    for call, number in zip(model.calls, (3, 7), strict=True):
        assert len(call.messages) <= 8
        assert f"I own boat {number}." in "".join(texts(call))
    assert "I own boat 25." not in "".join(texts(model.calls[-1])[:-1])


@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_run_that_is_resumed_within_the_node_of_the_model_sees_the_view(how):
    memory, shown = remembering(window=4), []

    def reply(state):
        shown.append([message.text for message in state["messages"]])
        answer = interrupt("Go on?") if "ask" in state["messages"][-1].text else "yes"
        return {"messages": [AIMessage(f"Noted: {answer}.")]}

    made = graph_around(memory, reply)
    for number in range(8):
        say(made, f"I own boat {number}.", ANN, how)
    say(made, "Please ask me about boat 7.", ANN, how)
    out = run(made, Command(resume="Go."), ANN, how)

    assert shown[-1] == shown[-2]
    assert len(shown[-1]) <= 4
    assert out["messages"][-1].text == "Noted: Go.."


def size_in(saver):
    if isinstance(saver, SqliteSaver):
        queries = (
            "SELECT sum(length(checkpoint) + length(metadata)) FROM checkpoints",
            "SELECT sum(length(value)) FROM writes",
        )
        return sum(saver.conn.execute(query).fetchone()[0] for query in queries)
    points = [
        part
        for of_thread in saver.storage.values()
        for of_ns in of_thread.values()
        for (_, checkpoint), (_, metadata), *_ in of_ns.values()
        for part in (checkpoint, metadata)
    ]
    blobs = [blob for _, blob in saver.blobs.values()]
    writes = [row[2][1] for rows in saver.writes.values() for row in rows.values()]
    return sum(map(len, [*blobs, *points, *writes]))


def plain(host, model, saver):
    if host is agent:
        return create_agent(model, checkpointer=saver)
    builder = StateGraph(MessagesState).add_node("reply", answer_with(model))
    return builder.add_edge(START, "reply").compile(saver)


@pytest.mark.parametrize(
    ("host", "kind"), [(agent, InMemorySaver), (graph, SqliteSaver)], ids=["middleware", "node"]
)
def test_checkpoints_are_at_most_a_tenth_larger_than_without_memory(host, kind):
    sizes, model = [], ScriptedChatModel("I see, and I note it.")
    for remembers in (True, False):
        with SqliteSaver.from_conn_string(":memory:") as opened:
            saver = opened if kind is SqliteSaver else InMemorySaver()
            memory = ConversationMemory(store=InMemoryStore(), **NEVER)
            made = host(memory, model, saver) if remembers else plain(host, model, saver)
            for number in range(TURNS):
                said = f"On day {number} I walked to the lake with my dog Pepper. " * 4
                say(made, said, ANN)
            sizes.append(size_in(saver))

    ours, theirs = sizes
    assert ours <= 1.1 * theirs, f"{ours / theirs:.2f} times as large"
