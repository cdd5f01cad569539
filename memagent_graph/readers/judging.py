"""Judge whether a note is supported: which of its names and numbers have no source."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import regex

from memagent_graph.readers.claims import Claim, Known, claims
from memagent_graph.text.terms import telling_terms, word_terms

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from memagent_graph.readers.figures import Figure
    from memagent_graph.readers.notes import Note
    from memagent_graph.readers.passages import Passage

_SUBJECTS = "He She It They His Her Its Their This These"
_PRONOUNS = (*(f"{word} " for word in _SUBJECTS.split()), *"他她它该其这")
_FOREIGN = frozenset(
    "阿埃艾奥巴贝彼波伯博布戴德登迪蒂顿厄恩尔菲芬弗夫戈哥格赫亨霍贾卡凯坎柯科克肯库拉莱兰劳勒雷莉"
    "林琳卢鲁伦罗洛玛迈麦曼梅蒙米摩莫姆默穆纳娜奈尼妮涅纽诺帕潘佩彭皮普乔琼瑞萨塞桑瑟森莎圣斯丝苏索"
    "塔泰坦汤特滕廷汀托瓦威韦维温沃乌希锡谢雅亚伊泽扎詹兹佐哈汉法达马利里安加基吉欧内比华宾丹费福"
)
"""Characters used in Chinese to transcribe foreign names."""
_OF_A_NAME = frozenset(
    "市省县州郡区镇村街路山河湖岛洋海国队院校司馆党军族奖碗桥宫寺塔报站语教派法会"
)
_CAPITALISING = (" und ", " der ", " die ", " das ", " ist ", " nicht ")
"""Frequent words of German, a language that capitalizes all nouns."""
_LETTERS = {
    "unspaced": regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}]++"),
    "latin": regex.compile(r"\p{Latin}++"),
    "other": regex.compile(r"[^\P{L}\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}\p{Latin}]++"),
}
_WIDEST_GAP = 2
"""Most code points between a sentence and the one that continues it."""
_SHARE = 0.15
"""Share of a text's letters above which the text counts as written in a script."""
_HAN = regex.compile(r"\p{Han}{2,}+")
_OF_ONE = regex.compile(r" (?:was|is|has|had|became|will|would|did|does)\b")
"""Verbs whose subject is a name if it has no article and no ending of ordinary nouns."""
_MEASURED = (
    "seconds minutes hours days weeks months years decades centuries miles metres meters feet "
    "inches kilometres kilometers acres degrees points times dollars pounds euros tons tonnes"
)
_MEASURES = frozenset(_MEASURED.split())
"""Units: a number before one is never a count of the note's own items."""
_NOUN = regex.compile(r"[ -]?(?:\p{Ll}++ )?(\p{Ll}++)")
_COUNTED = regex.compile(r"[个種种项位名条點点类]?(\p{Han}{2})")
_MOST_COUNTED = 12
_SHORTEST_ELSEWHERE = 3
"""Characters in a row that, found elsewhere in the text, are taken for a name."""
_EMPTY = "的了吗呢吧和与或在是有为被从到把对于及其这那之所由着过们个种些以而用将也都使"
"""Characters around a name that are not part of it."""


class Judgement(NamedTuple):
    """The verdict on a note.

    Attributes:
        missing: names and numbers that nothing accounts for.
        lent: sentences next to the evidence that account for other names and numbers.
        judged: False if the note is in another script than the text, and cannot be judged.
    """

    missing: tuple[str, ...]
    lent: tuple[Passage, ...]
    judged: bool


class Judge:
    """Compares notes with the sentences and older notes that they rest on.

    Args:
        told: the question and recalled passages; their names and numbers need no evidence.
        chunk: text of the chunk that was read.
        memory: text of the memory before the chunk.
    """

    def __init__(self, told: Sequence[str], chunk: str, memory: str) -> None:
        self._told = _known(told)
        self._chunk = chunk
        self._memory = memory

    def judge(
        self,
        note: Note,
        numbers: Sequence[Figure],
        said: Sequence[Passage],
        beside: Sequence[Passage],
        older: Sequence[Note] = (),
        doubted: Sequence[str] = (),
    ) -> Judgement:
        """Compare a note with its evidence.

        Args:
            note: the note to judge.
            numbers: the numbers in it.
            said: the sentences that it rests on.
            beside: the sentences around those; a pronoun may stand for a name in them.
            older: the notes that it rewrites.
            doubted: names and numbers in `older` that have no source themselves.
        """
        lines = [f"{item.context} {item.line}" for item in older]
        terms = {term for item in said for term in item.terms}
        fresh = Known([item.text for item in said], terms)
        own = fresh
        if lines:
            own = Known([*fresh.texts, *lines], terms.union(*map(telling_terms, lines)))
        doubts = _known(doubted)
        missing: list[str] = []
        lent: dict[int, Passage] = {}
        for claim in claims(note.text, numbers):
            if self._told.has(claim) or fresh.has(claim):
                continue
            if own.has(claim) and not doubts.has(claim):
                continue
            lender = _lender(claim, said, beside)
            if lender is not None:
                lent[lender.start] = lender
            elif self._holds(claim, note, own):
                missing.append(claim.text)
        if not note.text.isascii():
            rests_on = (own.letters - doubts.letters) | fresh.letters
            missing += self._unspaced(note.text, rests_on, beside)
        judged = not missing or self._can_judge(note, own)
        return Judgement(tuple(missing), tuple(lent.values()), judged)

    def _holds(self, claim: Claim, note: Note, own: Known) -> bool:
        """Whether a claim without a source counts against the note."""
        if claim.figure is not None:
            return not _counts(claim.figure, note.text, own)
        if self._has_noun_capitals:
            return False
        if not claim.doubtful and claim.start >= note.label:
            return True
        return self._is_named(claim.text) or (
            claim.start >= note.label and self._seems_named(claim, note.text)
        )

    def _is_named(self, word: str) -> bool:
        """Whether the text has the word capitalized inside a sentence."""
        return any(_has_within(word, text) for text in (self._chunk, self._memory))

    def _seems_named(self, claim: Claim, text: str) -> bool:
        """Whether a word that opens a sentence is a name, judged by what follows it."""
        word = claim.text
        after = text[claim.end : claim.end + 3]
        if word.endswith(_ORDINARY) or f" {word.lower()}" in self._chunk:
            return False
        return (
            after[:2] == " ("
            or after[:2] == ", "
            or after[1:2].isupper()
            or "'s" in text[claim.start : claim.end]
            or _OF_ONE.match(text, claim.end) is not None
        )

    @cached_property
    def _has_noun_capitals(self) -> bool:
        return sum(map(self._chunk.count, _CAPITALISING)) * 200 > len(self._chunk)

    def _unspaced(self, text: str, own: set[str], beside: Sequence[Passage]) -> Iterator[str]:
        """Chinese names without a source; `own` has the character pairs of the evidence."""
        near = Known([item.text for item in beside], frozenset()).letters
        known = own | near | self._told.letters
        for start, end in _uncovered(text, known):
            found = text[start:end].strip(_EMPTY)
            if found and (_is_foreign(found, text, start, end) or self._is_known(found)):
                yield found

    def _is_known(self, found: str) -> bool:
        """Whether characters form a name, or stand elsewhere in the text."""
        if len(found) < _SHORTEST_ELSEWHERE:
            return False
        return found[-1] in _OF_A_NAME or found in self._chunk or found in self._memory

    def _can_judge(self, note: Note, own: Known) -> bool:
        """Whether a note shares a script with the text that it is compared with."""
        compared = " ".join(own.texts) if own.texts else self._chunk
        return not scripts(note.text) or not scripts(note.text).isdisjoint(scripts(compared))


def _known(texts: Sequence[str]) -> Known:
    return Known(texts, {term for text in texts for term in telling_terms(text)})


def _lender(claim: Claim, said: Sequence[Passage], beside: Sequence[Passage]) -> Passage | None:
    """The sentence next to the evidence that has a name, or a number about the same subject."""
    wanted = set(word_terms(claim.text))
    for item in beside:
        if claim.figure is None:
            if wanted <= item.terms.keys():
                return item
        elif (
            item.text.startswith(_PRONOUNS)
            and any(0 <= item.start - other.end <= _WIDEST_GAP for other in said)
            and Known([item.text], item.terms.keys()).has(claim)
        ):
            return item
    return None


_ORDINARY = ("ly", "ing", "ed", "tion", "ment", "ness", "ity", "ance", "ence", "ers", "ors", "ship")
_LOOKED_AT = 20


def _has_within(word: str, text: str) -> bool:
    place = -1
    for _ in range(_LOOKED_AT):
        place = text.find(word, place + 1)
        if place < 0:
            return False
        before = text[place - 2 : place] if place > 1 else ""
        if before.endswith(" ") and (before[0].islower() or before[0] == ","):
            return not text[place + len(word) : place + len(word) + 1].isalpha()
    return False


def _counts(figure: Figure, text: str, own: Known) -> bool:
    """Whether a number counts things that only the note names: "three reasons"."""
    small = {str(value) for value in range(2, _MOST_COUNTED + 1)}
    if figure.values.isdisjoint(small):
        return False
    noun = _NOUN.match(text, figure.end)
    if noun:
        if noun[1] in _MEASURES:
            return False
        return noun[1].endswith("s") and own.terms.isdisjoint(word_terms(noun[1]))
    counted = _COUNTED.match(text, figure.end)
    return counted is not None and counted[1] not in own.letters


def _uncovered(text: str, known: set[str]) -> Iterator[tuple[int, int]]:
    """Runs of two or more characters without a known pair."""
    for match in _HAN.finditer(text):
        start, end = match.span()
        covered = {
            place + side
            for place in range(start, end - 1)
            if text[place : place + 2] in known
            for side in (0, 1)
        }
        row = start
        for place in range(start, end + 1):
            if place == end or place in covered:
                if place - row > 1:
                    yield row, place
                row = place + 1


def _is_foreign(found: str, text: str, start: int, end: int) -> bool:
    if len(found) > 1 and all(sign in _FOREIGN for sign in found):
        return True
    dotted = any(sign in "·・•" for sign in text[max(start - 1, 0) : end + 1])
    return dotted or text[start - 1 : start] in {"《", "「", "『"}


def scripts(text: str) -> set[str]:
    """Return the scripts that a text is written in: "latin", "unspaced" or "other"."""
    counts = {script: sum(map(len, letters.findall(text))) for script, letters in _LETTERS.items()}
    total = sum(counts.values())
    return {script for script, count in counts.items() if count > _SHARE * total}
