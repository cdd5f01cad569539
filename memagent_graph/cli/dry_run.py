"""`memagent ask --dry-run`: what it is asked with, and what it prints."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

if TYPE_CHECKING:
    from memagent_graph.planning import Plan

DryRun: TypeAlias = Annotated[
    bool, typer.Option("--dry-run", help="Print what the reading would cost, without reading.")
]
Questions: TypeAlias = Annotated[
    int, typer.Option(help="With --dry-run: number of questions to ask in one pass.")
]
PriceOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--price",
        metavar="IN,OUT",
        help="With --dry-run: dollars for a million tokens of prompts, and of replies.",
    ),
]
Prices: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        envvar="MEMAGENT_PRICES",
        help='With --dry-run: a JSON file of such prices: {"openai:MODEL": [IN, OUT]}.',
    ),
]
TokensPerSecond: TypeAlias = Annotated[
    float | None,
    typer.Option(
        help="With --dry-run: tokens a second of one call, from its start, with other calls "
        "under way."
    ),
]

_TEXT = """\
document        {document_tokens:>14,} tokens
chunks read     {chunks:>14,} for each question
questions       {questions:>14,}
model calls     {calls:>14,} at most
prompt tokens   {prompt_tokens:>14,} at most
reply tokens    {reply_tokens:>14,} at most
longest window  {window_tokens:>14,} tokens at most
calls at once   {calls_at_once:>14,} at most
calls in a row  {chain_calls:>14,} at most
"""
_IF_FOUND = "if found        {calls_if_found:>14,} calls, where the words of the question lead\n"
_DOLLARS = "dollars         {:>14} at most\n"
_MINUTES = "minutes         {:>14} at most\n"
_NOTE = """
Each reply is counted as long as its budget. What the store has of earlier readings costs nothing
again. Calls repeated after errors come on top, and one for each memory that is over its budget."""


def chosen_price(
    price: str | None, prices: Path | None, model: str | None
) -> tuple[float, float] | None:
    """The price that --price names, or --prices for the model; None if neither does.

    Raises:
        ConfigurationError: It is not two numbers, or the file cannot be read.
    """
    from memagent_graph.errors import ConfigurationError

    if price is not None:
        return _pair(price.split(","), "--price")
    if prices is None or model is None:
        return None
    try:
        table = json.loads(prices.read_text("utf-8"))
    except (OSError, ValueError) as error:
        message = f"The prices in {prices} cannot be read: {error}"
        raise ConfigurationError(message) from error
    if not isinstance(table, dict):
        message = f'{prices} has no prices: {{"{model}": [2.5, 10]}} would be one.'
        raise ConfigurationError(message)
    if model not in table:
        print(f"memagent: {prices} has no price for {model!r}.", file=sys.stderr)
        return None
    return _pair(table[model], f"{prices}, {model!r}")


def _pair(given: Any, where: str) -> tuple[float, float]:
    from memagent_graph.errors import ConfigurationError

    try:
        prompts, replies = given
        return float(prompts), float(replies)
    except (TypeError, ValueError) as error:
        message = (
            f"{where}: a price is two numbers of dollars, for a million tokens of prompts and for "
            f"a million of replies, such as 2.5,10, not {given!r}."
        )
        raise ConfigurationError(message) from error


def print_plan(plan: Plan, *, as_json: bool) -> None:
    """Print a plan for people, or as one JSON document."""
    fields = plan.as_dict()
    if as_json:
        print(json.dumps(fields, indent=2))
        return
    text = _TEXT.format(**fields)
    if plan.calls_if_found is not None:
        text += _IF_FOUND.format(**fields)
    if plan.dollars is not None:
        text += _DOLLARS.format(_rounded(plan.dollars))
    if plan.minutes is not None:
        text += _MINUTES.format(_rounded(plan.minutes))
    print(text + _NOTE)


def _rounded(number: float) -> str:
    """Format a number with two decimals, or below 1 with two significant digits."""
    return f"{number:,.2f}" if number >= 1 else f"{number:.2g}"
