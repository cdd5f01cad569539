"""No regular expression takes longer than its text is long: each is found, and attacked.

A pattern that is quadratic on a text of a stranger stops a server. So all calls of `re` and `regex`
in our packages are found in their source, and each must be listed here with texts that would be the
worst for it: beginnings in vain at each place, and runs that two parts of it could share out.
"""

from __future__ import annotations

import ast
import functools
import importlib
import re
import time
from collections import deque
from pathlib import Path

import pytest
import regex

from memagent_graph import prompts, templates

ROOT = Path(__file__).parents[1]
PACKAGES = [ROOT / "memagent_graph", *sorted(ROOT.glob("integrations/*/memagent_*"))]
PUMPS = ("a", "A", "a ", "Aa ", "1", " ", "\n", " \n", ".", '"', "'", "\\", "(", "<", "_a", "汉")
"""Of texts that every pattern is tried on."""
SIZE, TIMES = 4_000, 4
MOST = 2 * TIMES
"""How much longer a text may take that is four times as long; a quadratic one takes 16 times."""
BRIEF = 0.003
"""Seconds of processor in which no quadratic pattern gets through the longer text."""

WORST: dict[str, list[tuple[str, str, str]]] = {
    "memagent_graph.conversation.profile._LINE": [
        ("", "a", ""),
        ("", "2024-01-01 ", ""),
        ("a: ", "a", "\n"),
    ],
    "memagent_graph.pictures.picture.MARK": [("", "[picture 1", ""), ("", "[picture 1, p. 1", "")],
    "memagent_graph.pictures.picture._WHOLE_MARK": [
        ("", "[picture 1: ", ""),
        ("[picture 1: ", "a", "\n"),
    ],
    "memagent_graph.text.formats._DATA_URL": [
        ("", "data:image/a;base64,", ""),
        ("data:image/png;base64,", "A", ""),
        ("", "data:image/", ""),
    ],
    "memagent_graph.evidence.statements._NOT_SAID": [
        ("", "?", "a"),
        ("", "not ", ""),
        ("", "unknown in ", ""),
    ],
    "memagent_graph.facts.record._ISO": [("", "2021-0", "")],
    "memagent_graph.facts.record._NUMERIC": [("2021", "-1", ""), ("2021-01-01T10:00", "0", "a")],
    "memagent_graph.facts.record._DAY_FIRST": [("1. ", "1", ""), ("", "1.", "")],
    "memagent_graph.facts.record._FROM_TO": [("2021 ", "- ", ""), ("", "to ", ""), ("", " (", "")],
    "memagent_graph.facts.record._LABEL": [
        ("", " *", "a"),
        ("subject", "*", ""),
        ("object", " ", ""),
    ],
    "memagent_graph.facts.record._ASIDE": [("source", " ", ""), ("note:", "a", "\n")],
    "memagent_graph.facts.record._NAMED": [("1 of ", "a", ""), ("", "1st ", "")],
    "memagent_graph.facts.record._BAR": [("", "\\|", ""), ("", "|", "")],
    "memagent_graph.facts.record._ESCAPED": [("", "\\", "|")],
    "memagent_graph.facts.record._BARS": [("", "|", "")],
    "memagent_graph.facts.record._LIST_MARK": [("", "-", "a"), ("-", " ", "a")],
    "memagent_graph.facts.record._RULE": [("", "|-", "a")],
    "memagent_graph.facts.record._WORDLESS": [("", "-", "a")],
    "memagent_graph.facts.record._SPLIT": [("", "; ", ""), ("", ", since", ""), ("", " to ", "")],
    "memagent_graph.facts.record._BEHIND": [("since", " ", ""), ("since ", "a", "\n")],
    "memagent_graph.facts.record._AFTER_OBJECT": [("", " since ", ""), ("", " since 2", "")],
    "memagent_graph.facts.graph._TOKEN": [("", "-1", ""), ("", "a-", "")],
    "memagent_graph.facts.graph._THOUSANDS": [("", "1,", ""), ("", "1,00", "")],
    "memagent_graph.facts.graph._INITIALS": [("", "a.", "a"), ("", ".a", "")],
    "memagent_graph.facts.graph._ALIAS": [
        ("ab (", "the ", ""),
        ("ab (the ", '"', ""),
        ('ab ("', "a", ""),
        ("", "ab (", ""),
    ],
    "memagent_graph.facts.record._DATE_IN": [
        ("", "1 Abc ", ""),
        ("", "2021-0", ""),
        ("", "In ", ""),
    ],
    "memagent_graph.facts.graph._SPAN": [("", "change", ""), ("", "sinc", "")],
    "memagent_graph.facts.graph._CONTROLS": [("", "\x00", "")],
    "memagent_graph.conversation.search._ASKS_WHEN": [
        ("", "how man", ""),
        ("", "how many ", ""),
    ],
    "memagent_graph.conversation.built_in._PASSING": [
        ("", "for this ", ""),
        ("for this ", "a", ""),
        ("", "in the current a ", ""),
        ("", "only this ", ""),
    ],
    "memagent_graph.conversation.built_in._ENDED": [("", "[ends 2026-03-0", "")],
    "memagent_graph.conversation.prompt._DAY": [("", "2026-01-0", "")],
    "memagent_graph.conversation.user_memory._ESCAPED": [("", "%2", "")],
    "memagent_graph.models.endpoint._SCHEMA": [("", "guide", ""), ("", "response_forma", "")],
    "memagent_graph.models.resolve._OPENAI": [("o", "1", "")],
    "memagent_graph.models.structured._TRAILING_COMMA": [(",", " ", "a"), ("", ", ", "")],
    "memagent_graph.models.structured._REFERENCE": [("", '"$ref": "', ""), ("", '"$ref', "a")],
    "memagent_graph.models.structured._UNNAMED": [("", ".a", "")],
    "memagent_graph.readers.replies._DENIAL": [
        ("not", " ", "a"),
        ("", "not ", ""),
        ("", "notes ", ""),
        ("", "there is no ", ""),
        ("not explicitly", " ", "a"),
        ("", "not explicitly ", ""),
        ("not given", " a", ""),
        ("not given ", "a", ""),
        ("i can", " ", "a"),
    ],
    "memagent_graph.readers.replies._DENIAL_ELSEWHERE": [
        ("", "text ", ""),
        ("", "notas ", ""),
        ("text", " ", "a"),
        ("no hay", " a", ""),
        ("wird nicht ", "a ", ""),
        ("", "nicht angegeben ", ""),
        ("", "n'est pas ", ""),
        ("", "記載", ""),
    ],
    "memagent_graph.readers.scope._ALL": [
        ("", "how many ", ""),
        ("", "what ", ""),
        ("please", " ", "a"),
        ("", "how much ", ""),
        ("how", " ", "a"),
        ("all of", " ", "a"),
        ("", "every ", ""),
    ],
    "memagent_graph.readers.scope._NAMED": [
        ("", "A", ""),
        ("A", " ", "a"),
        ("", '"', ""),
        ("", "Aa", ""),
        ("", "a A'", ""),
    ],
    "memagent_graph.readers.scope._COUNT": [("", "how ", ""), ("how", " ", "a")],
    "memagent_graph.readers.scope._SOME": [
        ("", ",a", ""),
        (",", "a ", ""),
        ("", "aer ", ""),
        ("", "aer", ""),
        ("aer", " ", "a"),
        ("", "more ", ""),
        ("most", " ", "a"),
    ],
    "memagent_graph.readers.scope._QUOTED": [("", '"', "")],
    "memagent_graph.readers.extractive._UNSPACED": [("", "汉a", "")],
    "memagent_graph.text.chunks._RULE": [("|", "-|", ""), ("|", "-", ""), ("|", " ", "-")],
    "memagent_graph.text.files._ADDRESS": [("a", ":/", ""), ("a:", "/", ""), ("", "aa:/", "\n")],
    "memagent_graph.evaluation.tasks.benchmarks._MARK": [("->->", " ", "a"), ("", "->-> 1, ", "a")],
    "memagent_graph.evaluation.tasks.benchmarks._TURN": [("", "D1", ""), ("D", "1", "a")],
    "memagent_graph.evaluation.tasks.questions._SENTENCE_END": [(".", '"', "x"), ("", '."', "")],
    "memagent_graph.evaluation.scores._ANNOUNCED": [("", "answer*", ""), ("", "final ", "")],
    "memagent_graph.evaluation.scores._CODE": [("", "1234567", "-"), ("", "12345678-1234", "")],
    "memagent_graph.evaluation.scores._LISTED": [("", "an", ""), ("", " and", "y")],
    "memagent_graph.evaluation.scores._NO_CHOICE": [("", "more or ", ""), ("", "or ", "")],
    "memagent_graph.evaluation.scores._OR": [("", "1/", "1"), ("", "o", "r")],
    "memagent_graph.evaluation.scores._SENTENCE_END": [("abc.", " ", "a"), ("", "abc.", "")],
    "memagent_graph.evaluation.samples._ARTICLES": [("", "the", "")],
    "memagent_graph.evaluation.samples._FRACTION": [
        ("", "\\frac{1}", ""),
        ("\\frac", " ", ""),
        ("\\frac{", "1", ""),
    ],
    "memagent_graph.evaluation.samples._WRAPPED": [("", "\\text{", ""), ("\\text", " ", "")],
    "memagent_graph.evaluation.samples.without_latex": [
        ("$", "a", ""),
        ("", "\\,", ""),
        ("", "$", ""),
    ],
    "memagent_graph.memory.leases._HOLDER": [
        ("a:1:", "f", "g"),
        ("", ":1", "g"),
        ("", "a:1:f", "g"),
    ],
    "memagent_graph.memory.redis.keys._ESCAPED": [("", "%2", "")],
    "memagent_graph.conversation.reader._TOLD": [("", "- ", "a"), ("2026-01-01]", ": ", "")],
    "memagent_graph.conversation.messages._name": [("", " :", ""), ("", "[ ", "a")],
    "memagent_graph.models.failures._BROKEN_NAME": [("", "Connec", "")],
    "memagent_graph.models.failures._FILTER": [("", "content_filte", "")],
    "memagent_graph.models.failures._LASTING_TEXT": [("", "certificate verify ", "")],
    "memagent_graph.models.failures._MALFORMED_NAME": [("", "JSONDecode", "")],
    "memagent_graph.models.failures._TRANSIENT_NAME": [("", "APIError", "a"), ("", "Timeou", "")],
    "memagent_graph.templates.fill": [("", "{", ""), ("", "{memor", "")],
    "memagent_graph.prompts._ANY_FIELD": [("{", "a", ""), ("", "{", ""), ("", "{a", "")],
    "memagent_graph.prompts._FIELD": [("", "{questio", "")],
    "memagent_graph.prompts._TAG": [("<", "a", ""), ("", "<", ""), ("", "<a", "")],
    "memagent_graph.templates._TAG": [("<a", "a", ""), ("<a", "-", ""), ("", "<a", "")],
    "memagent_graph.templates._forgery_pattern": [
        ("<", " ", "a"),
        ("", "< ", ""),
        ("", "<|", ""),
        ("", "</m", ""),
        ("", "< notes ", ""),
        ("<|", "a", ""),
        ("<|a", " ", ""),
        ("<", "|a", ""),
        ("[|", "a", ""),
        ("[TOOL", "_", ""),
        ("&#", "0", ""),
        ("", "&#0", ""),
        ("", ">>AAAA", ""),
        ("", "]<", ""),
    ],
    "memagent_graph.templates._SHAPE": [("<|", "a", ""), ("<", "a", "")],
    "memagent_graph.templates._INVISIBLE": [],
    "memagent_graph.templates._COMMANDS": [],
    "memagent_graph.templates._SUSPECT": [
        ("<", "\u200b", ""),
        ("", "<\u200b", ""),
        ("", "<a\u200b", ""),
        ("", "[\u200b", ""),
        ("[", "\u200b", ""),
        ("]", "\u200b", "~"),
        ("", "]\u200b", ""),
        ("", "<\u0301", ">"),
    ],
    "memagent_graph.text.tokens._SIGNED": [("<", "a", ""), ("<", ">a", "")],
    "memagent_graph.evidence.claims._NAME_WORD": [
        ("", "A'", ""),
        ("A'", "a", "1"),
        ("", "A'a", "1"),
    ],
    "memagent_graph.evidence.claims._UNSPACED": [("", "汉a", "")],
    "memagent_graph.readers.resolve._SIZE": [("", "1", ""), ("", "1.", ""), ("", "1.1", "m")],
    "memagent_graph.evidence.claims._SHORT": [("", "a ", ""), ("", "a", "")],
    "memagent_graph.evidence.claims._WORD": [("", "a.", "")],
    "memagent_graph.text.terms._DAY_BESIDE": [(".", " ", "a")],
    "memagent_graph.text.terms._FIGURE": [
        ("", "1,", "a"),
        ("", "1 ", ""),
        ("", "one ", "a"),
        ("", "one and ", ""),
        ("", "hundred and ", ""),
        ("", "one-", "x"),
        ("", "XX", "x"),
        ("1", "万", "a"),
        ("", "十a", ""),
        ("", "Jan", ""),
    ],
    "memagent_graph.text.terms._GROUPED": [("1", ",111", "a"), ("1", ".111", "a")],
    "memagent_graph.text.terms._HAN_NUMERAL": [("", "十a", "")],
    "memagent_graph.text.terms._LATTER_YEAR": [],
    "memagent_graph.evidence.claims._COUNTED": [("", "个", "")],
    "memagent_graph.evidence.claims._DIGITS": [("", "1", "")],
    "memagent_graph.evidence.claims._HAN": [("", "汉a", "")],
    "memagent_graph.evidence.claims._LETTERS": [("", "a汉", ""), ("", "é1", "")],
    "memagent_graph.evidence.claims._OF_ONE": [("", " was", "x")],
    "memagent_graph.evidence.claims._NOUN": [("", "a ", "1"), ("a", "a", "1")],
    "memagent_graph.evidence.statements._FIELD": [
        ("", 'a,"', ""),
        ('a, "', "a", ""),
        ('a, "a"', " ", ""),
        ("", 'a, "a" ', ""),
    ],
    "memagent_graph.evidence.statements._LABEL": [("**", "a", ""), ("a", "*", ""), ("", '"a', "")],
    "memagent_graph.evidence.statements._MARK": [("", "- ", "a"), ("", "-", ""), ("#", " ", "a")],
    "memagent_graph.evidence.statements._TOKEN": [("", "a.", ""), ("", "a'", " ")],
    "memagent_graph.evidence.statements._PLAIN_TOKEN": [("", "a.", ""), ("", "a'", " ")],
    "memagent_graph.evidence.statements._PLAIN": [("", "a", "汉")],
    "memagent_graph.text.terms._ASIAN": [],
    "memagent_graph.readers.extractive._EXPECTED": [
        ("in", " ", "a"),
        ("", "in ", ""),
        ("A", "a", "1"),
    ],
    "memagent_graph.readers.extractive._PRONOUN": [("", "he", "")],
    "memagent_graph.evidence.align._COUNTS": [("", "how ", ""), ("", "number ", "")],
    "memagent_graph.evidence.align._NAME": [("A", "a", "1"), ("Aa", " a", "1"), ("", " ", "")],
    "memagent_graph.memory.sqlite._TAKEN": [("", "duplicate ", "")],
    "memagent_graph.memory.sqlite._statements": [],
    "memagent_graph.models.completion._CAMEL": [("", "aA", "")],
    "memagent_graph.models.completion._CUT_OFF": [("", "_max", ""), ("", "toke", "")],
    "memagent_graph.models.completion._FAILED": [("", "erro", ""), ("", "time", "")],
    "memagent_graph.models.completion._REFUSED": [("", "filte", "")],
    "memagent_graph.models.completion.find_ending": [],
    "memagent_graph.models.endpoint._BAD_VALUE": [("", "out o", "")],
    "memagent_graph.models.endpoint._OPTIONAL": [],
    "memagent_graph.models.endpoint._UNSUPPORTED": [("", "not a ", ""), ("not ", "a", "")],
    # Of an error page, of which 20,000 characters are read.
    "memagent_graph.models.failures._MARKUP": [],
    "memagent_graph.models.failures._PAGE": [("", " ", "a")],
    "memagent_graph.models.failures._AMOUNT": [("", "12", ""), ("", "123 ", "")],
    "memagent_graph.models.failures._NEVER_FITS": [("", "request too ", "")],
    "memagent_graph.models.failures._OF_REPLY": [("", "max_", ""), ("max_", "a", "")],
    "memagent_graph.models.failures._OTHER_CAUSE": [("", "not ", ""), ("not ", "a", "")],
    "memagent_graph.models.failures._RATE": [("", "too many ", "")],
    "memagent_graph.models.failures._SIZE": [("", "lon", "")],
    "memagent_graph.models.failures._SPENT": [("", "insufficient ", "")],
    "memagent_graph.models.failures._TOO_LONG": [
        ("", "prompt ", ""),
        ("", "tokens ", ""),
        ("", "prompt over the ", ""),
        ("", "превы ", ""),
        ("at most ", "1", ""),
    ],
    "memagent_graph.readers.chat._CLOSING": [("", "</", ""), ("</", "a", "")],
    "memagent_graph.readers.completion.CLOSING": [("", "</thin", "")],
    "memagent_graph.readers.completion.OPENING": [("", "<thin", "")],
    "memagent_graph.readers.completion._BARE_CHANNELS": [
        ("analysis", "assistant", ""),
        ("analysis", "\n", ""),
    ],
    "memagent_graph.readers.completion._CHANNELS": [
        ("<|channel>", " ", ""),
        ("<details", " type=", ""),
        ("<details", ">", ""),
        ("<details>", " ", ""),
        ("<details><summary>", "reasoning ", ""),
    ],
    "memagent_graph.readers.completion._HEAD": [
        ("", "<|start|>assistant ", ""),
        ("", "[/INST]", "a"),
    ],
    "memagent_graph.readers.completion._TAIL": [
        ("", "<|end|>", "a"),
        ("a", "</s> ", ""),
        ("", "<|", ""),
    ],
    "memagent_graph.readers.completion._THOUGHT": [("<", "a", ""), ("<", "begin_of_", "")],
    "memagent_graph.readers.completion._end_of_thought": [],
    "memagent_graph.readers.replies._DAY": [("", "2026-", "")],
    "memagent_graph.readers.replies._FENCE": [("```\n", "```", "a"), ("```\n", "\n", "a")],
    "memagent_graph.readers.replies._LINE_LOOP": [
        ("", "a\n", "b"),
        ("", "```\na\n", "b"),
        ("", " \n", "a"),
        ("", "a\nb\n\n", "c"),
    ],
    "memagent_graph.readers.replies._NOTHING_NEW": [
        ("no new facts", " a", "\n"),
        ("no", " ", "x"),
        ("", "(", "x"),
        ("unchanged", ".", "x"),
    ],
    "memagent_graph.readers.replies._PLACEHOLDER": [
        ("", "\n", "a"),
        ("", "- ", "a"),
        ("", "(", "a"),
        ("", "empty ", ""),
        ("", "empty: this is the first section ", ""),
    ],
    "memagent_graph.readers.replies._PHRASE_LOOP": [("", "ab", "c"), ("c", "ab", "")],
    "memagent_graph.readers.replies._REFUSAL": [
        ("", "(", "a"),
        ("i'm", " ", ""),
        ("sorry ", "a ", ""),
    ],
    "memagent_graph.readers.replies._SPEAKS": [("", "[2026-01-01", ""), ("[2026-01-01] ", "a", "")],
    "memagent_graph.readers.replies._without_echoes": [],
    "memagent_graph.readers.replies._without_tags": [],
    "memagent_graph.text.tokens._PIECES": [("", "a", ""), ("", "-", ""), ("", "\u0301", "")],
    "memagent_graph.conversation.messages._FULL": [("", "2026-", "")],
    "memagent_graph.conversation.messages._LATE": [("T24", ":00", "a"), ("", "T24", "")],
    "memagent_graph.conversation.messages._LEAP": [("", "T12:", "")],
    "memagent_graph.conversation.messages._PARTIAL": [("2026T", "a", ""), ("", "2026-", "")],
    "memagent_graph.templates._LONE_CR": [("", "\r", "\n")],
    "memagent_graph.templates._SURROGATE": [("", "a", "")],
    "memagent_graph.text.terms.(_LETTER, _MARKED)": [],
    "memagent_graph.text.terms.BROKEN_END": [("", "a-", "b"), ("", "-", "")],
    "memagent_graph.text.terms._IS_UNSPACED": [],
    "memagent_graph.text.terms._SPACED_TOKEN": [("", "1,", ""), ("", "a'", ""), ("a'", "a", "")],
    "memagent_graph.text.terms._LINE_HYPHEN": [("", "-", ""), ("-", " ", "-"), ("", "- ", "")],
    "memagent_graph.text.terms._BROKEN": [("", "a-", ""), ("a-", " ", "b"), ("a-", "\n", "b")],
    "memagent_graph.text.terms._BROKEN_WORD": [("", "a", ""), ("a-", " ", "b"), ("", "a-\n", "")],
    "memagent_graph.text.terms._INVISIBLE": [("", "\u200b", "")],
    "memagent_graph.text.terms._POINTS": [("", "\u064b", "")],
    "memagent_graph.text.terms._JOINERS": [("", "\u200c", "")],
    "memagent_graph.text.terms._WIDE": [("", "ﬀ", "")],
    "memagent_graph.conversation.built_in._FIRST_PERSON": [("", "mein", "1"), ("", "unse", "")],
    "memagent_graph.conversation.reader._FORGET": [
        ("", "- ", ""),
        ("", "\n", ""),
        ("", "forget:", ""),
    ],
    "memagent_graph.evidence.statements._NONE": [("", "-", ""), ("", "no ", ""), ("no", "-", "a")],
    "memagent_graph.conversation.built_in._MARK": [("[", "a", ""), ("", "[", "")],
    "memagent_graph.conversation.built_in._QUESTION": [("?", '"', "a"), ("", '?"', "a")],
    "memagent_graph.conversation.built_in._REQUEST": [("", "(", "a"), ("", "- ", "a")],
    "memagent_graph.conversation.built_in._TIME": [("", "week", "")],
    "memagent_graph.conversation.built_in._DAY": [("", "1 ", ""), ("", "1 Ma", "")],
    "memagent_graph.conversation.built_in._CLAUSE_END": [
        ("", ", ", ""),
        (",", " ", ""),
        ("", " -", ""),
    ],
    "memagent_graph.evidence.align._CLAUSE_END": [
        ("", ", ", ""),
        ("", " and", ""),
        ("", ",and ", ""),
    ],
    "memagent_graph.evidence.statements._ABBREVIATION": [
        ("", "Mr", ""),
        ("", "e.", ""),
        ("", "der 1", ""),
        ("", "im ", ""),
    ],
    "memagent_graph.evidence.statements._NEVER_ENDS": [("", "Mr", ""), ("", "1", "")],
    "memagent_graph.evidence.statements._OPENING": [("", "The", ""), ("", "Its", "")],
    "memagent_graph.evidence.statements._BLANK_LINE": [("a", "\n ", "a"), ("a\n", " ", "a")],
    "memagent_graph.evidence.statements._INK": [],
    "memagent_graph.evidence.claims._is_named": [],
    "memagent_graph.text.formats._SPEAKER": [("", "<v.a", ""), ("", "<v a", "")],
    "memagent_graph.facts.record._NUMBER": [("", "1", "")],
    "memagent_graph.facts.record._WORD": [("", "abc", "")],
    "memagent_graph.facts.record._YEAR": [("", "2021", "")],
    "memagent_graph.facts.record._WITH_MONTH": [("", "1-", ""), ("", "12.", ""), ("", "2021-", "")],
    "memagent_graph.facts.record._HAN_DATE": [("", "二", ""), ("", "二〇", "a")],
    "memagent_graph.text.formats._HZ": [("~{", "aa", ""), ("", "~{aa", "")],
    "memagent_graph.text.terms._RARE": [("", "\u200b", ""), ("", "\u064b", ""), ("", "ﬁ", "")],
    "memagent_graph.evidence.statements._SENTENCE_END": [
        (".", " ", "a"),
        (".", "'", "a"),
        (". ", "(", "a"),
        ("。", "」", "。"),
        ("", "。」", ""),
    ],
    "memagent_graph.text.terms._NAME": [
        ("Ab", " ", "a"),
        ("Ab of", " ", "a"),
        ("", "A'", ""),
        ("", "_a", "1"),
        ("a", "_a", "1"),
        ("", "Aa", "1"),
        ("a", "Aa", "1"),
        ("", "《a", ""),
    ],
    "memagent_graph.text.terms._OPENING": [
        ("A", " of", ""),
        ("A", " ", "a"),
        ("A of", " ", "a"),
    ],
    "memagent_graph.text.terms._PARTS": [("", "A", "1"), ("", "Aa", "")],
    "memagent_graph.text.terms._QUESTION_CJK": [("", "什么时", "")],
    "memagent_graph.text.terms._TOKEN": [("", "1,", ""), ("", "a'", ""), ("a'", "a", "")],
    "memagent_graph.rl.rewards._NUMBER": [
        ("", "1,111", ""),
        ("", ",111", "a"),
        ("", "-$", ""),
        ("1/", "1", "a"),
    ],
    "memagent_graph.rl.rewards.number": [("", "$,", "")],
    "memagent_graph.text.cache._NAME": [("a" * 64 + "-" + "b" * 16, ".", "new")],
    "memagent_graph.text.source._MARKED": [
        *(("", "`", ""), ("# ", " ", ""), ("", "#", ""), ("", "\n#", ""), ("", "\n```", "")),
    ],
    "memagent_graph.text.source._NO_DOCUMENT": [("a ", "binary", "")],
    "memagent_graph.text.formats._BREAK": [("", "\\", "")],
    "memagent_graph.text.formats._CHARSET": [("", "<meta ", ""), ("<meta charset=", " ", "")],
    "memagent_graph.text.mail._COUNT": [("", " ", ""), ("", "1", ""), ("1", " ", "")],
    "memagent_graph.text.formats._CP1252": [("", "iso-8859-1", "0")],
    "memagent_graph.text.formats._DIALOGUE": [
        ("", "Dialogue:", ""),
        ("Dialogue:", "0,", ""),
        ("", "Dialogue:,1,1,,,,,,", ""),
    ],
    "memagent_graph.text.formats._COLOURS": [("", "\x1b[", ""), ("", "\x1b[1;", "")],
    "memagent_graph.text.formats._EMPTY_LINES": [],
    "memagent_graph.text.mail._FROM": [
        ("", "From ", ""),
        ("", "From\n", ""),
        ("From a ", "1:11", "\ra"),
    ],
    "memagent_graph.text.formats._INTEGER": [("", "1", "a")],
    "memagent_graph.text.formats._LINK": [("HYPERLINK", "\t", ""), ('HYPERLINK "', "a", "")],
    "memagent_graph.text.formats._MACHINE": [("", "\\mac", "a"), ("", "\\pc", "")],
    "memagent_graph.text.formats._NAMED": [("", "&", ""), ("", "&a", "")],
    "memagent_graph.text.formats._NAME_OF_NEXT": [
        ("", "\n", "a"),
        ("\n", "1", "a"),
        ("", "\na", ""),
    ],
    "memagent_graph.text.formats._NO_CUE": [
        ("", "NOTE", "S"),
        ("NOTE", "\n ", ""),
        ("NOTE", "\na", ""),
    ],
    "memagent_graph.text.formats._PAGE": [("", " ", ""), ("", "<htm", "")],
    "memagent_graph.text.formats._SPACES": [("", " \n", "")],
    "memagent_graph.text.formats._STYLE": [("", "<a", ""), ("", "{\\", "")],
    "memagent_graph.text.mail._WORDS": [("", "a ", "")],
    "memagent_graph.text.formats._XHTML": [("", "<?xm", ""), ("", "http://www.w3.org/", "")],
    "memagent_graph.text.formats._TOKEN": [("", "\\", ""), ("\\a", "1", ""), ("", "{a", "")],
    "memagent_graph.text.formats._TIMES": [
        ("", "1:", ""),
        ("", "00:00:00,000 ", ""),
        ("", "00:00:00,0", ""),
    ],
    "memagent_graph.text.office._HYPERLINK": [("HYPERLINK", "\t", ""), ('HYPERLINK "', "a", "")],
    "memagent_graph.text.notation._SCRIPT": [("", "\x0e", ""), ("", "\x0e1\x0f/\x101", "")],
    "memagent_graph.text.notation._SINGLE": [("", "1", "!"), ("(", "a", ""), ("", "(", "")],
    "memagent_graph.text.pdf._NO_LETTER": [("", "\x01", "")],
    "memagent_graph.text.pdf._NUMBER": [("", " ", ""), ("", "\na", "")],
    "memagent_graph.text.pdf._RIGHT_TO_LEFT": [("", "א", "")],
    "memagent_graph.text.pdf._SINGLE": [("", "  א", "a"), ("", " ", "")],
    "memagent_graph.text.pdf._BROKEN": [("", "a\ufffe", "")],
    "memagent_graph.text.formats._TITLE": [("<title", " ", ""), ("<title>", "a", "")],
    "memagent_graph.text.sheets._CELL": [("", "A", ""), ("A", "1", "")],
    "memagent_graph.text.sheets._CODES": [("", "&", ""), ('&"', "a", ""), ("&", "1", "")],
    "memagent_graph.text.sheets._CONDITION": [("", "[>", ""), ("", "[>1.", "")],
    "memagent_graph.text.sheets._TOKEN": [
        ("", '"a', ""),
        ("", "[a", ""),
        ("", "s.", ""),
        ("s.", "0", "a"),
    ],
    "memagent_graph.text.chunks._ENDS": [("\n", " ", "a"), ("", "\n ", "a"), (".", '"', "a")],
    "memagent_graph.text.chunks._GRAPHEME": [
        ("a", "\u0301", ""),
        ("", "\u200d", ""),
        ("", "🇫", ""),
    ],
    "memagent_graph.text.chunks._SAFE": [("", "é", "")],
    "memagent_graph.text.tokens._KIND": [],
    "memagent_lm_eval.prompts._ASKS": [("", "a", ""), ("", "\na", ""), ("", "?", "")],
    "memagent_lm_eval.prompts._MARKER": [("", " ", "a"), ("", "\n ", ""), ("q", " ", "")],
    "memagent_lm_eval.prompts._PARAGRAPH": [
        ("", "\n", ""),
        ("a", "\n", ""),
        ("a", "\n ", ""),
        ("\n", " ", ""),
    ],
    "memagent_lm_eval.prompts._tail": [("", "a\n", "")],
    "memagent_inspector.history._WORD": [("", " ", "\x00"), ("", "a ", "")],
    "memagent_openai_server.conversation._ASKS": [("", "a?", "")],
    "memagent_openai_server.conversation._GAPS": [
        ("\n", " ", "a"),
        ("\n", "\r", "a"),
        ("", ".\n", ""),
    ],
    "memagent_openai_server.conversation._name": [("", " :", "")],
    "memagent_openai_server.access._TENANT": [("", "a", "!")],
    "memagent_openai_server.access.load_keys": [("", "\n,", "")],
    "memagent_openai_server.errors._LABEL": [("", "sk_", ""), ("", "a", "!")],
    "memagent_openai_server.errors._PATH": [("", "a.", ""), ("", "a[", "")],
    "memagent_openai_server.errors._WINDOW": [
        ("", "limit", ""),
        ("limit", "1", "a"),
        ("", "limit 12", ""),
    ],
    "memagent_openai_server.errors._WORD": [("", "a", "!")],
    "memagent_openai_server.upstream._END": [("", "\r\n\r", ""), ("", "\n\r", "")],
}
"""Texts by pattern, as what they begin with, what is repeated, and what they end with."""

ANCHORED = {
    "memagent_graph.models.failures._PAGE": "match",
    "memagent_graph.conversation.profile._LINE": "fullmatch",
    "memagent_graph.models.resolve._OPENAI": "match",
    "memagent_graph.templates._SHAPE": "match",
    "memagent_graph.text.chunks._RULE": "fullmatch",
    "memagent_graph.text.files._ADDRESS": "match",
    "memagent_graph.text.tokens._SIGNED": "match",
    "memagent_graph.text.cache._NAME": "fullmatch",
    "memagent_graph.readers.completion._CHANNELS": "match",
    "memagent_graph.readers.replies._NOTHING_NEW": "fullmatch",
    "memagent_graph.readers.replies._REFUSAL": "match",
    "memagent_graph.text.source._NO_DOCUMENT": "match",
    "memagent_graph.memory.leases._HOLDER": "fullmatch",
    "memagent_graph.text.terms._DAY_BESIDE": "match",
    "memagent_graph.text.terms._GROUPED": "fullmatch",
    "memagent_graph.text.terms._LATTER_YEAR": "match",
    "memagent_graph.evidence.claims._COUNTED": "match",
    "memagent_graph.evidence.claims._NOUN": "match",
    "memagent_graph.evidence.claims._OF_ONE": "match",
    "memagent_graph.text.formats._INTEGER": "fullmatch",
    "memagent_graph.text.formats._PAGE": "match",
    "memagent_graph.text.formats._TOKEN": "match",
    "memagent_graph.text.notation._SINGLE": "fullmatch",
    "memagent_graph.text.sheets._CELL": "match",
    "memagent_graph.evidence.statements._LABEL": "match",
    "memagent_graph.evidence.statements._MARK": "match",
    "memagent_graph.readers.extractive._PRONOUN": "match",
    "memagent_graph.conversation.built_in._DAY": "fullmatch",
    "memagent_graph.conversation.built_in._MARK": "fullmatch",
    "memagent_graph.evidence.statements._ABBREVIATION": "match",
    "memagent_graph.evidence.statements._NEVER_ENDS": "match",
    "memagent_graph.evidence.statements._NONE": "fullmatch",
    "memagent_graph.evidence.statements._OPENING": "match",
    "memagent_graph.evidence.statements._PLAIN": "match",
    "memagent_graph.text.terms._OPENING": "match",
    "memagent_openai_server.access._TENANT": "fullmatch",
}
"""How patterns are tried that are not looked for everywhere in a text."""
BUILT = {
    "memagent_graph.templates.fill": lambda: [re.compile(r"\{(question|memory)\}")],
    "memagent_graph.templates._forgery_pattern": lambda: [
        templates._forgery_pattern(prompts.UPDATE_PROMPT)
    ],
}
"""Patterns that a function makes of what it is given."""


@functools.cache  # not while tests are collected: each worker would wait for it
def found() -> dict[str, list[ast.Call]]:
    """Calls of `re` and `regex`, by the global or the function that they stand in."""
    calls: dict[str, list[ast.Call]] = {}

    def visit(node: ast.AST, module: str, place: str) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            place = f"{module}.{node.name}"
        elif isinstance(node, ast.Assign | ast.AnnAssign) and place == module:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            place = f"{module}.{ast.unparse(target)}"
        if isinstance(node, ast.ImportFrom) and node.module in ("re", "regex"):
            pytest.fail(f"{module}: import the module, so that this test finds its calls")
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute | ast.Name):
            library, _, called = ast.unparse(node.func).rpartition(".")
            if called == "late" or (library in ("re", "regex") and called != "escape"):
                calls.setdefault(place, []).append(node)
        for child in ast.iter_child_nodes(node):
            visit(child, module, place)

    for package in PACKAGES:
        for file in sorted(package.rglob("*.py")):
            name = ".".join(file.relative_to(package.parent).with_suffix("").parts)
            visit(ast.parse(file.read_text("utf-8")), name, name)
    return calls


def patterns(place: str) -> list[re.Pattern | regex.Pattern]:
    if place in BUILT:
        return BUILT[place]()
    module, _, name = place.rpartition(".")
    value = vars(importlib.import_module(module))[name]
    if not callable(value):
        return compiled(value)
    return [
        importlib.import_module(ast.unparse(call.func.value)).compile(
            ast.literal_eval(call.args[0])
        )
        for call in found()[place]
    ]


def compiled(value) -> list[re.Pattern | regex.Pattern]:
    """The patterns in a global, which may be a list of tuples of them."""
    if isinstance(value, re.Pattern | regex.Pattern):
        return [value]
    if isinstance(value, templates._Late):
        library, *made = value.made
        return [library.compile(*made)]
    values = value.values() if isinstance(value, dict) else value
    return [each for inner in values if not isinstance(inner, str) for each in compiled(inner)]


def seconds(look, text: str, runs: int) -> float:
    """Of processor, the least of several runs."""
    best = float("inf")
    for _ in range(runs):
        begun = time.thread_time()
        look(text)
        best = min(best, time.thread_time() - begun)
        if best < BRIEF:
            break
    return best


def is_linear(
    pattern, begin: str, pump: str, end: str, *, how: str = "finditer", base: int = SIZE
) -> bool:
    def text(size):
        whole = begin + pump * (size // len(pump)) + end
        return whole if isinstance(pattern.pattern, str) else whole.encode()

    def look(text):
        found = getattr(pattern, how)(text)
        if how == "finditer":
            deque(found, 0)

    for runs in (1, 3, 9):
        long = seconds(look, text(TIMES * base), runs)
        # A short text that was measured once, on a busy machine, makes a quadratic one look linear.
        if long < BRIEF or long < MOST * seconds(look, text(base), 5 * runs):
            return True
    return False


@pytest.mark.slow
def test_each_regular_expression_is_listed_with_its_worst_texts():
    assert {*found()} == {*WORST}


@pytest.mark.slow
@pytest.mark.parametrize("place", [place for place in WORST if WORST[place]])
def test_no_text_takes_a_regular_expression_longer_than_its_length_asks(place):
    if place not in found():
        pytest.skip("it is gone, as another test says")
    texts = [*WORST[place], *(("", pump, "\0") for pump in PUMPS)]
    how = ANCHORED.get(place, "finditer")
    bad = (
        (pattern.pattern, text)
        for pattern in patterns(place)
        for text in texts
        if not is_linear(pattern, *text, how=how)
    )

    assert next(bad, None) is None


@pytest.mark.slow
def test_a_quadratic_pattern_would_be_noticed():
    small = SIZE // 4  # where it shows least
    assert not is_linear(re.compile(rb'"(?:\\.|[^"\\])*"'), '"', '\\"', "", base=small)
    assert not is_linear(re.compile(r"a+$"), "", "a", "b", base=small)
