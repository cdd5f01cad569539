"""How far the estimate is from the counts of a real tokenizer, text by text.

python benchmarks/token_estimate.py TOKENIZER.json FILE...
"""

from __future__ import annotations

import sys
from pathlib import Path

from memagent_graph.text.tokens import EstimatingTokenizer, load_tokenizer

WINDOW = 4000
"""Code points for which the smallest and largest ratio are shown."""


def main(tokenizer: str, files: list[str]) -> None:
    exact, estimate = load_tokenizer(Path(tokenizer)), EstimatingTokenizer()
    print(f"{'file':<28} {'tokens':>9} {'estimate / tokens':>18} {'lowest':>7} {'highest':>8}")
    for name in files:
        text = Path(name).read_text("utf-8")
        windows = [text[i : i + WINDOW] for i in range(0, len(text), WINDOW)]
        counts = [(estimate.count(window), exact.count(window)) for window in windows]
        ratios = [guessed / counted for guessed, counted in counts[:-1] or counts]
        total = sum(counted for _, counted in counts)
        whole = sum(guessed for guessed, _ in counts) / total
        print(
            f"{Path(name).name:<28} {total:>9,} {whole:>18.3f} {min(ratios):>7.3f} "
            f"{max(ratios):>8.3f}"
        )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
