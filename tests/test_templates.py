import pytest

from memagent_graph.templates import plural


@pytest.mark.parametrize(
    ("number", "noun", "said"),
    [
        (0, "version", "0 versions"),
        (1, "version", "1 version"),
        (1.0, "minute", "1 minute"),
        (0.5, "minute", "0.5 minutes"),
        (2, "memory version", "2 memory versions"),
        (2_000, "memory", "2,000 memories"),
        (1, "memory", "1 memory"),
        (3, "key", "3 keys"),
        (1, "person", "1 person"),
        (2, "person", "2 people"),
    ],
)
def test_a_noun_agrees_with_its_number(number, noun, said):
    assert plural(number, noun) == said
