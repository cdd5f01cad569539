r"""The prompts, which are filled with what is read.

Templates are plain text with fields in braces. Whatever is put into a field can neither close the
template's own delimiters nor bring in another field.
"""

from __future__ import annotations

import json
import re
import unicodedata
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, PrivateAttr, ValidationError, model_validator

from memagent_graph import templates
from memagent_graph.errors import ConfigurationError
from memagent_graph.text.terms import replace_surrogates

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

_FIELD = re.compile(r"\{(question|memory|memories|chunk|words|passages)\}")
_ANY_FIELD = re.compile(r"\{\w+\}")
_TAG = re.compile(r"</?\w+>")
SHORTER = 0.8
"""Share of the available words that is named after notes were too long."""
_WORDS = 0.7
"""Words of English that a token is worth, on the safe side."""

_FIELDS: dict[str, tuple[set[str], set[str]]] = {
    "update": ({"question", "chunk"}, {"memory", "words"}),
    "answer": ({"question", "memory"}, {"passages"}),
    "merge": ({"question", "memories"}, {"words"}),
    **dict.fromkeys(("shorter", "repeat", "unchanged"), (set(), {"words"})),
}
"""Fields of each prompt that it needs, and that it may have."""


class Prompts(BaseModel):
    r"""The prompts of a chat model.

    Attributes:
        update: prompt of an update; has the fields {question}, {memory} and {chunk}, and may have
            {words}, the number of words that the memory has room for. Without {memory} the reply
            is what the chunk says: it is added to the memory, which is merged when it is full.
        answer: prompt of the answer; has the fields {question} and {memory}, and {passages} if it
            shows passages of the document as well, as the library's own does. The answer is taken
            from the reply's last `\boxed{...}`, or is the whole reply when there is none.
        merge: prompt that merges several memories; has the fields {question} and {memories},
            and may have {words}.
        shorter: addition to the update's prompt when the last reply was over the budget; may
            have the field {words}.
        repeat: addition to the update's prompt when the last reply was no notes, or had lost most
            of the old ones; has no field.
        unchanged: addition to the update's prompt if the update gate is on; has no field, and
            names the reply "unchanged".

    Examples:
        >>> from memagent_graph import Prompts
        >>> prompts = Prompts(answer="Notes: {memory}\n\nAnswer in one word: {question}")
        >>> print(prompts.for_answer("Who signed?", "Ann Kestrel signed."))
        Notes: Ann Kestrel signed.
        <BLANKLINE>
        Answer in one word: Who signed?
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    update: str = templates.UPDATE_PROMPT
    answer: str = templates.ANSWER_PROMPT
    merge: str = templates.MERGE_PROMPT
    shorter: str = templates.SHORTER_PROMPT
    repeat: str = templates.REPEAT_PROMPT
    unchanged: str = templates.UNCHANGED_PROMPT
    _control: frozenset[str] = PrivateAttr(default=frozenset())

    @model_validator(mode="after")
    def _has_its_fields(self) -> Prompts:
        for name, (needed, more) in _FIELDS.items():
            found = {*_FIELD.findall(getattr(self, name))}
            if not needed <= found <= needed | more:
                message = (
                    f"The {name} prompt has the fields {sorted(found)} and needs {sorted(needed)}, "
                    "each in braces."
                )
                raise ConfigurationError(message)
        if templates.UNCHANGED not in self.unchanged:
            message = f'The unchanged prompt must ask for "{templates.UNCHANGED}".'
            raise ConfigurationError(message)
        return self

    def __init__(self, **own: str) -> None:
        try:
            super().__init__(**own)
        except ValidationError as error:
            message = "; ".join(found["msg"] for found in error.errors())
            raise ConfigurationError(message) from error

    @classmethod
    def additive(cls) -> Prompts:
        """Return prompts with which a model says what each chunk adds to its memory.

        By default it writes the whole memory again, as in the paper. Adding suits small models
        (docs/benchmarks.md): what they have noted is not theirs to lose, and they cannot
        repeat it in place of reading. Replies are shorter, and chunks that add nothing cost a word.
        """
        return cls(update=templates.ADD_PROMPT)

    @classmethod
    def from_file(cls, path: str | Path) -> Prompts:
        """Load prompts from a JSON or YAML file whose keys are the names of prompts.

        Raises:
            ConfigurationError: The file cannot be read, or a prompt lacks a field.
        """
        import yaml

        try:
            text = Path(path).read_text("utf-8")
            load = json.loads if Path(path).suffix == ".json" else yaml.safe_load
            return cls(**load(text))
        except (OSError, TypeError, ValueError, yaml.YAMLError) as error:
            message = f"No prompts in {path}: {error}"
            raise ConfigurationError(message) from error

    @property
    def adds(self) -> bool:
        """Whether an update's reply is added to the memory, rather than overwriting it."""
        return "{memory}" not in self.update

    @property
    def shows_passages(self) -> bool:
        """Whether the answer's prompt has room for passages: the library's, or one that says so."""
        own = self.answer not in {templates.ANSWER_PROMPT, templates.PLAIN_ANSWER_PROMPT}
        return not own or "{passages}" in self.answer

    @property
    def fingerprint(self) -> str:
        """Stands for all templates."""
        return sha256(self.model_dump_json().encode()).hexdigest()[:16]

    def guard_against(self, tokens: Collection[str]) -> Prompts:
        """Return prompts in which no value can forge one of these control tokens.

        Those of known shapes are guarded against in any case.
        """
        guarding = self.model_copy()
        guarding._control = self._control.union(tokens)  # noqa: SLF001 - of the same class
        return guarding

    def for_update(
        self,
        question: str,
        memory: str,
        chunk: str,
        budget: int,
        *,
        again: bool = False,
        repeat: bool = False,
        gate: bool = False,
    ) -> str:
        """Make the prompt that asks for the memory after `chunk`, of at most `budget` tokens.

        `again` if the last reply was over the budget, `repeat` if it was no notes; the `gate` lets
        the reply say that the chunk adds nothing.
        """
        values = {"question": question, "memory": memory or templates.NO_MEMORY, "chunk": chunk}
        values = self._disarm(values, self.update)
        prompt = fill(self.update, {**values, "words": _words(budget)})
        # Behind the same words as before, which a server still has in its cache.
        if self.adds:
            is_own = self.repeat != templates.REPEAT_PROMPT
            again_prompt = self.repeat if is_own else templates.REPEAT_ADD_PROMPT
            return prompt + (again_prompt if repeat else templates.NOTHING_PROMPT * gate)
        if again:
            return prompt + fill(self.shorter, {"words": _words(SHORTER * budget)})
        if repeat:
            return prompt + self.repeat
        return prompt + self.unchanged * gate

    @property
    def instructions(self) -> list[str]:
        """The texts that ask for notes, without fields and delimiters."""
        own = (self.update, self.merge)
        additions = (self.shorter, self.repeat, self.unchanged)
        texts = [part for template in own for part in _TAG.split(template)]
        return [_ANY_FIELD.sub("", text) for text in (*texts, *additions)]

    def for_answer(self, question: str, memory: str, passages: Sequence[str] = ()) -> str:
        """Make the prompt that asks for the answer; `passages` are in the document's order."""
        end = templates.PASSAGES_ENDS.get(self.answer)
        return self._ask(self.answer, question, memory, passages, end)

    def for_structured_answer(
        self, question: str, memory: str, passages: Sequence[str] = ()
    ) -> str:
        """Make the prompt of a structured answer, from the caller's `answer` if there is one."""
        own = self.answer != templates.ANSWER_PROMPT
        template = self.answer if own else templates.STRUCTURED_ANSWER_PROMPT
        return self._ask(template, question, memory, passages, None if own else templates.NO_VALUE)

    def for_pictures(self, question: str, memory: str, marks: Sequence[str], most: int) -> str:
        """Make the prompt that asks which pictures, at most `most`, the answer needs again."""
        values = {"question": question, "memory": memory, "pictures": "\n".join(marks)}
        asked = templates.LOOK_AT_PROMPT
        return fill(asked, {**self._disarm(values, asked), "most": str(most)})

    def for_merge(self, question: str, memories: Sequence[str], budget: int) -> str:
        """Make the prompt that asks for one memory of `budget` tokens in place of `memories`."""
        part = templates.PART_OF_MERGE
        delimiters = self.merge + part
        parts = [fill(part, self._disarm({"memory": memory}, delimiters)) for memory in memories]
        asked = self._disarm({"question": question}, delimiters)
        values = {"memories": "\n\n".join(parts), "words": _words(budget)}
        return fill(self.merge, {**asked, **values})

    def fill_in(self, template: str, chunk: str) -> str:
        """Fill a template that has the field {chunk} alone."""
        return fill(template, self._disarm({"chunk": chunk}, template))

    def _ask(
        self, template: str, question: str, memory: str, passages: Sequence[str], end: str | None
    ) -> str:
        """Fill the template of an answer; the library's own, which has an `end`, if need be."""
        if passages and end is not None:
            template = (templates.PASSAGES_AND_NOTES if memory else templates.PASSAGES) + end
        values = {"question": question, "memory": memory or templates.NO_MEMORY}
        values["passages"] = templates.BETWEEN.join(passages) or templates.NO_PASSAGES
        return fill(template, self._disarm(values, template))

    def _disarm(self, values: Mapping[str, str], delimiters: str) -> dict[str, str]:
        return {name: disarm(text, delimiters, self._control) for name, text in values.items()}


def default_prompts(*names: str, exact: bool = False) -> Prompts:
    """Return the prompts with which a model reads, if untrained, by the first name with its size.

    A small model is asked for what each chunk adds, any other for the whole memory, as in the
    paper, and with `exact` cuts all. A name, hub id or path says the size as in
    "Qwen2.5-0.5B-Instruct".
    """
    for name in (name.rstrip("/").rpartition("/")[2].casefold() for name in names):
        sizes = [
            float(size["number"]) / (1000 if size["unit"] == "m" else 1)
            for size in _SIZE.finditer(name)
        ]
        if sizes or "memagent" in name:
            is_small = "memagent" not in name and max(sizes) <= _SMALL
            return Prompts.additive() if is_small and not exact else Prompts()
    return Prompts()


_SIZE = re.compile(
    r"(?<![^\W_])(?<!\.)(?P<number>\d{1,4}(?:\.\d{1,3})?(?=b)|\d{3}(?=m))(?P<unit>[bm])(?![^\W_])"
)
_SMALL = 2.0
"""Billions of parameters up to which a model keeps more if it only adds to its notes. It was
measured with 0.5 and 1.5: docs/benchmarks.md."""


def _words(budget: float) -> str:
    return str(max(1, int(_WORDS * budget)))


# --- What is put into a prompt

_DELIMITER = re.compile(r"</?([A-Za-z][\w-]*+)[^<>]*+>")
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
    if (value.isascii() and not _COMMANDS.search(value)) or not _OPENER.search(value):
        return value

    spelled = value.translate(_TAG_LETTERS)
    found = {at for text in {value, spelled} for at in _find_masked(text, value, forged)}
    signs = enumerate(value) if found else ()
    return "".join("‹" if at in found else sign for at, sign in signs) or value


def _find_masked(text: str, value: str, forged: re.Pattern[str]) -> Iterator[int]:
    """Yield where delimiters in disguise begin in a text, which spells the value's tag letters."""
    for suspect in _SUSPECT.finditer(text):
        start, end = suspect.start(), suspect.end(suspect.lastindex or 0)
        seen = value[start:end]
        is_plain = seen.isascii() and not _INVISIBLE.search(seen)
        if not is_plain and forged.match(_unmask(text[start:end])):
            yield start


def _replace(found: re.Match[str]) -> str:
    sign = found[0]
    return f"{sign}‹" if sign.isalnum() else "‹"


def _unmask(text: str) -> str:
    """Return what a model may take a text for: ASCII where it looks so, nothing invisible."""
    return _INVISIBLE.sub("", unicodedata.normalize("NFKD", text)).translate(_LOOK_ALIKES)


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
    "<": "＜﹤≮˂ᐸ❮❬⟨〈〈",
    ">": "＞﹥≯˃ᐳ❯❭⟩〉〉›",
    "[": "［",
    "]": "］",
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
_OPENER = re.compile(f"[{_LESS}{_OPEN}{_SHUT}\U000e0020-\U000e007e]")
_ANGLED = rf"(?:[{_HIDDEN}]*+[{_LESS}])?+(?:[{_HIDDEN}]*+[^{_HIDDEN}{_LESS}{_MORE}]){{0,64}}+"
_SQUARE = rf"(?:[{_HIDDEN}]*+[^{_HIDDEN}{_OPEN}{_SHUT}]){{1,40}}+"
_SUSPECT = templates.late(
    rf"[{_LESS}](?=({_ANGLED}(?:[{_HIDDEN}]*+[{_MORE}]){{0,2}}+))"
    rf"|[{_OPEN}](?=({_SQUARE}[{_HIDDEN}]*+[{_SHUT}{_OPEN}]))"
    rf"|[{_SHUT}](?=([{_HIDDEN}]*+[~!{_LESS}～！](?:[{_HIDDEN}]*+[^{_HIDDEN}]){{1,32}}))",
    library=re,
)
"""What may be a delimiter in disguise, with as much after it as a delimiter has."""

_ROLES = "user|assistant|system|human|bot|tool|function|observation|developer"
_SPECIALS = "bos|eos|unk|pad|sep|cls|sop|eop|eod|eot|eom|eoh|eoa|bom|mask|gmask"
_NUMBERED = "extra_id|unused|unused_token|ctrl|control|special|special_token|placeholder|sentinel"
_NUMBERED += "|dummy|mask|reserved|reserved_token|reserved_special_token|tokens_unused|loc|seg"
_OF_PICTURES = "start|end|pad|sep|begin|break|token|soft_token|content"
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
                rf"(?:[a-z]+:)?(?:{_SPECIALS}|{_SPECIALS.upper()})(?:_(?:token|TOKEN))?",
                rf"(?:{_NUMBERED}|{_NUMBERED.upper()})_?\d+",
                r"(?:start|begin|end)_?of_?[a-z]\w*",
                r"(?:\w+:)?(?:tool|function)_(?:calls?|responses?|results?|outputs?)",
                r"(?:function|parameter)=[\w.-]+",
                r"(?:im|fim|longcat)_\w+",
                rf"_(?:{_ROLES}|bos|eos|start|end)",
                r"seed:\w+",
                r"arg_(?:key|value)",
                rf"(?:vision|image|img|audio|video|box|quad|object_ref|speech)_(?:{_OF_PICTURES})",
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
    tags = {match[1].lower() for match in _DELIMITER.finditer(template)}
    words = sorted(tags | _CHAT_TAGS, reverse=True)
    names = "|".join(_GAP.join(map(re.escape, word)) for word in words)
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


_SHAPE = templates.late(_CONTROL, library=re)
