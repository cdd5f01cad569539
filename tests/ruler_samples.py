"""Samples of RULER's, official and ours, and what all of one task have in common."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from itertools import pairwise
from math import pi
from pathlib import Path

import pytest

from memagent_graph.evaluation.tasks import NEEDLE_TASKS, make_task
from memagent_graph.evaluation.tasks.ruler import FORMS, parse, statements, task_of
from memagent_graph.text.source import TextSource

NAMES = [*NEEDLE_TASKS, "vt", "cwe", "fwe"]
ESSAYS = TextSource(
    "\n\n".join(
        f"On day {n} the mayor of ward {n * 7} spoke of roads. Did anyone \n listen? Nobody did!"
        for n in range(300)
    )
)
OFFICIAL = Path(os.environ.get("MEMAGENT_DATA", "nowhere")) / "ruler_8k.jsonl"
CAPS = {"niah": 128, "vt": 30, "cwe": 120, "fwe": 50, "qa": 32}
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
TOKEN = re.compile(r"[^\W\d_]{1,5}|\d{1,3}|[^\w\s]|_")


class PlainTokenizer:
    """Counts as the makers of the official samples did: by it none exceeds its length."""

    name = "plain"

    def count(self, text):
        return len(TOKEN.findall(text))

    def prefix(self, text, tokens):
        starts = [match.start() for match in TOKEN.finditer(text)]
        return starts[tokens] if tokens < len(starts) else len(text)


PLAIN = PlainTokenizer()


def made(name, length, index=0, seed=0, tokenizer=PLAIN):
    return make_task(name, ESSAYS).sample(length, index, seed=seed, tokenizer=tokenizer)


def prompt_of(sample):
    assert sample.template.count("{memory}") == sample.template.count("{question}") == 1
    document = "".join(piece.text for piece in sample.pieces())
    return sample.template.replace("{question}", sample.question).replace("{memory}", document)


def official():
    if not OFFICIAL.is_file():
        pytest.skip("MEMAGENT_DATA has no ruler_8k.jsonl")
    return [json.loads(line) for line in OFFICIAL.read_text("utf-8").splitlines()]


def kind(text):
    return "uuid" if UUID.fullmatch(text) else "number" if re.fullmatch(r"\d{7}", text) else "words"


def structure(prompt, outputs, length):
    """What all samples of one task have in common; None if this is no sample of RULER."""
    parts = parse(prompt)
    if parts is None:
        return None
    found = [*statements(parts.form.kind, parts.document)]
    look = {"niah": needles, "vt": chains, "cwe": listed, "fwe": frequencies}[parts.form.kind]
    return {
        "form": FORMS.index(parts.form),
        "task": task_of(parts),
        "whole": parts.template.format(memory=parts.document, question=parts.question) == prompt,
        "outputs": len(outputs),
        "fits": PLAIN.count(prompt) + CAPS[parts.form.kind] <= length,
        "apart": all(after.start - before.end == 1 for before, after in pairwise(found))
        or parts.form.kind in {"niah", "vt"},
        **look(parts, found, outputs, length),
    }


def ends_a_sentence(text):
    return text.rstrip(" \"”'’)]*")[-1] in ".!?"


def needles(parts, found, outputs, _):
    document, keys = parts.document, [one.subject for one in found]
    if " all the " in parts.question and len(set(keys)) > 1:
        asked = re.split(", and |, ", parts.fields["query"])
    else:
        asked = [parts.fields["query"]]
    ends = {document[one.end : one.end + 1] for one in found}
    befores = {document[max(0, one.start - 1) : one.start] for one in found}
    lines = "\n" in document
    outside = document
    for one in reversed(found):
        outside = outside[: one.start] + outside[one.end :]
    inside = [one for one in found if document[: one.start].strip() and document[one.end :].strip()]
    return {
        "type": {
            parts.fields["type"],
            *re.findall(r"One of the special magic (\w+)s for", document),
        },
        "kinds": {(kind(one.subject), kind(one.value)) for one in found},
        "asked": [asked.count(key) for key in asked],
        "needles": len(found) if set(outside) - {"\n"} else "all",
        "keys": len(set(keys)) if set(outside) - {"\n"} else len(set(keys)) == len(keys),
        "values": len({one.value for one in found}) == len(found),
        "right": Counter(one.value for one in found if one.subject in asked) == Counter(outputs),
        "lines": lines,
        "separate": befores | ends <= ({"\n", ""} if lines else {" "}),
        "sentences": lines or all(ends_a_sentence(document[: one.start]) for one in inside),
        "hay": {*outside.split("\n")} - {""} if lines else None,
        "last": lines and not document.endswith("\n"),
    }


def chains(parts, found, outputs, _, *, example=False):
    lines = parts.document.split("\n")
    names = [one.subject for one in found]
    return {
        "names": {(len(name), name.isalpha() and name.isupper()) for name in names},
        "distinct": len(set(names)) == len(names),
        "value": found[0].value == parts.fields["query"]
        and 10_000 <= int(found[0].value) <= 99_999,
        "order": [one.value for one in found[1:]] == [f"VAR {name}" for name in names[:-1]],
        "hops": len(found) - 1,
        "count": int(parts.fields["count"]) == len(found),
        "spaces": [parts.document[one.start : one.end].endswith(" ") for one in found],
        "noise": {line for line in lines if not line.startswith("VAR ")},
        "last": lines[-1] if not example else None,
        "right": names == [*outputs],
        "examples": [
            {
                "lines": one.document.count("\n"),
                "answer": one.answer[:1],
                **chains(one, [*statements("vt", one.document)], one.answer.split(), 0, example=1),
            }
            for one in parts.examples
        ],
    }


def listed(parts, found, outputs, _):
    counted = Counter(one.subject for one in found)
    times = Counter(counted.values())
    most = max(times)
    return {
        "times": {*times},
        "common": times[most],
        "others": times[min(times)] if parts.answer else times[min(times)] > 300,
        "places": [int(one.value) for one in found] == [*range(1, len(found) + 1)],
        "right": {word for word, count in counted.items() if count == most} == {*outputs},
        "count": int(parts.fields["count"]),
        "mixed": [one.subject for one in found] != sorted(one.subject for one in found),
        "examples": [
            listed(
                one, [*statements("cwe", one.document)], re.findall(r" \d+\. (\S+)", one.answer), 0
            )
            for one in parts.examples
        ],
    }


def frequencies(parts, found, outputs, length):
    counted = Counter(one.subject for one in found).most_common()

    def zipf(total):
        return [int(total / rank**2 / (pi**2 / 6)) for rank in range(1, length // 50 + 1)]

    most = int((counted[0][1] + 1) * pi**2 / 6) + 1
    counts = [count for _, count in counted]
    return {
        "noise": counted[0][0],
        "letters": {(len(word), word.isalpha() and word.islower()) for word, _ in counted[1:]},
        "right": [word for word, _ in counted[1:4]] == [*outputs],
        "law": any([c for c in zipf(n) if c] == counts for n in range(most - 3, most + 1)),
        "mixed": parts.document.count("... ...") < counts[0] * 0.8,
    }
