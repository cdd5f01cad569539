"""Parse what a reply says besides its notes: that nothing is new, or what to look for next.

A line counts only if it says nothing else: notes that merely contain such words are notes.

A model that does not do what it was asked writes the prompt's own words, one line over and over, an
apology, or notes without what it had noted before. None of that may cost what is known already.
Everything here is a rule over words: it takes texts and returns texts, and calls no model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import regex

from memagent_graph.evidence.places import may_be_translated, scripts
from memagent_graph.evidence.statements import leave_out, notes, statements
from memagent_graph.templates import NO_MEMORY, UNCHANGED, late
from memagent_graph.text.terms import specific_terms, terms

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from memagent_graph.readers.base import Fault


def is_unchanged(reply: str) -> bool:
    """Whether a whole reply says only that the notes are unchanged."""
    return reply.strip(_AROUND_A_WORD).casefold() in {UNCHANGED, NO_MEMORY.casefold()}


_AROUND_A_WORD = " \t\n\r.*\"'`“”"
"""Characters that models put around a single word."""


# --- Answers that give nothing

_LONGEST = 400
"""Code points above which an answer is taken to hold one."""
_NOTES = (
    r"(?:notes?|text|document|passages?|context|memory|sections?|information|sources?|material)"
)
_TOLD = (
    r"(?:provided?|given|mention\w*|stated?|specif\w+|found|contain\w*|said|say|hold|held|included?"
    r"|available|known|determin\w+|answer\w*|indicat\w+|reveal\w*|disclos\w+|giv\w+|tell|told|list\w*"
    r"|present|recorded|noted|clear)"
)
_DENIAL = late(
    rf"""
    ^\W*(?:unknown|unclear|unanswerable|not\s+{_TOLD}|no\s+(?:answer|information|data|mention)
      |none\s+(?:found|given|mentioned)|n/a|insufficient|undetermined|nothing\s+{_TOLD})\b
    |\b{_NOTES}\b[^.!?]{{0,60}}\b(?:do(?:es)?\s+not|don['’]t|doesn['’]t|did\s+not|didn['’]t
      |(?:has|have|had|is|are|was|were)\s+no[tn]?e?|hasn['’]t|lacks?)\b
    |\bnot\s+(?:explicitly\s+|directly\s+|specifically\s+|been\s+)*{_TOLD}\b
      (?:\s+\w+){{0,3}}\s+(?:in|by|from|within)\s+(?:the|my|these|any|our)\s+{_NOTES}\b
    |\b(?:can\s*not|can['’]t|could\s+not|couldn['’]t|unable\s+to|impossible\s+to)\s+(?:be\s+)?
      (?:determin\w+|answer\w*|find|found|tell|say|identif\w+|infer\w*|know|establish\w*)\b
    |\b(?:there\s+is|i\s+have|i\s+found|i\s+find|contains?|provides?|holds?)\s+(?:no|not\s+enough
      |insufficient)\s+(?:\w+\s+){{0,2}}(?:answer|information|mention|data|details?|evidence)\b
    |\bi\s+(?:do\s+not|don['’]t)\s+know\b
    |未提及|没有提[及到]|未提到|未提供|没有提供|没有给出|未给出|无法(?:确定|回答|得知|判断|找到|知道)
    |不(?:知道|清楚|确定|详)|未知|没有(?:找到|相关|答案|记载|说明|关于)|找不到|并未|无相关|无从得知
    """
    r"""
    |\b(?:text|notiz|dokument|angaben|tekst|notit|notat|текст)\w*\b[^.!?]{0,60}
      \b(?:nicht|keine?[nrs]?|nichts|niet|geen|nie|не)\b
    |\b(?:texte|notes|document|texto|notas|documento|testo|note)\b[^.!?]{0,60}
      \b(?:n['’]|(?:ne|no|não|non)\b)
    |\b(?:nicht|n['’]\w+\s+pas|non?|não|не|niet|nie)\s+(?:\w+\s+){0,3}
      (?:erwähn|genannt|angegeben|bekannt|mention|précis|indi[cq]|sp[eé]cifi|conn?u|menciona|especifi
      |menzionat|not[oa]\b|vermeld|genoemd|bekend|указан|упом|сказан|извест|podan|znan|wspomn)\w*
    |\b(?:keine|aucune?|não\s+há|no\s+hay|нет|brak|geen)\s+(?:\w+\s+){0,2}
      (?:angabe|inform|antwort|réponse|mention|respuesta|respost|ответ|данн|odpowied)\w*
    |\b(?:weiß\s+(?:ich\s+|es\s+)*nicht|je\s+ne\s+sais\s+pas|no\s+(?:lo\s+)?sé|não\s+sei|non\s+(?:lo\s+)?so
      |не\s+знаю|weet\s+(?:ik\s+)?het\s+niet|staat\s+niet\s+in|nie\s+wiem)\b
    |^\W*(?:unbekannt|inconnue?|desconocid[oa]|desconhecid[oa]|sconosciut[oa]|неизвестно|onbekend)\W*$
    |belirtilmemiş|bahsedilm[ei]|bilinmiyor|bilmiyorum|bilgi\s+(?:yok|bulunm)|yer\s+almıyor
    |غير\s+(?:مذكور|معروف|محدد)|لم\s+(?:يذكر|يُذكر|تذكر|يتم\s+ذكر)|لا\s+(?:يذكر|أعرف|تذكر|توجد\s+معلومات)
    |उल्लेख\s+नहीं|जानकारी\s+नहीं|पता\s+नहीं|अज्ञात
    |không\s+(?:được\s+)?(?:đề\s+cập|nêu|biết|có\s+thông\s+tin|rõ)|tidak\s+(?:disebutkan|diketahui|ada\s+informasi)
    |(?:記載|言及|記述|情報)[^。]{0,8}(?:ありません|ない|ません)|不明(?:です|\W*$)
    |[わ分]かりません|答えられません|見つかりません|述べられていません
    |(?:언급|기재|명시|정보)[^.]{0,10}(?:않|없)|알\s*수\s*없|모르겠|모릅니다|나와\s*있지\s*않
    |(?:沒有?|未)提[及到]|無法(?:確定|回答|得知|判斷|找到|知道)|沒有(?:找到|相關|答案|記載|說明)
    """,
    regex.IGNORECASE | regex.VERBOSE,
)


def says_not_found(answer: str) -> bool:
    """Whether an answer says, in one of a dozen languages, that the answer is not known.

    This is a rule over words: a short answer that says what the notes lack counts too.
    """
    answer = answer.strip()
    if len(answer) > _LONGEST:
        return False
    return not answer or _DENIAL.search(answer) is not None


def says_nothing(answer: str, memory: str, question: str) -> bool:
    """Whether an answer gives nothing of the memory.

    It denies, refuses, or repeats the question or the prompt's placeholder; or the memory is empty.
    """
    said, asked = (" ".join(terms(text)) for text in (answer, question))
    bare = answer.strip(_AROUND_A_WORD).casefold()
    return (
        not memory.strip()
        or not said
        or said == asked
        or bare in {"empty", NO_MEMORY.casefold()}
        or says_not_found(answer)
        or (is_refusal(answer) and bare not in memory.casefold())
    )


# --- Replies that are to overwrite notes

_KEPT = 0.5
"""Share of a statement's words that notes must have to have kept it."""
_MOST_LOST = 0.5
"""Share of the old statements above which a loss is a fault."""
_SHARED = 0.1
"""Share of the words of notes below which they have nothing to do with what was read."""
_LEAST_JUDGED = 4
"""Least number of words from which notes can be called foreign."""
_SHORT = 300
"""Most code points of a sentence that is taken for a refusal, or says that nothing is new."""


class Overwrite(NamedTuple):
    """The notes in a reply, whether it says that nothing is new, and what speaks against them."""

    text: str
    unchanged: bool = False
    fault: Fault | None = None


def check_overwrite(
    reply: str,
    before: str,
    read: str,
    *,
    question: str = "",
    tags: Collection[str] = ("notes",),
    prompt: Sequence[frozenset[str]] = (),
    unfinished: bool = False,
) -> Overwrite:
    """Return the notes in a reply, and what speaks against overwriting the old ones with them.

    `read` is the chunk, `tags` are the prompt's delimiters and `prompt` the words of each of its
    sentences. Without a question, as in a memory of a user, no statement may be dropped; with one,
    those may that share no word with it. A reply that was cut off may lose none.
    """
    whole = notes_in(reply, tags=tags, question=question)
    text = _without_instructions(whole, prompt, read)
    if not text:  # without notes there may be none to take, but a whole reply is no copied prompt
        copied = whole and not unfinished
        fault: Fault | None = "placeholder" if before or copied else None
        return Overwrite("", unchanged=fault is None, fault=fault)
    if says_nothing_new(text) and text not in f"{before}\n{read}":
        return Overwrite("", unchanged=True)
    whole, text = text, without_loops(text)
    if len(whole) > _LOOPED * len(text) and not specific_terms(text):
        return Overwrite("", fault="repetition")
    if is_refusal(text) and text not in read:
        return Overwrite(text, fault="refusal")
    if before and is_foreign(text, [before, read, question]):
        return Overwrite(text, fault="foreign")
    lost = find_lost_statements(before, text)
    if lost and (unfinished or _is_loss(lost, before, text, question)):
        return Overwrite(text, fault="loss")
    return Overwrite(text)


# --- What models put round notes


def _without_instructions(text: str, said: Sequence[frozenset[str]], read: str) -> str:
    """Notes without sentences that repeat one of the prompt, and not of what was read."""

    def repeats(sentence: str) -> bool:
        has = key_words(sentence)
        if 0 < len(has) < _LEAST_JUDGED:  # a word of the prompt alone is no sentence of it
            return has in said and sentence not in read
        least = max(_REPEATED * len(has), 1)
        return any(len(has & own) >= least for own in said) and sentence not in read

    repeated = {note.text for note in notes(text) if repeats(note.text)}
    return leave_out(text, repeated).strip() if repeated else text


def key_words(sentence: str) -> frozenset[str]:
    """Return the words of a sentence by which a repetition of it is known."""
    return frozenset(term for term in specific_terms(sentence) if not term.isdigit())


_REPEATED = 0.8
"""Share of a sentence's words that a sentence of the prompt has, if it is repeated."""


def notes_in(reply: str, *, tags: Collection[str] = ("notes",), question: str = "") -> str:
    """Return the notes in a reply, without a fence and what it repeats of the prompt's frame."""
    text = _without_echoes(reply, tags, question)
    while (fenced := _FENCE.match(text)) and fenced["mark"] not in fenced["inside"]:
        text = fenced["inside"].strip()
    return text if any(map(str.isalnum, text)) else ""


_PLACEHOLDER = regex.compile(
    r"(?:[(\[]\s*+)?empty\s*+[:,]?\s*+this is the first section\s*+[)\]]?\.?"
    r"|^[^\w\n]*+(?:empty|none|no notes(?: yet)?|n/a|null)[^\w\n]*+$",
    regex.IGNORECASE | regex.MULTILINE,
)
_FENCE = regex.compile(
    r"\A(?P<mark>```|~~~)[\w-]*\n(?P<inside>.*?)(?:\n?(?P=mark)\s*)?\Z", regex.DOTALL
)


def _without_echoes(reply: str, tags: Collection[str], question: str) -> str:
    """A reply without the prompt's own delimiters, placeholder, and question in tags or alone."""
    names = "|".join(map(regex.escape, sorted({*tags, "notes"})))
    text = reply
    said = text.casefold()
    if question.strip() and all(word in said for word in question.casefold().split()):
        asked = r"\s+".join(map(regex.escape, question.split()))
        text = regex.sub(rf"<(\w+)>\s*{asked}\s*</\1>", "", text)
        alone = rf"^[^\w\n]*+(?:question[^\w\n]*+)?{asked}[^\w\n]*+$"
        text = regex.sub(alone, "", text, flags=regex.IGNORECASE | regex.MULTILINE)
    text = _without_tags(text, names) if "<" in text else text
    if "first section" in said:
        return _PLACEHOLDER.sub("", text).strip()
    lines = text.split("\n")
    return "\n".join("" if _PLACEHOLDER.fullmatch(line) else line for line in lines).strip()


def _without_tags(text: str, names: str) -> str:
    """A text without tags that have a line for themselves, or stand at its beginning or end."""
    tag = regex.compile(rf"</?(?:{names})>", regex.IGNORECASE)
    lines = [line for line in text.split("\n") if line.strip() == "" or tag.sub("", line).strip()]
    text = "\n".join(lines).strip()
    while found := tag.match(text):
        text = text[found.end() :].lstrip()
    while (at := text.rfind("<")) >= 0 and tag.fullmatch(text, at):
        text = text[:at].rstrip()
    return text


# --- Replies that are no notes, in English: the language of the prompts

_NOTHING_NEW = regex.compile(
    r"""[\s"'`*_(\[]*+(?:
    (?:(?:the\s+)?notes\s+)?(?:(?:are|remain)\s+)?unchanged
    |no\s+changes(?:\s+(?:needed|required))?|nothing\s+new
    |(?:there\s+(?:is|are)\s+)?no\s+(?:new|further|additional|relevant)\s+
      (?:information|facts|details)\b[^\n.]{0,80}
    |(?:the|this)\s+(?:section|text|conversation|message)\s+
      (?:adds\s+nothing|(?:does\s+not|doesn['’]t)\s+(?:add|contain|mention|provide))\b[^\n.]{0,120}
    )[\s"'`*_)\].]*+""",
    regex.IGNORECASE | regex.VERBOSE,
)
_REFUSAL = regex.compile(
    r"""[\s"'`*_(]*+(?:
    (?:i['’]m\s+sorry|i\s+am\s+sorry|sorry|unfortunately)\b[^\n]{0,40}?
      \b(?:can(?:no|['’])t|can\s+not|unable|not\s+able|won['’]t)\b
    |i\s+(?:can(?:no|['’])t|can\s+not|am\s+unable\s+to|won['’]t)\s+
      (?:answer|assist|comply|continue|fulfill?|help|process|provide)\b
    |as\s+an\s+ai\b
    )""",
    regex.IGNORECASE | regex.VERBOSE,
)


def is_refusal(text: str) -> bool:
    """Whether a short text is a model's refusal, in English."""
    return len(text) <= 2 * _SHORT and _REFUSAL.match(text) is not None


def says_nothing_new(text: str) -> bool:
    """Whether a text says that nothing is new, in English, and nothing else."""
    return len(text) <= _SHORT and _NOTHING_NEW.fullmatch(text) is not None


# --- Repetition

_LOOPED = 3
"""Times that something must be repeated in a row to be a loop; phrases once more."""
_LEAST_LOOPED, _WORDLESS = 24, 400
"""Least code points of a loop: "ha ha ha" is none; and of one without a letter, such as scores."""
_LINE_LOOP = regex.compile(
    r"""^(?:[ \t]*+(?P<mark>```|~~~)[^\n]*+\n(?:(?![ \t]*+(?P=mark))[^\n]*+\n)*+(?:[^\n]*+\n)?
    |(?P<once>(?:[ \t]*+\n){0,39}+[^\n]++\n(?:[^\n]*+\n){0,39}?)(?P=once){2,})""",
    regex.MULTILINE | regex.VERBOSE,
)
"""Code, or lines that are repeated."""
_PHRASE_LOOP = regex.compile(r"(?rs)(?P=once){3,}(?P<once>.{2,200}?)\Z")  # matched from the end


def without_loops(text: str) -> str:
    """Return a text with lines and phrases that repeat themselves in a row said once.

    Lines that differ in anything, a day for example, are not repeated, and neither is code.
    """
    lines = _LINE_LOOP.sub(_say_once, f"{text}\n").strip()
    return str(_PHRASE_LOOP.sub(_say_once, lines, 1).strip())


def _say_once(found: regex.Match[str]) -> str:
    once = found["once"]
    if once is None or "```" in once or "~~~" in once:
        return found[0]
    least = _LEAST_LOOPED if any(map(str.isalpha, once)) else _WORDLESS
    return once if len(found[0]) >= least else found[0]


# --- What notes share with what was known


def is_foreign(text: str, known: Sequence[str]) -> bool:
    """Whether notes share nothing with any of the known texts.

    Notes in another script than all of these share no word, and are not called foreign.
    """
    said = {*specific_terms(text)}
    if len(said) < _LEAST_JUDGED:
        return False
    shared: set[str] = set()
    for other in sorted(known, key=len):  # mostly, the short ones show it
        shared |= said.intersection(specific_terms(other))
        if len(shared) >= max(1, _SHARED * len(said)):
            return False
    return not scripts(text).isdisjoint(scripts("\n".join(known)))


def find_lost_statements(before: str, after: str) -> list[str]:
    """Return the statements of the old notes that the new ones do not have, in order.

    Of notes that may be translated none counts as lost.
    """
    if may_be_translated(before, after):
        return []
    has = set(_terms(after))
    lost = []
    for statement in statements(before):
        said = _terms(statement.text)
        kept = len(has.intersection(said)) >= _KEPT * len(said)
        if said and not kept and statement.text not in after:
            lost.append(statement.text)
    return lost


def _terms(text: str) -> list[str]:
    """Terms of notes, without the days before them, which many notes share."""
    return specific_terms(_DAY.sub("", text) if "-" in text else text)


_DAY = regex.compile(r"\b\d{4}-\d\d-\d\d\b")


def with_lost_statements(before: str, after: str, *, first: bool = True) -> str:
    """Return new notes with what they lost of the old ones, before or after them, line by line."""
    lost = find_lost_statements(before, after)
    parts = [*lost, after] if first else [after, *lost]
    return "\n".join(filter(None, parts))


def adds_anything(text: str, before: str, read: str) -> bool:
    """Whether notes say something of the text that was read which the old ones did not have.

    Who speaks in a conversation is nothing that is said, and neither is the t of "isn't".
    """
    new = {*_terms(text)}.difference(_terms(before), _ALPHABET)
    return bool(new) and not new.isdisjoint(_terms(_SPEAKS.sub("", read)))


_ALPHABET = "abcdefghijklmnopqrstuvwxyz"
_SPEAKS = regex.compile(r"^\[\d{4}-\d\d-\d\d[^\]\n]*\] [^:\n]{1,80}: ", regex.MULTILINE)


def _is_loss(lost: Sequence[str], before: str, after: str, question: str) -> bool:
    """Whether so much is gone that the model cannot have meant it.

    What does not bear on the question may go. Notes that say as much about it as before may have
    been put in other words.
    """
    had = [statement.text for statement in statements(before)]
    most = len(lost) > _MOST_LOST * len(had)
    if not question:
        return most
    asked, kept = set(specific_terms(question)), set(specific_terms(after))
    known = asked & set(specific_terms(before))
    gone = asked & {term for one in lost for term in specific_terms(one)} - kept
    return bool(gone) and (most or len(known & kept) < _MOST_LOST * len(known))


# --- Values that say nothing

_GIVEN = (
    r"(?:specified|mentioned|stated|given|provided|available|(?:yet\ )?known|found|listed"
    r"|indicated|disclosed|defined|described|reported|shared|set|applicable|determined|said|sure)"
)
_NOT_SAID = late(
    rf"""
    \W*(?:(?:is\ |was\ )?(?:not|none|nothing|never)[ _-](?:been\ |yet\ )?{_GIVEN}(?:\ yet)?
      |unspecified|unknown|undefined|undisclosed|n\W?/?\W?a|nil|null|nan|tb[ad]|k\.?\W?a
      |to\ be\ {_GIVEN}|no\ (?:information|info|mention|data|value|details)(?:\ {_GIVEN})?
      |nicht\ (?:angegeben|genannt|bekannt|erwähnt)|unbekannt|keine\ (?:angaben?|informationen)
      |(?:non|pas)\ (?:précisé|spécifié|indiqué|mentionné|renseigné|connu)e?s?|inconnue?s?
      |(?:no|não|non)\ (?:e?specific|mencion|indic|proporcion|menzion|inform)ad?t?[oae]
      |des(?:conoc|conhec)id[oa]|sconosciut[oa]|niet\ (?:opgegeven|vermeld|bekend)|onbekend
      |неизвестно|не\ указано|未提及|未知|未说明|未提供|不详|不明|无|無|なし|없음
    )?\W*(?:\ (?:in\ (?:the|this)|by\ the)\ (?:section|text|document|conversation|user)\W*)?
    """,
    regex.IGNORECASE | regex.VERBOSE,
)
_NONE = late(
    r"\W*(?:no|none|nothing|keine?[nrs]?|nichts|aucune?|ningun[oa]|nessun[oa])\W*", regex.I
)


def is_not_said(value: str) -> bool:
    """Return whether a value is what models write in place of one that the text does not name."""
    return bool(_NOT_SAID.fullmatch(value))


def is_none(value: str) -> bool:
    """Return whether a value is a word for none, which may be one of several to choose from."""
    return bool(_NONE.fullmatch(value))
