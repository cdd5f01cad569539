"""Whether a model's answer says, as its prompt asks, that the memory does not hold one."""

from __future__ import annotations

import regex

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
_DENIAL = regex.compile(
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
    """,
    regex.IGNORECASE | regex.VERBOSE,
)


def says_not_found(answer: str) -> bool:
    """Whether an answer says, in English or Chinese, that the answer is not known.

    This is a rule over words: a short answer that says what the notes lack counts too.
    """
    answer = answer.strip()
    return not answer or (len(answer) <= _LONGEST and _DENIAL.search(answer) is not None)
