"""A fact in 14 MB of text: is it found, how fast, and in how much memory?

    MEMAGENT_DATA=... python benchmarks/long_document.py

Each reading runs in a process of its own, so that its peak memory is its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

FACT = "The access code of the Kestrel vault is 49-17-63."
QUESTION = "What is the access code of the Kestrel vault?"
READ = """
import json, resource, sys, time
from pathlib import Path
from memagent_graph import create_memagent
agent = create_memagent("extractive")
started = time.perf_counter()
out = agent.invoke({"question": sys.argv[2], "document": Path(sys.argv[1])})
seconds = time.perf_counter() - started
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps([out["answer"].splitlines()[0], out["usage"]["document_tokens"], seconds, peak]))
"""


def read(text: str) -> tuple[str, int, float, float]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "long.txt")
        file.write_text(text)
        command = [sys.executable, "-c", READ, str(file), QUESTION]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    answer, tokens, seconds, peak = json.loads(printed)
    return answer, tokens, seconds, peak


def planted(text: str, share: float) -> str:
    place = text.rfind("\n\n", 0, int(len(text) * share)) if share else 0
    return f"{text[:place]}\n\n{FACT}\n\n{text[max(place, 0) :]}"


def main() -> None:
    novel = Path(os.environ["MEMAGENT_DATA"], "war_and_peace.txt").read_text("utf-8")
    long = (novel * 5)[:14_500_000]
    *_, small_peak = read(planted(novel[:150_000], 0.5))
    print(f"35,000 tokens: peak memory {small_peak:.0f} MB")
    for name, share in (("start", 0.0), ("middle", 0.5), ("end", 1.0)):
        answer, tokens, seconds, peak = read(planted(long, share))
        found = "found" if answer == FACT else f"NOT FOUND: {answer}"
        print(
            f"{tokens:,} tokens, fact at the {name}: {found}, {tokens / seconds:,.0f} tokens/s, "
            f"peak memory {peak:.0f} MB ({peak - small_peak:+.0f})"
        )


if __name__ == "__main__":
    main()
