"""The rules of `.ci/style.py`: each finds its turn of phrase, and lets the plain one pass."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

STYLE = runpy.run_path(str(Path(__file__).parents[2] / ".ci" / "style.py"))
WORDS = {
    "Whoever reads it is told.": "A reader is told.",
    "Were it only for a day, keep it.": "Keep it, even for a day.",
    "It is read with all the same words.": "It is read anyway.",
    "Who comes second continues.": "The second writer continues.",
    "These words are no small talk.": "These words count.",
    "The first comes first, as ever.": "The first still comes first.",
    "All are read but for the last.": "All are read except for the last.",
    "It is read all the same.": "It is read anyway.",
    "The store is in good order.": "The store works normally.",
    "The client hears of it.": "The client sees it.",
    "It was read after the 1 chunks.": "It was read after 1 chunk.",
    "The so-called memory.": "The memory.",
    "Delete them, and say how many.": "Delete them, and return their number.",
    "        after: likewise.": "        after: scores of the other run.",
    "Keep whatever was read.": "Keep the chunks that were read.",
    "A round is dearer.": "A round is more expensive.",
    "Users are told of edits.": "Users see edits.",
    "Take it from an agent which reads the same.": "Take it from a reading of the same chunks.",
    "The model is told once.": "The model is asked once.",
    "It tells what is new.": "It says what is new; a mark tells two apart.",
    "def _tell(line):": "def _report(line):",
    "Reading goes on from the edit.": "Reading continues from the edit, on and on from there.",
    "Wait for a store that is away.": "Wait for an unreachable store; keep away from there.",
    '    """What a chunk has."""': '    """Return what a chunk has."""',
}
"""A sentence for each rule, in the order of the rules, and one to write instead."""


@pytest.mark.parametrize(
    ("rule", "wrong", "right"),
    [(rule, *words) for rule, words in zip(STYLE["RULES"].items(), WORDS.items(), strict=True)],
    ids=STYLE["RULES"],
)
def test_a_rule_finds_its_phrase_with_file_and_line_and_no_plain_one(rule, wrong, right, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"A first line.\n{wrong}\n{right}\n", "utf-8")

    (found,) = STYLE["problems"](page)

    assert found.startswith(f"{page}:2: ")
    assert found.endswith(rule[1])


def test_a_folder_is_checked_and_its_problems_are_an_error(tmp_path, capsys):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "page.md").write_text("Whoever reads it is told.\n", "utf-8")
    (tmp_path / "picture.txt").write_text("Whoever reads it is told.\n", "utf-8")

    assert STYLE["main"]([str(tmp_path)]) == 1
    assert capsys.readouterr().out.count("\n") == 1
    assert STYLE["main"]([str(tmp_path / "picture.txt")]) == 0
