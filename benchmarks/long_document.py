"""A fact in 14 MB of text: is it found, how fast, and in how much memory? And cutting and skimming.

    MEMAGENT_DATA=... python benchmarks/long_document.py [--millions 3.5 30]

Each reading runs in a process of its own, so that its peak memory is its own. Cutting and skimming
are measured in processor time, after the imports.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from measurement import print_head, print_row

FACT = "The access code of the Kestrel vault is 49-17-63."
QUESTION = "What is the access code of the Kestrel vault?"
PREPARE = """
import json, sys, time
from pathlib import Path
from memagent_graph import ReadingConfig, create_memagent
from memagent_graph.text.chunks import chunks
from memagent_graph.text.files import open_source
from memagent_graph.text.tokens import EstimatingTokenizer
agent = create_memagent("extractive", config=ReadingConfig(skim=json.loads(sys.argv[3])))
def read():
    return agent.invoke({"question": sys.argv[2], "document": Path(sys.argv[1])})
def cut():
    source = open_source(Path(sys.argv[1]))
    found = chunks(source, tokenizer=EstimatingTokenizer(), chunk_tokens=5000)
    return sum(chunk.tokens for chunk in found)
"""
READ = """
started = time.process_time()
out = read()
found = out["answer"].splitlines()[0]
"""
CUT = """
started = time.process_time()
found = cut()
"""
REPORT = """
seconds = time.process_time() - started
status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
peak = int(status["VmHWM"].split()[0]) / 1024  # that of `getrusage` counts the parent's too
print(json.dumps([found, seconds, peak]))
"""


def run(work: str, text: str, skim: str | None = None) -> tuple[object, float, float]:
    """What was found in a text, seconds of processor time, and the peak memory in MB."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "long.txt")
        file.write_text(text)
        code = PREPARE + work + REPORT
        command = [sys.executable, "-c", code, str(file), QUESTION, json.dumps(skim)]
        environment = {**os.environ, "MEMAGENT_CACHE": "off"}
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    found, seconds, peak = json.loads(done.stdout)
    return found, seconds, peak


def planted(text: str, size: int) -> str:
    """A text, repeated to a size, with the fact in its middle."""
    text = (text * (size // len(text) + 1))[:size]
    place = text.rfind("\n\n", 0, size // 2)
    return f"{text[:place]}\n\n{FACT}\n\n{text[place:]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--millions", type=float, nargs="+", default=[0.35, 3.5])
    options = parser.parse_args()
    folder = Path(os.environ["MEMAGENT_DATA"])
    novel = (folder / "war_and_peace.txt").read_text("utf-8")
    articles = json.loads((folder / "xquad.zh.json").read_text("utf-8"))["data"]
    paragraphs = [one["context"] for article in articles for one in article["paragraphs"]]
    texts = {
        "ASCII": (novel.encode("ascii", "ignore").decode(), 4.1),
        "Chinese": ("\n\n".join(paragraphs), 1.15),
    }
    print_head("", "tokens", "cut", "MB", "skimmed", "MB", "read, tokens/s", "MB", "found")
    for name, (text, size) in texts.items():
        for millions in options.millions:
            long = planted(text, int(millions * size * 1e6))
            cells = []
            tokens, seconds, peak = run(CUT, long)
            cells += [f"{tokens / seconds:,.0f}", f"{peak:.0f}"]
            ways = [run(READ, long, skim) for skim in ("lexical", None)]
            for _, seconds, peak in ways:
                cells += [f"{tokens / seconds:,.0f}", f"{peak:.0f}"]
            found = all(answer == FACT for answer, *_ in ways)
            print_row(name, f"{tokens:,}", *cells, found)


if __name__ == "__main__":
    main()
