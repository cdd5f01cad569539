import inspect
import random
import sys
from contextlib import suppress
from typing import Annotated
from uuid import UUID

import pytest
from conversations import NEVER, agent_with, is_valid, of, prompted, run, say, words_in
from fixed_readers import Broken
from langchain.agents import create_agent
from langchain.agents.middleware import (
    AgentState,
    HumanInTheLoopMiddleware,
    SummarizationMiddleware,
    dynamic_prompt,
)
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.messages.utils import count_tokens_approximately
from langchain_core.tools import ToolException, tool
from langgraph.channels import DeltaChannel
from langgraph.graph.message import _messages_delta_reducer
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command

from memagent_graph import ConversationMemory, MemAgentMiddleware, ReadingConfig
from memagent_graph.conversation.built_in import NewestReader
from memagent_graph.errors import ConfigurationError, MissingDependencyError, ModelError
from memagent_graph.testing import ScriptedChatModel, call_tool
from memagent_graph.text.tokens import EstimatingTokenizer

ANN, BEES = of("ann", "monday"), "I keep bees near Lugo."
FACTS = (
    "My daughter Lotte starts at the music school in Bremen.",
    "We adopted a greyhound named Pepper.",
    "I work nights at a paper mill.",
)


@tool
def price(item: int) -> str:
    """The price of an item."""
    if item % 7 == 0:
        raise ToolException("There is no such item.")
    return f"Item {item} costs {item % 13} euros and 20 cents."


price.handle_tool_error = True


@tool
def weather(town: str) -> str:
    """The weather of a town."""
    return f"{town}: light rain, 12 degrees."


class Agent(ScriptedChatModel):
    """Calls both tools at once on every second turn, then replies. Fails when told to."""

    def __init__(self, fails=lambda: False):
        super().__init__(self.reply)
        self._fails = fails

    def reply(self, messages):
        assert is_valid(messages), messages
        turn = len(self.calls)
        if self._fails():
            return ConnectionError("The model is away.")
        if not isinstance(messages[-1], HumanMessage) or turn % 2 == 0:
            return f"Reply {turn}: noted."
        asks = {"price": {"item": turn}, "weather": {"town": "Oslo"}}
        calls = [{"name": name, "args": asks[name], "id": f"{name}{turn}"} for name in asks]
        return AIMessage("", tool_calls=calls)


class ChangesState(AgentState):
    """Checkpoints have the changes of the messages, as those of deepagents do."""

    messages: Annotated[list[AnyMessage], DeltaChannel(_messages_delta_reducer)]


HOSTS = pytest.mark.parametrize("host", [AgentState, ChangesState])


def agent(memory, *middleware, model=None, **options):
    """An agent with tools that remembers; `options` of `create_agent`."""
    options.setdefault("middleware", [MemAgentMiddleware(memory), *middleware])
    return agent_with(
        memory,
        model=model or Agent(),
        tools=[price, weather],
        system_prompt="You sell garden tools.",
        **options,
    )


def talk(graph, memory, turns, text="I own boat {}."):
    for number in range(turns):
        out = say(graph, text.format(number), ANN, id=f"m{number}")
        memory.flush()
    return out


def asked(number):
    if number == 3:
        return " ".join(FACTS)
    return f"What does item {number} cost, and will it rain tomorrow in town {number}?"


@pytest.mark.slow
def test_a_hundred_turns_of_failing_models_stay_flat_and_remember_what_was_told_in_the_third():
    dice = random.Random(7)
    memory = ConversationMemory(reader := Failing(lambda: dice.random() < 0.2), window=20, **NEVER)
    model = Agent(fails=lambda: dice.random() < 0.05)
    graph = agent(memory, model=model)

    for number in range(1, 101):
        for _ in range(20):
            with suppress(ConnectionError):  # as a client would: send the turn again
                say(graph, asked(number), ANN, id=f"turn-{number}")
                break

    assert words_in(memory.load("ann"), *FACTS) == [*FACTS]
    sizes = [count_tokens_approximately(messages) for messages, *_ in model.calls]
    early, late = max(sizes[30:90]), max(sizes[-60:])
    assert late <= min(1.25 * early, 2_999)
    reader.fails = lambda: False
    memory.flush()  # what left the window while the reader was away waits for it
    folded = [number for text in reader.read for number in turns_in(text)]
    assert sorted(folded) == [*range(1, 101)]  # each once


def turns_in(text):
    lines = [line for line in text.splitlines() if "and will it" in line]
    return [int(line.split("item ")[1].split()[0]) for line in lines] + [3] * text.count(FACTS[0])


class Failing(NewestReader):
    def __init__(self, fails):
        super().__init__()
        self.fails, self.read = fails, []

    async def update(self, step, *, config=None):
        if self.fails():
            raise ModelError("The reader is away.")
        self.read.append(step.chunk.text)
        return await super().update(step, config=config)


needs_summarizers = pytest.mark.skipif(
    "summarizer" not in inspect.signature(SummarizationMiddleware).parameters,
    reason="langchain has summarizers since 1.5",
)


def summing_up(memory, trigger):
    limits = {"trigger": ("messages", trigger), "keep": ("messages", 2)}
    own = {"summarizer": memory.summarizer, "trim_tokens_to_summarize": None}
    return SummarizationMiddleware(Agent(), **limits, **own)


@needs_summarizers
@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_fold_is_the_summary_of_a_thread(how):
    memory = ConversationMemory()
    graph = agent(memory, middleware=[summing_up(memory, 5)])

    for name in ("Ria", "Uwe", "Ada", "Pim"):
        out = say(graph, f"My goat is named {name}.", ANN, how)

    first = out["messages"][0].text
    assert all(f"My goat is named {name}." in first for name in ("Ria", "Uwe"))
    assert len(out["messages"]) <= 5
    assert memory.load("ann") in first


@needs_summarizers
@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_summary_has_what_tools_found_which_no_memory_has(how):
    def inspect_bridge(name: str) -> str:
        """Say why a bridge was closed."""
        return f"The bridge {name} was closed because cable {ord(name)} broke."

    memory = ConversationMemory(store=(store := InMemoryStore()))
    model = ScriptedChatModel(*(call_tool("inspect_bridge", name=n) for n in "ABCDEFG"), "Done.")
    stack, tools = [summing_up(memory, 6)], [inspect_bridge]
    graph = agent_with(memory, model=model, middleware=stack, tools=tools, store=store)
    out = say(graph, "I am Ann. Why were the bridges A to G closed?", ANN, how)

    summary, *rest = (message.text for message in out["messages"])
    found = [f"cable {ord(name)} broke" for name in "ABCDEFG"]
    assert sum(one in summary or any(one in text for text in rest) for one in found) == 7
    assert sum(one in summary for one in found) > 4
    assert "I am Ann." in summary
    kept = [str(item.value) for item in store.search((), limit=1000)]
    assert kept
    assert not any("cable" in text for text in [memory.load("ann"), *kept])


@needs_summarizers
def test_a_model_is_loaded_once_for_folds_and_summaries(monkeypatch):
    loaded = []

    def load(name, **_):
        loaded.append(name)
        return ScriptedChatModel("It rained.")

    monkeypatch.setattr("memagent_graph.readers.resolve.resolve_model", load)
    memory = ConversationMemory("hf:large", store=InMemoryStore())
    model = ScriptedChatModel(*(call_tool("read_file", path=path) for path in "abcdef"), "Done.")
    graph = agent_with(memory, model=model, middleware=[summing_up(memory, 6)], tools=[read_file])
    out = say(graph, "I am Ann. Read the files a to f.", ANN)

    assert "It rained." in out["messages"][0].text
    assert loaded == ["hf:large"]


def test_without_langchain_it_says_what_to_install_and_the_other_names_are_there(monkeypatch):
    monkeypatch.delitem(sys.modules, "memagent_graph.conversation.middleware")
    monkeypatch.setitem(sys.modules, "langchain.agents.middleware", None)

    with pytest.raises(MissingDependencyError, match=r'pip install "memagent-graph\[langchain\]"'):
        from memagent_graph import MemAgentMiddleware  # noqa: F401
    exec("from memagent_graph import *", {})


def remembering(**options):
    memory = ConversationMemory(store=InMemoryStore(), **options)
    memory.save([HumanMessage(BEES, id="b")], user="ann", thread="sunday")
    return memory


def shown_to(*middleware, said="hello", prompt="Be nice."):
    model = Agent()
    say(create_agent(model, [], system_prompt=prompt, middleware=middleware), said, ANN)
    return model.calls[-1].messages


@pytest.mark.parametrize("prompt", ["Be nice.", SystemMessage([{"type": "text", "text": "Be."}])])
def test_the_memory_stands_before_what_is_said_now_and_the_system_prompt_stays(prompt):
    system, last = shown_to(MemAgentMiddleware(remembering()), prompt=prompt)

    assert system.content == getattr(prompt, "content", prompt)
    assert "bees" in last.content
    assert last.content.endswith("\nhello")


def test_the_parts_of_a_message_stay_as_they_are_after_the_memory():
    parts = [{"type": "text", "text": "hello", "cache_control": {"type": "ephemeral"}}]

    memory, *rest = shown_to(MemAgentMiddleware(remembering()), said=parts)[-1].content

    assert "bees" in memory["text"]
    assert rest == parts


@dynamic_prompt
def be_brief(request):
    return "Be brief."


@pytest.mark.parametrize("at", [1, -1])
def test_a_prompt_that_other_middleware_sets_and_the_memory_are_both_shown(at):
    system, last = shown_to(*[MemAgentMiddleware(remembering()), be_brief][::at])

    assert (system.text, last.text.count(BEES)) == ("Be brief.", 1)


def test_what_is_remembered_takes_at_most_twice_the_tokens_of_a_memory():
    memory = ConversationMemory(config=ReadingConfig(memory_tokens=200), **NEVER)
    towns = [f"Town{number}" for number in range(9)]
    told = [f"In {town} I ate {town} soup, {town} bread and {town} fish. " * 6 for town in towns]
    memory.save([("human", one) for one in told], user="ann", thread="before")
    model = ScriptedChatModel(*(f"Reply {town}." for town in towns))
    graph = agent_with(memory, model=model)
    asked = [f"What did I eat in {town}?" for town in towns]
    for one in asked:
        say(graph, one, ANN)

    for town, call in zip(towns, model.calls, strict=True):
        shown = "".join(one.text for one in call.messages if isinstance(one, HumanMessage))
        for one in asked:
            shown = shown.replace(one, "")
        assert EstimatingTokenizer().count(shown) <= 400
        assert f"{town} soup" in call.messages[-1].text


@pytest.mark.parametrize("user", [0, 42, UUID(int=5)])
def test_an_id_that_is_no_text_names_the_same_user_in_an_agent_and_in_a_call(user):
    memory = ConversationMemory(store=InMemoryStore())
    stack = [MemAgentMiddleware(memory, strict=True)]
    say(agent(memory, middleware=stack, checkpointer=None), BEES, of(user, 0))

    assert memory.flush(user) == 0
    assert "bees" in memory.load(user) == memory.load(str(user))
    assert "bees" in prompted(memory, "", user)
    goats = [HumanMessage("I keep goats.", id="g")]
    memory.save(goats, user=user, thread=7)
    memory.observe(goats, user=user, thread=7)
    assert (memory.forget_messages(user, ["g"], thread=7), len(memory.history(user))) == (1, 2)
    users = memory.users()
    assert (users.names(), users.held(user).threads) == ([str(user)], ("0", "7"))
    assert [found.user for found in users.list([user])] == [str(user)]
    memory.forget(user)
    assert users.names() == []


@pytest.mark.parametrize("user", [None, "", 4.5, b"ann", ["ann"]])
def test_what_is_no_id_is_refused_with_the_reason(user):
    memory = ConversationMemory(store=InMemoryStore())

    with pytest.raises(ConfigurationError, match="give (the|an) id"):
        memory.load(user)


def test_no_user_id_reaches_the_memory_of_a_thread_without_a_user():
    model, memory = Agent(), ConversationMemory(store=InMemoryStore())
    graph = agent(memory, model=model)
    for _ in range(2):
        say(graph, "My door code is yoghurt.", {"configurable": {"thread_id": "t9"}})
    memory.flush()

    (found,) = memory.users().list()
    assert "yoghurt" in found.version.text
    for reach in (
        lambda: memory.load(str(found.user)),
        lambda: say(graph, "hello", of(found.user, "mine")),
    ):
        with pytest.raises(ConfigurationError, match="threads without a user"):
            reach()
    for user in ("thread t9", "t9", f" {found.user}", found.user.upper()):
        say(graph, "hello", of(user, f"of {user}"))
        assert "yoghurt" not in str(model.calls[-1].messages)


@pytest.mark.parametrize("within", [0, 1e6])
def test_nothing_that_fails_in_the_memory_ends_a_turn(within, monkeypatch):
    store = Broken()
    store.away = True
    graph = agent(ConversationMemory(store=store, window=1, remember_within=within))
    monkeypatch.setattr("memagent_graph.conversation.session.count_tokens", lambda message: 1 / 0)
    said = [("human", "a"), ("ai", "b"), ("human", "c")]

    assert "noted" in run(graph, {"messages": said}, ANN)["messages"][-1].text


@HOSTS
def test_the_thread_keeps_all_and_the_model_sees_the_recent_messages(host):
    memory = ConversationMemory("extractive", window=4, store=InMemoryStore())
    graph = agent(memory, model=(model := Agent()), state_schema=host)

    out = talk(graph, memory, 8)

    assert {*out} == {"messages"}
    kept = graph.get_state(ANN).values["messages"]
    assert [m.id for m in kept if isinstance(m, HumanMessage)] == [f"m{n}" for n in range(8)]
    assert max(len(heard) for heard, *_ in model.calls) <= 9
    assert all(m.id in {k.id for k in kept} for m in model.calls[-1].messages[1:])


@HOSTS
def test_the_thread_is_shortened_if_asked_to(host):
    memory = ConversationMemory("extractive", window=4, store=InMemoryStore())
    shortens = [MemAgentMiddleware(memory, shorten_state=True)]
    graph = agent(memory, middleware=shortens, state_schema=host)

    talk(graph, memory, 8)

    assert len(graph.get_state(ANN).values["messages"]) <= 8


def loop_of_tools(act, *middleware, calls=3, **options):
    """An agent that calls a tool, three times, which does something; the memory and the model."""
    memory = remembering(**NEVER)

    @tool
    def work() -> str:
        """Do something."""
        act(memory)
        return "Done."

    model = ScriptedChatModel(*(call_tool("work") for _ in range(calls)), *["All done."] * 9)
    return agent_with(memory, model=model, tools=[work], after=middleware), memory, model


def learn(memory):
    memory.save([("human", "My bees are in Vigo now.")], user="ann", thread="elsewhere")


def asked_in(model):
    """The last human message of each call, as the model was shown it."""
    return [[m for m in call.messages if m.type == "human"][-1].text for call in model.calls]


@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_model_that_calls_tools_is_shown_one_memory_until_the_next_message(how):
    graph, _, model = loop_of_tools(learn)
    say(graph, "Where are my bees?", ANN, how)
    say(graph, "Where are my bees now?", ANN, how)

    *loop, later = asked_in(model)
    assert (len(loop), len({*loop})) == (4, 1)
    assert ("Vigo" in loop[0], "Vigo" in later) == (False, True)


def test_a_turn_that_is_resumed_is_shown_what_it_was_shown():
    approves = HumanInTheLoopMiddleware(interrupt_on={"work": True})
    graph, memory, model = loop_of_tools(learn, approves, calls=2)
    say(graph, "Where are my bees?", ANN)
    for _ in range(2):
        learn(memory)
        graph.invoke(Command(resume={"decisions": [{"type": "approve"}]}), ANN)

    assert (len(model.calls), len({*asked_in(model)})) == (3, 1)


@pytest.mark.parametrize("flushes", [True, False])
@pytest.mark.parametrize("first", ["Good morning.", "Where do I live?"])
def test_what_was_shown_and_is_edited_in_another_thread_is_shown_no_more(first, flushes):
    memory, model = ConversationMemory(store=InMemoryStore(), **NEVER), ScriptedChatModel("Noted.")
    graph = agent_with(memory, model=model)
    say(graph, "I live in Hamburg.", ANN, id="m")
    memory.flush()
    say(graph, first, of("ann", "tuesday"))
    say(graph, "I live in Husum.", ANN, id="m")
    if flushes:
        memory.flush()
    say(graph, "Is it far from the sea?", of("ann", "tuesday"))

    assert ["Hamburg" in model.prompts[at] for at in (1, -1)] == [True, False]


def read_file(path: str) -> str:
    """Read a file."""
    return f"This is {path}.\n" + "A line of the file.\n" * 1500


@pytest.mark.parametrize(("room", "again"), [(None, 3), (128_000, 5)])
def test_an_agent_sees_all_that_the_running_turn_has_found(room, again):
    def compare(messages):
        seen = [m.text for m in messages if isinstance(m, ToolMessage)]
        unseen = (path for path in "abcdef" if not any(f"is {path}." in text for text in seen))
        return next((call_tool("read_file", path=path) for path in unseen), AIMessage("Alike."))

    memory = ConversationMemory("extractive", store=InMemoryStore(), window=6)
    profile = {"max_input_tokens": room} if room else None
    model = ScriptedChatModel(compare, profile=profile)
    graph = agent_with(memory, model=model, tools=[read_file])
    say(graph, "Compare the files a to f.", ANN)
    out = say(graph, "Which were they?", ANN)

    assert [len(call.messages) for call in model.calls] == [
        *range(1, 14, 2),
        3,
        again,
        *range(5, 14, 2),
    ]
    assert len(out["messages"]) == 28
    assert model.calls[7].messages[0].text == "Compare the files a to f."
    assert model.calls[7].messages[1].text == "Alike."


def test_a_turn_that_its_model_has_no_room_for_keeps_its_beginning_and_its_end():
    memory = ConversationMemory("extractive", store=InMemoryStore())
    script = [call_tool("read_file", path=path) for path in "abcdefgh"]
    model = ScriptedChatModel(*script, "Done.", profile={"max_input_tokens": 40_000})
    say(agent_with(memory, model=model, tools=[read_file]), "Read the files a to h.", ANN)

    assert all(call.messages[0].text.endswith("Read the files a to h.") for call in model.calls)
    shown = [sum(isinstance(m, ToolMessage) for m in call.messages) for call in model.calls]
    assert max(shown) < 4
    assert shown[-1] > 0
    assert "is h." in model.calls[-1].messages[-1].text


@pytest.mark.parametrize(("shorten_state", "due"), [(False, "Is rent due? "), (True, "租金到期。")])
def test_a_model_is_shown_what_it_has_room_for_and_a_cut_is_said_once(shorten_state, due, caplog):
    small = {"config": ReadingConfig(memory_tokens=100), **NEVER}
    memory = ConversationMemory("extractive", store=InMemoryStore(), **small)
    script = [call_tool("read_file", path="a"), *[call_tool("read_file", path="b")] * 3, "Done."]
    model = ScriptedChatModel(*script, profile={"max_input_tokens": 4_000})
    middleware = [MemAgentMiddleware(memory, shorten_state=shorten_state)]
    graph = agent_with(memory, model=model, tools=[read_file], middleware=middleware)
    image = {"type": "image", "base64": "aGVsbG8=", "mime_type": "image/png"}
    text = {"type": "text", "text": "Shorten this: " + due * 9000 + "My cat is Mia."}
    say(graph, [text, image], ANN)

    first, cut = model.calls[0].messages[0], ("Shorten this", "is left out", "Mia.")
    counts = [EstimatingTokenizer().count(asked) for asked in model.prompts]
    assert 2_000 < max(counts) < 4_000
    assert words_in(first.text, *cut) == [*cut]
    assert first.content[-1] == image
    assert graph.get_state(ANN).values["messages"][0].content == [text, image]
    assert 0 < len({*caplog.messages}) == len(caplog.messages)


@pytest.mark.parametrize(("config", "stays"), [({}, True), ({"chunk_tokens": 5000}, False)])
def test_a_pasted_text_stays_for_the_next_turn_where_the_model_has_room(config, stays):
    config = ReadingConfig(**config)
    memory = ConversationMemory("extractive", store=InMemoryStore(), config=config, **NEVER)
    model = ScriptedChatModel("Noted.", profile={"max_input_tokens": 128_000})
    graph = agent_with(memory, model=model)
    say(graph, "Shorten this: " + "The tenant pays the rent on the first. " * 900, ANN)
    say(graph, "Shorter, please.", ANN)

    assert any(m.text.startswith("Shorten this") for m in model.calls[-1].messages) == stays


FORGETTING = {
    "subject": (lambda memory: memory.forget_about("ann", "bees"), "bees"),
    "messages": (lambda memory: memory.forget_messages("ann", ["b"]), "<passages>"),
    "all": (lambda memory: memory.forget("ann"), "bees"),
}


@pytest.mark.parametrize(("forget", "shown"), FORGETTING.values(), ids=FORGETTING)
def test_what_is_forgotten_within_a_turn_is_shown_no_more(forget, shown):
    graph, _, model = loop_of_tools(forget, calls=1)
    say(graph, "What do I keep near Lugo?", ANN)

    assert [shown in asked for asked in asked_in(model)] == [True, False]
