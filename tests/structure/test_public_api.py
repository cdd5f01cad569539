from pathlib import Path

from public_api import lines

RECORD = Path(__file__).parents[1] / "public_api.txt"


def test_public_names_and_signatures_are_those_on_record():
    """A change that is meant is written down by `make api`, and said in CHANGELOG.md."""
    assert [*lines()] == RECORD.read_text("utf-8").splitlines()
