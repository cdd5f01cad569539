"""No regular expression takes longer than its text is long: each is found, and attacked.

A pattern that is quadratic on a text of a stranger stops a server. So all calls of `re` and `regex`
in our packages are found in their source, and tried on the texts that `attacks.py` makes of them.
"""

import ast
import functools
import importlib
import re
import time
from collections import deque
from pathlib import Path

import pytest
import regex
from structure.attacks import worst

from memagent_graph import prompts, templates

ROOT = Path(__file__).parents[2]
PACKAGES = [ROOT / "memagent_graph", *sorted(ROOT.glob("integrations/*/memagent_*"))]
PARTS = 20
"""In which the expressions are tried, so that processes share them."""
SIZE, TIMES = 2_000, 4
MOST = 2 * TIMES
"""How much longer a text may take that is four times as long; a quadratic one takes 16 times."""
BRIEF = 0.003
"""Seconds of processor in which no quadratic pattern gets through the longer text."""

BY_HAND = {
    "memagent_graph.readers.replies._PHRASE_LOOP": [("", "ab", "c"), ("c", "ab", "")],
    "memagent_graph.text.tokens._KIND": [("", "a1 汉", "\0")],
    "memagent_graph.prompts._SUSPECT": [
        *(("<", "\u200b", ""), ("", "<\u200b", ""), ("", "<a\u200b", ""), ("", "[\u200b", "")),
        *(("", "\U000e003c", ""), ("", "\U000e005b", ""), ("", "\U000e005d", "")),
        *(("[", "\u200b", ""), ("]", "\u200b", "~"), ("", "]\u200b", ""), ("", "<\u0301", ">")),
    ],
    # Of an error page, of which 20,000 characters are read.
    "memagent_graph.models.failures._MARKUP": [("", "a", "")],
}
"""Texts for expressions that only `regex` can read, and for those whose texts are short."""
ANCHORED = {"memagent_graph.models.reply._CHANNELS": "match"}
"""How expressions are used that stand in a list."""
BUILT = {
    "memagent_graph.prompts.fill": lambda: [re.compile(r"\{(question|memory)\}")],
    "memagent_graph.prompts._forgery_pattern": lambda: [
        prompts._forgery_pattern(templates.UPDATE_PROMPT)
    ],
}
"""Patterns that a function makes of what it is given."""
MADE = {
    "memagent_graph.evidence.align._is_named",
    "memagent_graph.models.reply._end_of_thought",
    "memagent_graph.readers.replies._without_echoes",
    "memagent_graph.readers.replies._without_tags",
}
"""Functions whose patterns have words of a question or a reply in them, escaped."""


@functools.cache  # not while tests are collected: each worker would wait for it
def found() -> tuple[dict[str, list[ast.Call]], dict[str, set[str]]]:  # noqa: C901 - one visit
    """Calls of `re` and `regex`, by the global or the function that they stand in.

    And how expressions are used: the methods that are called of globals, by their names.
    """
    calls: dict[str, list[ast.Call]] = {}
    methods: dict[str, set[str]] = {}

    def visit(node: ast.AST, module: str, place: str) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            place = f"{module}.{node.name}"
        elif isinstance(node, ast.Assign | ast.AnnAssign) and place == module:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            place = f"{module}.{ast.unparse(target)}"
        if isinstance(node, ast.ImportFrom) and node.module in ("re", "regex"):
            pytest.fail(f"{module}: import the module, so that this test finds its calls")
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute | ast.Name):
            library, _, called = ast.unparse(node.func).rpartition(".")
            if called == "late" or (library in ("re", "regex") and called != "escape"):
                calls.setdefault(place, []).append(node)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Load):
                used = node.attr if isinstance(node, ast.Attribute) else "given to others"
                name = child.id  # a public one may be another module's
                named = f"{module}.{name}" if name.startswith("_") else name
                methods.setdefault(named, set()).add(used)
            visit(child, module, place)

    for package in PACKAGES:
        for file in sorted(package.rglob("*.py")):
            name = ".".join(file.relative_to(package.parent).with_suffix("").parts)
            visit(ast.parse(file.read_text("utf-8")), name, name)
    return calls, methods


def how_used(place: str) -> str:
    """The method that looks at most of a text, of those by which an expression is used."""
    name = place.rpartition(".")[2]
    methods = found()[1].get(place if name.startswith("_") else name, set())
    if methods and methods <= {"match", "fullmatch"}:
        return "match" if "match" in methods else "fullmatch"
    return ANCHORED.get(place, "finditer")


def patterns(place: str) -> list[re.Pattern | regex.Pattern]:
    if place in BUILT:
        return BUILT[place]()
    module, _, name = place.rpartition(".")
    value = vars(importlib.import_module(module)).get(name)
    if value is not None and not callable(value):
        return compiled(value)
    return [  # a function's, a method's, or several at once
        importlib.import_module(ast.unparse(call.func.value)).compile(
            ast.literal_eval(call.args[0])
        )
        for call in found()[0][place]
        if place not in MADE
    ]


def compiled(value) -> list[re.Pattern | regex.Pattern]:
    """The patterns in a global, which may be a list of tuples of them."""
    if isinstance(value, re.Pattern | regex.Pattern):
        return [value]
    if isinstance(value, templates._Late):
        library, *made = value.made
        return [library.compile(*made)]
    values = value.values() if isinstance(value, dict) else value
    return [each for inner in values if not isinstance(inner, str) for each in compiled(inner)]


def seconds(look, text: str, runs: int) -> float:
    """Of processor, the least of several runs."""
    best = float("inf")
    for _ in range(runs):
        begun = time.thread_time()
        look(text)
        best = min(best, time.thread_time() - begun)
        if best < BRIEF:
            break
    return best


def is_linear(
    pattern, begin: str, pump: str, end: str, *, how: str = "finditer", base: int = SIZE
) -> bool:
    def text(size):
        whole = begin + pump * (size // len(pump)) + end
        return whole if isinstance(pattern.pattern, str) else whole.encode()

    def look(text):
        found = getattr(pattern, how)(text)
        if how == "finditer":
            deque(found, 0)

    for runs in (1, 3, 9):
        long = seconds(look, text(TIMES * base), runs)
        # A short text that was measured once, on a busy machine, makes a quadratic one look linear.
        if long < BRIEF or long < MOST * seconds(look, text(base), 5 * runs):
            return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_no_text_takes_a_regular_expression_longer_than_its_length_asks(part):
    bad = (
        (place, pattern.pattern, text)
        for place in sorted(found()[0])[part::PARTS]
        for pattern in patterns(place)
        for text in BY_HAND.get(place) or worst(pattern)
        if not is_linear(pattern, *text, how=how_used(place))
    )

    assert next(bad, None) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    "pattern",
    [
        re.compile(rb'"(?:\\.|[^"\\])*"'),
        re.compile(r"a+$"),
        re.compile(r"\s*\n\s*$"),
        re.compile(r"(?:ab|c)+\d"),
        regex.compile(r"\p{Lu}\p{L}+(?: \p{Lu}\p{L}+)* Inc"),
        regex.compile(r"(?i)see (?:the )?[^()]+\)"),
    ],
    ids=lambda pattern: str(pattern.pattern),
)
def test_a_quadratic_pattern_is_noticed(pattern):
    small = SIZE // 2  # where it shows least

    assert any(not is_linear(pattern, *text, base=small) for text in worst(pattern))
