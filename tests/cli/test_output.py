"""What is printed or written arrives, or the command fails with one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from servers.warm_python import COMMAND_LINE, warm_python

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a full device"),
]

PYTHON = warm_python(
    *COMMAND_LINE,
    "langgraph.checkpoint.sqlite",
    "memagent_graph.conversation.users",
    "memagent_graph.evaluation.run",
)
PROGRAM = r"""
import json, os, resource, signal, sys
from memagent_graph.cli import main

folder, sinks, commands = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])

def sink_of(kind):
    if kind == "full device":
        return os.open("/dev/full", os.O_WRONLY)
    if kind == "closed pipe":
        read, write = os.pipe()
        os.close(read)
        return write
    return os.open(os.devnull, os.O_WRONLY)

def run(words, kind):
    errors, to = os.openpty() if kind == "terminal" else os.pipe()  # files have a limit
    child = os.fork()
    if child == 0:
        os.dup2(to if kind == "terminal" else sink_of(kind), 1)
        os.dup2(to, 2)
        os.close(to)
        if kind == "closed":
            os.close(1)
            sys.stdout = None
        if kind == "full disk":
            resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))
        sys.argv[1:] = words
        signal.alarm(60)
        main()  # ends with SystemExit, and then the interpreter as always
    os.close(to)
    told = b""
    try:
        while part := os.read(errors, 1 << 16):
            told += part
    except OSError:  # Linux ends a terminal that way
        pass
    os.close(errors)
    told = told.decode()
    return [kind, words, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), told]

done = [run(words, kind) for kind in sinks for words in commands]
print(json.dumps(done))
"""


def outcomes(folder, sinks, commands, **environment):
    """Kind of output, command, exit code and standard error of each command to each output."""
    command = [sys.executable, "-c", PROGRAM, folder, json.dumps(sinks), json.dumps(commands)]
    env = {
        **{key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"},
        "MEMAGENT_STORE": str(folder / "memories.sqlite"),
        "MEMAGENT_CACHE": str(folder),
        "MEMAGENT_MODEL": "extractive",
        **environment,
    }
    if "PYTHONUNBUFFERED" in environment:  # it is for the start of an interpreter
        printed = subprocess.check_output([*map(str, command)], text=True, timeout=110, env=env)
    else:
        whole_end = sinks != ["terminal"]  # which takes all
        printed = PYTHON.run(command, check=True, env=env, whole_end=whole_end).stdout
    return json.loads(printed)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "book.txt").write_text("The vault opens at 6:40.\n")
    task = {"id": "1", "question": "When?", "document": "The vault opens at 6:40."}
    (tmp_path / "tasks.jsonl").write_text(json.dumps(task))
    words = ["ask", "When does the vault open?", str(tmp_path / "book.txt"), "--name", "diary"]
    ((*_, code, errors),) = outcomes(tmp_path, ["null device"], [words])
    assert (code, errors) == (0, "")
    return tmp_path


def evaluation(folder):
    row = {"question": "When?", "answers": ["6:40"], "title": "", "text": "It opens at 6:40."}
    (folder / "questions.jsonl").write_text(json.dumps(row))
    asked = ["--tasks", f"qa:{folder / 'questions.jsonl'}", "--essays", str(folder / "book.txt")]
    return ["eval", *asked, "--lengths", "2k", "--out", str(folder / "results")]


def test_every_command_that_cannot_print_says_so_in_one_line(folder):
    ask = ["ask", "When does the vault open?", str(folder / "book.txt")]
    commands = [
        ask,
        ["memory", "list"],
        ["memory", "export"],
        ["cache"],
        ["--version"],
        ["memory", "export", "--help"],
        evaluation(folder),
    ]
    sinks = ["full device", "closed pipe", "closed"]

    for kind, words, code, errors in [
        *outcomes(folder, sinks[:1], commands),
        *outcomes(folder, sinks[1:], commands[2:4], PYTHONUNBUFFERED="1"),
    ]:
        assert (kind, words, code) == (kind, words, 1)
        assert errors.startswith("memagent: error: the output is incomplete: "), (kind, words)
        assert errors.count("\n") == 1, (kind, words)


def test_every_command_that_finds_the_disk_full_says_so_in_one_line(folder):
    (folder / "memories.sqlite").unlink()
    ask = ["ask", "When does the vault open?", str(folder / "book.txt")]
    batch = ["batch", str(folder / "tasks.jsonl"), "--out", str(folder / "out.jsonl")]
    nowhere = ["--store", "none"]
    blamed = {
        "The store": [ask, batch, ["memory", "list"]],
        "the output": [[*batch, *nowhere], evaluation(folder)],
    }
    commands = [(words, what) for what, found in blamed.items() for words in found]
    done = outcomes(folder, ["full disk"], [words for words, _ in commands])

    for (_, words, code, errors), (_, what) in zip(done, commands, strict=True):
        assert (words, code) == (words, 1)
        assert errors.startswith(f"memagent: error: {what} "), (words, errors)
        assert errors.count("\n") == 1, words


HOSTILE = "\u202e\u2066\x1b]0;owned\x07\x9b2J\U000e0041\rover"
"""Turns a text, sets a window's title, erases, hides a letter, and overwrites a line."""
IN_TEXT = HOSTILE.replace("over", "beside")
"""The same in a document, where a carriage return ends a line."""
NEVER = ("\u202e", "\u2066", "\x1b]", "\x07", "\x9b", "\U000e0041", "\rover", "\nover", "\rbeside")


@pytest.fixture
def hostile(tmp_path):
    """A folder with files whose names and contents are hostile, and a store with such names."""
    for name, text in {
        f"{HOSTILE}.txt": f"The vault {IN_TEXT} opens at 6:40.\n",
        f"{HOSTILE}.jsonl": json.dumps({"id": HOSTILE, "question": HOSTILE, "document": HOSTILE}),
        f"{HOSTILE}.bad": "not of any format\n",
        f"{HOSTILE}.yaml": f"{json.dumps(HOSTILE)}: 1\n",
    }.items():
        (tmp_path / name).write_text(text)
    (tmp_path / HOSTILE).mkdir()
    return tmp_path


def commands_of(group, words=()):
    """The words of every command below a group."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands_of(command, (*words, name))
        else:
            yield (*words, name)


def hostile_commands(folder):
    """Commands with hostile texts, by what they are about."""
    book, bad, tasks = (str(folder / f"{HOSTILE}.{kind}") for kind in ("txt", "bad", "jsonl"))
    ask = ["ask", "When does the vault open?", book, "--name", HOSTILE]
    out, user = ["--out", str(folder / HOSTILE)], ["--user", HOSTILE]
    yield (
        "documents",
        [
            [*ask, "--show-memory"],
            [*ask, "--json"],
            [*ask, "--set", HOSTILE],
            [*ask, "--config", bad],
            [*ask, "--dry-run"],
            ["ask", "?", f"{book} gone"],
            ["batch", tasks, "--out", f"{book}.out"],
            ["batch", bad, "--out", f"{book}.out"],
            ["memory", "forget", "--source", book, "--dry-run"],
            ["cache"],
            ["cache", "clear"],
        ],
    )
    yield (
        "models",
        [
            ["eval", "--tasks", HOSTILE, *out],
            ["eval", "--methods", HOSTILE, "--lengths", "8k", *out],
            ["eval", "--tasks", f"ruler:{bad}", *out],
            ["train", "--set", HOSTILE],
            ["doctor", "--model", HOSTILE],
        ],
    )
    yield (
        "memories",
        [
            [*ask],
            ["memory", "list"],
            ["memory", "show", HOSTILE],
            ["memory", "history", HOSTILE],
            ["memory", "edit", HOSTILE],
        ],
    )
    yield (
        "records",
        [
            [*ask],
            ["memory", "forget", HOSTILE, "--dry-run"],
            ["memory", "check"],
            ["memory", "export"],
            ["memory", "export", f"{HOSTILE} gone"],
            ["memory", "import", f"{bad} gone"],
        ],
    )
    yield (
        "people",
        [
            ["memory", "users", "--namespace", f"{HOSTILE}."],
            ["memory", "readings", HOSTILE],
            ["memory", "forget", *user, "--dry-run"],
        ],
    )
    yield "servers", [[name, "--host", HOSTILE, "--port", "0"] for name in SERVERS]
    yield "usage", [[HOSTILE], ["ask", f"--{HOSTILE}"], ["memory", HOSTILE]]


SERVERS = ("mcp", "serve", "inspect")


@pytest.mark.parametrize(
    "about", ["documents", "models", "memories", "records", "people", "servers", "usage"]
)
def test_no_command_lets_a_text_act_on_a_terminal(about, hostile):
    commands = dict(hostile_commands(hostile))[about]
    environment = {"MEMAGENT_CACHE": str(hostile / HOSTILE), "EDITOR": f"/{HOSTILE}/over"}

    done = outcomes(hostile, ["terminal"], commands, **environment)

    for _, words, _, told in done:
        assert [mark for mark in NEVER if mark in told.replace("\r\n", "\n")] == [], (words, told)
    assert sum("over" in told for *_, told in done) > len(done) / 2


def test_every_command_is_tried_with_hostile_texts(tmp_path):
    from memagent_graph.cli.app import app

    tried = {tuple(words[:2]) for _, some in hostile_commands(tmp_path) for words in some}
    every = {*commands_of(typer.main.get_group(app))}

    assert every - tried - {words[:1] for words in tried} == set()
