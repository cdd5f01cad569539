"""python examples/review_contracts.py [FOLDER].

For a folder of contracts and the same questions about each: all are read at once, and
each answer names its line. Without a folder it makes three contracts to show. Set MEMAGENT_MODEL
(vllm:Qwen/Qwen2.5-7B-Instruct, say) for a model.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from memagent_graph import create_memagent, read_many

QUESTIONS = ("Who is the tenant?", "How much is the rent?", "When does the lease end?")
FILLER = "The roof is made of slate, and the floor of oak. " * 800


def make_contracts(folder: Path) -> None:
    """Three leases with what matters somewhere in the middle."""
    for tenant, rent, end in (("Fox", 900, 2027), ("Owl", 1100, 2028), ("Hare", 750, 2031)):
        text = f"The tenant is {tenant} Ltd. {FILLER}The rent is {rent} euros a month. {FILLER}"
        (folder / f"{tenant.lower()}.txt").write_text(f"{text}The lease ends in June {end}.\n")


def review(folder: Path) -> None:
    """Print a table of all answers."""
    tasks = [
        {"id": f"{path.name}: {question}", "question": question, "document": path}
        for path in sorted(folder.iterdir())
        for question in QUESTIONS
    ]
    results = {result.id: result for result in read_many(create_memagent(), tasks)}
    for task in tasks:
        result = results[task["id"]]
        if result.output is None:
            print(f"{result.id}  failed: {result.error}")
            continue
        places = {f"line {item['line']}" for item in result.output["citations"]}
        print(f"{result.id}  {result.output['answer']}  ({', '.join(sorted(places))})")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        review(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as place:
            make_contracts(Path(place))
            review(Path(place))
