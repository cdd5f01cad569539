import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

NOT_IMPORTED = """
import sys

def check(*names):
    assert not [name for name in sys.modules if name.startswith(names)]

import memagent_graph.cli.app  # `--help` comes quickly
check("langgraph.", "openai", "torch", "fastapi", "mcp")
from memagent_graph import ConversationMemory, MemAgentNode, RedisStore, create_memagent
create_memagent().invoke({"question": "Who?", "document": "Ann signed."})
ConversationMemory().save([("human", "I like tea.")], user="a", thread="b")
check("memagent_graph.facts", "langchain_core.decisions")  # which are off
from memagent_graph.rl import traces, recorder, rollouts, grpo
check("torch", "transformers", "vllm", "ray.", "langchain.", "accelerate")
"""


def test_nothing_is_imported_before_it_is_needed():
    subprocess.run([sys.executable, "-c", NOT_IMPORTED], check=True)


def test_an_unknown_name_is_an_attribute_error():
    import memagent_graph

    assert all(hasattr(memagent_graph, name) for name in memagent_graph.__all__)
    assert not hasattr(memagent_graph, "no_such_thing")


ROOT = Path(__file__).parents[2]
PARTS = (
    "errors | config seams sync templates | pictures | text | prompts | models | testing | "
    "evidence | readers | facts | memory | graph | conversation planning | batch | "
    "retriever tool | evaluation | rl | cli | __main__"
)
LAYERS = [{*layer.split()} for layer in PARTS.split(" | ")]
"""Of the library, from below: a part imports what stands below it; `__init__` has all names."""
PRIVATE = re.compile(r"\b(?:langgraph|langchain\w*)(?:\.\w+)*\._|^__pregel|^_identifying_params$")


def modules(folder):
    files = sorted(folder.rglob("*.py"))
    return {".".join(f.relative_to(folder.parent).with_suffix("").parts): f for f in files}


@cache
def tree(file):
    return ast.parse(file.read_text("utf-8"))


def imports(name, file, known):
    """The modules of `known` that one of them imports when it runs, at its top or later."""
    waiting, found = [tree(file)], set()
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        waiting += ast.iter_child_nodes(node)
    return {one for one in found if one in known and one != name}


def test_imports_run_downward():
    known = modules(ROOT / "memagent_graph")
    height = {part: level for level, layer in enumerate(LAYERS) for part in layer}

    def part(name):
        return name.split(".")[1]

    upward = [
        f"{name} imports {other}"
        for name, file in known.items()
        if part(name) != "__init__"
        for other in imports(name, file, known)
        if part(name) != part(other) and height[part(other)] >= height[part(name)]
    ]

    assert upward == []


SERVERS = {"memagent_inspector", "memagent_mcp_server", "memagent_openai_server"}
"""What shares the core `memagent_http`."""


def test_the_library_imports_no_integration_and_they_not_each_other():
    folders = {f.name: f for f in ROOT.glob("integrations/*/memagent_*") if f.is_dir()}
    own = {name: file for folder in folders.values() for name, file in modules(folder).items()}
    known = own | dict.fromkeys(folders)

    across = {
        (name.split(".")[0], other.split(".")[0])
        for name, file in {**modules(ROOT / "memagent_graph"), **own}.items()
        for other in imports(name, file, known)
        if other.split(".")[0] != name.split(".")[0]
    }

    assert len(folders) > 3
    assert across == {(server, "memagent_http") for server in SERVERS}


def test_private_names_of_langgraph_and_langchain_stand_in_one_module():
    names = {
        ast.ImportFrom: lambda node: f"{node.module}.{node.names[0].name}",
        ast.Constant: lambda node: node.value if isinstance(node.value, str) else "",
        ast.Attribute: lambda node: node.attr,
    }
    files = [*ROOT.glob("memagent_graph/**/*.py"), *ROOT.glob("integrations/*/memagent_*/**/*.py")]

    found = {
        file.relative_to(ROOT).as_posix()
        for file in files
        for node in ast.walk(tree(file))
        if type(node) in names and PRIVATE.search(names[type(node)](node))
    }

    assert found == {"memagent_graph/seams.py"}
