"""Write a data set: documents as files, and one line of JSON per task."""

from __future__ import annotations

import json
import random
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import TYPE_CHECKING

from memagent_graph.errors import MemAgentError
from memagent_graph.evaluation.tasks import make_task
from memagent_graph.text.files import open_source
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
    essays: Path | None = None,
) -> Path:
    """Write tasks of one kind; equal arguments write equal tasks.

    Args:
        name: a task of `memagent eval`, such as `qa:FILE` for a file of HotpotQA or SQuAD, whose
            other paragraphs are the distractors.
        out: a folder that every machine of the cluster can read.
        count: number of tasks.
        lengths: least and greatest length of a document, in tokens.
        tokenizer: counts the tokens.
        essays: a folder of texts that fill documents for which the file has too few paragraphs.

    Returns:
        The path of the file with the tasks, `OUT/tasks.jsonl`.

    Raises:
        ConfigurationError: There is no such task, or too little text for these lengths.
    """
    task = make_task(name, open_source(essays) if essays else None)
    counter = load_tokenizer(tokenizer)
    documents, rng = out.resolve() / "documents", random.Random(name)  # noqa: S311 - no secret
    documents.mkdir(parents=True, exist_ok=True)
    tasks = out / "tasks.jsonl"
    with tasks.open("w", encoding="utf-8") as file:
        for index in range(count):
            sample = task.sample(rng.randint(*lengths), index, seed=0, tokenizer=counter)
            path = documents / f"{index}.txt"
            path.write_text("".join(sample.pieces()), encoding="utf-8")
            row = {"question": sample.question, "answers": sample.answers, "path": str(path)}
            file.write(json.dumps(row) + "\n")
    return tasks


def main() -> None:
    """`python -m memagent_agent_lightning.tasks qa:FILE OUT --count N --tokenizer ID`."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("name", help="task of `memagent eval`, such as qa:FILE")
    parser.add_argument("out", type=Path, help="folder that every machine can read")
    parser.add_argument("--count", type=int, required=True, help="number of tasks")
    parser.add_argument("--tokenizer", help="folder or hub id of the policy's tokenizer")
    parser.add_argument("--essays", type=Path, help="folder of texts that fill the documents")
    given = vars(parser.parse_args())
    try:
        write_tasks(given.pop("name"), given.pop("out"), **given)
    except MemAgentError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
