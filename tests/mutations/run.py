"""Apply each mutation to a copy of the tree, and see the test fail that docs/security.md names.

python tests/mutations/run.py [--some NUMBER] [WORDS OF A NAME]

`--some` takes so many of them, chosen by the hash of the last commit.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from argparse import ArgumentParser
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from time import monotonic
from typing import TYPE_CHECKING

import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

from mutations.mutation import ROOT, Mutation, choose, mutations
from servers.warm_python import WarmPython

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_COPIES = 3
"""More than cores: many tests wait."""
_SECONDS = 1800
"""Longest run of pytest, which ends tests that hang much earlier."""
_TIMES, _LEAST_SECONDS = 5, 15.0
"""What a test may take under a mutation, as a multiple of what it takes without, and at least: what
takes longer waits for what the mutation took away."""
_TOOK = re.compile(r"^([\d.]+)s (?:setup|call|teardown) +(.+)$", re.MULTILINE)
_IMPORTS = (
    "hypothesis.strategies",
    "langchain_core.callbacks",
    "langgraph.checkpoint.sqlite.aio",
    "langgraph.graph",
    "langgraph.store.sqlite",
    "mcp.server.mcpserver",
    "openai.resources",
    "pytest",
    "pytest_asyncio.plugin",
    "redis.asyncio.cluster",
    "transformers.models.qwen2",
    "typer",
    "uvicorn",
)
"""Packages of others, whose imports take longer than most tests. Nothing that is changed."""
_PYTHON = WarmPython(_IMPORTS)
_PYTEST = ("-m", "pytest", "-rfs", "-p", "no:cacheprovider", "-p", "no:xdist", "--assert=plain")


def main() -> int:
    """Try all mutations, or those that were asked for; say which were not noticed."""
    parser = ArgumentParser()
    parser.add_argument("--some", type=int)
    parser.add_argument("words", nargs="*")
    asked = parser.parse_args()
    chosen = [mutation for mutation in mutations() if " ".join(asked.words) in mutation.name]
    if asked.some:
        commit, number = _git("rev-parse", "HEAD").strip(), len(chosen)
        chosen = choose(chosen, asked.some, commit)
        print(f"{len(chosen)} of {number} mutations, chosen by commit {commit}", flush=True)
    for mutation in chosen:
        mutation.mutate()  # raises, before anything is run
    begun = monotonic()
    _PYTHON.run(["-c", ""])  # it starts with the first use, which must not be two at once
    with TemporaryDirectory() as folder, ThreadPoolExecutor(_COPIES) as pool:
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(_COPIES):
            copies.put(_copy(Path(folder, str(number))))
        nodes = sorted({node for mutation in chosen for node in mutation.nodes()})
        shares = [nodes[number::_COPIES] for number in range(min(_COPIES, len(nodes)))]
        took = [*pool.map(lambda share: _durations(share, copies), shares)]
        seconds = {node: length for share in took if share for node, length in share.items()}
        tried = pool.map(lambda mutation: _noticed(mutation, seconds, copies), chosen)
        failed = [*tried].count(False)
    print(f"{len(chosen)} mutations in {monotonic() - begun:.0f} s, {failed} not noticed")
    return 1 if failed or None in took else 0


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=True, text=True)
    return done.stdout


def _copy(folder: Path) -> Path:
    """What git knows of the tree, as it is now."""
    listed = _git("ls-files", "--cached", "--others", "--exclude-standard", "-z")
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


def _durations(nodes: Sequence[str], copies: SimpleQueue[Path]) -> Mapping[str, float] | None:
    """Seconds of each of these tests where nothing was changed; None if one fails there."""
    copy = copies.get()
    done = _pytest(copy, "--durations=0", *nodes)
    copies.put(copy)
    if done.returncode:
        print(f"Without mutations:\n{done.stdout}{done.stderr}", flush=True)
        return None
    took: dict[str, float] = defaultdict(float)
    for seconds, test in _TOOK.findall(done.stdout):
        took[test] += float(seconds)
    return took


def _noticed(mutation: Mutation, seconds: Mapping[str, float], copies: SimpleQueue[Path]) -> bool:
    """Whether each of its tests fails, or hangs: itself, and not what it imports or is given."""
    copy, begun = copies.get(), monotonic()
    nodes = mutation.nodes(copy)
    own = [length for test, length in seconds.items() if test.startswith(tuple(nodes))]
    words = [f"--timeout={max(_LEAST_SECONDS, _TIMES * max(own, default=0))}", *nodes]
    file = copy / mutation.file
    before = file.read_text("utf-8")
    try:
        file.write_text(mutation.mutate(copy), "utf-8")
        words = [*(["-x"] if len(nodes) == 1 else []), *words]
        done = _pytest(copy, *words)
        if "PytestUnraisableExceptionWarning" in done.stderr:  # pytest ended before its summary
            done = _pytest(copy, "-p", "no:unraisableexception", *words)
    finally:
        file.write_text(before, "utf-8")
        _end_what_is_left(copy)
        copies.put(copy)
    hung = "Failed: Timeout (>" in done.stdout  # in what pytest does itself, it has no summary
    noticed = all(f"\nFAILED {node}" in done.stdout for node in nodes) or (hung and len(nodes) == 1)
    verdict = "NOT NOTICED" if not noticed else "noticed" if not hung else "timed out"
    print(f"{verdict:12} {monotonic() - begun:4.0f} s  {mutation.name}", flush=True)
    if not noticed:
        print(f"    {' '.join(nodes)}\n{done.stdout[-3000:]}{done.stderr[-1000:]}", flush=True)
    return noticed


def _end_what_is_left(copy: Path) -> None:
    """End what tests that were ended have left, such as a conversion that takes minutes."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if str(copy) in process.environ().get("PYTHONPATH", "").split(os.pathsep):
                process.kill()


def _pytest(copy: Path, *words: str) -> subprocess.CompletedProcess[str]:
    own = [str(copy), *map(str, sorted((copy / "integrations").glob("*")))]
    command = [*_PYTEST, "-o", f"pythonpath={' '.join([str(copy / 'tests'), *own])}", *words]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(own), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        return _PYTHON.run(command, cwd=copy, env=env, timeout=_SECONDS)
    except subprocess.TimeoutExpired as error:
        return subprocess.CompletedProcess(command, 124, "", str(error))


if __name__ == "__main__":
    sys.exit(main())
