"""What a run may do with the memory, and an agent to which it is attached read-only."""

from types import SimpleNamespace

import pytest
from conversations import agent_with, dump, graph_with, of, prompted, recall, say, words_in
from fixed_readers import ScriptedReader
from langchain_core.messages import HumanMessage
from langchain_core.tools import ToolException
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.base import PutOp
from langgraph.store.memory import InMemoryStore

from memagent_graph import ConversationMemory, MemAgentMiddleware, create_memory_tools
from memagent_graph.conversation.catch_up import catch_up
from memagent_graph.errors import ConfigurationError
from memagent_graph.testing import ScriptedChatModel


def config(access=None):
    return of("ann", "monday", **({} if access is None else {"memory_access": access}))


def known(text="I live in Husum.", **options):
    options = {"store": InMemoryStore(), "remember_within": 0, **options}
    memory = ConversationMemory("extractive", **options)
    memory.save([HumanMessage(text, id="1")], user="ann", thread="sunday")
    return memory


@pytest.mark.parametrize("access", ["read", "none"])
@pytest.mark.parametrize("how", ["sync", "async"])
def test_nothing_of_a_run_without_writing_is_remembered_ever(access, how):
    memory, saver = known(store=(store := InMemoryStore())), InMemorySaver()
    agent = agent_with(memory, model=(model := ScriptedChatModel("Noted.")), checkpointer=saver)

    say(agent, "My PIN is yoghurt.", config(access), how)
    assert ("Husum" in model.prompts[-1]) == (access == "read")
    memory.flush()
    say(agent, "I breed goats.", config(), how)
    memory.flush()
    catch_up(memory, saver)

    assert "goats" in memory.load("ann")
    assert "yoghurt" not in dump(store)
    messages = agent.get_state(config()).values["messages"]
    said = [m.text for m in messages if m.type == "human"]
    assert said == ["My PIN is yoghurt.", "I breed goats."]
    resent = [m.model_copy(update={"id": None, "additional_kwargs": {}}) for m in messages]
    memory.save(resent, user="ann", thread="monday")
    assert "yoghurt" not in dump(store)


def test_a_run_that_only_writes_is_not_told_what_is_known():
    agent = agent_with(memory := known(), model=(model := ScriptedChatModel("Noted.")))

    say(agent, "I breed goats.", config("write"))

    assert "Husum" not in model.prompts[-1]
    assert "goats" in recall(memory, "ann", "")


def test_observe_save_and_prompt_follow_the_config():
    memory = ConversationMemory("extractive", store=(store := InMemoryStore()))
    ids = {"user": "ann", "thread": "t"}
    said = memory.observe([("human", "My PIN is yoghurt.")], **ids, config=config("read"))
    memory.flush()
    memory.observe([*said, ("ai", "I see."), ("human", "I breed goats.")], **ids)

    assert "goats" in memory.load("ann")
    memory.save("I sail.", user="ann", thread="u", config=config("none"))
    assert "sail" not in memory.load("ann")
    assert memory.prompt("ann", config=config("write")) == []
    assert "yoghurt" not in dump(store)


@pytest.mark.parametrize("wrong", ["r", "", ["read"], True])
def test_another_access_is_an_error(wrong):
    memory = ConversationMemory("extractive", store=InMemoryStore())

    with pytest.raises(ConfigurationError, match="must be one of 'all', 'read'"):
        memory.save([("human", "I sail.")], user="ann", thread="t", config=config(wrong))


def test_tools_follow_the_config():
    memory = known()
    tools = {tool.name: tool for tool in create_memory_tools(memory)}

    def call(name, access, **given):
        fields = {"state": {}, "store": None, "context": None, "tool_call_id": "c1"}
        return tools[name].func(**given, runtime=SimpleNamespace(**fields, config=config(access)))

    for name, access, given, said in (
        ("remember", "read", {"statement": "I sail."}, "changed"),
        ("forget", "read", {"subject": "Husum"}, "changed"),
        ("correct", "none", {"wrong": "Husum", "right": "I sail."}, "changed"),
        ("recall", "write", {"about": "Husum"}, "read"),
    ):
        with pytest.raises(ToolException, match=f"cannot be {said}"):
            call(name, access, **given)
    assert "Husum" in call("recall", "read", about="Husum")
    assert "sail" not in memory.load("ann")


EXPORT = ['{"user": "bob"}', '{"item": {"place": ["notes"], "key": "x", "value": {}}}']
WRITES = {
    "observe": lambda m: m.observe([("human", "I sail.")], user="ann", thread="t"),
    "save": lambda m: m.save([("human", "I sail.")], user="ann", thread="t"),
    "forget": lambda m: m.forget("ann"),
    "forget messages": lambda m: m.forget_messages("ann", ["1"]),
    "forget about": lambda m: m.forget_about("ann", "Husum"),
    "accept": lambda m: m.accept("ann", "x"),
    "refuse": lambda m: m.refuse("ann", "x"),
    "users' edit": lambda m: m.users().edit("ann", "Sails.", by="olga"),
    "users' forget": lambda m: m.users().forget("ann", by="olga"),
    "users' prune": lambda m: m.users().prune(idle_days=0, by="olga"),
    "users' import": lambda m: m.users().import_(EXPORT, by="olga"),
    "bank": lambda m: m.users().of("ann").bank.edit("memory", "Sails."),
    "bank's repair": lambda m: m.users().of("ann").bank.clear(),
    "store": lambda m: m.users().store.put(("a",), "b", {}),
    "batch": lambda m: m.users().store.batch([PutOp(("a",), "b", None)]),
}


@pytest.mark.slow
def test_a_memory_attached_read_only_refuses_every_write(store):
    known(store=store)
    memory = ConversationMemory(reader := ScriptedReader(), store=store, read_only=True)
    before = dump(store)

    for name, write in WRITES.items():
        with pytest.raises(ConfigurationError, match="read-only"):
            write(memory)
        assert dump(store) == before, name

    assert reader.calls == []
    assert "Husum" in memory.load("ann")
    assert "Husum" in prompted(memory, "Where do I live?")
    assert [v.text for v in memory.history("ann")] == [memory.load("ann")]
    assert [tool.name for tool in create_memory_tools(memory)] == ["recall"]


@pytest.mark.parametrize("how", ["sync", "async"])
def test_an_agent_has_a_memory_of_its_own_beside_one_attached_read_only(how):
    known("I wear size 43.", store=(store := InMemoryStore()), namespace=["shop"])
    attached = ConversationMemory("extractive", store=store, namespace=["shop"], read_only=True)
    own = ConversationMemory("extractive", store=store, namespace=["desk"], remember_within=0)
    agent = agent_with(
        own, model=(model := ScriptedChatModel("Noted.")), after=[MemAgentMiddleware(attached)]
    )
    before = attached.users().export()

    for text in ("I breed goats.", "And now?"):
        say(agent, text, config(), how)
        own.flush()

    assert all("size 43" in prompt for prompt in model.prompts)
    assert "goats" in own.load("ann")
    assert attached.users().export() == before


def test_a_node_of_a_memory_attached_read_only_writes_nothing():
    known(store=(store := InMemoryStore()))
    before = dump(store)
    memory = ConversationMemory("extractive", store=store, read_only=True)

    out = say(graph_with(memory, behind=False), "I sail.", config())
    memory.flush()

    assert ([m.text for m in out["memory_view"]], dump(store)) == (["I sail."], before)


def test_each_user_has_instructions():
    nevers = {"ann": "goats", "bob": "boats"}
    memory = ConversationMemory("extractive", never=lambda user: nevers.get(user, ""))
    said = [("human", "I breed goats."), ("human", "I build boats.")]

    for user in ("ann", "bob", "eve"):
        memory.save(said, user=user, thread=user)

    kept = [words_in(memory.load(user), "goats", "boats") for user in ("ann", "bob", "eve")]
    assert kept == [["boats"], ["goats"], ["goats", "boats"]]
    assert "goats" not in prompted(memory, "goats or boats?")


def test_a_function_that_fails_loses_no_message(caplog):
    working = []

    def keep(user):
        if not working:
            raise LookupError("No such user.")
        return ""

    memory = ConversationMemory("extractive", keep=keep)
    memory.observe([("human", "I breed goats.")], user="ann", thread="t")
    assert memory.load("ann") == ""
    assert "No such user" in caplog.text
    working.append(True)

    assert "goats" in memory.load("ann")


HUSUM, BRITISH = "2026-03-05: Lives in Husum.", "2026-03-05: Writes in British English."


def test_an_instruction_for_one_task_does_not_stay_beyond_its_end():
    ended, lasting = (
        ConversationMemory(ScriptedChatModel(f"{HUSUM}\n{BRITISH} [ends {year}-03-05]"))
        for year in (2026, 9999)
    )
    said = "I live in Husum. For this essay, write in British English."

    for memory in (ended, lasting):
        memory.save(said, user="ann", thread="t")

    assert ended.load("ann") == HUSUM
    assert ["British" in prompted(memory, "") for memory in (ended, lasting)] == [False, True]


@pytest.mark.parametrize(("text", "stays"), [
    ("For this essay, I want you to write in British English.", False),
    ("I want short answers, just for now.", False),
    ("For the current draft my limit is 900 words.", False),
    ("I always write in British English.", True), ("I work for this company.", True),
    ("For the time being I live with my sister in Ulm.", True),
])  # fmt: skip
def test_the_built_in_reader_takes_no_instruction_for_one_task_for_a_fact(text, stays):
    memory = ConversationMemory("extractive", store=InMemoryStore())

    memory.save(text, user="ann", thread="t")

    assert (text in memory.load("ann")) == stays
