"""An operator finds the users of a chatbot from the shell, on a file and on Redis."""

import sys

import pytest
from conversations import graph_with, of, say
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import MessagesState
from typer.testing import CliRunner

from memagent_graph import ConversationMemory
from memagent_graph.cli.app import app
from memagent_graph.memory.stores import open_store


@pytest.fixture
def chatbot(where, tmp_path):
    """Ann and Ben have talked with it; its threads are in a file."""
    checkpoints = tmp_path / "threads.sqlite"
    with open_store(where) as store, SqliteSaver.from_conn_string(str(checkpoints)) as saver:
        memory = ConversationMemory(store=store, remember_within=0)
        agent = graph_with(memory, lambda _: {}, MessagesState, saver, behind=False)
        for user, text in (("ann", "I breed quokkas in Hobart."), ("ben", "I breed hens.")):
            say(agent, text, of(user, f"{user}-1"), id=f"m-{user}")
        memory.flush()
    return checkpoints


@pytest.fixture
def memory(where):
    def run(*arguments, check=True, env=(), **options):
        environment = {"MEMAGENT_STORE": where, "USER": "olga", "LOGNAME": "olga", **dict(env)}
        words = ["memory", *map(str, arguments)]
        done = CliRunner().invoke(app, words, env=environment, **options)
        assert done.exit_code == 0 or not check, done.output
        return done

    return run


@pytest.mark.slow
def test_a_user_is_found_shown_edited_moved_and_forgotten(memory, chatbot, tmp_path):
    editor = f"{sys.executable} -c \"import sys; open(sys.argv[1], 'w').write('Breeds emus.')\""

    assert [line.split("\t")[0] for line in memory("users").stdout.splitlines()] == ["ann", "ben"]
    assert "quokkas in Hobart" in memory("show", "--user", "ann").stdout
    edited = memory("edit", "--user", "ann", env={"EDITOR": editor, "VISUAL": editor})
    history = memory("history", "--user", "ann").stdout
    lines = memory("export", "--user", "ann").stdout
    preview = memory("forget", "--user", "ann", "--dry-run").stdout
    assert memory("show", "--user", "ann").stdout == "Breeds emus.\n"
    forgotten = memory("forget", "--user", "ann", "--yes").stdout
    rest = memory("forget", "--user", "ann", "--yes", "--checkpoints", chatbot).stdout
    after = memory("history", "--user", "ann").stdout

    first, *_ = history.splitlines()
    assert edited.stdout.strip() in first
    assert "edited by olga" in first
    assert "folded by conversation, thread ann-1, messages m-ann, model extractive" in history
    assert "  + I breed quokkas in Hobart." in history.splitlines()
    assert lines.startswith('{"user": "ann"}\n')
    assert preview.startswith("ann\t")
    assert "hold the threads ann-1" in forgotten
    assert "0 items and 1 thread deleted" in rest
    assert after.endswith("  forgotten by olga\n")
    assert "emus" not in after
    assert memory("users").stdout.startswith("ben\t")
    for file in (chatbot, tmp_path / "memories.sqlite"):
        assert not file.exists() or b"quokkas" not in file.read_bytes()
    assert memory("import", "-", input=lines).stdout == "ann\timported\n"
    mem0 = '{"results": [{"id": "1", "memory": "Keeps bees.", "hash": "x"}]}'
    of_mem0 = ("import", "-", "--from", "mem0", "--user", "bo")
    said = "bo\t1 message of 1 thread imported\nleft out\t1\thash\n"
    assert memory(*of_mem0, input=mem0).stdout == said
    assert memory(*of_mem0, input=mem0).stdout == said
    assert memory("show", "--user", "bo").stdout.endswith("\nKeeps bees.\n")
    assert memory("show", "--user", "ann").stdout == "Breeds emus.\n"


@pytest.mark.slow
@pytest.mark.parametrize("where", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["show"], "`memagent memory users` lists them"),
        (["show", "--user", "zoe"], "Nothing is remembered about the user 'zoe'"),
        (["history", "--user", "zoe"], "`memagent memory users` lists those"),
        (["edit", "--user", "zoe"], "Nothing is remembered about the user 'zoe'"),
        (["forget"], "a NAME, a document with --source, or a --user"),
        (["forget", "--user", "ann", "--source", "x"], "Say what to forget"),
        (["forget", "lease", "--source", "x"], "Say what to forget"),
        (["export", "name", "--user", "ann"], "Give only one of"),
        (["import", __file__, "--user", "ann"], "--from and --user go together"),
        (["import", __file__, "--user", "ann", "--from", "mem0"], "no export of mem0"),
    ],
)
def test_a_command_that_cannot_be_carried_out_says_what_to_do(memory, arguments, said):
    done = memory(*arguments, check=False)

    assert done.exit_code == 1
    assert done.stderr.startswith("memagent: error: ")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("where", ["sqlite"], indirect=True)
def test_a_users_id_cannot_forge_a_line(memory, where):
    with open_store(where) as store:
        said = [HumanMessage("Hello,\tI breed bees.")]
        ConversationMemory(store=store).save(said, user="ann\nben\t1 token\u202e", thread="1")

    (line,) = memory("users").stdout.splitlines()

    assert line.startswith("ann\\nben\\t1 token\\u202e\t")
