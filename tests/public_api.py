"""Prints the public names with their signatures; `make api` keeps them in public_api.txt."""

import inspect
from collections.abc import Iterator
from importlib import import_module

from pydantic import BaseModel

PARTS = ("errors", "evaluation", "rl", "testing")
MODULES = ("memagent_graph", *(f"memagent_graph.{name}" for name in PARTS))


def lines() -> Iterator[str]:
    """A line for each name, and below a class for each of its methods."""
    for name in MODULES:
        module = import_module(name)
        yield f"# {name}"
        for public in sorted(set(getattr(module, "__all__", None) or own(module))):
            yield from described(public, getattr(module, public))


def own(module: object) -> list[str]:
    """The classes and functions that a module without `__all__` has itself."""
    found = inspect.getmembers(module, lambda it: inspect.isclass(it) or inspect.isfunction(it))
    here = module.__name__
    return [name for name, it in found if it.__module__ == here and not name.startswith("_")]


def described(name: str, it: object) -> Iterator[str]:
    if not inspect.isclass(it):
        yield name + (parameters(it) if callable(it) else "")
        return
    bases = ", ".join(base.__name__ for base in it.__bases__ if base is not object)
    yield f"class {name}({bases})" if bases else f"class {name}"
    if issubclass(it, BaseModel):
        yield from (
            f"    {field}" for field in it.model_fields if field in inspect.get_annotations(it)
        )
    elif getattr(it.__init__, "__module__", "").startswith("memagent_graph"):
        yield f"    __init__{parameters(it.__init__)}"
    for method, found in sorted(vars(it).items()):
        if not method.startswith(("_", "model_")) and inspect.isfunction(found):
            yield f"    {method}{parameters(found)}"


def parameters(function: object) -> str:
    """Names and plain defaults; types would differ between versions of Python."""
    signature = inspect.signature(function)
    shown = [
        each.replace(annotation=each.empty, default=plain(each.default))
        for each in signature.parameters.values()
    ]
    return str(signature.replace(parameters=shown, return_annotation=signature.empty))


class _Other:
    def __repr__(self) -> str:
        return "..."


def plain(default: object) -> object:
    if default is inspect.Parameter.empty or isinstance(default, str | int | float | None):
        return default
    return _Other()


if __name__ == "__main__":
    print("\n".join(lines()))
