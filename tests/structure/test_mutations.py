"""Every claim of docs/security.md has a mutation; `make test-mutations` shows what each breaks."""

from __future__ import annotations

import pytest
from mutations.mutation import Edit, Mutation, claimed, mutations

ALL = mutations()


@pytest.mark.parametrize("mutation", ALL, ids=lambda mutation: mutation.name)
def test_a_mutation_applies_to_the_code_as_it_is_and_names_tests_that_are_there(mutation):
    assert mutation.mutate()
    assert mutation.nodes()


def mutation(root, code, *olds):
    (root / "code.py").write_text(code)
    edits = [Edit(old=old, new="c = 3") for old in olds]
    return Mutation(name="a loss", tests=["test.py::test"], file="code.py", edits=edits)


def test_a_mutation_whose_text_is_gone_or_there_twice_is_an_error(tmp_path):
    assert mutation(tmp_path, "a = 1\nb = 2\n", "a = 1").mutate(tmp_path) == "c = 3\nb = 2\n"
    for code in ("a = 2", "a = 1\na = 1"):
        with pytest.raises(ValueError, match=r"a loss: code\.py has [02] times 'a = 1'"):
            mutation(tmp_path, code, "a = 1").mutate(tmp_path)
    with pytest.raises(ValueError, match="0 times 'b = 2'"):
        mutation(tmp_path, "a = 1", "a = 1", "b = 2").mutate(tmp_path)
    with pytest.raises(ValueError, match=r"a loss: .*code\.py"):
        mutation(tmp_path, "a = 1", "a = 1").mutate(tmp_path / "elsewhere")


def test_every_test_that_the_threat_model_names_has_a_mutation_that_it_must_notice():
    noticed = {test for mutation in ALL for test in mutation.tests}

    assert noticed >= {*claimed()}
    assert len({mutation.name for mutation in ALL}) == len(ALL)
