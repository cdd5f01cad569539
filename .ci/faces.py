"""Methods made by `to_sync`, for the site: an extension of griffe, which reads without running."""

from __future__ import annotations

import re

import griffe


class Faces(griffe.Extension):
    """Shows `aget = lookup.get_version` and `load = to_sync(aload)` as methods."""

    def on_class(self, *, cls: griffe.Class, loader: griffe.GriffeLoader, **_: object) -> None:
        """Replace such attributes by functions with the parameters and docstring of the other."""
        for name, member in list(cls.members.items()):
            taken = member.is_attribute and re.fullmatch(r"(\w+)\.(\w+)", str(member.value))
            module = cls.module.members.get(taken[1]) if taken else None
            if module is not None and module.is_alias and "memagent_graph." in module.target_path:
                function = loader.modules_collection[module.target_path].members.get(taken[2])
                if function is not None and function.is_function:
                    cls.set_member(name, method(name, function, labels={"async"}))
        for name, member in list(cls.members.items()):
            made = member.is_attribute and re.fullmatch(r"to_sync\((\w+)\)", str(member.value))
            if made and made[1] in cls.members:
                cls.set_member(name, method(name, cls.members[made[1]]))


def method(
    name: str, function: griffe.Function, labels: frozenset[str] | set[str] = frozenset()
) -> griffe.Function:
    """Return a method that is called `name` and otherwise like a function."""
    first, *others = function.parameters
    made = griffe.Function(
        name,
        lineno=function.lineno,
        endlineno=function.endlineno,
        parameters=griffe.Parameters(griffe.Parameter("self", kind=first.kind), *others),
        returns=function.returns,
        docstring=function.docstring,
    )
    made.labels |= labels
    return made
