"""What holds for all tests, of the package and of its integrations."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import gc
import os
import signal
import ssl
import sys
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from servers.redis_server import RedisServer
    from servers.vllm_server import VLLMServer

# The models of tests are so small that a second thread only waits; set before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A busy machine is not a store that is away.
os.environ.setdefault("MEMAGENT_STORE_SECONDS", "60")

# What tests convert is not kept for the user, nor taken from what the user has.
os.environ["MEMAGENT_CACHE"] = "off"

# A shell makes what it starts in the background ignore SIGINT, and children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

_create_context = ssl.create_default_context


@functools.cache
def _context_of(authorities: str) -> ssl.SSLContext:
    return _create_context(cafile=authorities)


def _shared_context(*args: Any, **options: Any) -> ssl.SSLContext:
    """Return the context of a file of authorities: a client of httpx takes 25 ms to read all."""
    if not args and options.keys() == {"cafile"}:
        return _context_of(options["cafile"])
    return _create_context(*args, **options)


ssl.create_default_context = _shared_context

# No test may fail because a machine is slow, or by chance: `make soak` tries other examples.
chance = "MEMAGENT_SOAK" in os.environ
settings.register_profile("memagent", deadline=None, derandomize=not chance)
settings.register_profile("versions", settings.get_profile("memagent"), max_examples=10)
settings.load_profile("memagent")


@pytest.fixture(autouse=True)
def plain_text_may_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that encrypts forbids its process to cache plain text: not so the next test's."""
    user_cache = sys.modules.get("memagent_graph.text.cache")
    if user_cache is not None:
        monkeypatch.setattr(user_cache, "_no_plain_text", Event())


@pytest.fixture(autouse=True)
def nothing_waits_to_be_folded_behind_a_test() -> Iterator[None]:
    """What runs in the background of the next test may break it: hypothesis sees each random."""
    yield
    background = sys.modules.get("memagent_graph.conversation.backlog")
    if background is not None:
        from memagent_graph.sync import wait_for

        for users in [*background._backlogs.values()]:  # noqa: SLF001 - not public
            for backlog in [*users.values()]:
                wait_for(backlog.drop())


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that hangs is taken for away as soon as users see it."""
    monkeypatch.delenv("MEMAGENT_STORE_SECONDS")


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    """A real server that the test may kill."""
    from servers.redis_server import RedisServer

    server = RedisServer(tmp_path)
    yield server
    server.kill()


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small model."""
    from tiny_model import tiny_model

    return tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def vllm(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VLLMServer]:
    """A real vLLM that serves it, for tests that leave it as they found it."""
    from servers.vllm_server import vllm_server

    log = tmp_path_factory.mktemp("logs") / "vllm.log"
    options = ("--max-model-len", "2048", "--enable-auto-tool-choice")
    with vllm_server(tiny, log, *options, "--tool-call-parser", "hermes") as server:
        yield server


@contextlib.contextmanager
def _one_worker_before_the_others(config: pytest.Config) -> Iterator[None]:
    """Hold the folder that the workers of a session share."""
    if not hasattr(config, "workerinput"):  # nor is a session that a test starts a worker
        yield
        return
    folder = os.open(Path(config.option.basetemp).parent, os.O_RDONLY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(folder, fcntl.LOCK_SH)
        yield
    finally:
        os.close(folder)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Look for no garbage among a million objects of modules and tests, which stay.

    The first worker compiles all that is imported, and the others load it, at the same time.
    """
    gc.disable()
    try:
        with _one_worker_before_the_others(session.config):
            return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.set_threshold(5_000)
        gc.enable()


def _runs_language_models(item: pytest.Item) -> bool:
    return not {"torch", "tiny_model"}.isdisjoint(vars(getattr(item, "module", item)))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Deal the modules with slow tests to the workers, each of which begins with its own.

    A worker's share is a run of the list (`--dist worksteal`); at the end, none waits for another.
    The first has all modules that run language models, as what they need takes long to import.
    """
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    models = [item for item in items if _runs_language_models(item)]
    other = [item for item in items if not _runs_language_models(item)]
    slow = [item for item in other if item.get_closest_marker("slow")]
    fast = [item for item in other if not item.get_closest_marker("slow")]
    modules = {path: number for number, path in enumerate(dict.fromkeys(i.path for i in slow))}
    dealt: list[pytest.Item] = []
    for worker in range(workers):
        own = [item for item in slow if modules[item.path] % workers == worker]
        own = own if worker else models + own
        room = max(0, -(-len(items) // workers) - len(own))
        dealt += own + fast[:room]
        del fast[:room]
    items[:] = dealt + fast


_LEFT_OUT = pytest.StashKey[int]()


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    """Count in a worker what `-m` leaves out: xdist does not."""
    told = getattr(items[0].config, "workeroutput", {})
    told["left out"] = told.get("left out", 0) + len(items)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take a worker's count: each has the same."""
    node.config.stash[_LEFT_OUT] = getattr(node, "workeroutput", {}).get("left out", 0)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say how many tests were left out."""
    if left_out := config.stash.get(_LEFT_OUT, 0):
        terminalreporter.write_line(f"{left_out} tests were left out by their marks.")
