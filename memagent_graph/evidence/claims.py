"""The names and numbers that a note states, and which of them have no source."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, NamedTuple

import regex

from memagent_graph.text.terms import Figure, figures, specific_terms, stem, word_terms

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

_NAME_WORD = regex.compile(
    r"(?<![\p{Lu}\p{Ll}\p{N}_])(?P<word>\p{Lu}[\p{Lu}\p{Ll}\p{M}\p{N}]*+)"
    r"(?:['’](?P<tail>[\p{Lu}\p{Ll}]++))?"
)
_WORD = regex.compile(r"[\p{Lu}\p{Ll}\p{N}][\p{Lu}\p{Ll}\p{M}\p{N}]*+")
_UNSPACED = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}]{2,}+")
_JOINTS = frozenset([" ", "-", "–", "/", "&", ". ", "'", "’", " of ", " and ", " & "])
_OPENERS = frozenset(".!?:—…*#>|\"“‘'{=")
_ORDINARY = (
    "mr mrs ms dr prof professor sir dame lord lady president king queen prince princess saint st "
    "coach judge justice senator governor general captain colonel father sister brother yes no "
    "there then than their both however although though since because despite until within "
    "without whether according note notes answer question unknown unclear relevant none key fact "
    "facts summary source section chapter document text passage information meanwhile today later "
    "born died former early late here now thus hence once only even every many most several "
    "additionally furthermore moreover overall currently originally known"
)
_NO_NAMES = frozenset(_ORDINARY.split())


class Claim(NamedTuple):
    """A name, word by word, or a number in a note.

    It is doubtful if it may be an ordinary word, capitalized because it opens a sentence.
    """

    text: str
    start: int
    end: int
    figure: Figure | None = None
    doubtful: bool = False


def claims(text: str) -> list[Claim]:
    """Return the numbers, then the names, of a note; names only in scripts with capitals."""
    numbers = figures(text)
    taken = {number.start for number in numbers}
    found = [Claim(*item[:3], item) for item in numbers if _states(item, text)]
    for match in _NAME_WORD.finditer(text):
        word = match[0] if match["tail"] and match["tail"] != "s" else match["word"]
        if match.start() in taken or word.lower() in _NO_NAMES or not specific_terms(word):
            continue
        before = text[max(match.start() - 9, 0) : match.start()].rstrip(" (")
        found.append(Claim(word, *match.span(), None, not before or before[-1] in _OPENERS))
    return found


def _states(figure: Figure, text: str) -> bool:
    """Whether a number is a claim, not a turn of phrase such as "one of", "both" or "一起"."""
    if not figure.spelled:
        return True
    if not figure.text.isascii() and len(figure.text) == 1:
        return text[figure.end : figure.end + 1] in set("年月日号")
    return not figure.values <= {"1", "2"}


@dataclass(frozen=True, eq=False)
class Piece:
    """A sentence of a text, on one line, or a note of a memory; its words are found once.

    Its terms are stems, pairs of characters, and numbers as "=12", in order. Its block is the
    number of its paragraph, or of the note; its label the length of one such as "**Born**:", and
    its context the heading above and the text before it in its line.
    """

    text: str
    terms: Mapping[str, None] = field(repr=False)
    start: int = 0
    end: int = 0
    block: int = 0
    label: int = 0
    line: str = ""
    context: str = ""

    @classmethod
    def of(cls, text: str) -> Piece:
        """Return a text that claims are looked up in."""
        return cls(text, dict.fromkeys(specific_terms(text)))

    @cached_property
    def whole_line(self) -> Piece:
        """The line of a note, with its context."""
        return Piece.of(f"{self.context} {self.line}")

    @cached_property
    def runs(self) -> list[set[str]]:
        """The terms of each name, and of each run of numbers (a date, say)."""
        last, rows = -1, list[set[str]]()
        for figure in figures(self.text):
            terms = {*specific_terms(figure.text), *(f"={value}" for value in figure.values)}
            if rows and self.text[last : figure.start].strip(" -–,/") in {"", "and", "to"}:
                rows[-1] |= terms
            else:
                rows.append(terms)
            last = figure.end
        named = self._names
        return [{term for word in run for term in word_terms(word)} for run in named] + rows

    def has(self, claim: Claim) -> bool:
        """Whether it has the name or number, in any of its forms."""
        if claim.figure is not None:
            values = claim.figure.values
            return not (self._values.isdisjoint(values) and self._simple.isdisjoint(values))
        if self.terms.keys() >= {*word_terms(claim.text)}:
            return True
        plain = _fold(claim.text)
        if len(plain) == 1:
            return any(each.startswith(plain) for each in self._words)
        return (
            plain in self._words
            or plain.removesuffix("s") in self._words
            or stem(plain) in self._stems
            or _kin(plain) in self._kin
            or plain in self._acronyms
        )

    @cached_property
    def letters(self) -> set[str]:
        """Pairs of adjacent characters in scripts without spaces."""
        rows = [] if self.text.isascii() else _UNSPACED.findall(self.text)
        return {row[place : place + 2] for row in rows for place in range(len(row) - 1)}

    @cached_property
    def _simple(self) -> set[str]:
        return {term[1:] for term in self.terms if term[0] == "="}

    @cached_property
    def _values(self) -> set[str]:
        return {value for one in figures(self.text) for value in (*one.values, *one.parts)}

    @cached_property
    def _names(self) -> list[list[str]]:
        """The names, each as the list of its capitalized words."""
        found, last = list[list[str]](), 0
        for match in _NAME_WORD.finditer(self.text):
            if found and self.text[last : match.start()] in _JOINTS:
                found[-1].append(match["word"])
            else:
                found.append([match["word"]])
            last = match.end()
        return found

    @cached_property
    def _words(self) -> set[str]:
        return {_fold(word) for word in _WORD.findall(self.text)}

    @cached_property
    def _stems(self) -> set[str]:
        return {stem(word) for word in self._words}

    @cached_property
    def _kin(self) -> set[str]:
        return {_kin(word) for word in self._words}

    @cached_property
    def _acronyms(self) -> set[str]:
        return {
            "".join(word[0] for word in run[start:end]).casefold()
            for run in self._names
            for start in range(len(run))
            for end in range(start + 2, min(start + _LONGEST_ACRONYM, len(run)) + 1)
        }


_LONGEST_ACRONYM = 8
_ENDINGS = ("ians", "ian", "ans", "an", "ese", "ish", "ic", "ies", "ia", "any", "y", "a", "o")
_SHORTEST_KIN = 4


@lru_cache(1 << 12)
def _fold(word: str) -> str:
    folded = word.replace("’", "'").removesuffix("'s").casefold()
    if folded.isascii():
        return folded
    marks = unicodedata.normalize("NFKD", folded)
    return "".join(sign for sign in marks if not unicodedata.combining(sign))


def _kin(word: str) -> str:
    """Return the stem that the names of a country and its people share: "canad"."""
    for ending in _ENDINGS if word.endswith(_ENDINGS) else ():
        if word.endswith(ending) and len(word) - len(ending) >= _SHORTEST_KIN:
            return word.removesuffix(ending)
    return word


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
    "unspaced": regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}]"),
    "latin": regex.compile(r"\p{Latin}"),
    "other": regex.compile(r"[^\P{L}\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}\p{Latin}]"),
}
MOST_READ = 2
"""Most sentences that one note rests on."""
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
    """The names and numbers of a note that nothing accounts for.

    Sentences next to the evidence account for others. A note in another script is not judged.
    """

    missing: tuple[str, ...]
    lent: tuple[Piece, ...]
    judged: bool


@dataclass(frozen=True)
class NoteJudge:
    """Compares notes with the sentences and older notes that they rest on.

    Names and numbers of the question need no evidence. The memory is that before the chunk.
    """

    question: Piece
    chunk: str
    memory: str

    def judge(
        self,
        note: Piece,
        said: Sequence[Piece],
        beside: Sequence[Piece],
        older: Sequence[Piece] = (),
        doubted: Sequence[str] = (),
    ) -> Judgement:
        """Compare a note with the sentences that it rests on and older notes that it rewrites.

        In the sentences beside, a pronoun may stand for a name. Of the older notes, some names and
        numbers are doubted: they have no source themselves.
        """
        fresh, lines = [self.question, *said], [item.whole_line for item in older]
        own, doubts = [*said, *lines], [*map(Piece.of, doubted)]
        missing: list[str] = []
        lent: dict[Piece, None] = {}
        for claim in claims(note.text):
            if _have(fresh, claim) or (_have(lines, claim) and not _have(doubts, claim)):
                continue
            lender = _lender(claim, said, beside)
            if lender is not None:
                lent[lender] = None
            elif self._holds(claim, note, own):
                missing.append(claim.text)
        if not note.text.isascii():
            near = _letters([*fresh, *beside])
            missing += self._split_unspaced(note.text, (_letters(lines) - _letters(doubts)) | near)
        compared = " ".join(item.text for item in own) if own else self.chunk
        own_scripts = scripts(note.text) if missing else None
        judged = not own_scripts or not own_scripts.isdisjoint(scripts(compared))
        room = max(MOST_READ - len(said), 0)
        return Judgement(tuple(missing), tuple(lent)[:room], judged)

    def _holds(self, claim: Claim, note: Piece, own: Sequence[Piece]) -> bool:
        """Whether a claim without a source counts against the note."""
        if claim.figure is not None:
            return not _counts(claim.figure, note.text, own)
        if self._has_noun_capitals:
            return False
        opens = claim.start < note.label
        if not (claim.doubtful or opens):
            return True
        return self._is_named(claim.text) or not (opens or self._is_ordinary(claim, note.text))

    def _is_named(self, word: str) -> bool:
        """Whether the text has the word capitalized inside a sentence."""
        within = regex.compile(rf"(?<=[\p{{Ll}},] ){regex.escape(word)}(?!\p{{L}})")
        return any(map(within.search, (self.chunk, self.memory)))

    def _is_ordinary(self, claim: Claim, text: str) -> bool:
        """Whether a word that opens a sentence is no name, judged by what follows it."""
        word, after = claim.text, text[claim.end : claim.end + 3]
        if word.endswith(_JUDGING_ORDINARY) or f" {word.lower()}" in self.chunk:
            return True
        follows = after[:2] in {" (", ", "} or after[1:2].isupper()
        owns = "'s" in text[claim.start : claim.end]
        return not (follows or owns or _OF_ONE.match(text, claim.end))

    @cached_property
    def _has_noun_capitals(self) -> bool:
        return sum(map(self.chunk.count, _CAPITALISING)) * 200 > len(self.chunk)

    def _split_unspaced(self, text: str, known: set[str]) -> Iterator[str]:
        """Chinese names without a source, in the text or elsewhere; pairs of which are known."""
        for start, end in _find_uncovered(text, known):
            found = text[start:end].strip(_EMPTY)
            is_long = len(found) >= _SHORTEST_ELSEWHERE
            stands = found[-1:] in _OF_A_NAME or found in self.chunk or found in self.memory
            if found and (_is_foreign(found, text, start, end) or (is_long and stands)):
                yield found


def _have(pieces: Sequence[Piece], claim: Claim) -> bool:
    return any(piece.has(claim) for piece in pieces)


def _letters(pieces: Sequence[Piece]) -> set[str]:
    return set[str]().union(*(piece.letters for piece in pieces))


def roots(text: str) -> set[str]:
    """Return the beginnings of a text's terms: "champion" and "championship" have one."""
    return {term[:_ROOT] for term in specific_terms(text)}


def may_share_language(one: str, other: str, but: Collection[str] = ()) -> bool:
    """Whether two texts may be in one language, by their shortest words but those given."""
    short = [{*_SHORT.findall(text.casefold())}.difference(but) for text in (one, other)]
    least = min(map(len, short))
    return least > 1 and len(short[0] & short[1]) >= _ALIKE * least


def is_in_language(question: str, text: str) -> bool:
    """Whether a longer text can be in the language of a question: in its script, with its words."""
    shared = scripts(question) & scripts(text)
    if shared != {"latin"}:
        return bool(shared)
    short, known = ({*_SHORT.findall(one.casefold())} for one in (question, text))
    return len(short) > 1 and len(short & known) >= _AKIN * len(short)


_ROOT = 5
_SHORT = regex.compile(r"(?<![\p{L}\p{M}\p{N}])\p{Ll}{1,3}(?![\p{L}\p{M}\p{N}])")
_ALIKE = 0.7
"""Share of a text's short words that a longer one in its language has."""
_AKIN = 0.5
"""Share of a question's short words that some pages in its language have."""


def _lender(claim: Claim, said: Sequence[Piece], beside: Sequence[Piece]) -> Piece | None:
    """The sentence next to the evidence that has a name, or a number about the same subject."""
    wanted = {*word_terms(claim.text)}
    for item in beside:
        follows = any(0 <= item.start - other.end <= _WIDEST_GAP for other in said)
        continues = follows and item.text.startswith(_PRONOUNS)
        if (continues and item.has(claim)) if claim.figure else wanted <= item.terms.keys():
            return item
    return None


_OF_ORDINARY = "ly ing ed tion ment ness ity ance ence ers ors ship"
_JUDGING_ORDINARY = tuple(_OF_ORDINARY.split())


def _counts(figure: Figure, text: str, own: Sequence[Piece]) -> bool:
    """Whether a number counts things that only the note names: "three reasons"."""
    if figure.values.isdisjoint(map(str, range(2, _MOST_COUNTED + 1))):
        return False
    if noun := _NOUN.match(text, figure.end):
        named = {*word_terms(noun[1])}
        is_own = all(named.isdisjoint(piece.terms) for piece in own)
        return noun[1] not in _MEASURES and noun[1].endswith("s") and is_own
    counted = _COUNTED.match(text, figure.end)
    return counted is not None and counted[1] not in _letters(own)


def _find_uncovered(text: str, known: set[str]) -> Iterator[tuple[int, int]]:
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


@lru_cache(16)
def scripts(text: str) -> frozenset[str]:
    """Return the scripts that a text is written in: "latin", "unspaced" or "other"."""
    if text.isascii():
        return frozenset({"latin"} if _LETTERS["latin"].search(text) else ())
    counts = {script: len(letters.findall(text)) for script, letters in _LETTERS.items()}
    total = sum(counts.values())
    return frozenset(script for script, count in counts.items() if count > _SHARE * total)


def may_be_translated(text: str, other: str) -> bool:
    """Whether another text may be a translation into another script.

    It has more than half of the numbers, and is at least about half as long.
    """
    if not scripts(text).isdisjoint(scripts(other)):
        return False
    had, has = ({*map(int, _DIGITS.findall(one))} for one in (text, other))
    kept = not had or len(had & has) > _TRANSLATED * len(had)
    lengths = [  # as if they were written in letters of an alphabet
        sum(_WIDE if unicodedata.east_asian_width(sign) in "WF" else 1 for sign in signs)
        for signs in ("".join(one.split()) for one in (text, other))
    ]
    return kept and lengths[1] >= _TRANSLATED * lengths[0]


_TRANSLATED = 0.5
"""Share of the numbers and of the length of a text that a translation has."""
_WIDE = 3
"""Letters of an alphabet that a character of a wide script stands for."""
_DIGITS = regex.compile(r"\d{1,9}")
