"""Cutting a text with a BPE tokenizer, against encoding it whole and decoding slices of ids.

    MEMAGENT_DATA=... python benchmarks/chunking.py [TOKENIZER.json]

Without a tokenizer file, a byte-level BPE is trained on the text first.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from memagent_graph.text.chunks import next_chunk
from memagent_graph.text.source import TextSource
from memagent_graph.text.tokens import HuggingFaceTokenizer

CHUNK_TOKENS = 5000
ROUNDS = 5


def trained(text: str) -> Tokenizer:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=32_000,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator([text], trainer)
    return backend


def whole_text(backend: Tokenizer, text: str) -> tuple[int, bool]:
    ids = backend.encode(text, add_special_tokens=False).ids
    parts = [backend.decode(ids[i : i + CHUNK_TOKENS]) for i in range(0, len(ids), CHUNK_TOKENS)]
    return len(ids), "".join(parts) == text


def windowed(tokenizer: HuggingFaceTokenizer, text: str) -> bool:
    source, parts, offset = TextSource(text), [], 0
    while chunk := next_chunk(source, offset, tokenizer=tokenizer, chunk_tokens=CHUNK_TOKENS):
        parts.append(chunk.text)
        offset = chunk.end
    return "".join(parts) == text


def main() -> None:
    text = Path(os.environ["MEMAGENT_DATA"], "war_and_peace.txt").read_text("utf-8")
    backend = Tokenizer.from_file(sys.argv[1]) if len(sys.argv) > 1 else trained(text)
    tokenizer = HuggingFaceTokenizer(backend)
    whole_seconds, our_seconds = [], []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        tokens, whole_exact = whole_text(backend, text)
        middle = time.perf_counter()
        exact = windowed(tokenizer, text)
        whole_seconds.append(middle - started)
        our_seconds.append(time.perf_counter() - middle)
    ratios = [theirs / ours for theirs, ours in zip(whole_seconds, our_seconds, strict=True)]
    theirs, ours = statistics.median(whole_seconds), statistics.median(our_seconds)
    print(f"whole text: {tokens / theirs:>11,.0f} tokens/s, reproduces the text: {whole_exact}")
    print(f"next_chunk: {tokens / ours:>11,.0f} tokens/s, reproduces the text: {exact}")
    low, high = min(ratios), max(ratios)
    print(f"ratio {statistics.median(ratios):.1f} ({low:.1f} to {high:.1f}, {ROUNDS} rounds)")


if __name__ == "__main__":
    main()
