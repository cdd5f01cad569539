"""A million tokens through `memagent serve`, by the small model that `make learn` trains.

    python benchmarks/serving_needle.py learned/seed1/ours/model

In vLLM's environment. vLLM serves the model, `memagent serve` stands in front of it, and the
official `openai` client sends one message: a document of which one section in the first tenth says
what is asked, while every section says something misleading. The model, trained on documents of 4
sections, reads them one at a time. The same client then asks again by the memory's id. Prints JSON;
exits with 1 if an answer is wrong, or the second request had anything read again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openai import OpenAI, OpenAIError
from tiny_language import SECTION, sample
from tiny_reader import PROMPTS

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from servers.redis_server import free_port
from servers.vllm_server import VLLMServer, vllm_server

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE = 60.0
"""Seconds for the server to start."""
SHOWN = 1000
"""Chunks between two lines about the progress."""


@contextmanager
def front(folder: Path, vllm: VLLMServer, tokenizer: Path) -> Iterator[OpenAI]:
    """`memagent serve` in a process of its own; a client of it."""
    prompts = folder / "prompts.json"
    prompts.write_text(PROMPTS.model_dump_json(), "utf-8")
    port = free_port()
    command = [sys.executable, "-m", "memagent_openai_server", "--port", str(port)]
    command += ["--model", f"openai:{vllm.name}", "--base-url", vllm.base_url]
    command += ["--tokenizer", str(tokenizer), "--prompts", str(prompts)]
    command += ["--chunk-tokens", str(SECTION), "--memory-tokens", "5", "--answer-tokens", "5"]
    command += ["--store", str(folder / "store.sqlite")]
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(command, stderr=log)
    client = OpenAI(
        base_url=f"http://127.0.0.1:{port}/v1", api_key="not-needed", max_retries=0, timeout=None
    )
    try:
        give_up = time.monotonic() + PATIENCE
        while not _answers(client):
            if process.poll() is not None or time.monotonic() > give_up:
                raise RuntimeError((folder / "log").read_text("utf-8"))
            time.sleep(0.2)
        yield client
    finally:
        client.close()
        process.kill()
        process.wait()


def _answers(client: OpenAI) -> bool:
    try:
        client.models.list()
    except OpenAIError:
        return False
    return True


def ask(client: OpenAI, model: str, text: str, **more: Any) -> dict[str, Any]:
    """Stream one request; what came of it."""
    started, answer, chunks, last = time.perf_counter(), "", 0, None
    request = {"model": model, "messages": [{"role": "user", "content": text}], "stream": True}
    request["stream_options"] = {"include_usage": True}
    for part in client.chat.completions.create(**request, **more):
        for choice in part.choices:
            answer += choice.delta.content or ""
            if getattr(choice.delta, "reasoning_content", None):
                chunks += 1
                if chunks % SHOWN == 0:
                    seconds = time.perf_counter() - started
                    print(f"  {chunks} chunks, {seconds:.0f} s", file=sys.stderr, flush=True)
        last = getattr(part, "memagent", None) or last
    return {
        "answer": answer,
        "memory": (last or {}).get("memory"),
        "chunks": chunks,
        "seconds": round(time.perf_counter() - started, 1),
    }


def main() -> int:
    """Parse arguments and do it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="folder of the trained model")
    parser.add_argument("--tokens", type=int, default=1_000_000)
    parser.add_argument("--index", type=int, default=0, help="another one is another document")
    asked = parser.parse_args()
    sections = -(-asked.tokens // SECTION)
    one = sample(
        asked.index, hops=1, chunks=sections, seed=2_000_000, evidence_within=sections // 10
    )
    words = " ".join(piece.strip() for piece in one.pieces())  # a word is a token
    with (
        tempfile.TemporaryDirectory() as name,
        vllm_server(asked.model.resolve(), Path(name) / "vllm.log") as vllm,
        front(Path(name), vllm, asked.model) as client,
    ):
        first = ask(client, vllm.name, f"{words}\n\n{one.question}")
        again = ask(
            client,
            vllm.name,
            one.question,
            extra_body={"memagent": {"memory": first["memory"]}},
        )
    right = {"tokens": len(words.split()), "right": one.answers[0]}
    print(json.dumps({**right, "read": first, "asked again": again}, indent=1))
    is_right = first["answer"] == again["answer"] == one.answers[0]
    return 0 if is_right and first["chunks"] >= sections > again["chunks"] == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
