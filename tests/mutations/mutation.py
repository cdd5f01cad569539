"""A change of a few lines that takes a protection away, and the tests that must fail then."""

from __future__ import annotations

import ast
import re
import tomllib
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parents[2]
_CLAIMED = re.compile(r"`((?!tests/browser/)(?:tests|integrations/[\w-]+/tests)/[\w/]+\.py::\w+)`")


class Edit(BaseModel):
    """A text that a file has once, and what it becomes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    old: str
    new: str


class Mutation(BaseModel):
    """One way to lose a protection that docs/security.md claims, or a rule of facts and pictures.

    Attributes:
        name: what the code does then.
        tests: which must notice it, each as a file, `::` and a name.
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

    def mutate(self, root: Path = ROOT) -> str:
        """The text of its file below `root`, after the change.

        Raises:
            ValueError: The file is not there, or does not have a text that is to be changed once.
        """
        try:
            return self.apply((root / self.file).read_text("utf-8"))
        except OSError as error:
            message = f"{self.name}: {error}"
            raise ValueError(message) from error

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


def choose(some: Sequence[Mutation], number: int, commit: str) -> list[Mutation]:
    """So many of them, in their order: others for each commit, always the same for one."""

    def rank(mutation: Mutation) -> str:
        return sha256(f"{commit} {mutation.name}".encode()).hexdigest()

    chosen = {mutation.name for mutation in sorted(some, key=rank)[:number]}
    return [mutation for mutation in some if mutation.name in chosen]


def claimed(root: Path = ROOT) -> list[str]:
    """The tests that docs/security.md names.

    Not those in a browser: they repeat others of the same threat, and need Chromium.
    """
    return _CLAIMED.findall((root / "docs" / "security.md").read_text("utf-8"))
