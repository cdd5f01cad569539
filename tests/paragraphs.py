"""Files of questions over paragraphs, in the formats that the benchmarks have."""

import json


def squad(folder, count=30):
    file = folder / "squad.json"
    paragraphs = [
        {
            "context": f"The mill of ward {n} was built in {1700 + n} by Mr. Fox.",
            "qas": [
                {
                    "question": f"When was the mill of ward {n} built?",
                    "answers": [{"text": str(1700 + n), "answer_start": 0}],
                }
            ],
        }
        for n in range(count)
    ]
    file.write_text(json.dumps({"data": [{"title": "Mills", "paragraphs": paragraphs}]}))
    return file


def hotpot(folder, count=1):
    """Each question has two gold paragraphs and one distractor, which holds its answer."""
    file = folder / "hotpot.json"
    rows = [
        {
            "question": f"Where was the builder of mill {n} born?",
            "answer": f"Husum-{n}",
            "supporting_facts": [[f"Mill {n}", 0], [f"Fox {n}", 0]],
            "context": [
                [f"Mill {n}", [f"Fox {n} built mill {n}.", " It burned."]],
                [f"Hare {n}", [f"Hare {n} was in Husum-{n} once."]],
                [f"Fox {n}", [f"Fox {n} was born in Husum-{n}."]],
            ],
        }
        for n in range(count)
    ]
    file.write_text(json.dumps(rows))
    return file


def natural(folder, rows):
    """Rows are of a question, its answers, a title and a text."""
    file = folder / "natural.jsonl"
    keys = ("question", "answers", "title", "text")
    lines = (json.dumps(dict(zip(keys, row, strict=True))) for row in rows)
    file.write_text("".join(f"{line}\n" for line in lines))
    return file
