"""What is printed or written arrives, or the command fails with one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a full device"),
]

PROGRAM = r"""
import json, os, resource, sys
import langgraph.checkpoint.sqlite, langgraph.store.sqlite  # once, and not in every child
import memagent_graph.batch, memagent_graph.graph.build, memagent_graph.conversation.users
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
    errors, to = os.pipe()  # files have a limit
    child = os.fork()
    if child == 0:
        os.dup2(sink_of(kind), 1)
        os.dup2(to, 2)
        os.close(to)
        if kind == "closed":
            os.close(1)
            sys.stdout = None
        if kind == "full disk":
            resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))
        sys.argv[1:] = words
        main()  # ends with SystemExit, and then the interpreter as always
    os.close(to)
    with open(errors) as lines:
        told = lines.read()
    return [kind, words, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), told]

done = [run(words, kind) for kind in sinks for words in commands]
print(json.dumps(done))
"""


def outcomes(folder, sinks, commands, **environment):
    """Kind of output, command, exit code and standard error of each command to each output."""
    arguments = [folder, json.dumps(sinks), json.dumps(commands)]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=True,
        timeout=110,
        env={
            **{key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"},
            "MEMAGENT_STORE": str(folder / "memories.sqlite"),
            "MEMAGENT_CACHE": str(folder),
            "MEMAGENT_MODEL": "extractive",
            **environment,
        },
    )
    return json.loads(done.stdout)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "book.txt").write_text("The vault opens at 6:40.\n")
    task = {"id": "1", "question": "When?", "document": "The vault opens at 6:40."}
    (tmp_path / "tasks.jsonl").write_text(json.dumps(task))
    prompts = 'A = "{question} {memory} {chunk}"\nB = "{question} {memory}"\n'
    (tmp_path / "prompts.py").write_text(prompts)
    words = ["ask", "When does the vault open?", str(tmp_path / "book.txt"), "--name", "diary"]
    ((*_, code, errors),) = outcomes(tmp_path, ["null device"], [words])
    assert (code, errors) == (0, "")
    return tmp_path


def test_every_command_that_cannot_print_says_so_in_one_line(folder):
    ask = ["ask", "When does the vault open?", str(folder / "book.txt")]
    commands = [
        ask,
        ["memory", "list"],
        ["memory", "export"],
        ["eval", "--list"],
        ["--version"],
        ["memory", "export", "--help"],
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
    prompts = ["prompts", "import", str(folder / "prompts.py"), "--out", str(folder / "new.json")]
    batch = ["batch", str(folder / "tasks.jsonl"), "--out", str(folder / "out.jsonl")]
    nowhere = ["--store", "none"]
    checkpoint = ["--checkpoint", str(folder / "run.sqlite")]
    blamed = {
        "The store": [ask, batch, ["memory", "list"]],
        "The checkpoint file": [[*ask, *nowhere, *checkpoint]],
        "the output": [prompts, [*batch, *nowhere]],
    }
    commands = [(words, what) for what, found in blamed.items() for words in found]
    done = outcomes(folder, ["full disk"], [words for words, _ in commands])

    for (_, words, code, errors), (_, what) in zip(done, commands, strict=True):
        assert (words, code) == (words, 1)
        assert errors.startswith(f"memagent: error: {what} "), (words, errors)
        assert errors.count("\n") == 1, words
