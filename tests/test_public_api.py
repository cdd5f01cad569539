from __future__ import annotations

from pathlib import Path

from public_api import lines


def test_public_names_and_signatures_are_those_on_record():
    """A change that is meant is written down by `make api`, and said in CHANGELOG.md."""
    assert [*lines()] == Path(__file__).with_name("public_api.txt").read_text("utf-8").splitlines()
