"""The exam of `memagent doctor --exam`: what a model can do, and the settings that follow."""

import json

import pytest
from typer.testing import CliRunner

from memagent_graph import ReadingConfig
from memagent_graph.cli.app import app
from memagent_graph.evaluation.exam import TASKS, examine
from memagent_graph.testing import ScriptedChatModel


def solve(messages):
    prompt = messages[-1].text
    (task,) = [task for task in TASKS if is_asked(task, prompt)]
    notes = " ".join(filter(None, (*task.notes, task.chunk)))
    solutions = {
        "conversation": f"2026-03-05: {task.chunk}" if task.wants else "unchanged",
        "structure": '{"euros": 900}',
        "not in the text": "The notes do not say.",
        "answer": "unchanged" if task.takes else " ".join(task.wants),
    }
    return solutions.get(task.skill, "unchanged" if task.takes else notes)


def is_asked(task, prompt):
    talks = task.skill == "conversation"
    if talks or "<conversation>" in prompt:
        return talks and f"user: {task.chunk}" in prompt
    return (
        task.question in prompt
        and task.chunk in prompt
        and ("<section>" in prompt) is bool(task.chunk)
        and all(f"<notes>\n{notes}" in prompt for notes in task.notes if notes)
        and ("(empty" in prompt) is (task.notes == ("",))
        and prompt.count("</notes>") == len(task.notes)
        and ("single word" in prompt) is task.gated
        and ("JSON" in prompt) is (task.skill == "structure")
    )


async def test_a_model_that_solves_all_may_use_every_way():
    report = await examine(ScriptedChatModel(solve))

    assert [mark.task for mark in report.marks if not mark.right] == []
    assert (report.reads, report.keeps, report.settings) == (True, True, {"update_gate": True})
    ReadingConfig(**report.settings)


@pytest.mark.parametrize("said", ["unchanged", "I'm sorry, but I can't assist with that.", "Yes."])
async def test_a_model_that_says_one_thing_does_not_read(said):
    report = await examine(ScriptedChatModel(said))

    assert ((report.reads, report.keeps), report.settings["chunk_tokens"]) == ((False, False), 250)
    assert "update_gate" not in report.settings
    ReadingConfig(**report.settings)


class Chooser(ScriptedChatModel):
    """A small model that continues each text in the same way."""

    model_name: str = "tiny-0.5b"
    continues: bool = True


@pytest.mark.parametrize(("said", "keeps"), [("yes", True), ("no", False)])
async def test_a_small_model_keeps_a_memory_if_it_takes_what_users_state_for_facts(said, keeps):
    assert (await examine(Chooser(said))).keeps is keeps


def test_the_command_prints_a_table_and_settings_and_fails_models_that_do_not_read(openai_server):
    arguments = ["doctor", "--exam", "openai:small", "--base-url", openai_server.base_url]

    done, as_json = (CliRunner().invoke(app, [*arguments, *more]) for more in ([], ["--json"]))

    assert done.exit_code == as_json.exit_code == 1
    for told in ("notes           0 of 4", "ReadingConfig(chunk_tokens=250", "take a larger one"):
        assert told in done.stdout
    assert json.loads(as_json.stdout)["reads"] is False
