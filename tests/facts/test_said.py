"""A date in a reply is kept if the text says it, and not of another fact alone."""

import pytest

from memagent_graph import Facts, facts_of
from memagent_graph.facts.rules import MADE_UP, keep_said

LEASE = """\
Lease 7

The rent of Lease 7 is 900 euros a month since 1 May 2020. The deposit is 1,800 euros and was paid \
on 12 June 2020. Nora Brand moved in on 1 July 2020.
"""
CHANGES = """\
Amendment No. 2 to Lease 7

With effect from 1 January 2022:
- the rent is 950 euros,
- the notice period is four months.
"""
CORRECTION = "The rent is 990 euros since 1 May 2024. The deposit is not 1,800 but 1,900 euros."
TABLE = """\
| Year | Rent | Caretaker |
|------|------|-----------|
| 2021 | 900 euros | Bo Lind |
| 2022 | 930 euros | Kim Day |
"""
GERMAN = """\
Mietvertrag vom 1. März 2019. Zum 1. Mai 2021 wird die Kaution auf 1.700 Euro erhöht. Der \
Stellplatz wurde zum 30. Juni 2022 gekündigt."""
CHINESE = (
    "7号租约的月租金为850欧元，自2021年5月1日起执行。押金为1700欧元，已于2021年6月3日支付。"
    "车位已于2022年6月30日终止。"
)


@pytest.mark.parametrize(("text", "reply", "left"), [
    (LEASE, "Lease 7 | rent | 900 euros | since 2020-05-01", True),
    (LEASE, "Lease 7 | rent | 900 euros | since 2020-06-12", False),
    (LEASE, "Lease 7 | rent | 900 euros | until 2020-07-01", False),
    (LEASE, "Lease 7 | deposit | 1,800 euros | since 2020-05-01", False),
    (LEASE, "Lease 7 | tenant | Nora Brand | since 2020-07-01", True),
    (CHANGES, "Lease 7 | rent | 950 euros | since 2022-01-01", True),
    (CHANGES, "Lease 7 | notice period | four months | since 2022-01-01", True),
    (CHANGES, "Lease 7 | rent | 950 euros | since 2023-07-01", False),
    (TABLE, "Lease 7 | rent | 930 euros | since 2022", True),
    (TABLE, "Lease 7 | rent | 930 euros | since 2021", False),
    (GERMAN, "Haus 7 | Kaution | 1.700 Euro | since 2021-05-01", True),
    (GERMAN, "Haus 7 | Kaution | 1.700 Euro | since 2019-03-01", False),
    (GERMAN, "Haus 7 | hat | Stellplatz | until 2022-06-30", True),
    (CHINESE, "7号租约 | 月租金 | 850欧元 | since 2021-05-01", True),
    (CHINESE, "7号租约 | 押金 | 1700欧元 | since 2021-05-01", False),
    (CHINESE, "7号租约 | 包括 | 车位 | until 2022-06-30", True),
])  # fmt: skip
def test_a_date_is_one_that_the_text_says(text, reply, left):
    (fact,) = facts_of(reply)

    ((kept,), lost) = keep_said([fact], "", text, Facts(), dated=False)

    assert (kept.line == fact.line, bool(lost[MADE_UP])) == (left, not left)
    assert kept.triple == fact.triple
    assert left or kept.status == "holds"


def test_a_sentence_that_states_another_fact_does_not_date_this_one():
    reply = facts_of(
        "Lease 7 | rent | 990 euros | since 2024-05-01\n"
        "Lease 7 | deposit | 1,900 euros | since 2024-05-01"
    )

    kept, lost = keep_said(reply, "", CORRECTION, Facts(), dated=False)

    assert ([one.since for one in kept], lost) == (["2024-05-01", None], {MADE_UP: 1})
