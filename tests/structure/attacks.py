"""Texts that would be the worst for a regular expression, made from the expression itself.

A search is slow on beginnings in vain at each place, and on runs that two parts could share out.
So each prefix of the expression is repeated, and each part of it that repeats, behind its prefix.
"""

import re
from collections.abc import Iterator
from re import _constants as kinds
from re import _parser as parser
from typing import Any

import regex

ALPHABET = "aA1b é汉_-.,:;'\"()[]<>|/\\\n\t\u0301\u200b"
"""Of which one stands for all that the same parts of an expression match."""
CLASSES = {
    "Lu": "A-Z",
    "Ll": "a-zé",
    "L": "A-Za-zé汉",
    "Latin": "A-Za-zé",
    "M": "\u0301",
    "N": "0-9",
}
"""Ranges that stand for properties, which Python's parser does not know; others are of 汉."""
REPEATS = (kinds.MAX_REPEAT, kinds.MIN_REPEAT, kinds.POSSESSIVE_REPEAT)
SINGLE = (kinds.IN, kinds.NOT_LITERAL, kinds.ANY)
MOST = 2
"""Alternatives and prefixes that are kept, and thrice as many signs that a part repeats."""


def plain(pattern: str) -> str:
    """The expression without what only `regex` knows."""

    def replace(found: re.Match[str]) -> str:
        before = re.sub(r"\\.", "", pattern[: found.start()])
        ranges = CLASSES.get(found[2], "汉") if found[1] == "p" else " .,1"
        return ranges if before.count("[") > before.count("]") else f"[{ranges}]"

    text = re.sub(r"\(\?[rw]*([ims]*)[rw]*\)", r"(?\1)", pattern, count=1).replace("(?)", "")
    text = re.sub(r"\\([pP])\{(?:\w+=)?(\w+)\}", replace, text)
    return text.replace("\\G", "").replace("\\X", ".")


class Attacks:
    """The texts for one expression, as what they begin with, what is repeated, and their end."""

    def __init__(self, text: str, flags: int) -> None:
        self._flags = flags & (re.IGNORECASE | re.DOTALL | re.MULTILINE | re.VERBOSE)
        tree = parser.parse(plain(text), self._flags)
        self._signs = [*dict.fromkeys([*ALPHABET, *self._literals(tree)])]
        self._classes = [self._matched(node) for node in self._singles(tree)]
        self._ends = ["\0", f"\0{self._last_word(tree)}", "\n", *self._forbidden(tree)]
        self.texts: dict[tuple[str, str, str], None] = {}
        self._walk(tree, [""])

    def _add(self, begin: str, pump: str) -> None:
        if pump:
            for end in self._ends if len(pump) == 1 else self._ends[:2]:
                self.texts[begin, pump, end] = None

    def _last_word(self, tree: Any) -> str:
        """What stands at the end as it is: without it in the text, no search begins."""
        word = ""
        for kind, value in reversed(tree):
            if kind is not kinds.LITERAL:
                break
            word = chr(value) + word
        return word

    def _forbidden(self, tree: Any) -> Iterator[str]:
        """A sign that each negative look ahead begins with: it ends a match in vain."""
        for kind, value in self._nodes(tree):
            if kind is kinds.ASSERT_NOT and value[0] > 0 and value[1] and value[1][0][0] in SINGLE:
                yield from self._choose(value[1][0])[-1:]

    def _literals(self, tree: Any) -> Iterator[str]:
        for kind, value in self._nodes(tree):
            if kind is kinds.LITERAL:
                yield chr(value)
            elif kind is kinds.RANGE:
                yield chr(value[0])

    def _nodes(self, tree: Any) -> Iterator[tuple[Any, Any]]:
        for kind, value in tree:
            yield kind, value
            inner = value if isinstance(value, tuple | list) else [value]
            for one in inner:
                if isinstance(one, parser.SubPattern):
                    yield from self._nodes(one)
                elif isinstance(one, list):
                    for each in one:
                        yield from self._nodes(each if isinstance(each, parser.SubPattern) else [])
            if kind is kinds.IN:
                yield from value

    def _singles(self, tree: Any) -> list[tuple[Any, Any]]:
        return [node for node in self._nodes(tree) if node[0] in SINGLE]

    def _matched(self, node: tuple[Any, Any]) -> frozenset[str]:
        """The signs that a part of one sign matches."""
        return frozenset(sign for sign in self._signs if self._matches(node, sign))

    def _matches(self, node: tuple[Any, Any], sign: str) -> bool:
        kind, value = node
        if kind is kinds.IN:
            negated = value[0][0] is kinds.NEGATE
            return negated != any(self._matches(one, sign) for one in value[negated:])
        if kind is kinds.RANGE:
            return value[0] <= ord(sign) <= value[1]
        if kind is kinds.CATEGORY:
            name = str(value).removeprefix("CATEGORY_")
            code = {"DIGIT": "d", "SPACE": "s", "WORD": "w"}[name.removeprefix("NOT_")]
            return bool(re.match("\\" + (code.upper() if "NOT_" in name else code), sign))
        if kind is kinds.ANY:
            return sign != "\n" or bool(self._flags & re.DOTALL)
        return (kind is kinds.LITERAL) == (value == ord(sign))

    def _choose(self, node: tuple[Any, Any]) -> list[str]:
        """One sign of each kind that the part matches, those first that most parts match."""
        kept: dict[tuple[bool, ...], str] = {}
        for sign in self._signs:
            if self._matches(node, sign):
                kept.setdefault(tuple(sign in each for each in self._classes), sign)
        ordered = sorted(kept.items(), key=lambda item: -sum(item[0]))
        return [sign for _, sign in ordered][: 3 * MOST]

    def _walk(self, tree: Any, prefixes: list[str]) -> list[str]:
        """Keep the attacks on a sequence; return what matches it behind the prefixes."""
        for kind, value in tree:
            if kind in REPEATS:
                prefixes = self._repeat(value, prefixes)
            elif kind is kinds.SUBPATTERN:
                prefixes = self._walk(value[-1], prefixes)
            elif kind is kinds.ATOMIC_GROUP:
                prefixes = self._walk(value, prefixes)
            elif kind is kinds.BRANCH:
                prefixes = self._choose_branches(value[1], prefixes)
            elif kind is kinds.ASSERT:
                self._walk(value[1], prefixes)
            elif kind not in {kinds.AT, kinds.ASSERT_NOT, kinds.GROUPREF}:
                signs = self._choose((kind, value)) or ["a"]
                prefixes = [prefix + sign for prefix in prefixes for sign in signs[:2]]
            prefixes = [*dict.fromkeys(prefixes)][:MOST]
        for prefix in prefixes:  # found in vain, but for its last sign
            self._add("", prefix[:-1])
        return prefixes

    def _choose_branches(self, branches: Any, prefixes: list[str]) -> list[str]:
        """Walk those that repeat a part, and the longest of the others."""
        words = [one for one in branches if all(kind is kinds.LITERAL for kind, _ in one)]
        words = sorted(words, key=len)
        kept = [one for one in branches if one not in words] + words[-1:]
        found = [one for branch in kept for one in self._walk(branch, prefixes[:1])]
        return [min(found, key=len), max(found, key=len)]

    def _repeat(self, value: Any, prefixes: list[str]) -> list[str]:
        least, most, inner = value
        once = self._walk(inner, prefixes)
        if most > 2:
            for prefix in prefixes:
                pumps = [one[len(prefix) :] for one in once if one.startswith(prefix)]
                if len(inner) == 1 and inner[0][0] in SINGLE:
                    pumps += self._choose(inner[0])
                for pump in dict.fromkeys(pumps):
                    self._add(prefix, pump)
                    self._add("", prefix + pump)
        behind = [one + one[len(prefixes[0]) :] * (least - 1) for one in once] if least else once
        return [*behind, *(prefixes if least == 0 else [])]


def worst(pattern: re.Pattern | regex.Pattern) -> list[tuple[str, str, str]]:
    """Return the worst texts for an expression, or raise what Python's parser does."""
    text = pattern.pattern
    text = text if isinstance(text, str) else text.decode("latin-1")
    return [*Attacks(text, pattern.flags).texts]
