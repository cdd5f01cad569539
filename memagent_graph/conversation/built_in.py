"""The built-in reader of conversations: keeps the newest statements of users."""

from __future__ import annotations

import json
from copy import copy
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import regex

from memagent_graph.conversation.messages import CONTEXT, TOOL, USER, lines_of
from memagent_graph.errors import ConfigurationError
from memagent_graph.evidence.places import Memory
from memagent_graph.evidence.statements import instant, statements
from memagent_graph.readers.base import Update
from memagent_graph.readers.extractive import ExtractiveReader
from memagent_graph.text.terms import figures, names, specific_terms, terms

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from langchain_core.runnables import RunnableConfig

    from memagent_graph.config import ReadingConfig
    from memagent_graph.conversation.messages import Line
    from memagent_graph.readers.base import Step
    from memagent_graph.text.chunks import Chunk
    from memagent_graph.text.tokens import Tokenizer

_FIRST_PERSON = regex.compile(
    r"(?i)\b(?:I|me|my|mine|we|us|our|ours|ich|mir|mein\p{L}*|wir|unser\p{L}*|je|moi|mon|mes|nous"
    r"|notre|nos|yo|mis?|nosotr[oa]s|nuestr[oa]s?)\b|\bj['’]|我|私|俺|僕"
)
_QUESTION = regex.compile(r"[?？؟][\"”’)]*$")
_CLAUSE_END = regex.compile(r"[,;:.!…]\s+|\s[-–—]\s|[，、；：]")
_REQUEST = regex.compile(
    r"(?i)^\W*(?:please\b|(?:tell|show|give|help|remind) me\b|explain\b|let['’]s\b"
    r"|(?:can|could|would|will|should|do|does|did|is|are)"
    r" (?:you|we|i|it|they|there|the|this|that)\b"
    r"|(?:what|how|why|who|where|when|which)"
    r"(?:['’]s| (?:is|are|was|were|do|does|did|can|could|should|would|will)\b))"
    r"|\bplease\W*$"
)
_PASSING = regex.compile(
    r"(?i)\b(?:(?:for|in) (?:this|the (?:current|present)) (?:\w++ )?(?:answer|article|chat|code"
    r"|conversation|document|draft|e-?mail|essay|exercise|letter|message|one|paragraph|poem|post"
    r"|question|reply|report|response|session|story|summary|task|text|translation|turn)"
    r"|just (?:this once|(?:for )?(?:now|today))|only (?:this (?:once|time)|for (?:now|today))"
    r"|this time (?:only|around))\b"
)
"""What an instruction says that holds for one task alone."""
_ENDED = regex.compile(r"\[ends (?P<day>\d{4}-\d\d-\d\d)\]")
_LAST_ZONE = timedelta(hours=12)
"""From the end of a day in UTC to its end everywhere."""
_MARK = regex.compile(r"\[(?:image|audio|video|file|document|media|content)(?:: [^\]]{0,2000}+)?\]")
"""A mark in place of an attachment, such as "[image]"."""

_IDLE = frozenset(
    terms(
        "alright cheers fine haha hm hmm lmao lol m no not np omg rofl s thx ty ugh worry yup "
        "aren couldn d didn doesn don hasn haven isn ll re shouldn t ve wasn weren won wouldn"
    )
)
"""Words, and ends of shortened ones, that say nothing where nothing else is said."""
_GREETING = _IDLE | set(terms("morning afternoon evening night later tomorrow soon"))
"""The same, unless somebody says it of themselves."""

_INSTRUCTING = frozenset(
    terms(
        "remember remembering note noting store storing save saving record memory forget mention "
        "ignore detail details information info data topic subject user users person regarding"
    )
)
"""Words of an instruction that are not what it is about."""

_SMALL_TALK = frozenset(
    term
    for line in (
        "absolutely again agree always amazing anything appreciate awesome back bad believe best",
        "better big bit bring bye care chat check come congratulations congrats cool could couple",
        "course day deal definitely easy else enjoy enough even ever everyone everything exactly",
        "excited exciting experience fact fantastic feel feeling find fine forward fun give glad",
        "go going good gonna got gotta great guess guy ha haha happen happy hard hear hello help",
        "hey hi hope idea important incredible inspiring interesting keep kidding know let life",
        "like little long look lot love luck make maybe mean mind moment much need never new news",
        "nice now oh ok okay overall people perfect person place plan point pretty proud put real",
        "really right said say see seem share show someone something sorry sound special start",
        "stay still stuff super support sure sweet take talk thank thanks thing think thought",
        "time totally tough try understand use very wait want watch way welcome well wish wonder",
        "wonderful work world worth would wow yeah yep yes yet",
    )
    for term in terms(line)
)


@lru_cache(1 << 12)
def is_statement(text: str) -> bool:
    """Whether a sentence states something: it is no question, no request and no small talk.

    The rule knows English best; of other languages it knows question marks.
    """
    text = _MARK.sub(" ", text).strip()
    said = _plain_words(text)
    if said <= _IDLE or (said <= _GREETING and not _FIRST_PERSON.search(text)):
        return False
    return not (_asks(text) or _requests(text) or _PASSING.search(text))


def _asks(text: str) -> bool:
    """Whether a sentence asks, and says nothing of the one who asks before that."""
    asks = _QUESTION.search(text) is not None
    return asks and not any(map(_is_of_oneself, _CLAUSE_END.split(text)[:-1]))


def _requests(text: str) -> bool:
    """Whether a sentence is a request that says nothing of the one who makes it."""
    return _REQUEST.search(text) is not None and not _is_of_oneself(_REQUEST.sub(" ", text))


def _is_of_oneself(text: str) -> bool:
    return _FIRST_PERSON.search(text) is not None and _is_checkable(text)


def drop_ended(memory: str) -> str:
    """Return notes without the lines whose end ("[ends 2026-03-05]") has passed."""
    if "[ends " not in memory:
        return memory
    today = (datetime.now(UTC) - _LAST_ZONE).date().isoformat()
    lines = memory.splitlines(keepends=True)
    return "".join(
        line for line in lines if not any(m["day"] < today for m in _ENDED.finditer(line))
    ).strip("\n")


def topics(instruction: str) -> frozenset[str]:
    """Return the topics of an instruction: its terms except for grammar and small talk."""
    return frozenset(_plain_words(instruction) - _INSTRUCTING)


def _plain_words(statement: str) -> set[str]:
    """Its words that are neither grammar nor small talk."""
    return {t for t in specific_terms(statement) if t not in _SMALL_TALK and "'" not in t}


_VERSION = "newest-2"
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_DAY = regex.compile(rf"(?P<day>\d\d?) (?P<month>{'|'.join(_MONTHS)})(?: (?P<year>\d{{4}}))?")


class NewestReader(ExtractiveReader):
    """Keeps the newest statements of users that have room in the memory.

    The memory is one statement a line, below the day on which it was made ("5 Mar 2026"); the
    statements of users with a name stand below that ("@Bo"). Questions, requests and small talk
    are no statements, and neither is what the assistant or a tool said. No statement takes the
    place of another: which of two is true now, their days say. What has no room is still found
    among the passages that are kept word for word. Statements with a word of `keep` stay before all
    others; those with one of `never` are left out.
    """

    quotes = True
    warnings: tuple[str, ...] = ()

    def __init__(
        self,
        config: ReadingConfig | None = None,
        tokenizer: Tokenizer | None = None,
        *,
        keep: str = "",
        never: str = "",
    ) -> None:
        super().__init__(config, tokenizer)
        self._wanted, self._banned = topics(keep), topics(never)
        if never.strip() and not self._banned:
            message = (
                f"The built-in reader leaves out statements by their words, and never={never!r} "
                "has no word to match: name some, or a model that understands it."
            )
            raise ConfigurationError(message)
        record = json.dumps([_VERSION, sorted(self._wanted), sorted(self._banned)])
        self.identity = self._identity(record)
        self._times: Mapping[str, str] = {}

    def for_one_fold(self, _: object, __: object, times: Mapping[str, str]) -> NewestReader:
        """Return this reader with the times of statements, by which those of one day are sorted."""
        one = copy(self)
        one._times = times  # noqa: SLF001 - its own
        return one

    async def update(self, step: Step, *, config: RunnableConfig | None = None) -> Update:
        """Keep the newest statements of the memory and the chunk together."""
        return self._add(step.memory, UserStatements(step.chunk).all)

    def _add(self, memory: Memory, new: Iterable[Remark]) -> Update:
        known = [*read_remarks(memory.text)]
        kept = self._newest([*known, *new])
        return Update(None if kept == known or not kept else Memory(write_remarks(kept)))

    def _rank(self, _: Remark) -> float:
        """How much a statement counts before its day does."""
        return 0.0

    def _newest(self, facts: list[Remark]) -> list[Remark]:
        """The newest facts that fit into the memory, in its order; wanted ones come first."""
        known = _once(fact for fact in facts if self._banned.isdisjoint(terms(fact.text)))
        known.sort(key=lambda one: (*_place(one), instant(self._times.get(one.text, ""))))
        ranks = [(self._rank(one), one.day, at) for at, one in enumerate(known)]
        order = [at for _, _, at in sorted(ranks, reverse=True)]
        if self._wanted:
            order.sort(key=lambda index: self._wanted.isdisjoint(terms(known[index].text)))
        left, marks = self.memory_tokens, set[str]()
        chosen = []
        for index in order:
            new = {key: text for key, text in known[index].marks.items() if key not in marks}
            left -= sum(map(self._counter.count, (known[index].text + "\n", *new.values())))
            if left < 0:
                break
            marks.update(new)
            chosen.append(index)
        return [known[index] for index in sorted(chosen)]


class Remark(NamedTuple):
    """A statement, with the day on which it was made, if known, and by whom."""

    day: str
    speaker: str
    text: str

    @property
    def marks(self) -> dict[str, str]:
        """The words above it, which it shares with others of the speaker, the year and the day."""
        by = self.speaker
        found = {} if by == USER else {by: f"@{by}\n"}
        if self.day:
            found |= {f"{by} {self.day[:4]}": f" {self.day[:4]}"}
            found |= {f"{by} {self.day}": _format_day(self.day, before=self.day) + "\n"}
        return found


def read_remarks(memory: str) -> Iterator[Remark]:
    """The remarks of a memory; each line of one that a chat model has written is a remark."""
    day = year = ""
    speaker = USER
    for line in memory.splitlines():
        if heading := _DAY.fullmatch(line):
            year = heading["year"] or year
            day = f"{year}-{_MONTHS.index(heading['month']) + 1:02}-{int(heading['day']):02}"
        elif line.startswith("@"):
            speaker, day = line[1:], ""
        elif line.strip():
            yield Remark(day, speaker, line)


def find_said(chunk: Chunk) -> Iterator[tuple[Line, str]]:
    """Yield what users say in a chunk, and the line of it."""
    for one in lines_of(chunk):
        if one.role == USER:
            at = max(one.words, chunk.start)
            yield one, chunk.source.read(at, min(one.end, chunk.end) - at)


class UserStatements:
    """The statements of users in a chunk of a conversation.

    `all` has the statements among their sentences, `stated` those that name something, have a
    number, or say several other things. A sentence that they mark as quoted, in a fence, a row of a
    table, behind ">" or below the header of a mail, is none.
    """

    def __init__(self, chunk: Chunk) -> None:
        messages = [*find_said(chunk)]
        self._names = {term for line, _ in messages for term in terms(line.speaker)}
        self.all, self._quoted = list[Remark](), list[str]()
        self._told = list[list[str]]()
        for line, text in messages:
            told = list[str]()
            for part, is_own in _split_quoted(text):
                sentences = (one for row in part.splitlines() for one in _sentences(row))
                place = told if is_own else self._quoted
                place += [one for one in sentences if not _asks(one)]
            self._told.append(told)
            # A day would pass for one of the memory's own lines.
            stated = (one for one in told if is_statement(one) and not _DAY.fullmatch(one))
            self.all += [Remark(line.at[:10], line.speaker, one) for one in stated]
        self.stated = [one for one in self.all if _is_checkable(one.text)]

    def supports(self, text: str) -> bool:
        """Whether users state most of the words of a text, in a sentence or in two in a row."""
        wanted = {*specific_terms(text)} - self._names
        return any(_has_most(wanted, told) for told in self._told)

    def quotes(self, text: str) -> bool:
        """Whether users quote most of the words of a text, and state them in no sentence."""
        wanted = {*specific_terms(text)} - self._names
        return _has_most(wanted, self._quoted) and not self.supports(text)


def _split_quoted(text: str) -> Iterator[tuple[str, bool]]:
    """Yield the parts of a message, and whether they are its author's own words by their marks."""
    end = 0
    for found in _QUOTED.finditer(text):
        yield text[end : found.start()], True
        yield found[0], False
        end = found.end()
    yield text[end:], True


_QUOTED = regex.compile(
    r"""^[ \t]*+(?:
    (?P<fence>```|~~~)[^\n]*+(?:\n(?![ \t]*+(?P=fence))[^\n]*+)*+(?:\n[^\n]*+)?
    |[>|][^\n]*+
    |From:[^\n]*+\n(?:[ \t]*+[\w-]++:[^\n]*+\n){0,8}?[ \t]*+(?:To|Sent|Date|Subject):[\s\S]*+
    )""",
    regex.MULTILINE | regex.VERBOSE,
)


def _has_most(wanted: Collection[str], said: Sequence[str]) -> bool:
    """Whether one of some sentences, or two in a row, has most of some terms."""
    both = [" ".join(said[at : at + 2]) for at in range(len(said) - 1)]
    shared = [len({*wanted}.intersection(specific_terms(text))) for text in (*said, *both)]
    return any(shared) and max(shared) >= _SUPPORTED * len(wanted)


_SUPPORTED = 0.7
"""Share of a sentence's words that the user's has, too."""
_SEVERAL = 2
"""Least words, besides grammar and small talk, of a statement that a reply should not pass over."""


def _is_checkable(text: str) -> bool:
    return bool(names(text) or figures(text)) or len(_plain_words(text)) >= _SEVERAL


def find_speaker(chunk: Chunk, at: int) -> str:
    """Return who says what ends at an offset; "" for the user."""
    line = next((one for one in lines_of(chunk) if one.start < at <= one.end), None)
    return "" if line is None or line.speaker == USER else line.speaker


def find_message(chunk: Chunk, statement: str) -> int:
    """Return the number of a user's last message with a statement; 0 if there is none."""
    read, found = chunk.source.read, 0
    for number, one in enumerate(lines_of(chunk), 1):
        if one.role == USER and statement in read(one.start, one.end - one.start):
            found = number
    return found


def find_why_not(chunk: Chunk, *, small: bool) -> Callable[[str, int], str]:
    """Return what says why a text is no fact of a chunk's users, by the word of a `small` model.

    It takes the text, and the offset at which what states it ends; 0 if that is not known.
    """
    heard, others = UserStatements(chunk), [o for o in lines_of(chunk) if o.role in (TOOL, CONTEXT)]

    def why_not(text: str, at: int) -> str:
        if heard.quotes(text):
            return "only quoted by a user"
        doubted = small or any(one.start < at <= one.end for one in others)
        return "said by no user" if doubted and not heard.supports(text) else ""

    return why_not


def withdraw(memory: str, replaced: Iterable[tuple[str, str, str]]) -> str:
    """Return a memory without statements that their speakers took back.

    Of each edited message, `replaced` has the day, the text before, and the text now.
    """
    gone: set[tuple[str, tuple[str, ...]]] = set()
    for day, before, now in replaced:
        stay = {*map(_words, _sentences(now))}
        gone |= {(day, words) for words in map(_words, _sentences(before)) if words not in stay}
    facts = [*read_remarks(memory)]
    left = [fact for fact in facts if (fact.day, _words(fact.text)) not in gone]
    return memory if len(left) == len(facts) else write_remarks(left)


def _sentences(text: str) -> list[str]:
    return [statement.text.lstrip("@ ") for statement in statements(text)]


def _once(facts: Iterable[Remark]) -> list[Remark]:
    """Facts by speaker and day, each once a day whatever its case and punctuation."""
    kept: dict[tuple[str, str, tuple[str, ...]], Remark] = {}
    for fact in facts:
        kept.setdefault((fact.speaker, fact.day, _words(fact.text)), fact)
    return sorted(kept.values(), key=_place)


def _place(fact: Remark) -> tuple[bool, str, str]:
    return fact.speaker != USER, fact.speaker, fact.day


@lru_cache(1 << 12)
def _words(statement: str) -> tuple[str, ...]:
    """Return the terms of a statement, which are equal if only case and punctuation differ."""
    return tuple(terms(statement)) or (statement,)


def write_remarks(facts: Sequence[Remark]) -> str:
    """The reverse of `read_remarks`."""
    lines: list[str] = []
    day, speaker = "", USER
    for fact in facts:
        if fact.speaker != speaker:
            speaker, day = fact.speaker, ""
            lines.append(f"@{speaker}")
        if fact.day != day:
            lines.append(_format_day(fact.day, day))
            day = fact.day
        lines.append(fact.text)
    return "\n".join(lines)


def _format_day(day: str, before: str = "") -> str:
    """Format a day as "5 Mar 2026", without the year if the day before has it too, to save room."""
    year, month, number = day.split("-")
    short = f"{int(number)} {_MONTHS[int(month) - 1]}"
    return short if before.startswith(year) else f"{short} {year}"
