"""`memagent prompts`: take prompts out of other people's code, which is read and never run."""

from __future__ import annotations

import ast
import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from string import Formatter
from typing import TYPE_CHECKING, Annotated

import typer

from memagent_graph.cli.terminal import report_errors

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

app = typer.Typer(help="Import the prompts of a published model.")

_QUESTION = {"prompt", "question", "query"}
_LARGEST = 1_000_000
"""Largest file that is examined, in bytes."""


@dataclass(frozen=True, slots=True)
class Template:
    """A text with fields, as found in a program.

    Attributes:
        text: the text, with the field {question} in place of the program's own name for it.
        fields: names of the text's fields.
        place: file and line.
    """

    text: str
    fields: frozenset[str]
    place: str


@app.callback()
def _group() -> None:
    pass


@app.command("import", no_args_is_help=True)
def import_prompts(
    path: Annotated[
        Path, typer.Argument(help="Python file, or checkout, of the reference implementation.")
    ],
    out: Annotated[Path, typer.Option(help="Prompts file to write.")] = Path("prompts.json"),
) -> None:
    """Write the prompts of a reference implementation to a prompts file.

    Its files are read as text and never executed. Use the prompts with
    `memagent ask ... --prompts prompts.json`, or `Prompts.from_file("prompts.json")`.
    """
    with report_errors():
        from memagent_graph.errors import ConfigurationError
        from memagent_graph.prompts import Prompts

        found = [*templates(path)]
        if not found:
            message = f"{path} holds no prompt templates: name the checkout or one of its files."
            raise ConfigurationError(message)
        update = _only(found, {"question", "memory", "chunk"}, path)
        answer = _only(found, {"question", "memory"}, path)
        prompts = Prompts(update=update.text, answer=answer.text)  # checks the fields
        record = {"update": prompts.update, "answer": prompts.answer}
        out.write_text(json.dumps(record, ensure_ascii=False, indent=2) + "\n", "utf-8")
        print(f"update  {update.place}\nanswer  {answer.place}\nwritten to {out}")


def templates(path: Path) -> Iterator[Template]:
    """Yield the prompt templates in a Python file, or in the Python files of a folder.

    Args:
        path: path of the file or the folder.

    Raises:
        OSError: There is no such file.
    """
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    for file in files:
        if file.stat().st_size > _LARGEST:
            continue
        with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
            for node in ast.walk(ast.parse(file.read_text("utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield from _template(node.value, f"{file}:{node.lineno}")


def _template(text: str, place: str) -> Iterator[Template]:
    """The template that a text is, with single braces where `str.format` wants two."""
    try:
        parts = [*Formatter().parse(text)]
    except ValueError:  # it has other braces, and is not a template
        return
    made, fields = "", set()
    for literal, field, *_ in parts:
        made += literal
        if field is not None:
            name = "question" if field in _QUESTION else field
            fields.add(name)
            made += f"{{{name}}}"
    if {"question", "memory"} <= fields <= {"question", "memory", "chunk"}:
        yield Template(made, frozenset(fields), place)


def _only(found: Sequence[Template], fields: set[str], path: Path) -> Template:
    """The one template with these fields: of several, the one that asks for a box."""
    from memagent_graph.errors import ConfigurationError

    fit = {one.text: one for one in reversed(found) if one.fields == fields}
    boxed = [one for one in fit.values() if "\\boxed" in one.text]
    chosen = boxed or [*fit.values()]
    if len(chosen) == 1:
        return chosen[0]
    wanted = " and ".join(f"{{{field}}}" for field in sorted(fields))
    places = ", ".join(one.place for one in chosen) or "none"
    message = f"{path} should hold one prompt with {wanted}, and has: {places}. Name one file."
    raise ConfigurationError(message)
