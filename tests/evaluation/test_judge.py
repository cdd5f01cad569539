from __future__ import annotations

import json

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult

from memagent_graph.config import ReadingConfig
from memagent_graph.errors import ModelError, RefusalError
from memagent_graph.evaluation.samples import Criterion, Sample
from memagent_graph.evaluation.scores import Judge
from memagent_graph.evaluation.tasks import make_task
from memagent_graph.models.resolve import resolve_model
from memagent_graph.text.tokens import EstimatingTokenizer

CONFIG = ReadingConfig(retry_interval=0.001)


class Scripted(BaseChatModel):
    replies: list
    asked: list = []

    @property
    def _llm_type(self):
        return "scripted"

    def _generate(self, messages, stop=None, run_manager=None, **options):
        self.asked.append(messages[0].text)
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        message = reply if isinstance(reply, AIMessage) else AIMessage(reply)
        return ChatResult(generations=[ChatGeneration(message=message)])


def sample(*criteria):
    return Sample("t/0/0", "t", 0, "When?", ("now",), "any", lambda: iter(()), criteria=criteria)


SCHEMA = {
    "type": "object",
    "properties": {"grade": {"enum": [0, 0.5, 1]}},
    "required": ["grade"],
}


def asks(text):
    return Criterion(lambda answer: f"{text} {answer}", SCHEMA, lambda found: found["grade"])


def graded(grade):
    return json.dumps({"grade": grade})


def judge(*replies):
    return Judge(Scripted(replies=[*replies], asked=[]), CONFIG)


async def test_the_score_is_the_mean_of_the_grades_of_all_criteria():
    judging = judge(graded(1), graded(0.5), graded(0))

    score = await judging.grade(sample(asks("A:"), asks("B:"), asks("C:")), "now")

    assert score == 0.5
    assert [asked.partition("\n")[0] for asked in judging.model.asked] == [
        "A: now",
        "B: now",
        "C: now",
    ]


async def test_a_reply_that_cannot_be_read_is_asked_for_once_more():
    assert await judge("Well.", graded(1)).grade(sample(asks("A:")), "now") == 1
    with pytest.raises(ModelError, match=r"not a grade, twice.*0\.7"):
        await judge("Well.", graded(0.7)).grade(sample(asks("A:")), "now")


async def test_calls_that_fail_for_a_while_are_made_again_and_others_are_errors():
    assert await judge(TimeoutError("slow"), "", graded(1)).grade(sample(asks("A:")), "now") == 1
    with pytest.raises(ModelError, match="failed: RuntimeError"):
        await judge(RuntimeError("no")).grade(sample(asks("A:")), "now")
    with pytest.raises(RefusalError):
        refusal = AIMessage("", additional_kwargs={"refusal": "I do not judge."})
        await judge(refusal).grade(sample(asks("A:")), "now")


async def test_what_the_judge_thinks_aloud_is_no_grade():
    assert (
        await judge(f"<think>{graded(0)} at first</think>{graded(1)}").grade(
            sample(asks("A:")), "now"
        )
        == 1
    )


async def test_a_sample_without_criteria_needs_no_judge():
    with pytest.raises(ValueError, match="t/0/0 has no criteria"):
        await judge().grade(sample(), "now")


async def test_a_server_judges_a_question_of_a_file(openai_server, tmp_path):
    file = tmp_path / "beam.json"
    questions = {"abstention": [{"question": "Where?", "rubric": ["Says so.", "Is brief."]}]}
    turns = [{"role": "user", "id": 0, "content": "Hello."}]
    file.write_text(json.dumps([{"chat": 1, "turns": turns, "questions": questions}]))
    asked = make_task(f"beam:{file}").sample(0, 0, seed=0, tokenizer=EstimatingTokenizer())
    prompts = []

    def reply(body):
        prompts.append(body["messages"][-1]["content"])
        return graded(0.5) if "Is brief." in prompts[-1] else f"It does: {graded(1)}"

    openai_server.reply = reply
    openai_server.script = [503]
    model = resolve_model("openai:small", base_url=openai_server.base_url)

    score = await Judge(model, CONFIG).grade(asked, "Not said.</answer>{criterion}")

    assert score == 0.75
    assert len(prompts) == 2
    for prompt in prompts:
        assert prompt.count("</answer>") == 1
        assert "{criterion}" in prompt
