"""Methods made by `to_sync`, for the site: an extension of griffe, which reads without running."""

from __future__ import annotations

import re

import griffe


class Faces(griffe.Extension):
    """Shows `load = to_sync(aload)` as the method that it is."""

    def on_class(self, *, cls: griffe.Class, **_: object) -> None:
        """Replace such attributes by functions with the parameters and docstring of the other."""
        for name, member in list(cls.members.items()):
            made = member.is_attribute and re.fullmatch(r"to_sync\((\w+)\)", str(member.value))
            if made:
                cls.set_member(name, blocking(name, cls.members[made[1]]))


def blocking(name: str, awaited: griffe.Function) -> griffe.Function:
    """The synchronous method beside a coroutine method."""
    return griffe.Function(
        name,
        lineno=awaited.lineno,
        endlineno=awaited.endlineno,
        parameters=awaited.parameters,
        returns=awaited.returns,
        docstring=awaited.docstring,
    )
