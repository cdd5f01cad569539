import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CHILD = Path(__file__).with_name("cluster_child.py")
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # else workers starve on a machine that is busy
}


def child(*words):
    """Ray in a process of its own: it leaves threads and sockets behind in its driver."""
    paths = [str(Path(__file__).parents[3] / "tests"), os.environ.get("PYTHONPATH")]
    path = os.pathsep.join(filter(None, paths))
    env = {**os.environ, **QUIET, "PYTHONPATH": path, "OPENAI_API_KEY": "not-needed"}
    command = [sys.executable, "-W", "ignore", str(CHILD), *map(str, words)]
    options = {"capture_output": True, "text": True, "timeout": 1000}
    return subprocess.run(command, env=env, check=False, **options)


@pytest.mark.slow
def test_a_cluster_runs_readme_and_examples_and_loses_a_worker_and_a_node(redis, tmp_path):
    """Its start takes longer than each part."""
    done = child(redis.url, tmp_path)

    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    answers = {"Ann Kestrel signed the lease.", "The lease ends in April 2029."}
    assert answers <= {*told["readme"].splitlines()}, told["readme"]
    assert told["errors"] == "answers and errors\n"
    assert told["examples"] == "TestResults(failed=0, attempted=5)\n"
    # of each task of its batch at most two
    assert told["lost_worker"].endswith("were made again\n"), told["lost_worker"]
    assert told["lost_node"].endswith("60 tasks, each once\n"), told["lost_node"]
