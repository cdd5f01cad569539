"""Modules that take seconds to import, for the worker alone that runs the tests of them."""

from importlib import import_module
from typing import Any


class LazyModule:
    """Imports the module of this name when something of it is used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("_", "pytest")):  # marks, for which pytest asks
            raise AttributeError(name)
        return getattr(import_module(self._name), name)
