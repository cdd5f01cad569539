"""A change of a few lines that takes a protection away, and the tests that must fail then."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

ROOT = Path(__file__).parents[2]
_CLAIMED = re.compile(r"`((?!tests/browser/)(?:tests|integrations/[\w-]+/tests)/[\w/]+\.py::\w+)`")


class Edit(BaseModel):
    """A text that a file has once, and what it becomes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    old: str
    new: str


class Mutation(BaseModel):
    """One way to lose a protection that docs/security.md claims.

    Attributes:
        name: what the code does then.
        tests: which docs/security.md names, each as a file, `::` and a name.
        file: which is changed.
        edits: of that file.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    tests: list[str] = Field(min_length=1)
    file: str
    edits: list[Edit] = Field(min_length=1)

    def apply(self, text: str) -> str:
        """The file's text after the change.

        Raises:
            ValueError: A text that is to be changed is not there once.
        """
        for edit in self.edits:
            if text.count(edit.old) != 1:
                message = f"{self.name}: {self.file} has {text.count(edit.old)} times {edit.old!r}"
                raise ValueError(message)
            text = text.replace(edit.old, edit.new)
        ast.parse(text)
        return text

    def nodes(self, root: Path = ROOT) -> list[str]:
        """The tests as pytest calls them, with the classes that they stand in.

        Raises:
            ValueError: There is no such test.
        """
        return [_node(root, *test.split("::")) for test in self.tests]


def _node(root: Path, file: str, name: str) -> str:
    for place in ast.parse((root / file).read_text("utf-8")).body:
        if getattr(place, "name", None) == name:
            return f"{file}::{name}"
        if any(getattr(each, "name", None) == name for each in getattr(place, "body", ())):
            return f"{file}::{getattr(place, 'name', '')}::{name}"
    message = f"There is no test {file}::{name}."
    raise ValueError(message)


def mutations() -> list[Mutation]:
    """All of them."""
    files = sorted(Path(__file__).parent.glob("*.toml"))
    found = [tomllib.loads(file.read_text("utf-8"))["mutation"] for file in files]
    return [Mutation.model_validate(each) for mutations in found for each in mutations]


def claimed(root: Path = ROOT) -> list[str]:
    """The tests that docs/security.md names.

    Not those in a browser: they repeat others of the same threat, and need Chromium.
    """
    return _CLAIMED.findall((root / "docs" / "security.md").read_text("utf-8"))
