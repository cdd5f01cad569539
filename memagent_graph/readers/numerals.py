"""Values of numbers in words: English cardinals and ordinals, and Chinese numerals."""

from __future__ import annotations

_BELOW_TWENTY = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
    "fifteen sixteen seventeen eighteen nineteen"
)
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_BELOW_THIRTEENTH = (
    "zeroth first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth"
)

_LAST_IRREGULAR = 12

SMALL = {word: value for value, word in enumerate(_BELOW_TWENTY.split())}
"""Cardinals below a hundred."""
ORDINALS = {word: value for value, word in enumerate(_BELOW_THIRTEENTH.split())}
ORDINALS |= {f"{word}th": value for word, value in SMALL.items() if value > _LAST_IRREGULAR}
ORDINALS |= {f"{word[:-1]}ieth": 10 * tens for tens, word in enumerate(_TENS.split(), start=2)}
SMALL |= {word: 10 * tens for tens, word in enumerate(_TENS.split(), start=2)}
SCALES = {"hundred": 10**2, "thousand": 10**3} | {
    f"{prefix}illion": 10**power for prefix, power in (("m", 6), ("b", 9), ("tr", 12))
}
OTHERS = {"half": 2, "halves": 2, "quarter": 4, "twice": 2, "double": 2, "both": 2, "dozen": 12}
"""Other words that stand for a number."""
OTHERS |= {"pair": 2, "couple": 2, "triple": 3, "thrice": 3, "decade": 10, "century": 100}
HAN_DIGITS = {sign: value for value, sign in enumerate("零一二三四五六七八九")}
HAN_DIGITS |= {"〇": 0, "两": 2, "兩": 2}
HAN_SCALES = {"十": 10, "百": 100, "千": 1000, "万": 10**4, "萬": 10**4, "亿": 10**8, "億": 10**8}


_TEN, _TWENTY, _HUNDRED = 10, 20, 100


def in_words(text: str) -> tuple[set[str], set[str]]:
    """Return the values of a run of English number words, and the values of its single words.

    If the run is not one number ("five six"), its values are those of the single words.
    """
    words = text.lower().replace("-", " ").replace(" and ", " ").split()
    parts = {str(SMALL[word]) for word in words if word in SMALL}
    total = current = 0
    for word in words:
        if word in SMALL or word in ORDINALS:
            value = SMALL[word] if word in SMALL else ORDINALS[word]
            rest = current % _HUNDRED
            if _TEN <= current < _HUNDRED and value >= _TEN:  # "nineteen eleven" is a year
                current = current * _HUNDRED + value
            elif rest and (rest < _TWENTY or rest % _TEN or value >= _TEN):
                return parts, set()  # "five six" are two numbers
            else:
                current += value
        elif word == "hundred":
            current = max(current, 1) * _HUNDRED
        elif word in SCALES:
            total += max(current, 1) * SCALES[word]
            current = 0
    return {str(total + current)}, parts


def in_han(signs: str) -> str:
    """Return the value of a Chinese numeral, by place ("二〇一五") or by scale ("三百五十")."""
    if all(sign in HAN_DIGITS for sign in signs):
        return str(int("".join(str(HAN_DIGITS[sign]) for sign in signs)))
    total = section = digit = 0
    for sign in signs:
        if sign in HAN_DIGITS:
            digit = HAN_DIGITS[sign]
        elif (scale := HAN_SCALES[sign]) < HAN_SCALES["万"]:
            section += (digit or 1) * scale
            digit = 0
        else:
            total = (total + (section + digit or 1)) * scale
            section = digit = 0
    return str(total + section + digit)
