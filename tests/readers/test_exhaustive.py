"""What a question needs of a document: one place, some, or all of it."""

import json

import pytest

from memagent_graph.graph.passages import scope


@pytest.mark.parametrize(
    ("needs", "question"),
    [
        ("all", "How many times does Ahab curse the whale?"),
        ("all", "List all projects and their owners."),
        ("all", "What are all the special magic numbers for laughable-warfare?"),
        ("all", "Find all variables that are assigned the value 51090 in the text above."),
        ("all", "How often is Natasha mentioned?"),
        ("all", "What is this book about?"),
        ("all", "What is the total number of incidents?"),
        ("all", "鲸鱼一共出现了几次?"),
        ("all", "列出所有项目的负责人。"),
        ("all", "哪个词出现得最频繁?"),
        ("all", "概括这份合同的主要内容。"),
        ("some", "How many Grammys has Lady Gaga won?"),
        ("some", "What was the last city that Ortega lived in?"),
        ("some", "What is the current owner of project P003?"),
        ("some", "Who is younger, Billy Idol or Ray Wilson?"),
        ("some", "Are Ash Lieb and Elswyth Thane both artists?"),
        ("some", "谁最后离开?"),
        ("some", "比较这两份合同。"),
        ("some", "奥尔特加有多少个孩子?"),
        ("one", "When does the vault open?"),
        ("one", "What does the Allegheny flow into?"),
        ("one", "金库什么时候开?"),
        ("one", ""),
    ],
)
def test_counting_and_listing_need_all_numbers_of_named_things_some_and_others_one(needs, question):
    assert scope(question) == needs


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
