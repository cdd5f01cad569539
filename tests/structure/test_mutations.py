"""Every claim of docs/security.md has a mutation; `make test-mutations` shows what each breaks."""

import pytest
from mutations.mutation import claimed, mutations

ALL = mutations()


@pytest.mark.parametrize("mutation", ALL, ids=lambda mutation: mutation.name)
def test_a_mutation_applies_to_the_code_as_it_is_and_names_tests_that_are_there(mutation):
    assert mutation.mutate()
    assert mutation.nodes()


def test_every_test_that_the_threat_model_names_has_a_mutation_that_it_must_notice():
    noticed = {test for mutation in ALL for test in mutation.tests}

    assert noticed >= {*claimed()}
    assert len({mutation.name for mutation in ALL}) == len(ALL)
