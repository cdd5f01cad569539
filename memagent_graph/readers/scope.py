"""Decide how much of a document a question needs, by rules for English and Chinese.

The skim asks before it skips, and `how="auto"` before it searches. The rules go by words and err
towards reading more. Questions in other languages count as "one".
"""

from __future__ import annotations

from typing import Literal

import regex

from memagent_graph.templates import late

Scope = Literal["one", "some", "all"]
"""Part to be read: one place with the answer, several places that all matter, or everything."""


def scope(question: str) -> Scope:
    """Return how much of a document a question needs.

    Returns:
        "all" if it counts, lists, summarizes, or asks what is most frequent: nothing may be
        skipped. "some" if it asks for a number of something named, for the last or the greatest of
        several, or for a comparison: chunks without any of its words may be skipped, but the first
        find is not all. Otherwise "one".
    """
    text = question.strip()
    if _ALL.search(text):
        return "all"
    if count := _COUNT.search(text):
        start, end = count.span()  # whether it is of something named, which the text may state
        anchored = names_something(text[:start] + " " * (end - start) + text[end:])
        return "some" if anchored else "all"
    return "some" if _SOME.search(text) else "one"


def names_something(question: str) -> bool:
    """Return whether a question has a name, a number or a quotation, after its first word."""
    first = next((place for place, letter in enumerate(question) if letter.isalnum()), 0)
    return bool(_QUOTED.search(question) or _NAMED.search(question, first))


_ASK = (
    r"(?:what|which|who|find|name|give|show|identify|extract|collect|return|tell|write|get|report)"
)
_TEXT = r"(?:text|document|book|novel|story|list|file|files|corpus|report|conversation|article)"
_ALL = late(
    rf"""
    ^\W*(?:please\s+|can\s+you\s+|could\s+you\s+)?(?:list|enumerate|count|summari[sz]e)\b
    |\b(?:a|the|full|complete)\s+list\s+of\b | ^\W*list\s+of\b | \bmake\s+(?:me\s+)?a\s+list\b
    |\b{_ASK}\b[^.?!]{{0,30}}\b(?:all|every)\b(?!\s+(?:time|about|quiet|right|along|over)\b)
    |\ball\s+(?:of\s+)?(?:the|these|those|its|his|her|their|my|our|your|different)\b
    |\beach\s+of\s+(?:the|these|those)\b | \bfor\s+(?:each|every)\b
    |\bevery\s+(?:single\s+)?(?:one|time|place|mention|occurrence|instance|person|name)\b
    |\bhow\s+(?:many|much|often)\b[^.?!]{{0,80}}\b(?:in\s+total|altogether|overall)\b
    |\bhow\s+many\s+(?:times|different|distinct|unique|separate|of\s+(?:the|these|my|our|them))\b
    |\bhow\s+many\b[^.?!]{{0,80}}\bin\s+(?:this|the|these|our|my)\s+{_TEXT}\b
    |\bhow\s+(?:often|frequently)\b | \b(?:total|overall)\s+(?:number|count|amount|sum)\b
    |\bnumber\s+of\s+(?:times|different|distinct|unique|occurrences|mentions)\b
    |\b(?:most|least)[\s-]+(?:often|frequent\w*|common\w*|mentioned|repeated|used\s+words?)\b
    |\b(?:appear|occur|mention)\w*\s+(?:the\s+)?(?:most|least)\b | \bfrequenc(?:y|ies)\b
    |\bsummar(?:y|ies|i[sz]e|i[sz]ing)\b | \boverview\b
    |\bmain\s+(?:points?|themes?|ideas?|topics?|arguments?|events?)\b
    |\b(?:this|the)\s+{_TEXT}\s+(?:is\s+)?about\b
    |所有|全部|一共|总共|总计|合计|总数|列出|列举|列表|清单|每一[个位次条种项]|逐一|分别有哪
    |[几多][少]?次|多少种不同|统计|数一数|最常|最频繁|次数最|出现最多|频率|频次
    |总结|概括|概述|概要|摘要|归纳|主要内容|大意|中心思想
    """,
    regex.IGNORECASE | regex.VERBOSE,
)
_COUNT = regex.compile(r"\bhow\s+many\b|\bnumber\s+of\b", regex.IGNORECASE)
_NAMED = regex.compile(
    r"(?!\G)(?<![.?!:]\s)\b\p{Lu}|(?<![\p{L}\p{M}'’-])\p{Lu}[\p{L}\p{M}'’-]*+\s++\p{Lu}"
)
"""A name: a capital inside a sentence, or two capitalized words in a row."""
_QUOTED = regex.compile(r"\d|[\"“「《][^\"”」》]")
"""A number, or an opening quotation mark with a word."""
_SOME = late(
    r"""
    \b(?:last|latest|newest|final(?:ly)?|most\s+recent(?:ly)?|current(?:ly)?|now|still|any\s+more)\b
    |\b(?:first|earliest|oldest|youngest|earlier|later|older|younger)\b
    |(?-i:\ball\b)|\b(?:both|each|every|several|various|who\s+else|what\s+else|others?|another|list)\b
    |\b(?:compare[ds]?|comparison|versus|vs|differ\w*|similar\w*|in\s+common|same)\b
    |\b\p{L}+(?:er|re|ss)\s+than\b | \bmore\b[^.?!]{0,60}\b(?:than|or)\b | ,[^,?]+\bor\b
    |\bmost\b|\bleast\b
    |\b(?:high|low|larg|small|bigg|great|fast|slow|long|short|old|young|b|wor|strong|weak|cheap|rich
      |poor|deep|tall|heav|earli|lat|clos|near|few)(?:i?est|st)\b
    |多少|几|哪些|最|比较|相比|对比|区别|不同|异同|相同|共同|更|都|各|分别|目前|现在|还有|依然|仍
    |谁先|先后|较
    """,
    regex.IGNORECASE | regex.VERBOSE,
)
