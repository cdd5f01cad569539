from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("where", ["sqlite", "redis"])
def test_three_processes_share_a_memory(where, request):
    places = [request.getfixturevalue("redis").url] if where == "redis" else []

    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "shared_memory.py"), *places],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )

    lines = done.stdout.splitlines()
    assert "other agent: 1 call" in lines
    assert any(line.startswith("other agent: The Marguerite reached Hull") for line in lines)
    assert any(line.startswith("follower: chunk 1: The Marguerite left Bergen") for line in lines)
    assert any("+ The Marguerite reached Hull" in line for line in lines)
