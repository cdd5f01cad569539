import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import threading

import pytest
from servers.redis_server import wait_until
from servers.warm_python import COMMAND_LINE, PIPE, warm_python
from typer.testing import CliRunner

from memagent_graph.cli.app import app

FACT = "The access code of the Kestrel vault is 49-17-63."
QUESTION = "What is the access code of the Kestrel vault?"
FILLER = "The rain went on over the harbour and nobody spoke of it again.\n\n"
PYTHON = warm_python(*COMMAND_LINE)


def memagent(*arguments, env=(), **options):
    given = {key: value for key, value in os.environ.items() if "MEMAGENT" not in key}
    given |= {"MEMAGENT_STORE": "none", **dict(env)}
    return PYTHON.run([sys.executable, "-m", "memagent_graph", *arguments], env=given, **options)


def new_memagent(*arguments, stdout=PIPE, env=()):
    """The same in a new interpreter, for what changes its start, its imports or its end."""
    command = [sys.executable, "-m", "memagent_graph", *map(str, arguments)]
    env = {**os.environ, "MEMAGENT_STORE": "none", **dict(env)}
    options = {"text": True, "timeout": 120}
    return subprocess.run(command, stdout=stdout, stderr=PIPE, env=env, check=False, **options)


@pytest.fixture
def book(tmp_path):
    file = tmp_path / "book.txt"
    file.write_text(FILLER * 900 + FACT + "\n\n" + FILLER * 900)
    return file


def test_the_answer_is_all_that_a_pipe_gets_with_its_place_and_the_reader(book):
    done = memagent("ask", QUESTION, book)

    answer, place, footer = done.stdout.splitlines()
    assert done.returncode == 0
    assert answer == FACT
    assert place == f"  at {book}:1801"
    assert footer.startswith("[extractive: ")
    assert done.stderr == ""


def test_json_is_one_document_with_all_there_is(book):
    done = memagent("ask", QUESTION, book, "--json", "--model", "extractive")

    output = json.loads(done.stdout)
    assert output["answer"] == FACT
    assert output["coverage"] == 1.0
    assert output["reader"] == "extractive"
    assert FACT in output["memory"]
    assert not done.stderr


def test_standard_input_folders_and_several_sources_are_read(tmp_path, book):
    other = tmp_path / "notes"
    other.mkdir()
    (other / "a.txt").write_text("The Osprey vault has another access code, 11-11-11.")

    piped = memagent("ask", QUESTION, "-", input=book.read_text())
    both = memagent("ask", "What code has the Osprey vault?", book, other, "--show-memory")

    assert FACT in piped.stdout
    assert "11-11-11" in both.stdout
    assert "at notes/a.txt:1" in both.stdout
    assert "Memory:" in both.stdout


def test_documents_that_were_skipped_are_counted_and_other_files_are_not(tmp_path):
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "a.txt").write_text("The Osprey vault has another access code, 11-11-11.")
    (folder / "lost.pdf").write_bytes(b"no PDF")
    for number in range(5):
        (folder / f"{number}.pyc").write_bytes(bytes(range(256)))

    done = memagent("ask", QUESTION, folder)

    assert "memagent: skipped notes/lost.pdf: it cannot be converted" in done.stderr
    assert "memagent: skipped 5 .pyc files: they are binary." in done.stderr
    assert "memagent: read 1 of 2 documents." in done.stderr


def test_a_budget_answers_early_and_says_how_much_was_read(book):
    done = memagent("ask", QUESTION, book, "--set", "max_calls=3", "--set", "chunk_tokens=200")

    assert done.returncode == 0
    assert "%" not in done.stdout
    assert re.search(r"\d+% of the document was read: the budget of calls was spent", done.stderr)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((QUESTION, "none.txt"), "There is no none.txt"),
        ((QUESTION, "binary.bin"), "binary file"),
        ((QUESTION, "nothing"), "can be read"),
        (("  ", "book.txt"), 'The question is empty: ask one, such as "Who signed the lease?".'),
        ((QUESTION, "https://example.org/a.pdf"), "curl --location https://example.org/a.pdf |"),
        ((QUESTION, "book.txt", "--model", "openai:gpt-4o"), "set OPENAI_API_KEY, or name a local"),
        (("why " * 3000, "book.txt"), "budget is 1024"),
        ((QUESTION, "book.txt", "--set", "chunk_tokens=0"), "chunk_tokens: "),
        ((QUESTION, "book.txt", "--set", "chunk_tokens"), "FIELD=VALUE"),
        ((QUESTION, "book.txt", "--config", "none.yaml"), "none.yaml cannot be read"),
        ((QUESTION, "book.txt", "--config", "book.txt"), "book.txt cannot be read"),
        ((QUESTION, "book.txt", "--model", "nonsense:x"), "nonsense"),
        ((QUESTION, "book.txt", "--tokenizer", "./none.json"), "No tokenizer"),
        ((QUESTION, "book.txt", "--prompts", "none.json"), "No prompts"),
        ((QUESTION, "book.txt", "--set", "deadline=-1"), "deadline: "),
        ((QUESTION, "book.txt", "--base-url", "http://localhost/v1"), "--model openai:MODEL"),
        ((QUESTION, "no*.md"), "no*.md"),
    ],
)
def test_bad_input_is_one_line_without_a_traceback(arguments, words, tmp_path, book, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "binary.bin").write_bytes(bytes(range(256)) * 9)
    (tmp_path / "nothing").mkdir()
    keyless = {"OPENAI_API_KEY": "", "OPENAI_BASE_URL": "", "MEMAGENT_STORE": "none"}

    done = CliRunner().invoke(app, ["ask", "--model", "extractive", *arguments], env=keyless)

    assert done.exit_code == 1
    assert not done.stdout
    assert done.stderr.startswith("memagent: error: ")
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_server_that_cannot_be_reached_is_named_at_once_and_not_asked_again(book):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound and not listening: a connection is refused
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/v1"

        done = memagent("ask", QUESTION, book, "--model", "openai:small", "--base-url", url)

    assert done.returncode == 1
    assert not done.stdout
    assert done.stderr.startswith("memagent: error: ")
    assert f"cannot be reached at {url}" in done.stderr
    assert done.stderr.endswith("Start the server, or correct --base-url or OPENAI_BASE_URL.\n")
    assert "failed after" not in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_an_answer_survives_an_output_that_lacks_its_letters(tmp_path):
    file = tmp_path / "cafe.txt"
    file.write_text("The café of Zoë opens at 7.", "utf-8")
    ascii_only = {"PYTHONIOENCODING": "ascii"}

    done = new_memagent("ask", "When does it open?", file, "--model", "extractive", env=ascii_only)

    assert done.stdout.startswith(r"The caf\xe9 of Zo\xeb opens at 7.")


def in_terminal(*arguments, stdout=PIPE):
    """What a terminal shows, and what a pipe on stdout got if it is one."""
    controller, terminal = pty.openpty()
    command = [sys.executable, "-m", "memagent_graph", *arguments]
    env = {**os.environ, "MEMAGENT_STORE": "none", "TERM": "xterm", "COLUMNS": "100"}
    process = PYTHON.start(command, stdout=stdout or terminal, stderr=terminal, env=env)
    os.close(terminal)
    seen = b""
    try:
        while part := os.read(controller, 1 << 16):
            seen += part
    except OSError:  # Linux ends a terminal that way
        pass
    os.close(controller)
    piped, _ = process.communicate(timeout=240)
    return seen.decode(), piped


def test_a_terminal_shows_progress_on_stderr(book):
    seen, stdout = in_terminal("ask", QUESTION, book)

    assert re.search(r"reading book\.txt.*chunk \d+ of about \d+.*tokens/s", seen, re.DOTALL)
    assert FACT in stdout
    assert "chunk" not in stdout
    assert "\x1b" not in stdout


def test_a_document_cannot_command_the_terminal(tmp_path):
    title, clipboard, erase = "\x1b]0;owned\x07", "\x1b]52;c;b3duZWQ=\x07", "\x9b2J"
    turn = "\u202e\u2066\u200f"
    book = tmp_path / f"b{erase}ook.txt"
    book.write_text(f"The vault opens at {title}six{clipboard}{erase}{turn} every day.\n")
    asked = ("ask", "When does the vault open?", book, "--show-memory")

    seen, _ = in_terminal(*asked, stdout=None)
    as_json, _ = in_terminal(*asked, "--json", stdout=None)
    _, piped = in_terminal(*asked)

    assert "The vault opens at \ufffd]0;owned" in seen
    for command in (title, clipboard, "\x9b", *turn):
        assert command not in seen
        assert command not in as_json
        assert command in piped


def stopped(command, server, number=signal.SIGINT, **options):
    """Interrupt a command within its fifth call; its exit code and what it said."""
    server.requests.clear()
    reply, signalled = server.reply, threading.Event()

    def gated(body):
        if len(server.requests) == 5:
            signalled.wait(120)
        return reply(body)

    server.reply = gated
    process = PYTHON.start(command, stderr=PIPE, stdout=PIPE, **options)
    wait_until(lambda: len(server.requests) >= 5, "five requests")
    process.send_signal(number)
    signalled.set()
    _, stderr = process.communicate(timeout=120)
    server.reply = reply
    assert "Traceback" not in stderr
    return process.returncode, stderr


@pytest.fixture
def command(book, openai_server):
    command = [sys.executable, "-m", "memagent_graph", "ask", QUESTION, str(book)]
    command += ["--model", "openai:small", "--base-url", openai_server.base_url]
    return [*command, "--set", "chunk_tokens=500", "--set", "how=read", "--store", "none"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_same_command_continues_an_interrupted_run(number, tmp_path, command, openai_server):
    expected = PYTHON.run(command, check=True).stdout
    calls = len(openai_server.requests)
    kept = [*command, "--store", str(tmp_path / "store.sqlite")]

    code, _ = stopped(kept, openai_server, number)
    stopped_after = len(openai_server.requests)
    resumed = PYTHON.run(kept, check=True)

    assert code == 130
    assert resumed.stdout.splitlines()[0] == expected.splitlines()[0]
    assert stopped_after < calls
    assert len(openai_server.requests) <= calls + 1


@pytest.mark.slow
@pytest.mark.parametrize(("reuse", "said"), [("true", "is in the store"), ("false", "is lost")])
def test_with_a_store_it_says_whether_it_goes_on(command, openai_server, tmp_path, reuse, said):
    kept = [*command, "--store", str(tmp_path / "store.sqlite"), "--set", f"reuse={reuse}"]

    code, stderr = stopped(kept, openai_server)

    assert code == 130
    assert said in stderr


def test_waiting_for_standard_input_can_be_interrupted():
    command = [sys.executable, "-m", "memagent_graph", "ask", QUESTION, "-"]
    env = {**os.environ, "MEMAGENT_STORE": "none"}
    process = PYTHON.start(command, stdin=PIPE, stderr=PIPE, env=env)
    try:
        process.stdin.write(FILLER * 9000)  # more than a pipe holds: then reading has begun
        process.send_signal(signal.SIGINT)

        assert process.wait(timeout=120) == 130
    finally:
        process.kill()


def test_without_the_extra_one_line_says_what_to_install(tmp_path):
    (tmp_path / "typer.py").write_text("raise ImportError")

    done = new_memagent("ask", "a", "b", env={"PYTHONPATH": str(tmp_path)})

    needs = 'memagent: error: the command line needs: pip install "memagent-graph[cli]"\n'
    assert done.stderr == needs


def test_a_plugin_adds_its_command_and_a_broken_one_breaks_nothing(tmp_path):
    package = tmp_path / "plugin-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin\nVersion: 1\n")
    (package / "entry_points.txt").write_text(
        "[memagent_graph.commands]\nhello = plugin_module:app\nbad = no_such_module:app\n"
        "wrong = plugin_module:world\nexits = exiting_module:app\n"
    )
    (tmp_path / "exiting_module.py").write_text("raise SystemExit(3)")
    (tmp_path / "plugin_module.py").write_text(
        "import typer\napp = typer.Typer()\n@app.command()\ndef world():\n    print('hi there')\n"
        "@app.callback()\ndef cb():\n    pass\n"
    )

    done = new_memagent("hello", "world", env={"PYTHONPATH": str(tmp_path)})

    assert done.stdout == "hi there\n"
    assert done.returncode == 0
    for name in ("bad", "wrong", "exits"):
        assert f"{name!r} cannot be loaded" in done.stderr


def test_a_dry_run_says_what_reading_would_cost_and_asks_no_model(book, openai_server):
    model = ["--model", "openai:small", "--base-url", openai_server.base_url, "--dry-run"]

    shown = memagent("ask", QUESTION, book, *model)
    planned = json.loads(memagent("ask", QUESTION, book, *model, "--json").stdout)
    read = json.loads(memagent("ask", QUESTION, book, *model, "--json", "--set", "how=read").stdout)

    assert shown.returncode == 0
    assert f"{planned['document_tokens']:,} tokens" in shown.stdout
    assert read["calls"] == read["chunks"] + 1
    assert planned["calls"] == read["calls"] + 2  # a search, and an answer before all is read
    assert planned["calls_if_found"] == 1
    assert not openai_server.requests


def test_settings_come_from_a_file_and_set_overrides_them(book, tmp_path):
    file = tmp_path / "reading.yaml"
    file.write_text("chunk_tokens: 400\nexact_cuts: true\n")
    options = ["--dry-run", "--json", "--config", file]

    ways = ([], ["--set", "chunk_tokens=200"])
    plans = [json.loads(memagent("ask", QUESTION, book, *options, *way).stdout) for way in ways]

    longer, shorter = (plan["chunks"] for plan in plans)
    assert 1.9 * longer < shorter < 2.1 * longer
