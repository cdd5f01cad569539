"""The part of our English that a program can check: `python .ci/style.py FILE_OR_FOLDER ...`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

RULES = {
    r"\bwh(?:oever|omever|atsoever)\b": "name the person or thing",
    r"\bwere it (?:only|with|but)\b": 'write "even if" or "perhaps"',
    r"\bwith all the same\b": 'write "anyway"',
    r"\bwho comes (?:first|second|later)\b": 'write "the first writer"',
    r"\b(?:is|are) no (?:small talk|stranger)\b": "say what it is, not what it is no",
    r"\bas ever\b": "say what stays the same",
    r"\b(?:but for the|but for those|all,? but for)\b": 'write "except for"',
    r"\ball the same[.;,]": 'write "anyway"',
    r"\bin good order\b": 'write "normally"',
    r"\bhears? of\b": 'write "is notified of", or "sees"',
    r"\bthe 1 [a-z]+s\b": "plurals agree with their number",
    r"\bso-called\b|\bhereby\b|\btherein\b|\bthereof\b": "write it plainly",
    r"\bsay how many[.;]": 'write "return their number"',
    r"^\s+\w+: likewise[.;]": "describe the argument",
    r"\bwhatever was\b": "name the thing",
    r"\bdearer\b": 'write "more expensive"',
    r"\b(?:that is|are|is) told of\b": 'write "is notified of", or "sees"',
    r"\b(?:who|which) reads? the same\b": "name the other reading",
    r"\b(?:is|are|was|were|be) told (?:once|so|where|which|what|how|whether|nothing)\b": (
        'write "sees", "is given" or "is asked"'
    ),
    r"\btells (?:a|an|the|it|its|this|what|where|whether|how|nothing)\b": (
        'write "says", "reports" or "distinguishes"'
    ),
    r"^ *(?:async )?def _*(?:told|tells?)(?:_|\b)|_tells?\(": 'name it "report", "return" or "say"',
    r"\bg(?:oes|oing) on (?:after|at|from|there|when|where|with|without)\b": 'write "continue"',
    r"\b(?:that (?:is|was)|which is|goes|known to be) away\b": 'write "unreachable"',
    r"^ +r?\"\"\"(?:What|Who|Which)\b": "begin with a verb, or with a noun",
}


def problems(file: Path) -> list[str]:
    """What is to be written differently, with file and line."""
    lines = file.read_text("utf-8").splitlines()
    return [
        f"{file}:{number}: {found[0]!r}: {advice}"
        for number, line in enumerate(lines, 1)
        for pattern, advice in RULES.items()
        if (found := re.search(pattern, line, re.IGNORECASE))
    ]


def main(names: list[str]) -> int:
    """Check files, and the prose and code of folders; 1 if something is to be changed."""
    paths = [Path(name) for name in names]
    files = [file for path in paths for file in ([path] if path.is_file() else path.rglob("*"))]
    found = [one for file in files if file.suffix in {".md", ".py"} for one in problems(file)]
    print(*found, sep="\n", end="\n" if found else "")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
