from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "serving_load.py"


@pytest.mark.slow
def test_clients_that_come_and_go_leave_nothing_behind(environment):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", BENCHMARK, "--clients", "40", "--seconds", "8"],
        check=False,
        capture_output=True,
        text=True,
        env=environment,
        timeout=1000,
    )

    found = json.loads(done.stdout)
    assert found["problems"] == []
    assert done.returncode == 0
    assert min(found["left"], found["long"], found["short"]) > 0
    again, whole = found["chunks read when asked again"], found["chunks of a reading"]
    assert sum(again) < len(again) * whole  # they went on where they were
