"""A user's memory as files of an agent of deepagents; `make test-deepagents` installs it."""

import os
import subprocess
import sys
from pathlib import Path

import conversations
import pytest
from conversations import dated, of, say, words_in
from fixed_readers import ScriptedReader
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command

from memagent_graph import ConversationMemory, MemAgentMiddleware, ReadingConfig
from memagent_graph.testing import ScriptedChatModel, call_tool

deepagents = pytest.importorskip("deepagents", reason="make test-deepagents installs it")

from deepagents.backends import CompositeBackend, StateBackend  # noqa: E402
from deepagents.middleware.summarization import SummarizationMiddleware  # noqa: E402

from memagent_graph.conversation.files import NOTES, MemoryBackend, create_file_reading_tool  # noqa: E402

ANN = of("ann", "monday")


@pytest.fixture
def memory():
    found = ConversationMemory("extractive", store=InMemoryStore())
    for n, text in enumerate(["I live in Husum.", "I breed goats."]):
        found.save([dated(text, f"2026-03-0{n + 5}", str(n))], user="ann", thread="t")
    found.save([("human", "I build boats.")], user="bob", thread="u")
    return found


def another(memory, **options):
    """A memory of the same users with other options."""
    return ConversationMemory("extractive", store=memory.users().store, **options)


def run(memory, *calls, how="sync", editable=True, config=ANN, files=None):
    """What the tools of a deep agent return."""
    replies = [call_tool(name, **args) for name, args in calls]
    backend = backend_of(memory, editable=editable)
    tools = [create_file_reading_tool(backend, "extractive")]
    model = ScriptedChatModel(*replies, "Done.")
    agent = deepagents.create_deep_agent(model, tools=tools, backend=backend)
    given = {"messages": [HumanMessage("Go.")], "files": files or {}}
    out = conversations.run(agent, given, config, how)
    return [message.text for message in out["messages"] if message.type == "tool"]


def backend_of(memory, **options):
    return CompositeBackend(StateBackend(), routes={"/memories/": MemoryBackend(memory, **options)})


def read(file="notes.md"):
    return "read_file", {"file_path": f"/memories/{file}"}


def edit(file="notes.md"):
    """A call that moves the user to Kiel."""
    path = f"/memories/{file}"
    return "edit_file", {"file_path": path, "old_string": "Husum", "new_string": "Kiel"}


@pytest.mark.parametrize("how", ["sync", "async"])
def test_an_agent_finds_notes_versions_and_passages(memory, how):
    listed, notes, before, said, found, named = run(
        memory,
        ("ls", {"path": "/memories/"}),
        read("notes.md"),
        read("versions/001.md"),
        read("passages/2026-03-06.md"),
        ("grep", {"pattern": "goats", "path": "/memories/", "output_mode": "files_with_matches"}),
        ("glob", {"pattern": "**/*.md", "path": "/memories/"}),
        how=how,
    )

    assert all(name in listed for name in ("notes.md", "versions", "passages"))
    assert words_in(notes, "Husum", "goats") == ["Husum", "goats"]
    assert "goats" not in before
    assert "user: I breed goats." in said
    paths = "/memories/notes.md", "/memories/passages/2026-03-06.md"
    assert words_in(found, *paths) == [*paths]
    assert "versions/001.md" in named
    assert "boats" not in f"{listed}{notes}{before}{said}{found}"


@pytest.mark.parametrize("remembers", [True, False])
@pytest.mark.parametrize("how", ["sync", "async"])
def test_an_edit_that_another_user_approves_is_of_the_one_who_asked(memory, how, remembers):
    name, args = edit()
    agent = deepagents.create_deep_agent(
        ScriptedChatModel(call_tool(name, **args), "Done."),
        backend=backend_of(memory, editable=True),
        middleware=[MemAgentMiddleware(memory)] if remembers else [],
        interrupt_on={"edit_file": True},
        checkpointer=InMemorySaver(),
    )
    say(agent, "I moved to Kiel.", ANN, how)
    approved = Command(resume={"decisions": [{"type": "approve"}]})
    conversations.run(agent, approved, of("bob", "monday"), how)

    assert "I live in Kiel." in memory.load("ann")
    assert "Kiel" not in memory.load("bob")


@pytest.mark.parametrize("how", ["sync", "async"])
def test_an_edit_is_a_version(memory, how):
    (done,) = run(memory, edit(), how=how)

    assert "Successfully" in done
    assert "I live in Kiel." in memory.load("ann")
    change = memory.users().history("ann")[1][0]
    assert (change.what, change.by) == ("edited", "assistant")


def test_an_edit_is_proposed_where_approval_is_needed(memory):
    approving = another(memory, approve=True)

    (done,) = run(approving, edit())

    assert "waits for approval" in done
    assert "Husum" in approving.load("ann")
    assert "Kiel" in approving.accept("ann", *approving.proposals("ann"))


@pytest.mark.parametrize("way", ["not editable", "read_only", "memory_access"])
def test_what_may_not_be_written_is_not(memory, way):
    write = {"file_path": "/memories/versions/009.md", "content": "Boats."}
    used = another(memory, read_only=True) if way == "read_only" else memory
    config = of("ann", "monday", memory_access="read") if way == "memory_access" else ANN

    done = run(used, edit(), ("write_file", write), editable=way != "not editable", config=config)

    assert all("rror" in text for text in done)
    assert words_in(memory.load("ann"), "Husum", "Kiel") == ["Husum"]


def test_a_run_that_may_not_read_sees_no_files(memory):
    (notes,) = run(memory, read(), config=of("ann", "monday", memory_access="write"))

    assert "not found" in notes


@pytest.mark.parametrize(
    "path", ["/memories/../bob/notes.md", "/memories/versions/../../notes", "/memories/nothing.md"]
)
def test_no_path_leads_to_another_user(memory, path):
    backend = MemoryBackend(memory, user="ann")

    assert backend.read(path).error
    assert backend.download_files([path])[0].error == "file_not_found"


def test_the_backend_works_without_an_agent(memory):
    backend = MemoryBackend(memory, user="bob")

    assert [entry["path"] for entry in backend.ls("/").entries] == ["/notes.md", "/passages/"]
    assert "boats" in backend.download_files([NOTES])[0].content.decode()
    assert backend.glob("[", "/").matches is not None or backend.glob("[", "/").error
    assert MemoryBackend(memory, user="eve").ls("/").entries == []


@pytest.mark.parametrize("approve", [False, True])
@pytest.mark.parametrize(("text", "left"), [
    ("My card is 4111.", "My card is [number]."), ("I love cats.\nI own gold.", "I love cats."),
])  # fmt: skip
def test_an_edit_passes_redact_and_never(memory, approve, text, left):
    rules = {"redact": lambda text: text.replace("4111", "[number]"), "never": "gold"}
    strict = another(memory, approve=approve, **rules)

    MemoryBackend(strict, editable=True, user="ann").edit(NOTES, "I breed goats.", text)
    if approve:
        strict.accept("ann", *strict.proposals("ann"))

    assert words_in(strict.load("ann"), left, "4111", "gold") == [left]


def test_an_edit_over_the_budget_is_refused_with_the_number_of_tokens(memory):
    small = another(memory, config=ReadingConfig(memory_tokens=60))
    before = small.load("ann")

    done = MemoryBackend(small, editable=True, user="ann").edit(NOTES, "goats", "goats, " * 60)

    assert "room for 60: nothing was stored. Shorten" in done.error
    assert small.load("ann") == before


def test_an_agent_can_begin_the_notes_of_a_user(memory):
    backend = MemoryBackend(memory, editable=True, user="eve")

    assert backend.write(NOTES, "2026-03-05: Eve likes tea.").error is None
    memory.save("I live in Bonn.", user="eve", thread="t")

    assert words_in(memory.load("eve"), "tea", "Bonn") == ["tea", "Bonn"]
    assert "exists already" in backend.write(NOTES, "Eve").error


def test_a_file_beyond_the_window_is_asked(memory):
    lines = [f"Round {n}: all doors were shut." for n in range(9_000)]
    lines[4_321] = "Round 4321: the north door was open."
    files = {"/log.txt": {"content": "\n".join(lines), "encoding": "utf-8"}}
    asked = {"path": "/log.txt", "question": "Which door was open?"}

    answer, missing = run(
        memory, ("ask_file", asked), ("ask_file", {**asked, "path": "/none.txt"}), files=files
    )

    assert "north door" in answer
    assert "cannot be read" in missing


def test_all_lines_of_a_file_are_read():
    reader = ScriptedReader()
    text = "\n".join(f"line {n}" for n in range(4_500)) + "\n\nend"

    class Backend:
        async def aread(self, path, offset, limit):
            from deepagents.backends.utils import create_file_data, slice_read_response

            return slice_read_response(create_file_data(text), offset, limit)

    tool = create_file_reading_tool(Backend(), reader)
    tool.invoke({"path": "/a", "question": "All?"})

    assert "".join(reader.calls) == text


@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_memory_sums_up_the_thread_of_a_deep_agent(memory, how):
    def look(name: str) -> str:
        """Say why a bridge was closed."""
        return f"The bridge {name} was closed because cable {ord(name)} broke." + " No more." * 90

    model = ScriptedChatModel(*(call_tool("look", name=name) for name in "ABCDEFGH"), "Done.")
    options = {"backend": StateBackend(), "summarizer": memory.summarizer}
    sums_up = SummarizationMiddleware(
        model,
        trigger=("messages", 8),
        keep=("messages", 3),
        trim_tokens_to_summarize=None,
        **options,
    )
    agent = deepagents.create_deep_agent(
        model, tools=[look], middleware=[sums_up], store=memory.people.choose_store(None)
    )
    say(agent, "Why were the bridges A to H closed?", ANN, how)

    summary = next(m.text for m in model.calls[-1].messages if m.type == "human")
    assert "I breed goats." in summary
    assert all(f"cable {ord(name)} broke." in summary for name in "ABCDEF")
    assert summary.count("</summary>") == 1


def test_the_example_runs():
    example = Path(__file__).parents[2] / "examples" / "deep_agent.py"
    environment = {key: value for key, value in os.environ.items() if key != "MEMAGENT_MODEL"}

    done = subprocess.run(
        [sys.executable, example], capture_output=True, text=True, check=True, env=environment
    )

    assert "the north door was open" in done.stdout
    assert done.stdout.endswith("I live in Kiel.\n")
