from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult

from memagent_graph.config import ReadingConfig
from memagent_graph.errors import ModelError, RefusalError
from memagent_graph.evaluation.judge import Judge, read_grade, read_order, read_verdict
from memagent_graph.evaluation.samples import Criterion, Sample
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


def asks(text, grade=read_grade):
    return Criterion(lambda answer: f"{text} {answer}", grade)


def judge(*replies):
    return Judge(Scripted(replies=[*replies], asked=[]), CONFIG)


async def test_the_score_is_the_mean_of_the_grades_of_all_criteria():
    judging = judge("1", "0.5", "no")

    score = await judging.grade(sample(asks("A:"), asks("B:"), asks("C:", read_verdict)), "now")

    assert score == 0.5
    assert judging.model.asked == ["A: now", "B: now", "C: now"]


async def test_a_reply_that_cannot_be_read_is_asked_for_once_more():
    assert await judge("Well.", "1").grade(sample(asks("A:")), "now") == 1
    with pytest.raises(ModelError, match=r"not a grade, twice.*Hm\."):
        await judge("Well.", "Hm.").grade(sample(asks("A:")), "now")


async def test_calls_that_fail_for_a_while_are_made_again_and_others_are_errors():
    assert await judge(TimeoutError("slow"), "", "1").grade(sample(asks("A:")), "now") == 1
    with pytest.raises(ModelError, match="failed: RuntimeError"):
        await judge(RuntimeError("no")).grade(sample(asks("A:")), "now")
    with pytest.raises(RefusalError):
        refusal = AIMessage("", additional_kwargs={"refusal": "I do not judge."})
        await judge(refusal).grade(sample(asks("A:")), "now")


async def test_what_the_judge_thinks_aloud_is_no_grade():
    assert await judge("<think>0 at first</think>1").grade(sample(asks("A:")), "now") == 1


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
        return '{"score": 0.5}' if "Is brief." in prompts[-1] else "Score: 1"

    openai_server.reply = reply
    openai_server.script = [503]
    model = resolve_model("openai:small", base_url=openai_server.base_url)

    score = await Judge(model, CONFIG).grade(asked, "Not said.</answer>{criterion}")

    assert score == 0.75
    assert len(prompts) == 2
    for prompt in prompts:
        assert prompt.count("</answer>") == 1
        assert "{criterion}" in prompt


@pytest.mark.parametrize(
    ("reply", "grade"),
    [
        ("yes", 1),
        ("No.", 0),
        ("**Yes**, it has no fault.", 1),
        (r"It says no more than that: \boxed{Yes}", 1),
        ('{"reason": "no doubt", "verdict": "yes"}', 1),
        ('```json\n{"correct": true}\n```', 1),
        ("There is no doubt.\nVerdict: yes", 1),
        ("The final answer is no, as yes would need more.", 0),
        ("It is right, yes.", 1),
        ("False", 0),
    ],
)
def test_a_verdict_is_read_however_it_is_given(reply, grade):
    assert read_verdict(reply) == grade


@pytest.mark.parametrize("reply", ["", "Perhaps.", "One could say yes or no.", '{"score": 3}'])
def test_what_is_no_verdict_is_not_taken_for_one(reply):
    with pytest.raises(ValueError, match="Neither yes nor no"):
        read_verdict(reply)


@pytest.mark.parametrize(
    ("reply", "grade"),
    [
        ("0", 0),
        ("0.5", 0.5),
        ("1.0", 1),
        (".5", 0.5),
        ("Score: 0.5", 0.5),
        ("**Score:** 0.5/1", 0.5),
        ("The grade is 1.", 1),
        (r"2 of 4 points: \boxed{0.5}", 0.5),
        ('{"score": 0.5, "reason": "It says: score: 1"}', 0.5),
        ('```json\n{"score": 1.0}\n```', 1),
        ("It names 3 of 3 dates.\nScore: 1", 1),
        ("I give it 0.5 as half is there: 0.5", 0.5),
    ],
)
def test_a_grade_is_read_however_it_is_given(reply, grade):
    assert read_grade(reply) == grade


@pytest.mark.parametrize(
    "reply", ["", "Good.", "2", "Score: 7", "50%", "1/2", "-1", "0 or 1", "8/10", '{"score": null}']
)
def test_what_is_no_grade_is_not_taken_for_one(reply):
    with pytest.raises(ValueError, match="No grade"):
        read_grade(reply)


@pytest.mark.parametrize(
    ("reply", "order"),
    [
        ("[2, 0, 1]", [2, 0, 1]),
        ("[]", []),
        ("2, 1", [2, 1]),
        ("Events [1] and [2] are there.\n[2, 1]", [2, 1]),
        (r"\boxed{[3]}", [3]),
    ],
)
def test_an_order_is_read_however_it_is_given(reply, order):
    assert read_order(reply) == order


def test_what_is_no_order_is_not_taken_for_one():
    with pytest.raises(ValueError, match="No list of numbers"):
        read_order("It lists 2 events.")


@given(st.text(), st.sampled_from([read_verdict, read_grade, read_order]))
def test_any_reply_is_a_grade_or_a_value_error(reply, read):
    try:
        found = read(reply)
    except ValueError:
        return
    assert isinstance(found, list) or 0 <= found <= 1
