"""Apply each mutation to a copy of the tree, and see the test fail that docs/security.md names.

python tests/mutations/run.py [WORDS OF A NAME]
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from time import monotonic
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[1]))

from mutations.mutation import ROOT, Mutation, mutations
from servers.warm_python import WarmPython

if TYPE_CHECKING:
    from collections.abc import Sequence

_COPIES = 2
_SECONDS = 1800
"""Longest run of pytest, which ends tests that hang much earlier."""
_IMPORTS = (
    "fastapi",
    "hypothesis.strategies",
    "langchain_core.callbacks",
    "langgraph.checkpoint.sqlite.aio",
    "langgraph.graph",
    "langgraph.store.sqlite",
    "mcp.server.mcpserver",
    "openai.resources",
    "redis.asyncio.cluster",
    "transformers.models.qwen2",
    "typer",
    "uvicorn",
)
"""Packages of others, whose imports take longer than most tests. Nothing that is changed."""
_PYTHON = WarmPython(_IMPORTS)
_PYTEST = (
    "-m",
    "pytest",
    "-rfs",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:xdist",
    "--assert=plain",
    "--timeout=60",
)


def main() -> int:
    """Try all mutations, or those whose name has the words; say which were not noticed."""
    words = " ".join(sys.argv[1:])
    chosen = [mutation for mutation in mutations() if words in mutation.name]
    begun = monotonic()
    _PYTHON.run(["-c", ""])  # it starts with the first use, which must not be two at once
    with TemporaryDirectory() as folder, ThreadPoolExecutor(_COPIES) as pool:
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(_COPIES):
            copies.put(_copy(Path(folder, str(number))))
        nodes = sorted({node for mutation in chosen for node in mutation.nodes()})
        shares = [nodes[number::_COPIES] for number in range(min(_COPIES, len(nodes)))]
        sound = all([*pool.map(lambda share: _sound(share, copies), shares)])
        failed = [*pool.map(lambda mutation: _noticed(mutation, copies), chosen)].count(False)
    print(f"{len(chosen)} mutations in {monotonic() - begun:.0f} s, {failed} not noticed")
    return 1 if failed or not sound else 0


def _copy(folder: Path) -> Path:
    """What git knows of the tree, as it is now."""
    listed = ("git", "ls-files", "--cached", "--others", "--exclude-standard", "-z")
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


def _sound(nodes: Sequence[str], copies: SimpleQueue[Path]) -> bool:
    """Whether these tests pass where nothing was changed."""
    copy = copies.get()
    done = _pytest(copy, *nodes)
    copies.put(copy)
    if done.returncode:
        print(f"Without mutations:\n{done.stdout}{done.stderr}", flush=True)
    return not done.returncode


def _noticed(mutation: Mutation, copies: SimpleQueue[Path]) -> bool:
    """Whether each of its tests fails: itself, and not what it imports or is given."""
    copy, begun = copies.get(), monotonic()
    nodes = mutation.nodes(copy)
    file = copy / mutation.file
    before = file.read_text("utf-8")
    try:
        file.write_text(mutation.apply(before), "utf-8")
        done = _pytest(copy, *(["-x"] if len(nodes) == 1 else []), *nodes)
    finally:
        file.write_text(before, "utf-8")
        copies.put(copy)
    noticed = all(f"\nFAILED {node}" in done.stdout for node in nodes)
    verdict = "noticed" if noticed else "NOT NOTICED"
    print(f"{verdict:12} {monotonic() - begun:4.0f} s  {mutation.name}", flush=True)
    if not noticed:
        print(f"    {' '.join(nodes)}\n{done.stdout[-3000:]}{done.stderr[-1000:]}", flush=True)
    return noticed


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
