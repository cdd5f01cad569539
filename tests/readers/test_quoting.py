from __future__ import annotations

import pytest

from memagent_graph.evidence.statements import NOWHERE, Statement
from memagent_graph.readers.extractive import best_two

FILM = "Copper Rain is a film from 2003 that was directed by Marta Voss."
OTHERS = [
    "The film Stone Orchard was directed by Petra Lund.",
    "Petra Lund lives in the town of Bellmar with three dogs.",
    "Tomas Reyes, a director of short films, has lived in Lima all his life.",
]


def quote(question, *lines):
    statements = [Statement(line, NOWHERE, NOWHERE) for line in lines]
    return [statement.text for statement in best_two(question, statements)]


def test_one_statement_is_enough_when_it_has_every_word_of_the_question():
    fact = "The access code of the Kestrel vault is 49-17-63."

    assert quote("What is the access code of the Kestrel vault?", "A code is law.", fact) == [fact]


@pytest.mark.parametrize(
    "home",
    [
        "Marta Voss lives in Ghent.",
        "Marta Voss has made her home in Ghent for twenty years.",
        "Before she settled in Ghent, Marta Voss sold lamps.",
    ],
)
def test_the_second_statement_is_about_somebody_whom_the_first_names(home):
    question = "In which town does the director of the film Copper Rain live? And where there?"

    assert quote(question, *OTHERS, FILM, home) == [FILM, home]


def test_a_pronoun_stands_for_the_subject_of_the_line_before_it():
    maker = "Oda Brandt is a painter of ships."
    home = "She lives in Bergen."

    assert quote("Where does Oda Brandt live?", "He lives.", maker, home, "Rain fell.") == [home]


def test_without_a_link_the_second_statement_is_the_runner_up():
    lines = ["The ferry leaves the pier at nine.", "The ferry is green."]

    assert quote("When does the green ferry leave the pier?", *reversed(lines)) == lines


def test_nothing_is_quoted_when_nothing_bears_on_the_question():
    assert quote("What is photosynthesis?", *OTHERS) == []
