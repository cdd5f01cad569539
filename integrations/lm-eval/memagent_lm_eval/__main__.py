"""The harness's own command line, with the model added."""

from __future__ import annotations

from lm_eval.__main__ import cli_evaluate

import memagent_lm_eval.model  # noqa: F401 - registers "memagent"


def main() -> None:
    """Run `lm_eval`."""
    cli_evaluate()


if __name__ == "__main__":
    main()
