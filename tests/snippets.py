"""The Python of Markdown pages, run as a reader would paste it: from an empty file, in order."""

import re
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

_PART = re.compile(r"^(#)|^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def snippets(page: Path) -> list[tuple[str, str]]:
    """Each snippet with what it prints: the text below it in its section, or nothing."""
    found: list[tuple[str, str]] = []
    below = False
    for heading, language, text in _PART.findall(page.read_text("utf-8")):
        if language == "python":
            found.append((text, ""))
            below = True
        elif below and language == "text":
            found[-1] = (found[-1][0], text)
        below = below and not heading and language != "text"
    return found


def run(name: str, code: Iterable[str], monkeypatch, capsys) -> list[str]:
    """Run a page's snippets in the current folder; return what each prints."""
    module = ModuleType(name)
    monkeypatch.setitem(sys.modules, name, module)  # where LangGraph looks up annotations
    printed = []
    for each in code:
        exec(compile(each, name, "exec", dont_inherit=True), vars(module))
        printed.append(capsys.readouterr().out)
    return printed
