import json
import os
import signal
import subprocess
import sys
import time

import pytest
from fixed_readers import numbered
from servers.warm_python import COMMAND_LINE, PIPE, warm_python

PYTHON = warm_python(*COMMAND_LINE)
COMMAND = [sys.executable, "-m", "memagent_graph", "batch"]
WITHOUT_STORE = {**os.environ, "MEMAGENT_STORE": "none"}


@pytest.fixture
def tasks(tmp_path):
    """Twelve tasks in a folder of their own, by path, by list of paths and by text."""
    lines = []
    for number in range(12):
        (tmp_path / f"{number}.txt").write_text(f"The lamp {number} is red. " + numbered(60))
        question, document = f"Where is the lamp {number}?", {"path": f"{number}.txt"}
        lines.append({"id": number, "question": question, "document": document})
    rent = {"question": "Who pays?", "document": "Mr. Fox pays the rent."}
    lines[3] = {"id": 3, **rent, "topic": "lease"}
    lines[4]["document"] = [{"path": "4.txt"}, {"path": "5.txt"}, "And a text."]
    file = tmp_path / "tasks.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)) + "\n")
    return file


def run(tasks, *extra, env=WITHOUT_STORE):
    out = tasks.parent / "results.jsonl"
    command = [*COMMAND, str(tasks), "--out", str(out), *extra]
    return PYTHON.run(command, env=env), out


def records(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_each_task_gets_one_line_with_its_own_fields_and_its_answer(tasks):
    done, out = run(tasks)

    assert done.returncode == 0, done.stderr
    found = {str(record["id"]): record for record in records(out)}
    assert len(found) == 12
    assert "lamp 7 is red" in found["7"]["answer"]
    lease = next(record for record in found.values() if record.get("topic") == "lease")
    assert "Mr. Fox" in lease["answer"]
    assert lease["question"] == "Who pays?"
    assert "12 answered, 0 failed" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_failed_says_why_and_is_tried_again_and_what_was_answered_is_not(tasks):
    (tasks.parent / "7.txt").rename(tasks.parent / "away.txt")
    done, out = run(tasks)
    assert done.returncode == 1
    [failed] = [record for record in records(out) if "error" in record]
    assert failed["id"] == 7
    assert "7.txt" in failed["error"]
    (tasks.parent / "away.txt").rename(tasks.parent / "7.txt")

    again, _ = run(tasks)

    assert again.returncode == 0
    assert "11 were answered before" in again.stderr
    assert "1 answered, 0 failed" in again.stderr
    found = [str(record["id"]) for record in records(out)]
    assert len(found) == len({*found}) == 12


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_stopped_batch_goes_on_and_loses_and_repeats_no_result(number, tasks, openai_server):
    reply = openai_server.reply
    openai_server.reply = lambda body: time.sleep(0.02) or reply(body)
    out = tasks.parent / "results.jsonl"
    command = [*COMMAND, str(tasks), "--out", str(out), "--concurrency", "3"]
    command += ["--model", "openai:small", "--base-url", openai_server.base_url]
    command += ["--set", "chunk_tokens=200"]
    process = PYTHON.start(command, env=WITHOUT_STORE, stderr=PIPE)
    while not out.exists() or len(out.read_text().splitlines()) < 3:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=120)
    if number == signal.SIGKILL:
        with out.open("a") as file:
            file.write('{"id": 11, "answ')  # as a crash within a write would leave it
    else:
        assert process.returncode == 130
        assert "To continue:\n  memagent batch" in stderr
    before = out.read_text().splitlines()[:3]

    again = PYTHON.run(command, env=WITHOUT_STORE)

    assert again.returncode == 0, again.stderr
    found = [str(record["id"]) for record in records(out)]
    assert len(found) == len(set(found)) == 12
    assert out.read_text().splitlines()[:3] == before


NO_TASKS = [
    ("{not json}", "tasks.jsonl:13"),
    ('{"question": "?"}', "document"),
    ("[1, 2]", "tasks.jsonl:15"),
    ('{"id": 7, "question": "?", "document": "a"}', "twice"),
    ('{"question": "?", "document": {"file": "a"}}', '{"path": ...}'),
    ('{"question": "?", "document": []}', "`document` is []"),
]


def test_lines_that_are_no_tasks_are_reported_and_the_others_are_answered(tasks):
    tasks.write_text(tasks.read_text() + "\n".join(line for line, _ in NO_TASKS))

    done, out = run(tasks)

    assert done.returncode == 1
    told = [line for line in done.stderr.splitlines() if "is not a task" in line]
    for said, (_, words) in zip(told, NO_TASKS, strict=True):
        assert words in said
        assert said.startswith(f"memagent: error: {tasks}:")
    assert {str(record["id"]) for record in records(out)} == {str(each) for each in range(12)}
    assert "12 answered, 6 failed" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_text_that_is_a_file_s_name_is_read_as_text_and_said_to_be(tasks):
    tasks.write_text('{"question": "Which file?", "document": "7.txt"}')

    command = [*COMMAND, str(tasks)]
    done = subprocess.run(command, env=WITHOUT_STORE, capture_output=True, text=True, check=True)

    assert json.loads(done.stdout)["memory"] in ("", "7.txt")
    assert '7.txt"} would read.' in done.stderr


def test_a_file_that_holds_something_else_is_not_overwritten(tasks):
    out = tasks.parent / "results.jsonl"
    out.write_text("my novel\nchapter one\n")

    done, _ = run(tasks)

    assert done.returncode == 1
    assert "name a new file" in done.stderr
    assert out.read_text() == "my novel\nchapter one\n"
