"""Find where each statement of a memory stands in the text: matched by words, without a model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, pairwise
from math import fsum
from typing import TYPE_CHECKING, Literal, NamedTuple

import regex

from memagent_graph.evidence.places import (
    LEAST_COVERED,
    NO_MATCH,
    Evidence,
    Match,
    Memory,
    Unsupported,
    evidence_by_note,
    index_notes,
    index_text,
    join_memories,
    locate,
    may_share_language,
    roots,
    scripts,
    with_text,
)
from memagent_graph.evidence.statements import Claim, Piece, note_terms, notes, passage_terms
from memagent_graph.text.chunks import Chunk
from memagent_graph.text.source import TextSource
from memagent_graph.text.terms import Figure, names, word_terms

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


State = Literal["supported", "unsupported", "unknown"]

_SAME = 0.9
"""A note rewrites an older one if that covers at least this share of what the chunk covers."""
_ADDED = 0.15
"""Share of a note's weight that the second basis (chunk or older notes) must add to count too."""
_MOST_REWRITTEN = 4
"""Most older notes that one note rewrites."""
_CLAUSE_END = regex.compile(r"[,;，；、][ ]?(?:(?:and|or|und|et|y)\s)?|\s(?:and|und|et|y)\s")
"""What stands between the parts of a list."""
_SAID = 0.6
"""Share of a clause's weight from which a single sentence says the same, in at least so many words
besides the name or number."""
_LEAST_SAID = 2

_FOUND_LATER = 0.6
"""Share of an older note's weight that a later chunk must cover to become its evidence."""
_ASKED = 0.5
"""Share of the question's words, and at least two, from which a note speaks of its subject."""
_BORROWED = 0.3
"""Share of these below which the text around a note's evidence does not speak of it."""
_AROUND = 8
"""Sentences before and after a note's evidence that may name its subject."""


@dataclass(frozen=True, slots=True)
class AlignedNote:
    """A sentence of a memory, as the memory has it, with its place there and its evidence.

    Attributes:
        state: "unsupported" if it has a name or number that nothing accounts for, or says of the
            question's subject what the text says of another; "unknown" if it cannot be judged,
            because it is in another script than the chunk or states nothing.
        missing: the names and numbers that nothing accounts for.
        evidence: places of the sentence in the document, best first.
        passage: the text of the evidence, after the older notes that it rewrites; "" if none.
        is_new: False for an older note without support, which this chunk supports after all.
    """

    text: str
    start: int
    end: int
    state: State
    missing: tuple[str, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    passage: str = ""
    is_new: bool = True


@dataclass(frozen=True)
class Aligned:
    """The text of a memory after an update, and the memory before it.

    Its `notes` are those that are new, changed, or supported for the first time.
    """

    text: str
    before: Memory
    notes: tuple[AlignedNote, ...] = ()

    @cached_property
    def memory(self) -> Memory:
        """The memory with evidence and marks: of notes that stayed, and of those aligned anew."""
        places: dict[str, int] = {}
        for note in notes(self.text):
            places.setdefault(note.text, note.start)
        found = [item for note in self.notes for item in note.evidence]
        evidence = sorted(
            dict.fromkeys((*with_text(self.text, self.before).evidence, *found)),
            key=lambda one: places[one.text] if one.text in places else self.text.find(one.text),
        )
        left = places.keys() - {note.text for note in self.notes}
        marks = [item for item in self.before.unsupported if item.text in left]
        missing = [note for note in self.notes if note.state == "unsupported"]
        marks += [Unsupported(note.text, note.missing) for note in missing]
        marks.sort(key=lambda item: places[item.text])
        return Memory(self.text, tuple(evidence), tuple(dict.fromkeys(marks)))

    @property
    def has_support(self) -> bool:
        """Whether anything of an answer stands in the memory, or nothing of it can be missing."""
        states = {note.state for note in self.notes}
        return "unsupported" not in states or "supported" in states


def align(text: str, before: Memory, chunk: Chunk, question: str) -> Aligned:
    """Find the evidence of each new or changed sentence of a memory, in the chunk that was read.

    Notes that stay as they were before keep their evidence. Names and numbers of the question need
    none.
    """
    cut, known = notes(text), {note.text for note in notes(before.text)}
    placed = evidence_by_note(with_text(text, before).evidence, cut)
    marked = {item.text for item in before.unsupported}
    new = [note for note in cut if note.text not in known]
    old = [at for at, note in enumerate(cut) if note.text in known]
    again = [cut[at] for at in old if at not in placed or cut[at].text in marked]
    if not (new or again):
        return Aligned(text, before)
    aligner = _Aligner(before, chunk, question)
    found = [*map(aligner.align, new), *filter(None, map(aligner.find, again))]
    return Aligned(text, before, tuple(found))


def carry(text: str, memories: Sequence[Memory], question: str) -> Aligned:
    """Align a merged memory with the memories that it was made of."""
    return align(text, join_memories(memories), Chunk("", 0, 0, 0, TextSource("")), question)


class _Aligner:
    """Aligns notes with one chunk and the memory before it."""

    def __init__(self, before: Memory, chunk: Chunk, question: str) -> None:
        self.chunk, self.unsupported = chunk, before.unsupported
        self.read, self.noted = index_text(chunk.text), index_notes(before.text)
        self.evidence = evidence_by_note(before.evidence, self.noted.items)
        self.marked = {item.text for item in before.unsupported}
        self.judge = NoteJudge(Piece.of(question), chunk.text, before.text)
        self.asked, self.subject = {*passage_terms(question)}, roots(question)
        known = [note.line for note in self.noted.items if note.text not in self.marked]
        self.known = "\n".join(known)

    def align(self, note: Piece) -> AlignedNote:
        wanted = self.read.want(note, self.asked)
        matched = self.read.match(wanted, MOST_READ)
        noted = self.noted.match(wanted, _MOST_REWRITTEN)
        read, noted = _choose(matched, noted, wanted.weights)
        lines = noted.pieces
        doubts = [one for line in lines for one in self.unsupported if one.text in line.line]
        doubted = [name for item in doubts for name in item.missing]
        judgement = self.judge.judge(note, read.pieces, read.beside, lines, doubted)
        if judgement.missing and not read.places and matched.covered >= LEAST_COVERED:
            # An older note in other words but for one value, which the chunk may state.
            again = self.judge.judge(note, matched.pieces, matched.beside, lines, doubted)
            if len(again.missing) < len(judgement.missing):
                read, judgement = matched, again
        texts, missing = [*read.pieces, *judgement.lent], judgement.missing
        if missing:
            listed, missing = self._look_up_clauses(note, missing)
            texts += [item for item in listed if item not in texts]
        state: State = "supported"
        if not judgement.judged or not (missing or texts or lines):
            state = "unknown"
        elif missing or (not texts and any(not item.missing for item in doubts)):
            state = "unsupported"
        if judgement.judged and self._borrows(note, read):
            state = "unsupported"
        kept = [item for number in noted.places for item in self.evidence.get(number, ())]
        return self._place(note, state, texts, missing, lines, kept)

    def find(self, note: Piece) -> AlignedNote | None:
        """Find support in the chunk for an older note that has none; None if there is none."""
        read = self.read.match(self.read.want(note, self.asked), MOST_READ)
        if read.covered < _FOUND_LATER:
            return None
        judgement = self.judge.judge(note, read.pieces, read.beside)
        if judgement.missing or not judgement.judged:
            return None
        found = self._place(note, "supported", [*read.pieces, *judgement.lent])
        return replace(found, is_new=False)

    def _place(
        self,
        note: Piece,
        state: State,
        texts: Sequence[Piece],
        missing: tuple[str, ...] = (),
        lines: Sequence[Piece] = (),
        kept: Sequence[Evidence] = (),
    ) -> AlignedNote:
        source, begin = self.chunk.source, self.chunk.start
        places = [locate(note.text, source, begin + one.start, begin + one.end) for one in texts]
        places += [one if one.text == note.text else replace(one, text=note.text) for one in kept]
        rests_on = [line.text for line in lines if line.text not in self.marked]
        passage = " ".join([*rests_on, *(item.text for item in texts)])
        evidence = tuple(dict.fromkeys(places))
        return AlignedNote(note.text, note.start, note.end, state, missing, evidence, passage)

    def _look_up_clauses(
        self, note: Piece, missing: Sequence[str]
    ) -> tuple[list[Piece], tuple[str, ...]]:
        """Sentences that say what clauses of a note say, and the names and numbers that none has.

        A note may list what more sentences say than it can rest on as a whole.
        """
        found: list[Piece] = []
        said, doubted = set[str](), set[str]()
        clauses = _CLAUSE_END.split(note.text)
        for clause in clauses if len(clauses) > 1 else ():
            part = replace(note, text=clause, terms=note_terms(clause), label=0)
            own = {claim.text for claim in part.claims}.intersection(missing)
            if not own:
                continue
            match = self.read.match(self.read.want(part, self.asked), 1)
            words = match.terms.difference(*map(note_terms, own))
            is_said = match.covered >= _SAID and len(words) >= _LEAST_SAID
            if is_said and not self.judge.judge(part, match.pieces, match.beside).missing:
                said |= own
                found += match.pieces
            else:
                doubted |= own
        return found, tuple(name for name in missing if name in doubted or name not in said)

    def _borrows(self, note: Piece, read: Match) -> bool:
        """Whether a note is about the question's subject, and the text it rests on is of another.

        A text that names nobody else may go on about the document's subject without naming it.
        """
        own = roots(note.text)
        asked = own & self.subject
        if len(asked) < max(2, _ASKED * len(self.subject)):
            return False
        near = [range(max(place - _AROUND, 0), place + _AROUND + 1) for place in read.places]
        numbers = sorted({*chain(*near)} & {*range(len(self.read.items))})
        shown = [self.read.items[number].text for number in numbers] or [self.chunk.text]
        spoken = asked & roots("\n".join([self.known, *shown]))
        if len(spoken) >= _BORROWED * len(asked):
            return False
        if not may_share_language(note.text, f"{self.known}\n{self.chunk.text}", asked):
            return False
        return any(own.isdisjoint(roots(name)) for sentence in shown for name in names(sentence))


def _choose(read: Match, noted: Match, weights: Mapping[str, float]) -> tuple[Match, Match]:
    """Choose what a note rests on: the chunk, older notes, or both."""
    read, noted = (one if one.covered >= LEAST_COVERED else NO_MATCH for one in (read, noted))
    first, other = (noted, read) if noted.covered >= _SAME * read.covered else (read, noted)
    added = fsum(weights[term] for term in other.terms - first.terms)
    if added < _ADDED * fsum(weights.values()):
        other = NO_MATCH
    return (other, first) if first is noted else (first, other)


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
MOST_READ = 2
"""Most sentences that one note rests on."""
_WIDEST_GAP = 2
"""Most code points between a sentence and the one that continues it."""
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
        for claim in note.claims:
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
        for text in (self.chunk, self.memory):
            at = 0
            while (at := text.find(f" {word}", at)) >= 0:
                before, after = (
                    text[max(at - 1, 0) : at],
                    text[at + 1 + len(word) : at + 2 + len(word)],
                )
                if (before == "," or before.islower()) and not after.isalpha():
                    return True
                at += 1
        return False

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
        pairs = [at for at in range(start, end - 1) if text[at : at + 2] in known]
        covered = [start - 1, *sorted({*pairs, *(at + 1 for at in pairs)}), end]
        for before, after in pairwise(covered):
            if after - before - 1 > 1:
                yield before + 1, after


def _is_foreign(found: str, text: str, start: int, end: int) -> bool:
    is_foreign = len(found) > 1 and _FOREIGN.issuperset(found)
    is_dotted = not {*"·・•"}.isdisjoint(text[max(start - 1, 0) : end + 1])
    return is_foreign or is_dotted or text[start - 1 : start] in {"《", "「", "『"}
