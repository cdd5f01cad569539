"""What is printed or written arrives, or the command fails with one line."""

import json
import os
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from servers.warm_python import COMMAND_LINE, DEVNULL, warm_python

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a full device"),
]

PYTHON = warm_python(*COMMAND_LINE)
PROGRAM = """
import os, resource, sys
kind = sys.argv.pop(1)
if kind == "closed":
    os.close(1)
    sys.stdout = None
if kind == "full disk":
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))
from memagent_graph.cli import main
main()
"""


def outcomes(folder, kind, commands, **environment):
    """The exit codes and standard error of commands that print to some output, or terminal."""
    own = {"MEMAGENT_STORE": str(folder / "memories.sqlite"), "MEMAGENT_CACHE": str(folder)}
    env = {**os.environ, **own, "MEMAGENT_MODEL": "extractive", **environment}
    for words in commands:
        command = [sys.executable, "-c", PROGRAM, kind, *words]
        reading, errors = os.openpty() if kind == "terminal" else os.pipe()
        sink = errors if kind == "terminal" else open_sink(kind)
        process = PYTHON.start(command, stdin=DEVNULL, stdout=sink, stderr=errors, env=env)
        for descriptor in {sink, errors}:
            os.close(descriptor)
        yield words, *read_to_the_end(reading, process)


def open_sink(kind):
    if kind == "closed pipe":
        reading, writing = os.pipe()
        os.close(reading)
        return writing
    return os.open("/dev/full" if kind == "full device" else os.devnull, os.O_WRONLY)


def read_to_the_end(reading, process):
    told = b""
    with suppress(OSError):  # Linux ends a terminal that way
        while part := os.read(reading, 1 << 16):
            told += part
    os.close(reading)
    return process.wait(60), told.decode()


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "book.txt").write_text("The vault opens at 6:40.\n")
    task = {"id": "1", "question": "When?", "document": "The vault opens at 6:40."}
    (tmp_path / "tasks.jsonl").write_text(json.dumps(task))
    words = ["ask", "When does the vault open?", str(tmp_path / "book.txt"), "--name", "diary"]
    ((_, code, errors),) = outcomes(tmp_path, "null device", [words])
    assert (code, errors) == (0, "")
    return tmp_path


def evaluation(folder):
    row = {"question": "When?", "answers": ["6:40"], "title": "", "text": "It opens at 6:40."}
    (folder / "questions.jsonl").write_text(json.dumps(row))
    asked = ["--tasks", f"qa:{folder / 'questions.jsonl'}", "--essays", str(folder / "book.txt")]
    return ["eval", *asked, "--lengths", "2k", "--out", str(folder / "results")]


def test_every_command_that_cannot_print_says_so_in_one_line(folder):
    ask = ["ask", "When does the vault open?", str(folder / "book.txt")]
    export = ["memory", "export"]
    commands = [ask, ["memory", "list"], export, ["--version"], [*export, "--help"]]
    commands.append(evaluation(folder))
    tried = {"full device": commands, "closed pipe": commands[2:4], "closed": commands[2:4]}

    for kind, some in tried.items():
        for words, code, errors in outcomes(folder, kind, some):
            assert (kind, words, code) == (kind, words, 1)
            assert errors.startswith("memagent: error: the output is incomplete: "), (kind, words)
            assert errors.count("\n") == 1, (kind, words)


def test_every_command_that_finds_the_disk_full_says_so_in_one_line(folder):
    (folder / "memories.sqlite").unlink()
    ask = ["ask", "When does the vault open?", str(folder / "book.txt")]
    batch = ["batch", str(folder / "tasks.jsonl"), "--out", str(folder / "out.jsonl")]
    nowhere = ["--store", "none"]
    blamed = {"The store": [ask, batch], "the output": [[*batch, *nowhere], evaluation(folder)]}
    commands = [(words, what) for what, found in blamed.items() for words in found]
    done = outcomes(folder, "full disk", [words for words, _ in commands])

    for (words, code, errors), (_, what) in zip(done, commands, strict=True):
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


def hostile_commands(folder):
    book, bad, tasks = (str(folder / f"{HOSTILE}.{kind}") for kind in ("txt", "bad", "jsonl"))
    ask = ["ask", "When does the vault open?", book, "--name", HOSTILE]
    out, user = ["--out", str(folder / HOSTILE)], ["--user", HOSTILE]
    shown = (["--show-memory"], ["--json"], ["--set", HOSTILE], ["--config", bad], ["--dry-run"])
    named = (["list"], ["show", HOSTILE], ["history", HOSTILE], ["edit", HOSTILE])
    kept = (["check"], ["export"], ["export", f"{HOSTILE} gone"], ["import", f"{bad} gone"])
    return {
        "documents": [
            *([*ask, *words] for words in shown),
            ["ask", "?", f"{book} gone"],
            ["batch", tasks, "--out", f"{book}.out"],
            ["batch", bad, "--out", f"{book}.out"],
            ["memory", "forget", "--source", book, "--dry-run"],
        ],
        "models": [
            ["eval", "--tasks", HOSTILE, *out],
            ["eval", "--methods", HOSTILE, "--lengths", "8k", *out],
            ["eval", "--tasks", f"ruler:{bad}", *out],
            ["train", "--set", HOSTILE],
            ["doctor", "--model", HOSTILE],
        ],
        "memories": [ask, *(["memory", *words] for words in named)],
        "records": [
            *(ask, ["memory", "forget", HOSTILE, "--dry-run"]),
            *(["memory", *words] for words in kept),
        ],
        "people": [
            ["memory", "users", "--namespace", f"{HOSTILE}."],
            ["memory", "readings", HOSTILE],
            ["memory", "forget", *user, "--dry-run"],
        ],
        "servers": [[one, "--host", HOSTILE, "--port", "0"] for one in ("mcp", "serve", "inspect")],
        "usage": [[HOSTILE], ["ask", f"--{HOSTILE}"], ["memory", HOSTILE]],
    }


@pytest.mark.parametrize(
    "about", ["documents", "models", "memories", "records", "people", "servers", "usage"]
)
def test_no_command_lets_a_text_act_on_a_terminal(about, hostile):
    commands = hostile_commands(hostile)[about]
    environment = {"MEMAGENT_CACHE": str(hostile / HOSTILE), "EDITOR": f"/{HOSTILE}/over"}

    done = [*outcomes(hostile, "terminal", commands, **environment)]

    for words, _, told in done:
        assert [mark for mark in NEVER if mark in told.replace("\r\n", "\n")] == [], (words, told)
    assert sum("over" in told for *_, told in done) > len(done) / 2
