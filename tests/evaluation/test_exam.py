"""The exam of `memagent doctor --exam`: what a model can do, and the settings that follow."""

from __future__ import annotations

import json

import pytest
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from typer.testing import CliRunner

from memagent_graph import ReadingConfig
from memagent_graph.cli.app import app
from memagent_graph.evaluation.exam import TASKS, examine


class Pupil(GenericFakeChatModel):
    """Knows all tasks by their question and section, and solves them."""

    def _generate(self, messages, *args, **options):
        prompt = str(messages[-1].content)
        message = AIMessage(self.reply(prompt))
        return ChatResult(generations=[ChatGeneration(message=message)])

    def reply(self, prompt):
        (task,) = [task for task in TASKS if self.is_asked(task, prompt)]
        notes = " ".join(filter(None, (*task.notes, task.chunk)))
        if task.skill == "conversation":
            return f"2026-03-05: {task.chunk}" if task.wants else "unchanged"
        if task.skill == "structure":
            return '{"euros": 900}'
        if task.skill == "not in the text":
            return "The notes do not say."
        if task.takes:
            return "unchanged"
        return " ".join(task.wants) if task.skill == "answer" else notes

    @staticmethod
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


class Parrot(GenericFakeChatModel):
    """Says one thing, whatever it is asked."""

    said: str

    def _generate(self, messages, *args, **options):
        return ChatResult(generations=[ChatGeneration(message=AIMessage(self.said))])


def test_there_are_as_many_tasks_as_the_pages_say():
    assert len(TASKS) == 30


async def test_a_model_that_solves_all_may_use_every_way():
    report = await examine(Pupil(messages=iter(())))

    assert [mark.task for mark in report.marks if not mark.right] == []
    assert report.reads
    assert report.keeps
    assert report.settings == {"update_gate": True}
    ReadingConfig(**report.settings)


@pytest.mark.parametrize("said", ["unchanged", "I'm sorry, but I can't assist with that.", "Yes."])
async def test_a_model_that_says_one_thing_does_not_read(said):
    report = await examine(Parrot(messages=iter(()), said=said))

    assert not report.reads
    assert not report.keeps
    assert report.settings["chunk_tokens"] == 250
    assert "update_gate" not in report.settings
    ReadingConfig(**report.settings)


def test_the_command_prints_a_table_and_settings_and_fails_a_model_that_does_not_read(
    openai_server,
):
    arguments = ["doctor", "--exam", "openai:small", "--base-url", openai_server.base_url]

    done = CliRunner().invoke(app, arguments)
    as_json = CliRunner().invoke(app, [*arguments, "--json"])

    assert done.exit_code == as_json.exit_code == 1
    assert "notes           0 of 4" in done.stdout
    assert "settings: ReadingConfig(chunk_tokens=250" in done.stdout
    assert "take a larger one" in done.stdout
    assert json.loads(as_json.stdout)["reads"] is False


def test_a_server_that_cannot_be_reached_is_reported_before_the_exam(monkeypatch):
    examined = []
    monkeypatch.setattr("memagent_graph.evaluation.exam.examine", examined.append)

    done = CliRunner().invoke(
        app, ["doctor", "--exam", "openai:small", "--base-url", "http://127.0.0.1:1"]
    )

    assert done.exit_code == 1
    assert not examined
    assert "Start the server, or correct --base-url" in str(done.exception) + done.output
