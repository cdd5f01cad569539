"""What `memagent ask --dry-run` prints."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memagent_graph.planning import Plan

_TEXT = """\
document        {document_tokens:>14,} tokens
chunks          {chunks:>14,}
model calls     {calls:>14,}
prompt tokens   {prompt_tokens:>14,} at most
reply tokens    {reply_tokens:>14,} at most
longest window  {window_tokens:>14,} tokens at most

Computation, by the reading and by one pass over the whole document
                        reading      one pass     reading is
attention alone  {attention_of_reading:>13,.1f}x{attention_of_one_pass:>13,.1f}x  {attention:>13}
whole model      {operations_of_reading:>9.2e} FLOP{operations_of_one_pass:>9.2e} FLOP  {whole:>13}

Attention alone counts windows of 8,000 tokens, as the MemAgent paper does: one pass compares
every token with every other, a reading each window once. The whole model is the honest figure:
all weights for every token, the prompts' fixed parts and the memories included, and every reply
as long as its budget.
Sizes: {model}."""


def print_plan(plan: Plan, *, as_json: bool) -> None:
    """Print a plan for people, or as one JSON document."""
    fields = plan.as_dict()
    if as_json:
        print(json.dumps(fields, indent=2))
        return
    attention = _compared(plan.attention_of_reading, plan.attention_of_one_pass)
    whole = _compared(plan.operations_of_reading, plan.operations_of_one_pass)
    print(_TEXT.format(**fields, attention=attention, whole=whole))


def _compared(reading: float, one_pass: float) -> str:
    if reading <= one_pass:
        return f"{one_pass / reading:,.1f}x cheaper"
    return f"{reading / one_pass:,.1f}x dearer"
