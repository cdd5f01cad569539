"""What a question needs of a document: one place, some, or all of it."""

from __future__ import annotations

import json

import pytest

from memagent_graph.graph.passages import scope


@pytest.mark.parametrize(
    "question",
    [
        "How many times does Ahab curse the whale?",
        "List all projects and their owners.",
        "What are all the special magic numbers for laughable-warfare?",
        "Find all variables that are assigned the value 51090 in the text above.",
        "How often is Natasha mentioned?",
        "What is this book about?",
        "What is the total number of incidents?",
        "鲸鱼一共出现了几次?",
        "列出所有项目的负责人。",
        "哪个词出现得最频繁?",
        "概括这份合同的主要内容。",
    ],
)
def test_counting_listing_and_summing_up_need_all(question):
    assert scope(question) == "all"


@pytest.mark.parametrize(
    "question",
    [
        "How many Grammys has Lady Gaga won?",
        "What was the last city that Ortega lived in?",
        "What is the current owner of project P003?",
        "Who is younger, Billy Idol or Ray Wilson?",
        "Are Ash Lieb and Elswyth Thane both artists?",
        "谁最后离开?",
        "比较这两份合同。",
        "奥尔特加有多少个孩子?",
    ],
)
def test_numbers_of_named_things_the_last_and_comparisons_need_some(question):
    assert scope(question) == "some"


@pytest.mark.parametrize(
    "question",
    [
        "When does the vault open?",
        "What does the Allegheny flow into?",
        "金库什么时候开?",
        "",
    ],
)
def test_other_questions_need_one_place(question):
    assert scope(question) == "one"


def test_few_questions_of_the_files_need_all_and_those_of_ruler_that_do_are_known(data):
    records = [json.loads(line) for line in (data / "ruler_8k.jsonl").read_text().splitlines()]
    for record in records:
        needs = scope(record["input"][-300:].rpartition("\n")[2])
        single = record["task"].startswith(("niah_single", "niah_multikey"))
        assert (needs == "all") != single
    nq = [
        json.loads(line)["question"] for line in (data / "nq_open.jsonl").read_text().splitlines()
    ]
    assert sum(scope(question) == "all" for question in nq) < 0.05 * len(nq)


def test_a_long_question_takes_no_longer_than_its_length():
    assert scope("how many " * 20_000 + "?") == "all"
