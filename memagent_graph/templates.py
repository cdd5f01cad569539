"""Fill templates with text that nobody vouches for, and messages with numbers."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

import regex

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from types import ModuleType


class _Late:
    """A pattern that is compiled when one of its methods is first looked up."""

    def __init__(self, *made: Any) -> None:
        self.made = made

    def __getattr__(self, name: str) -> Any:
        library, *made = self.made
        value = getattr(library.compile(*made), name)
        setattr(self, name, value)
        return value


def late(text: str, flags: int = 0, library: ModuleType = regex) -> regex.Pattern[str]:
    """Return a pattern that is compiled on first use: a large one takes 5 to 20 ms at import."""
    return cast("regex.Pattern[str]", _Late(library, text, flags))


_TAG = re.compile(r"</?([A-Za-z][\w-]*+)[^<>]*+>")
_GAP = r"\s*+"
"""White space with which a delimiter may be disguised; invisible characters are left out before."""
_CHAT_TAGS = frozenset({"think", "thinking", "reasoning", "tool_call", "tool_response"})


def render(template: str, **values: str) -> str:
    """Fill a template's fields, in braces; no value closes its tags or brings in another field."""
    return fill(template, {name: disarm(value, template) for name, value in values.items()})


def fill(template: str, values: Mapping[str, str]) -> str:
    """Fill a template's fields with values that are disarmed already."""
    # In one pass, so that a field's name in a value stays a piece of text.
    return re.sub(rf"\{{({'|'.join(values)})\}}", lambda match: values[match[1]], template)


_SURROGATE = re.compile("[\ud800-\udfff]")


def count_line_ends(text: str, start: int = 0, end: int | None = None) -> int:
    """Return the number of line ends: LF, CRLF or CR alone."""
    return (
        text.count("\n", start, end) + text.count("\r", start, end) - text.count("\r\n", start, end)
    )


def same_line_ends(text: str) -> str:
    """Return a text of the same length in which a line that ended with CR alone ends with LF."""
    return _LONE_CR.sub("\n", text) if "\r" in text else text


_LONE_CR = re.compile(r"\r(?!\n)")


def replace_surrogates(text: str) -> str:
    """Return `text` with U+FFFD for each lone surrogate, which UTF-8 does not have.

    JSON that cut an emoji in half has them, and file names that are not UTF-8.
    """
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


CONTROLS = frozenset(
    {
        *range(0x20),
        *range(0x7F, 0xA0),
        # With marks of direction, a text reads other than it is; separators begin lines.
        *{0x61C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x2070)},
        # In annotations and tags, a text can hide that only machines read.
        *{*range(0xFFF9, 0xFFFC), *range(0xE0000, 0xE0080)},
    }
)
"""Code points with which a text could act on what shows it."""
_ESCAPES = {code: chr(code).encode("unicode_escape").decode() for code in CONTROLS}


def escape_controls(text: str) -> str:
    """Return a text of one line, with escapes for what could act on what shows it."""
    return text.translate(_ESCAPES)


def disarm(value: str, template: str, control: Collection[str] = ()) -> str:
    """Return `value` without forged delimiters: another sign in their place reads as before.

    Delimiters are the template's tags, those of a model's reasoning and tool calls, and the control
    tokens of chat templates, which servers read even in the text of a message. They are found in
    disguise too: with invisible characters or accents, or in full-width or look-alike characters.
    Lone surrogates are replaced, or no prompt could be sent. All other text stays as it is.

    The `control` tokens are those of the model's tokenizer; those of known shapes count anyway.
    """
    forged = _forgery_pattern(template, frozenset(control))
    value = replace_surrogates(forged.sub(_replace, value))
    if value.isascii() and not _COMMANDS.search(value):
        return value

    def unmask(suspect: regex.Match[str]) -> str:
        sign, rest = suspect[0], suspect[suspect.lastindex or 0]
        plain = sign.isascii() and rest.isascii() and not _INVISIBLE.search(rest)
        return sign if plain or not any(map(forged.match, _readings(sign + rest))) else "‹"

    return _SUSPECT.sub(unmask, value)


def _replace(found: re.Match[str]) -> str:
    sign = found[0]
    return f"{sign}‹" if sign.isalnum() else "‹"


def _readings(text: str) -> Iterator[str]:
    """The texts that a model may take this for: ASCII where it looks so, nothing invisible."""
    yield _INVISIBLE.sub("", unicodedata.normalize("NFKD", text)).translate(_LOOK_ALIKES)
    if (spelled := text.translate(_TAG_LETTERS)) != text:
        yield from _readings(spelled)


_HIDDEN = (
    "\0-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2"
    "\u0300-\u036f\u0483-\u0489\u0591-\u05bd\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f"
    "\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u2800\u3164"
    "\ud800-\uf8ff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\ufffe\uffff\U000110bd\U000110cd"
    "\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d165-\U0001d182\U000e0000-\U0010ffff"
)
"""Controls, formats, fillers, tag characters, variation selectors, private use, and accents."""
_INVISIBLE = re.compile(f"[{_HIDDEN}]")
_COMMANDS = re.compile("[\0-\x08\x0e-\x1b\x7f]")
"""Those in ASCII."""
_TAG_LETTERS = {0xE0000 + code: chr(code) for code in range(0x20, 0x7F)}
_ALIKE = {
    "<": "＜﹤≮˂ᐸ❮❬⟨〈〈\U000e003c",
    ">": "＞﹥≯˃ᐳ❯❭⟩〉〉›\U000e003e",
    "[": "［\U000e005b",
    "]": "］\U000e005d",
    "|": "｜￨∣ǀ│┃❘❙⏐",
    "/": "／⁄∕⧸╱⟋",
    "\\": "＼﹨∖⧵⧹",
    "_": "＿▁",
    "-": "－‐‑‒–—−",
}
_ALIKE_LETTERS = """
aаαաᴀɑ bвβЬʙ cсϲᴄςⅽ dԁժᴅđ eеёєεᴇҽ fꜰƒ gɡցɢ hһհнʜħ iіιıɪɩ jјյᴊȷ kкκᴋ lӏłʟ mмᴍ nпոηɴ oоοօᴏø
pрρᴘ qԛգ rгᴦʀ sѕꜱ tтτᴛŧ uυսᴜ vѵνᴠ wԝωᴡ xхχ yуүγʏ zᴢ AАΑᎪ BВΒᏴ CСϹᏟ DᎠ EЕΕᎬ GԌᏀ HНΗᎻ IІΙӀᎥ
JЈᎫ KКΚᏦ LᏞ MМΜᎷ NΝ OОΟՕ PРΡᏢ RᏒ SЅՏᏚ TТΤᎢ UՍ VѴᏙ WԜᎳ XХΧ YУΥ ZΖᏃ
"""
"""Each letter, and others that look like it."""
_ALIKE |= {letters[0]: letters[1:] for letters in _ALIKE_LETTERS.split()}
_LOOK_ALIKES = str.maketrans({alike: sign for sign, some in _ALIKE.items() for alike in some})

_LESS, _MORE = "<" + _ALIKE["<"], ">" + _ALIKE[">"]
_OPEN, _SHUT = r"\[" + _ALIKE["["], r"\]" + _ALIKE["]"]
_ANGLED = rf"(?:[{_HIDDEN}]*+[{_LESS}])?+(?:[{_HIDDEN}]*+[^{_HIDDEN}{_LESS}{_MORE}]){{0,64}}+"
_SQUARE = rf"(?:[{_HIDDEN}]*+[^{_HIDDEN}{_OPEN}{_SHUT}]){{1,40}}+"
_SUSPECT = late(
    rf"[{_LESS}](?=({_ANGLED}(?:[{_HIDDEN}]*+[{_MORE}]){{0,2}}+))"
    rf"|[{_OPEN}](?=({_SQUARE}[{_HIDDEN}]*+[{_SHUT}{_OPEN}]))"
    rf"|[{_SHUT}](?=([{_HIDDEN}]*+[~!{_LESS}～！](?:[{_HIDDEN}]*+[^{_HIDDEN}]){{1,32}}))",
    library=re,
)
"""What may be a delimiter in disguise, with as much after it as a delimiter has."""

_ROLES = "user|assistant|system|human|bot|tool|function|observation|developer"
_SPECIAL = "bos|eos|unk|pad|sep|cls|sop|eop|eod|eot|eom|eoh|eoa|bom|mask|gmask"
_NUMBERED = "extra_id|unused|unused_token|ctrl|control|special|special_token|placeholder|sentinel"
_NUMBERED += "|dummy|mask|reserved|reserved_token|reserved_special_token|tokens_unused|loc|seg"
_PARTS = "start|end|pad|sep|begin|break|token|soft_token|content"
_ANGLE = "|".join(
    (
        # <|im_start|>, <| end of text |>, <|turn>, <turn|>
        r"/?\s?\|\s*[\w.:/-]+(?:\s[\w.:/-]+){0,4}\s*\|\s*>",
        r"/?\|[\w.:/|-]+>",
        r'\|"\|>',
        r"\w{2,40}\|>",
        r"/?s>",
        r"(?:AI|用户)>",
        r"role>(?=(?:HUMAN|USER|ASSISTANT|SYSTEM|OBSERVATION|TOOL)\b)",
        r"\[(?:PLHD|(?:begin|end)_of_|\w+_never_used)\w*\]>",
        rf"(?i:</?(?:sys|inst|func|{_ROLES})>>)",
        r"</?(?!EOF)[A-Z][A-Z_]{2,19}>>",
        "/?(?:"
        + "|".join(
            (
                rf"(?:[a-z]+:)?(?:{_SPECIAL}|{_SPECIAL.upper()})(?:_(?:token|TOKEN))?",
                rf"(?:{_NUMBERED}|{_NUMBERED.upper()})_?\d+",
                r"(?:start|begin|end)_?of_?[a-z]\w*",
                r"(?:\w+:)?(?:tool|function)_(?:calls?|responses?|results?|outputs?)",
                r"(?:function|parameter)=[\w.-]+",
                r"(?:im|fim|longcat)_\w+",
                rf"_(?:{_ROLES}|bos|eos|start|end)",
                r"seed:\w+",
                r"arg_(?:key|value)",
                rf"(?:vision|image|img|audio|video|box|quad|object_ref|speech)_(?:{_PARTS})",
                r"(?:jupyter|commit)_(?:start|text|code|output|before|msg|after)",
                r"file_sep|repo_name|gh_stars|issue_(?:start|comment|closed)",
            )
        )
        + r")\s?>",
    )
)
_BERT = r"BOS|EOS|SEP|CLS|PAD\d*|MASK|UNK|EOT|[gsd]MASK|[uU]nused\d+|UNUSED_TOKEN_\d+|extra_id_\d+"
_BRACKET = "|".join(
    (
        r"\s?/?(?:INST|THINK|SYSTEM_PROMPT|AVAILABLE_TOOLS|MODEL_SETTINGS|CALL_ID)\s?\]",
        r"\s?/?(?:TOOL_[A-Z_]+|IMG(?:_[A-Z]+)?)\s?\]",
        r"(?:BEGIN|END)_(?:OF_[A-Z]+|AUDIO|IMAGE|IMG|INST|TOOL[A-Z_]*)\]",
        r"(?:ARGS|SUFFIX|PREFIX|MIDDLE)\](?=[\w{#/])",  # not those of a command's usage
        r"(?:control|SPECIAL)_\d+\]|(?:start|end)_header_id\]",
        rf"(?<![\w)\]]\[)(?:{_BERT})\]",
        r"\|\s*/?[A-Za-z][\w ]{2,}\|\]",
        r"@[A-Z]+@\]",
        r"[a-z]~\[",
    )
)
_CONTROL = (
    rf"<(?={_ANGLE})|\[(?={_BRACKET})"
    r"|\](?=~!?[a-z]\]|~![a-z]\[|![a-z]~\[|<\][\w -]{1,30}\[>\[)"
    r"|>(?=>[A-Z]{4,14}<<)"
)
"""Control tokens of chat templates, by their shapes."""


@lru_cache(maxsize=64)
def _forgery_pattern(template: str, control: frozenset[str] = frozenset()) -> re.Pattern[str]:
    """Return what finds forged delimiters of a template or of chats, by their first sign."""
    tags = {match[1].lower() for match in _TAG.finditer(template)}
    names = "|".join(map(_spaces_between, sorted(tags | _CHAT_TAGS, reverse=True)))
    name, slash = rf"(?i:{names})[_-]*+(?!\w)", rf"(?:[/\\]{_GAP})++"
    # "a < notes" is a comparison, unless a tag follows that ends.
    tag = rf"(?:(?:{_GAP}{slash})?+{name}|\s++{name}[^<>]{{0,200}}>)"
    own = sorted(filter(_is_own, control), reverse=True)
    others = (rf"{re.escape(token[0])}(?={re.escape(token[1:])})" for token in own)
    return re.compile(
        "|".join((f"<(?={tag})", rf"&(?=(?i:lt|#0*60|#x0*3c);{tag})", _CONTROL, *others))
    )


def _is_own(token: str) -> bool:
    """Whether a tokenizer's token needs to be looked for besides the shapes."""
    return (
        bool(token.strip()) and (len(token) > 1 or not token.isalnum()) and not _SHAPE.match(token)
    )


_SHAPE = late(_CONTROL, library=re)


def _spaces_between(name: str) -> str:
    return _GAP.join(map(re.escape, name))


_PLURALS = {
    "page whose fonts name no letters": "pages whose fonts name no letters",
    "page with a picture": "pages with a picture",
    "person": "people",
}
"""Plurals that follow no rule."""


def plural(number: float, noun: str) -> str:
    """Return a number with its noun: "1 version", "2,000 memories", "0.5 minutes"."""
    if number == 1:
        return f"1 {noun}"
    plural = _PLURALS.get(noun)
    if plural is None:
        ends_in_ies = noun.endswith("y") and noun[-2:-1] not in "aeiou"
        plural = f"{noun[:-1]}ies" if ends_in_ies else f"{noun}s"
    figure = f"{number:,}" if isinstance(number, int) else f"{number:g}"
    return f"{figure} {plural}"
