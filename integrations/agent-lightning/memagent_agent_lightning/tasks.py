"""Writes a data set: documents as files, and a line of JSON for each task."""

from __future__ import annotations

import json
import random
from argparse import ArgumentParser
from pathlib import Path
from typing import TYPE_CHECKING

from memagent_graph.evaluation.tasks import make_task
from memagent_graph.text.tokens import load_tokenizer

if TYPE_CHECKING:
    from memagent_graph.text.tokens import TokenizerLike


def write_tasks(
    name: str,
    out: Path,
    *,
    count: int,
    lengths: tuple[int, int] = (28_000, 32_000),
    tokenizer: TokenizerLike = None,
) -> Path:
    """Write tasks of one kind; the same arguments write the same ones.

    Args:
        name: as `memagent eval` has it: `qa:FILE` for a file of HotpotQA or SQuAD, whose other
            paragraphs are the distractors.
        out: a folder that every machine of the cluster can read.
        count: how many tasks.
        lengths: least and most tokens of a document.
        tokenizer: counts them.

    Returns:
        The file with the tasks, `OUT/tasks.jsonl`.

    Raises:
        ConfigurationError: There is no such kind, or too little text for such lengths.
    """
    task, counter = make_task(name), load_tokenizer(tokenizer)
    documents, rng = out.resolve() / "documents", random.Random(name)  # noqa: S311 - no secret
    documents.mkdir(parents=True, exist_ok=True)
    tasks = out / "tasks.jsonl"
    with tasks.open("w", encoding="utf-8") as file:
        for index in range(count):
            sample = task.sample(rng.randint(*lengths), index, seed=0, tokenizer=counter)
            path = documents / f"{index}.txt"
            path.write_text("".join(piece.text for piece in sample.pieces()), encoding="utf-8")
            row = {"question": sample.question, "answers": sample.answers, "path": str(path)}
            file.write(json.dumps(row) + "\n")
    return tasks


def main() -> None:
    """`python -m memagent_agent_lightning.tasks qa:FILE OUT --count N --tokenizer ID`."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("out", type=Path)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--tokenizer")
    given = parser.parse_args()
    write_tasks(given.name, given.out, count=given.count, tokenizer=given.tokenizer)


if __name__ == "__main__":
    main()
