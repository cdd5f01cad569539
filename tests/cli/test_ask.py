from __future__ import annotations

import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from documents import write_pages
from servers.warm_python import COMMAND_LINE, PIPE, warm_python

from memagent_graph.cli.options import check_server
from memagent_graph.readers.extractive import ExtractiveReader

FACT = "The access code of the Kestrel vault is 49-17-63."
QUESTION = "What is the access code of the Kestrel vault?"
FILLER = "The rain went on over the harbour and nobody spoke of it again.\n\n"


PYTHON = warm_python(*COMMAND_LINE)


def memagent(*arguments, env=(), **options):
    environment = {key: value for key, value in os.environ.items() if "MEMAGENT" not in key}
    environment |= {"MEMAGENT_STORE": "none", **dict(env)}
    return PYTHON.run(
        [sys.executable, "-m", "memagent_graph", *arguments], env=environment, **options
    )


def new_memagent(*arguments, stdout=PIPE, env=()):
    """The same in a new interpreter, for what changes its start, its imports or its end."""
    return subprocess.run(
        [sys.executable, "-m", "memagent_graph", *map(str, arguments)],
        stdout=stdout,
        stderr=PIPE,
        text=True,
        env={**os.environ, "MEMAGENT_STORE": "none", **dict(env)},
        timeout=120,
        check=False,
    )


@pytest.fixture
def book(tmp_path):
    file = tmp_path / "book.txt"
    file.write_text(FILLER * 900 + FACT + "\n\n" + FILLER * 900)
    return file


@pytest.mark.slow
def test_only_a_terminal_is_told_that_no_model_was_named(book):
    command = [sys.executable, "-m", "memagent_graph", "ask", QUESTION, str(book)]
    environment = {name: value for name, value in os.environ.items() if "MEMAGENT" not in name}
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=theirs,
        env={**environment, "MEMAGENT_STORE": "none"},
    ) as process:
        os.close(theirs)
        shown = b""
        while b"no model was named" not in shown and (part := _read_terminal(ours)):
            shown += part
        process.kill()
    os.close(ours)

    assert b"no model was named" in shown
    assert memagent("ask", QUESTION, book).stderr == ""


def _read_terminal(descriptor):
    try:
        return os.read(descriptor, 4096)
    except OSError:  # the other end is closed
        return b""


def test_a_skipped_file_is_named_with_the_reason(book):
    (book.parent / "cut.bin").write_bytes(b"\0\xff" * 50)

    done = memagent("ask", QUESTION, book.parent)

    assert done.returncode == 0
    assert f"memagent: skipped {book.parent.name}/cut.bin: it is a binary file" in done.stderr


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
        ((QUESTION, "blank.txt"), "empty"),
        ((QUESTION, "nothing"), "can be read"),
        (("  ", "book.txt"), 'The question is empty: ask one, such as "Who signed the lease?".'),
        ((QUESTION, "https://example.org/a.pdf"), "curl --location https://example.org/a.pdf |"),
        ((QUESTION, "book.txt", "--model", "openai:gpt-4o"), "set OPENAI_API_KEY, or name a local"),
        ((QUESTION, "book.txt", "--model", "gpt-4o"), "set OPENAI_API_KEY, or name a local"),
        (("why " * 3000, "book.txt"), "budget is 1024"),
        ((QUESTION, "book.txt", "--set", "chunk_tokens=0"), "chunk_tokens: "),
        ((QUESTION, "book.txt", "--set", "chunks=9"), "chunks: "),
        ((QUESTION, "book.txt", "--set", "chunk_tokens"), "FIELD=VALUE"),
        ((QUESTION, "book.txt", "--config", "none.yaml"), "none.yaml cannot be read"),
        ((QUESTION, "book.txt", "--config", "book.txt"), "book.txt cannot be read"),
        ((QUESTION, "book.txt", "--model", "nonsense:x"), "nonsense"),
        ((QUESTION, "book.txt", "--tokenizer", "./none.json"), "No tokenizer"),
        ((QUESTION, "book.txt", "--prompts", "none.json"), "No prompts"),
        ((QUESTION, "book.txt", "--set", "max_calls=1"), "max_calls: "),
        ((QUESTION, "book.txt", "--set", "deadline=-1"), "deadline: "),
        ((QUESTION, "book.txt", "--base-url", "http://localhost/v1"), "--model openai:MODEL"),
        ((QUESTION, "no*.md"), "no*.md"),
    ],
)
def test_bad_input_is_one_line_without_a_traceback(arguments, words, tmp_path, book):
    (tmp_path / "binary.bin").write_bytes(bytes(range(256)) * 9)
    (tmp_path / "blank.txt").write_text(" \n")
    (tmp_path / "nothing").mkdir()

    keyless = {"OPENAI_API_KEY": "", "OPENAI_BASE_URL": ""}

    done = memagent("ask", "--model", "extractive", *arguments, cwd=tmp_path, env=keyless)

    assert done.returncode == 1
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


def test_without_a_model_on_a_server_none_is_looked_for_and_openai_not_imported(monkeypatch):
    monkeypatch.delitem(sys.modules, "memagent_graph.models.endpoint", raising=False)

    check_server(ExtractiveReader())

    assert "memagent_graph.models.endpoint" not in sys.modules


@pytest.mark.slow
def test_an_output_that_cannot_be_written_is_an_error_of_one_line(book):
    with Path("/dev/full").open("w") as full:
        done = new_memagent("ask", QUESTION, book, "--model", "extractive", stdout=full)

    assert done.returncode == 1
    assert done.stderr == "memagent: error: the output is incomplete: No space left on device.\n"


@pytest.mark.slow
def test_an_answer_survives_an_output_that_lacks_its_letters(tmp_path):
    file = tmp_path / "cafe.txt"
    file.write_text("The café of Zoë opens at 7.", "utf-8")
    ascii_only = {"PYTHONIOENCODING": "ascii"}

    done = new_memagent("ask", "When does it open?", file, "--model", "extractive", env=ascii_only)

    assert done.stdout.startswith(r"The caf\xe9 of Zo\xeb opens at 7.")


def test_wrong_usage_has_a_code_of_its_own():
    assert memagent("ask", "only a question").returncode == 2


def test_a_document_with_pages_is_cited_by_page(tmp_path):
    lease = write_pages(tmp_path / "lease.pdf", [[(50, 700, "It rained.")], [(50, 700, FACT)]])

    done = memagent("ask", QUESTION, lease)

    assert done.stdout.splitlines()[:2] == [FACT, f"  at {lease}, page 2"]


def test_statements_without_support_are_warned_of_or_left_out(tmp_path, openai_server):
    book = tmp_path / "book.txt"
    book.write_text(FACT)
    notes = f"- {FACT}\n- Oscar Wilde has a key."
    command = ["ask", QUESTION, book, "--model", "openai:small", "--show-memory"]
    command += ["--base-url", openai_server.base_url, "--set", "how=read"]
    warned, left_out = [], []
    for done, options in ((warned, []), (left_out, ["--set", "unsupported=drop"])):
        openai_server.script = [
            {"message": {"role": "assistant", "content": told}} for told in (notes, "49-17-63")
        ]
        done.append(memagent(*command, *options))

    assert 'support in what was read: "Oscar Wilde has a key." (Oscar, Wilde)' in warned[0].stderr
    assert "1 statement was left out of the memory" in left_out[0].stderr
    assert "Oscar" not in left_out[0].stdout


def test_a_model_behind_an_endpoint_is_named_by_url(book, openai_server):
    done = memagent(
        "ask", QUESTION, book, "--model", "openai:small", "--base-url", openai_server.base_url
    )

    assert done.returncode == 0
    assert done.stdout.startswith("memory ")
    assert "[openai:small: " in done.stdout
    assert "MEMAGENT_MODEL" not in done.stderr


def in_terminal(*arguments, stdout=PIPE):
    """What a terminal shows, and what a pipe on stdout got if it is one."""
    controller, terminal = pty.openpty()
    process = PYTHON.start(
        [sys.executable, "-m", "memagent_graph", *arguments],
        stdout=stdout or terminal,
        stderr=terminal,
        env={**os.environ, "MEMAGENT_STORE": "none", "TERM": "xterm", "COLUMNS": "100"},
    )
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


def wait_for_requests(server, count):
    give_up = time.monotonic() + 120
    while len(server.requests) < count:
        assert time.monotonic() < give_up
        time.sleep(0.005)


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
    wait_for_requests(server, 5)
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
def test_the_same_command_continues_an_interrupted_run_and_ends_alike(
    number, tmp_path, command, openai_server
):
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


def test_an_interrupted_run_that_kept_nothing_says_so(command, openai_server):
    code, stderr = stopped(command, openai_server)

    assert code == 130
    assert "is lost" in stderr
    assert "--store" in stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("extra", "said"), [([], "is in the store"), (["--set", "reuse=false"], "is lost")]
)
def test_one_with_a_store_says_whether_it_goes_on_there(
    command, openai_server, tmp_path, extra, said
):
    kept = [*command, "--store", str(tmp_path / "store.sqlite"), *extra]

    code, stderr = stopped(kept, openai_server)

    assert code == 130
    assert said in stderr


@pytest.mark.slow
def test_that_also_holds_where_the_tests_run_in_the_background_of_a_shell():
    ignoring = 'trap "" INT; exec "$0" -m pytest -k kept_nothing "$1"'  # as `sh` does for `&`

    done = subprocess.run(
        ["sh", "-c", ignoring, sys.executable, __file__],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout


def test_waiting_for_standard_input_can_be_interrupted():
    process = PYTHON.start(
        [sys.executable, "-m", "memagent_graph", "ask", QUESTION, "-"],
        stdin=PIPE,
        stderr=PIPE,
        env={**os.environ, "MEMAGENT_STORE": "none"},
    )
    try:
        process.stdin.write(FILLER * 9000)  # more than a pipe holds: then reading has begun
        process.send_signal(signal.SIGINT)

        assert process.wait(timeout=120) == 130
    finally:
        process.kill()


def test_without_the_extra_one_line_says_what_to_install(tmp_path):
    (tmp_path / "typer.py").write_text("raise ImportError")

    done = new_memagent("ask", "a", "b", env={"PYTHONPATH": str(tmp_path)})

    assert done.stderr.strip() == (
        'memagent: error: the command line needs: pip install "memagent-graph[cli]"'
    )


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


def test_help_comes_quickly_because_nothing_heavy_is_imported():
    heavy = ("langgraph", "openai", "torch", "fastapi", "mcp")
    code = f"import sys, memagent_graph.cli.app; print([m for m in {heavy} if m in sys.modules])"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert Path(sys.executable).exists()
    assert done.stdout.strip() == "[]"


def test_a_dry_run_says_what_reading_would_cost_and_asks_no_model(book, openai_server):
    options = ["--model", "openai:small", "--base-url", openai_server.base_url, "--dry-run"]

    shown = memagent("ask", QUESTION, book, *options)
    planned = json.loads(memagent("ask", QUESTION, book, *options, "--json").stdout)
    read = json.loads(
        memagent("ask", QUESTION, book, *options, "--json", "--set", "how=read").stdout
    )

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

    plans = [
        json.loads(memagent("ask", QUESTION, book, *options, *more).stdout)
        for more in ([], ["--set", "chunk_tokens=200"])
    ]

    longer, shorter = (plan["chunks"] for plan in plans)
    assert 1.9 * longer < shorter < 2.1 * longer


def test_exact_cuts_fill_every_chunk(book):
    options = ["--model", "extractive", "--set", "chunk_tokens=200", "--json"]
    plans = [
        json.loads(memagent("ask", QUESTION, book, *options, *more, "--dry-run").stdout)
        for more in ([], ["--set", "exact_cuts=true"])
    ]

    read = json.loads(memagent("ask", QUESTION, book, *options, "--set", "exact_cuts=true").stdout)

    natural, exact = [plan["chunks"] for plan in plans]
    assert exact < natural
    assert read["usage"]["calls"] == exact + 1


def test_skim_reads_what_the_question_leads_to_and_says_what_it_left_out(book):
    options = ["--set", "skim=lexical", "--set", "chunk_tokens=500", "--store", "none"]

    read = json.loads(memagent("ask", QUESTION, book, *options, "--json").stdout)
    shown = memagent("ask", QUESTION, book, *options, "--dry-run").stdout

    assert read["skipped"]
    assert read["coverage"] < 0.5
    assert "if found" in shown


@pytest.mark.slow
@pytest.mark.parametrize("segments", ["auto", "4", "1000"])
def test_skim_in_segments_skips_and_says_what_it_costs(tmp_path, segments):
    story = tmp_path / "story.txt"
    both = "Tobias Quandt built the Ortega vault.\n\nTobias Quandt lives in Husum.\n\n"
    story.write_text(FILLER * 600 + both + FILLER * 300)
    options = ["--set", "skim=lexical", "--set", f"segments={segments}"]
    options += ["--set", "chunk_tokens=500"]
    asked = ["ask", "Where does the builder of the Ortega vault live?", story, *options]

    out = json.loads(memagent(*asked, "--json").stdout)
    planned = json.loads(memagent(*asked, "--json", "--dry-run").stdout)

    assert "Husum" in out["memory"]
    assert 0 < out["coverage"] < 0.4
    assert out["skipped"]
    assert out["usage"]["calls"] < 30 < planned["calls"]
    assert planned["calls_if_found"] < 30
    assert (planned["chain_calls"] < planned["calls"]) == (segments != "auto")


def test_an_option_that_is_a_setting_is_none_of_the_command(book):
    done = memagent("ask", QUESTION, book, "--model", "extractive", "--segments", "2")

    assert done.returncode == 2
    assert "No such option" in " ".join(done.stderr.split())
