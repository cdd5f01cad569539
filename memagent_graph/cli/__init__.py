"""The `memagent` command."""

from __future__ import annotations

import io
import os
import sys


def main() -> None:
    """Run the command line, or say what to install."""
    try:
        import typer  # noqa: F401
    except ImportError:
        sys.exit('memagent: error: the command line needs: pip install "memagent-graph[cli]"')
    _replace_closed_streams()
    from memagent_graph.cli.app import app
    from memagent_graph.cli.terminal import mask_streams

    # vLLM would log to standard output, between the answers.
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    if isinstance(sys.stdout, io.TextIOWrapper):
        # An answer that the terminal's encoding lacks a letter for must not be lost.
        sys.stdout.reconfigure(errors="backslashreplace")
    mask_streams()  # to the end: a traceback is printed after all commands
    app()


def _replace_closed_streams() -> None:
    """Make the use of a closed standard stream an error like any other; Python has None there."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            unusable = os.open(os.devnull, os.O_WRONLY if mode == "r" else os.O_RDONLY)
            setattr(sys, name, os.fdopen(unusable, mode))
