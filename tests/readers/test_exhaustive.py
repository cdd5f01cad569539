"""What a question needs of a document: one place, some, or all of it."""

import json

import pytest

from memagent_graph.graph.passages import scope

ALL = (
    "How many times does Ahab curse the whale? | List all projects and their owners. | "
    "What are all the special magic numbers for laughable-warfare? | What is this book about? | "
    "Find all variables that are assigned the value 51090 in the text above. | "
    "How often is Natasha mentioned? | What is the total number of incidents? | "
    "鲸鱼一共出现了几次? | 列出所有项目的负责人。 | 哪个词出现得最频繁? | 概括这份合同的主要内容。"
)
SOME = (
    "How many Grammys has Lady Gaga won? | What was the last city that Ortega lived in? | "
    "What is the current owner of project P003? | Who is younger, Billy Idol or Ray Wilson? | "
    "Are Ash Lieb and Elswyth Thane both artists? | 谁最后离开? | 比较这两份合同。 | "
    "奥尔特加有多少个孩子?"
)
ONE = "When does the vault open? | What does the Allegheny flow into? | 金库什么时候开?"
QUESTIONS = {"all": ALL.split(" | "), "some": SOME.split(" | "), "one": [*ONE.split(" | "), ""]}


@pytest.mark.parametrize(
    ("needs", "question"), [(needs, one) for needs, found in QUESTIONS.items() for one in found]
)
def test_counting_and_listing_need_all_numbers_of_named_things_some_and_others_one(needs, question):
    assert scope(question) == needs


def test_few_questions_of_the_files_need_all_and_those_of_ruler_that_do_are_known(data):
    records = [json.loads(line) for line in (data / "ruler_8k.jsonl").read_text().splitlines()]
    for record in records:
        needs = scope(record["input"][-300:].rpartition("\n")[2])
        single = record["task"].startswith(("niah_single", "niah_multikey"))
        assert (needs == "all") != single
    lines = (data / "nq_open.jsonl").read_text().splitlines()
    nq = [json.loads(line)["question"] for line in lines]
    assert sum(scope(question) == "all" for question in nq) < 0.05 * len(nq)


def test_a_long_question_takes_no_longer_than_its_length():
    assert scope("how many " * 20_000 + "?") == "all"
