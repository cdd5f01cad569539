"""Measure the shape of the package: `python tests/structure/house.py` prints the table.

Each figure has a ceiling, which a change may lower and never raise, and the goal of the design.
"""

import ast
import asyncio
import functools
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "memagent_graph"
NOUNS = {"planning", "reading", "testing", "training", "string"}
"""Nouns in -ing that a module may be called by."""
PARTICIPLES = re.compile(
    "begun|built|chosen|drawn|found|given|gone|heard|held|hidden|kept|known|left|lost|made|meant|"
    "paid|said|sent|shown|spoken|taken|thrown|told|undone|written|[a-z]{3,}(?:ed|ing)"
)
"""Names that begin with one of these are participles."""
VERBS = {"bring", "embed", "string", "substring"}
"""Verbs and nouns that look like participles."""


class Ceiling(NamedTuple):
    """The most that a figure may be today, and the goal of the design."""

    today: int
    goal: int


CEILINGS = {
    "files a chunk enters, without a store": Ceiling(14, 14),
    "files a chunk enters, with a store": Ceiling(20, 20),
    "files a chunk enters, with Redis": Ceiling(24, 24),
    "files a message enters": Ceiling(9, 8),
    "files the fold of a message enters": Ceiling(30, 30),
    "modules with one importer, in percent": Ceiling(5, 5),
    "import circles, with those of types": Ceiling(0, 0),
    "class names with several meanings": Ceiling(0, 0),
    "other public names with several meanings": Ceiling(28, 0),
    "modules in -ing": Ceiling(0, 0),
    "functions named by participles": Ceiling(0, 0),
    "lines of the largest module": Ceiling(500, 500),
    "modules": Ceiling(131, 130),
    "lines": Ceiling(43_310, 39_000),
}


@functools.cache
def modules() -> dict[str, ast.Module]:
    return {
        ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): ast.parse(
            file.read_text("utf-8")
        )
        for file in sorted(PACKAGE.rglob("*.py"))
    }


def imports(trees: dict[str, ast.Module]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {name: set() for name in trees}
    for name, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module in trees:
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    found[name].add(inner if inner in trees else node.module)
            elif isinstance(node, ast.Import):
                found[name] |= {alias.name for alias in node.names} & trees.keys()
        found[name] -= {name, "memagent_graph"}
    return found


def users_import() -> set[str]:
    """Return the modules that users import: the public names', the guides', the integrations'."""
    patterns = "*.md docs/**/*.md .ci/*.py examples/**/*.py integrations/*/memagent_*/**/*.py"
    files = [PACKAGE / "__init__.py", *(f for one in patterns.split() for f in ROOT.glob(one))]
    return {
        name
        for file in files
        for name in re.findall(r"from (memagent_graph[\w.]*) import", file.read_text("utf-8"))
    }


def single_importers() -> list[str]:
    """Return the modules that one other imports and no user: parts cut off from their importer.

    A command of the command line counts as imported by its user.
    """
    trees = modules()
    edges = imports(trees)
    public = users_import()
    return [
        name
        for name in trees
        if name not in public
        and edges.keys() - {name}
        and sum(name in others for others in edges.values()) == 1
        and not any(name in edges[app] for app in ("memagent_graph.cli.app",) if app in edges)
    ]


def circles() -> list[list[str]]:
    edges = imports(modules())
    reached = {name: {name} for name in edges}
    while True:
        wider = {
            name: found.union(*(edges[one] for one in found)) for name, found in reached.items()
        }
        if wider == reached:
            break
        reached = wider
    inner = [[one for one in found if name in reached[one]] for name, found in reached.items()]
    groups = {tuple(sorted(group)) for group in inner}
    return sorted(list(group) for group in groups if len(group) > 1)


def class_names() -> dict[str, list[str]]:
    """Return names that several classes have, leading underscores aside, and where they stand."""
    found: dict[str, list[str]] = {}
    for name, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name.lstrip("_"), []).append(name)
    return {name: places for name, places in found.items() if len(places) > 1}


def public_names() -> dict[str, set[str]]:
    """Return public names of functions, constants and aliases that several modules define."""
    found: dict[str, set[str]] = {}
    for module, tree in modules().items():
        for node in tree.body:
            targets = getattr(node, "targets", [getattr(node, "target", node)])
            for target in targets:
                name = getattr(target, "id", getattr(target, "name", "_"))
                found.setdefault(name, set()).add(module)
    return {
        name: places
        for name, places in found.items()
        if len(places) > 1 and not name.startswith("_") and name not in class_names()
    }


def modules_in_ing() -> list[str]:
    names = (name.rpartition(".")[2] for name in modules())
    return [name for name in names if name.endswith("ing") and name not in NOUNS]


def participles() -> list[str]:
    """Return functions whose name begins with a participle; properties may."""
    found = []
    for module, tree in modules().items():
        for node in ast.walk(tree):
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            first = node.name.strip("_").split("_")[0]
            is_property = any("property" in ast.unparse(each) for each in node.decorator_list)
            if is_property or node.name.startswith("__") or first in VERBS:
                continue
            if PARTICIPLES.fullmatch(first):
                found.append(f"{module}.{node.name}")
    return found


SHOWN = {
    "modules with one importer, in percent": single_importers,
    "import circles, with those of types": circles,
    "class names with several meanings": class_names,
    "other public names with several meanings": public_names,
    "modules in -ing": modules_in_ing,
    "functions named by participles": participles,
}
"""What each figure counts, which a failure lists."""


def entered(run: Callable[[], object], events: list[str]) -> None:
    """Run with a profile that appends the package's files to `events`, in the order of calls."""
    root = f"{PACKAGE}/"

    def profile(frame: Any, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(root) and code.co_name[0] != "<":
            file = code.co_filename.removeprefix(root)
            if file != "testing.py":  # the model of these runs
                events.append(file)

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def scripted(marks: list[int], events: list[str]) -> Any:
    """Make a chat model that marks in `marks` how many files were entered before each call."""
    from memagent_graph.testing import ScriptedChatModel

    def reply(_: object) -> str:
        marks.append(len(events))
        return f"Ann Kestrel signed. Step {len(marks)}."

    return ScriptedChatModel(reply)


def files_of_a_chunk(store: Any = None) -> list[str]:
    """Return the files that chunks enter between the model's second call and the fifth.

    There are several, because the next chunk is cut while the model reads, sooner or later.
    """
    from memagent_graph import ReadingConfig, create_memagent

    marks: list[int] = []
    events: list[str] = []
    rain, gulls = "It rained on the harbour for days. " * 500, "The gulls cried again. " * 400
    config = ReadingConfig(chunk_tokens=1500, memory_tokens=200, answer_tokens=100)
    agent = create_memagent(scripted(marks, events), config=config, store=store)
    asked = {"question": "Who signed?", "document": f"{rain}Ann Kestrel signed the lease. {gulls}"}
    entered(lambda: asyncio.run(agent.ainvoke(asked)), events)
    return sorted(set(events[marks[1] : marks[4]]))


def files_of_a_message(*, fold: bool) -> list[str]:
    from langchain_core.messages import AIMessage, HumanMessage
    from langgraph.store.memory import InMemoryStore

    from memagent_graph import ConversationMemory

    marks: list[int] = []
    events: list[str] = []
    memory = ConversationMemory(scripted([], events), store=InMemoryStore(), window=2)
    kinds = (HumanMessage, AIMessage)
    said = [kinds[number % 2](f"I signed lease {number}.", id=str(number)) for number in range(6)]

    async def observe_and_fold() -> None:
        await memory.aobserve(said[:2], user="ann", thread="a")  # the first one warms up
        marks.append(len(events))
        await memory.aobserve(said, user="ann", thread="a")
        marks.append(len(events))
        await memory.aflush("ann")

    entered(lambda: asyncio.run(observe_and_fold()), events)
    start, end = marks[0], marks[1]
    return sorted(set(events[end:] if fold else events[start:end]))


def static_figures() -> dict[str, int]:
    files = [len(file.read_text("utf-8").splitlines()) for file in PACKAGE.rglob("*.py")]
    percent = round(100 * len(single_importers()) / len(modules()))
    return {
        **{name: len(find()) for name, find in SHOWN.items()},
        "modules with one importer, in percent": percent,
        "lines of the largest module": max(files),
        "modules": len(files),
        "lines": sum(files),
    }


def run_figures(redis_url: str) -> Iterator[tuple[str, int]]:
    from langgraph.store.memory import InMemoryStore

    from memagent_graph import RedisStore

    yield "files a chunk enters, without a store", len(files_of_a_chunk())
    yield "files a chunk enters, with a store", len(files_of_a_chunk(InMemoryStore()))
    with RedisStore.from_url(redis_url) as store:
        yield "files a chunk enters, with Redis", len(files_of_a_chunk(store))
    yield "files a message enters", len(files_of_a_message(fold=False))
    yield "files the fold of a message enters", len(files_of_a_message(fold=True))


def main() -> None:
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    from servers.redis_server import RedisServer

    with tempfile.TemporaryDirectory() as folder:
        server = RedisServer(Path(folder))
        try:
            figures = {**dict(run_figures(server.url)), **static_figures()}
        finally:
            server.kill()
    print(f"{'':45} {'now':>7} {'ceiling':>7} {'goal':>7}")
    for name, ceiling in CEILINGS.items():
        print(f"{name:45} {figures[name]:7,} {ceiling.today:7,} {ceiling.goal:7,}")


if __name__ == "__main__":
    main()
