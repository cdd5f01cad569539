"""Every claim of docs/security.md has a mutation; `make test-mutations` shows what each breaks."""

from __future__ import annotations

import pytest
from mutations.mutation import ROOT, claimed, mutations

ALL = mutations()


def is_there(file: str) -> bool:
    """An integration may not be checked out."""
    return not file.startswith("integrations/") or (ROOT / file).parents[1].exists()


@pytest.mark.parametrize("mutation", ALL, ids=lambda mutation: mutation.name)
def test_a_mutation_applies_to_the_code_as_it_is_and_names_tests_that_are_there(mutation):
    if not is_there(mutation.file):
        pytest.skip("it is of an integration that is not checked out")
    code = (ROOT / mutation.file).read_text("utf-8")

    assert mutation.apply(code) != code
    assert mutation.nodes()


def test_every_test_that_the_threat_model_names_has_a_mutation_that_it_must_notice():
    noticed = {test for mutation in ALL for test in mutation.tests}

    assert noticed == set(claimed())
    assert len({mutation.name for mutation in ALL}) == len(ALL)
