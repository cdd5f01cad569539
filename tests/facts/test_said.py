"""A date or an end in a reply is kept if the text gives it for that fact."""

from __future__ import annotations

import pytest

from memagent_graph import Facts, facts_of
from memagent_graph.facts.rules import MADE_UP, keep_said

LEASE = """\
Lease 7

The rent of Lease 7 is 900 euros a month since 1 May 2020. The deposit is 1,800 euros and was \
paid \
on 12 June 2020. Nora Brand moved in on 1 July 2020.
"""
CHANGES = """\
Amendment No. 2 to Lease 7

With effect from 1 January 2022:
- the rent is 950 euros,
- the notice period is four months.

With effect from 1 July 2023:
- the caretaker is Bo Lind.
"""
SIGNED = (
    "On 1 May 2020 the parties signed. The rent is 900 euros since then. Parking costs 50 euros."
)
TWO = (
    "The rent is raised from 900 to 950 euros as of 1 May 2024, and the deposit from 1,800 to "
    "1,900 euros as of 1 June 2024."
)
TABLE = """\
| Year | Rent | Caretaker |
|------|------|-----------|
| 2021 | 900 euros | Bo Lind |
| 2022 | 930 euros | Kim Day |
| 2023 | 960 euros | Kim Day |
"""
ACROSS = """\
|            | 1 May 2021 | 1 May 2022 |
|------------|------------|------------|
| Rent       | 900 euros  | 930 euros  |
| Deposit    | 1800 euros | 1860 euros |
"""
MINUTES = """\
Minutes of the board, 3 March 2023

Anna Bell is elected chair. Kim Day leaves the board.

Minutes of the board, 9 June 2023

Bo Lind is elected treasurer. The budget is 40,000 euros.
"""
LETTER = """\
Bern, 3 May 2022

Dear Ms Brand,

from today your rent is 900 euros. We still wait for the keys that you were to return on \
30 April 2022.
"""
MAIL = """\
From: Anna Bell
Date: Mon, 6 Feb 2023 10:12
Subject: Office

Hi all, our office is in Bern as of this week. Kim, who left us on 31 January 2023, sends regards.
"""
CLAUSES = """\
7.1 The fee of the Agency is 3,000 euros.
7.2 Either party may terminate this agreement with three months' notice.
7.3 This agreement takes effect on 1 April 2021.
"""
ENDINGS = (
    "The licence of Acme was revoked. Bolt holds a licence for Bern. The permit of Crest has not "
    "expired. The right of Dune may be terminated at any time."
)
STAFF = "Anna Bell no longer works at Acme. Bo Lind works at Acme. Kim Day used to work at Bolt."
LIST_OF_ENDED = """\
Terminated contracts:
- Mill 1
- Mill 2

Contracts in force:
- Mill 3
"""
GERMAN = """\
Mietvertrag vom 1. März 2019. Die Miete von Haus 7 beträgt 850 Euro. Zum 1. Mai 2021 wird \
die Kaution auf 1.700 Euro erhöht. Der Stellplatz wurde zum 30. Juni 2022 gekündigt."""
GERMAN_LIST = """\
Ab dem 1. Januar 2020 gelten folgende Beträge:
Miete: 900 Euro
Nebenkosten: 150 Euro

Ab dem 1. Januar 2021 gelten folgende Beträge:
Miete: 930 Euro
"""
GERMAN_END = (
    "Frau Sommer ist seit 2015 Hausverwalterin. Sie ist am 31. März 2021 ausgeschieden. Herr "
    "Winter ist Hausmeister. Der Vertrag kann mit einer Frist von drei Monaten gekündigt werden."
)
GERMAN_PROTOCOL = """\
Protokoll vom 4. Mai 2022

TOP 1: Petra Klein wird Vorsitzende.
TOP 2: Der Beitrag steigt auf 60 Euro. Dies gilt ab dem 1. Januar 2023.
"""
FRENCH = """\
Le loyer du bail 7 est de 850 euros depuis le 1er mai 2021. Le dépôt de garantie est de 1 \
700 euros ; il a été versé le 3 juin 2021. Le parking a été résilié le 30 juin 2022."""
FRENCH_LIST = """\
À compter du 1er janvier 2020 :
- le loyer est de 900 euros ;
- les charges sont de 150 euros.

Fait à Lyon, le 12 décembre 2019
"""
FRENCH_END = """\
Mme Petit n'est plus gérante de la société Orme. M. Roux en est le comptable. Le contrat \
peut être résilié avec un préavis de trois mois."""
CHINESE = (
    "7号租约的月租金为850欧元，自2021年5月1日起执行。押金为1700欧元，已于2021年6月3日支付。"
    "车位已于2022年6月30日终止。"
)
CHINESE_LIST = """\
自2020年1月1日起：
月租金：900欧元
物业费：150欧元

自2021年1月1日起：
月租金：930欧元
"""
CHINESE_END = "王芳不再担任经理。李强担任会计。双方可提前三个月通知解除合同。"
HISTORY = """\
2010-2014: Anna Bell is director of the Mill.
2014-2019: Kim Day is director of the Mill.
2019: Bo Lind takes over.
"""
CAREER = (
    "From 2010 to 2014 Anna Bell worked at Acme. She then joined Bolt, where she stayed until "
    "2018. Since 2018 she works at Crest."
)
LOG = """\
[2023-05-03 10:21] Anna: The server moved to Bern. The old one in Rome is switched off.
[2023-06-11 09:02] Bo: The password policy is 14 signs.
"""
PAST = (
    "Bo Lind was the tenant of Lease 7 from 2015 to 2019. Nora Brand is the tenant since 2019. "
    "The new heating of 2021 is paid by the owner. The term of Lease 8 is from 2020 to 2027."
)
APPLIES = "The fee of A is 9 euros. This applies from 1 May 2020. The fee of B is 7 euros."
HEADLINES = """\
# 2021

The price of oats is 3 euros.

# 2022

The price of oats is 4 euros. The price of rye is 5 euros.
"""

SERVICE = """\
SERVICE AGREEMENT

between Orlin Ltd. ("Provider") and Vesta GmbH ("Client"), dated 14 February 2020.

1. Term. This Agreement shall commence on 1 March 2020 and continue until 28 February 2023 unless \
terminated earlier.
2. Fees. The monthly fee is EUR 4,500. With effect from 1 January 2022 the monthly fee shall be \
EUR 4,950.
3. Contact. The Provider's contact is Jana Holm. Until 30 June 2021 the contact was Piet Vos.
"""
CHAT = """\
Anna: has the gym contract been cancelled?
Bo: yes, I cancelled it in March 2023. The parking spot we keep.
Anna: good. And the phone plan is 30 euros since April 2023."""
NOTICE = """\
Sehr geehrte Frau Kern,

hiermit kündigen wir den Wartungsvertrag Nr. 12 zum 31. Dezember 2022. Der Liefervertrag Nr. 14 \
bleibt bestehen.

Mit freundlichen Grüßen
Hamburg, 4. Oktober 2022"""
ASSEMBLY = """\
Procès-verbal de l'assemblée du 12 avril 2022

M. Roy est élu président pour trois ans. Mme Blanc a démissionné de son poste de trésorière. La \
cotisation reste à 40 euros."""
MEETING = """\
会议纪要 2022年4月12日

张敏当选主席。王磊辞去财务一职。会费为40元。"""
ROLES = """\
Name        Role        From         To
Ida Berg    Director    2015-03-01   2019-08-31
Olaf Kern   Director    2019-09-01
Ida Berg    Adviser     2019-09-01   2021-12-31
"""
TEAM = """\
Dear all,

As of 1 September 2021 Carla Stein heads the sales team. Her predecessor, Jon Pike, moved to \
Oslo. The support team is still headed by Lea Moor, who joined in 2018."""
POLICY = "The premium is 120 francs. It was raised on 1 January 2023. The deductible is 500 \
francs."
DUES = (
    "Seit dem 1. Juli 2020 beträgt der Beitrag 25 Euro im Monat; die Aufnahmegebühr beträgt s"
    "eit dem 1. Januar 2018 50 Euro."
)
CELLAR = (
    "Le bail a été signé le 3 mars 2018. Depuis cette date, le loyer est de 700 euros. La cav"
    "e a été ajoutée le 1er juin 2020."
)
CELLAR_ZH = (
    "自2018年3月3日起，房租为700元。2020年6月1日，房东增加了地下室。物业由李强管"
    "理，直到2021年12月31日。"
)
FIRM = (
    "Vesta was founded in 1999 by Mia Falk. It is based in Turin. In 2012 it bought Orlin. Or"
    "lin makes pumps."
)


@pytest.mark.parametrize(
    ("text", "reply", "left"),
    [
        (LEASE, "Lease 7 | rent | 900 euros | since 2020-05-01", True),
        (LEASE, "Lease 7 | rent | 900 euros | since 2020-06-12", False),
        (LEASE, "Lease 7 | rent | 900 euros | until 2020-07-01", False),
        (LEASE, "Lease 7 | rent | 900 euros | ended", False),
        (LEASE, "Lease 7 | deposit | 1,800 euros | since 2020-06-12", True),
        (LEASE, "Lease 7 | deposit | 1,800 euros | since 2020-05-01", False),
        (LEASE, "Lease 7 | tenant | Nora Brand | since 2020-07-01", True),
        (LEASE, "Lease 7 | tenant | Nora Brand | since 2020-05-01", False),
        (LEASE, "Lease 7 | tenant | Nora Brand | ended", False),
        (CHANGES, "Lease 7 | rent | 950 euros | since 2022-01-01", True),
        (CHANGES, "Lease 7 | notice period | four months | since 2022-01-01", True),
        (CHANGES, "Lease 7 | rent | 950 euros | since 2023-07-01", False),
        (CHANGES, "Lease 7 | caretaker | Bo Lind | since 2023-07-01", True),
        (CHANGES, "Lease 7 | caretaker | Bo Lind | since 2022-01-01", False),
        (CHANGES, "Lease 7 | notice period | four months | ended", False),
        (SIGNED, "Lease 7 | rent | 900 euros | since 2020-05-01", True),
        (SIGNED, "Lease 7 | parking | 50 euros | until 2020-05-01", False),
        (TWO, "Lease 7 | rent | 950 euros | since 2024-05-01", True),
        (TWO, "Lease 7 | rent | 950 euros | since 2024-06-01", False),
        (TWO, "Lease 7 | deposit | 1,900 euros | since 2024-06-01", True),
        (TWO, "Lease 7 | deposit | 1,900 euros | since 2024-05-01", False),
        (TWO, "Lease 7 | rent | 900 euros | until 2024-05-01", True),
        (TABLE, "Lease 7 | rent | 930 euros | since 2022", True),
        (TABLE, "Lease 7 | rent | 930 euros | since 2021", False),
        (TABLE, "Lease 7 | caretaker | Bo Lind | since 2021", True),
        (TABLE, "Lease 7 | caretaker | Bo Lind | since 2023", False),
        (ACROSS, "Lease 7 | rent | 900 euros | since 2021-05-01", True),
        (ACROSS, "Lease 7 | deposit | 1860 euros | since 2022-05-01", True),
        (MINUTES, "board | chair | Anna Bell | since 2023-03-03", True),
        (MINUTES, "board | treasurer | Bo Lind | since 2023-06-09", True),
        (MINUTES, "board | treasurer | Bo Lind | since 2023-03-03", False),
        (MINUTES, "board | member | Kim Day | until 2023-03-03", True),
        (MINUTES, "board | member | Kim Day | ended", True),
        (MINUTES, "board | budget | 40,000 euros | ended", False),
        (LETTER, "Ms Brand | rent | 900 euros | since 2022-05-03", True),
        (LETTER, "Ms Brand | rent | 900 euros | until 2022-04-30", False),
        (MAIL, "office | located in | Bern | since 2023-02-06", True),
        (MAIL, "office | located in | Bern | since 2023-01-31", False),
        (MAIL, "Kim | works at | our office | until 2023-01-31", True),
        (CLAUSES, "Agency | fee | 3,000 euros | since 2021-04-01", True),
        (CLAUSES, "Agency | fee | 3,000 euros | ended", False),
        (CLAUSES, "agreement | notice period | three months | ended", False),
        (ENDINGS, "Acme | has | licence | ended", True),
        (ENDINGS, "Bolt | licence for | Bern | ended", False),
        (ENDINGS, "Crest | has | permit | ended", False),
        (ENDINGS, "Dune | has | right | ended", False),
        (STAFF, "Anna Bell | works at | Acme | ended", True),
        (STAFF, "Bo Lind | works at | Acme | ended", False),
        (STAFF, "Kim Day | works at | Bolt | ended", True),
        (LIST_OF_ENDED, "company | contract | Mill 2 | ended", True),
        (LIST_OF_ENDED, "company | contract | Mill 3 | ended", False),
        (GERMAN, "Haus 7 | Kaution | 1.700 Euro | since 2021-05-01", True),
        (GERMAN, "Haus 7 | Miete | 850 Euro | since 2021-05-01", False),
        (GERMAN, "Haus 7 | Miete | 850 Euro | until 2022-06-30", False),
        (GERMAN, "Haus 7 | Miete | 850 Euro | since 2019-03-01", True),
        (GERMAN, "Haus 7 | hat | Stellplatz | until 2022-06-30", True),
        (GERMAN, "Haus 7 | hat | Stellplatz | ended", True),
        (GERMAN, "Haus 7 | Miete | 850 Euro | ended", False),
        (GERMAN_LIST, "Haus 7 | Miete | 900 Euro | since 2020-01-01", True),
        (GERMAN_LIST, "Haus 7 | Miete | 930 Euro | since 2021-01-01", True),
        (GERMAN_LIST, "Haus 7 | Nebenkosten | 150 Euro | since 2020-01-01", True),
        (GERMAN_LIST, "Haus 7 | Nebenkosten | 150 Euro | since 2021-01-01", False),
        (GERMAN_LIST, "Haus 7 | Miete | 900 Euro | until 2021-01-01; replaced", True),
        (GERMAN_END, "Haus | Hausverwalterin | Frau Sommer | since 2015; until 2021-03-31", True),
        (GERMAN_END, "Haus | Hausmeister | Herr Winter | since 2015", False),
        (GERMAN_END, "Haus | Hausmeister | Herr Winter | ended", False),
        (GERMAN_END, "Vertrag | Frist | drei Monate | ended", False),
        (GERMAN_PROTOCOL, "Verein | Vorsitzende | Petra Klein | since 2022-05-04", True),
        (GERMAN_PROTOCOL, "Verein | Beitrag | 60 Euro | since 2023-01-01", True),
        (GERMAN_PROTOCOL, "Verein | Vorsitzende | Petra Klein | since 2023-01-01", False),
        (FRENCH, "bail 7 | loyer | 850 euros | since 2021-05-01", True),
        (FRENCH, "bail 7 | loyer | 850 euros | since 2021-06-03", False),
        (FRENCH, "bail 7 | parking | parking | until 2022-06-30", True),
        (FRENCH, "bail 7 | loyer | 850 euros | until 2022-06-30", False),
        (FRENCH, "bail 7 | loyer | 850 euros | ended", False),
        (FRENCH_LIST, "bail 7 | loyer | 900 euros | since 2020-01-01", True),
        (FRENCH_LIST, "bail 7 | loyer | 900 euros | since 2019-12-12", False),
        (FRENCH_LIST, "bail 7 | charges | 150 euros | since 2020-01-01", True),
        (FRENCH_END, "Orme | gérante | Mme Petit | ended", True),
        (FRENCH_END, "Orme | comptable | M. Roux | ended", False),
        (FRENCH_END, "contrat | préavis | trois mois | ended", False),
        (CHINESE, "7号租约 | 月租金 | 850欧元 | since 2021-05-01", True),
        (CHINESE, "7号租约 | 月租金 | 850欧元 | until 2022-06-30", False),
        (CHINESE, "7号租约 | 押金 | 1700欧元 | since 2021-05-01", False),
        (CHINESE, "7号租约 | 包括 | 车位 | until 2022-06-30", True),
        (CHINESE, "7号租约 | 月租金 | 850欧元 | ended", False),
        (CHINESE_LIST, "7号租约 | 月租金 | 900欧元 | since 2020-01-01", True),
        (CHINESE_LIST, "7号租约 | 物业费 | 150欧元 | since 2021-01-01", False),
        (CHINESE_LIST, "7号租约 | 月租金 | 930欧元 | since 2021-01-01", True),
        (CHINESE_END, "公司 | 经理 | 王芳 | ended", True),
        (CHINESE_END, "公司 | 会计 | 李强 | ended", False),
        (CHINESE_END, "合同 | 通知期 | 三个月 | ended", False),
        (HISTORY, "Mill | director | Anna Bell | since 2010; until 2014", True),
        (HISTORY, "Mill | director | Anna Bell | since 2010; until 2019", False),
        (HISTORY, "Mill | director | Bo Lind | since 2019", True),
        (CAREER, "Anna Bell | works at | Acme | since 2010; until 2014", True),
        (CAREER, "Anna Bell | works at | Bolt | until 2018", True),
        (CAREER, "Anna Bell | works at | Acme | ended", True),
        (CAREER, "Anna Bell | works at | Crest | since 2018", True),
        (CAREER, "Anna Bell | works at | Crest | ended", False),
        (LOG, "server | located in | Bern | since 2023-05-03", True),
        (LOG, "server | located in | Rome | until 2023-05-03", True),
        (LOG, "server | located in | Rome | ended", True),
        (LOG, "server | located in | Bern | ended", False),
        (LOG, "server | password policy | 14 signs | since 2023-05-03", False),
        (PAST, "Lease 7 | tenant | Bo Lind | since 2015; until 2019", True),
        (PAST, "Lease 7 | tenant | Bo Lind | ended", True),
        (PAST, "Lease 7 | tenant | Nora Brand | since 2015", False),
        (PAST, "Lease 7 | tenant | Nora Brand | ended", False),
        (PAST, "Lease 8 | term | from 2020 to 2027 | ended", False),
        (APPLIES, "A | fee | 9 euros | since 2020-05-01", True),
        (APPLIES, "B | fee | 7 euros | until 2020-05-01", False),
        (HEADLINES, "oats | price | 3 euros | since 2021", True),
        (HEADLINES, "oats | price | 4 euros | since 2022", True),
        (HEADLINES, "oats | price | 3 euros | since 2022", False),
        (HEADLINES, "rye | price | 5 euros | since 2022", True),
        # Written after the rule; three are missed.
        (SERVICE, "Orlin | monthly fee | EUR 4,950 | since 2022-01-01", True),
        (SERVICE, "Orlin | monthly fee | EUR 4,500 | since 2022-01-01", False),
        (SERVICE, "Orlin | monthly fee | EUR 4,500 | until 2022-01-01", True),
        (SERVICE, "Orlin | contact | Piet Vos | until 2021-06-30", True),
        pytest.param(
            SERVICE,
            "Orlin | contact | Jana Holm | until 2021-06-30",
            False,
            marks=pytest.mark.xfail(reason="not told apart", strict=True),
        ),
        (SERVICE, "Agreement | term | three years | ended", False),
        (SERVICE, "Orlin | contact | Jana Holm | ended", False),
        (SERVICE, "Orlin | monthly fee | EUR 4,500 | ended", False),
        (CHAT, "Bo | has | gym contract | ended", True),
        (CHAT, "Bo | keeps | parking spot | ended", False),
        (CHAT, "Anna | phone plan | 30 euros | since 2023-04", True),
        (CHAT, "Anna | phone plan | 30 euros | since 2023-03", False),
        pytest.param(
            CHAT,
            "Bo | has | gym contract | until 2023-03",
            True,
            marks=pytest.mark.xfail(reason="not told apart", strict=True),
        ),
        (NOTICE, "Kern | Vertrag | Wartungsvertrag Nr. 12 | until 2022-12-31", True),
        (NOTICE, "Kern | Vertrag | Liefervertrag Nr. 14 | until 2022-12-31", False),
        (NOTICE, "Kern | Vertrag | Liefervertrag Nr. 14 | ended", False),
        (NOTICE, "Kern | Vertrag | Wartungsvertrag Nr. 12 | ended", True),
        (ASSEMBLY, "association | président | M. Roy | since 2022-04-12", True),
        (ASSEMBLY, "association | trésorière | Mme Blanc | ended", True),
        (ASSEMBLY, "association | président | M. Roy | ended", False),
        (ASSEMBLY, "association | cotisation | 40 euros | ended", False),
        (ASSEMBLY, "association | trésorière | Mme Blanc | until 2022-04-12", True),
        (MEETING, "协会 | 主席 | 张敏 | since 2022-04-12", True),
        (MEETING, "协会 | 财务 | 王磊 | ended", True),
        (MEETING, "协会 | 主席 | 张敏 | ended", False),
        (MEETING, "协会 | 会费 | 40元 | ended", False),
        (ROLES, "Firm | director | Ida Berg | since 2015-03-01; until 2019-08-31", True),
        (ROLES, "Firm | director | Olaf Kern | since 2019-09-01", True),
        pytest.param(
            ROLES,
            "Firm | director | Olaf Kern | until 2019-08-31",
            False,
            marks=pytest.mark.xfail(reason="not told apart", strict=True),
        ),
        (ROLES, "Firm | director | Olaf Kern | ended", False),
        (ROLES, "Firm | director | Olaf Kern | since 2015-03-01", False),
        (TEAM, "sales team | head | Carla Stein | since 2021-09-01", True),
        (TEAM, "support team | head | Lea Moor | since 2021-09-01", False),
        (TEAM, "support team | head | Lea Moor | ended", False),
        (TEAM, "sales team | head | Jon Pike | ended", True),
        (TEAM, "Lea Moor | joined | company | since 2018", True),
        (POLICY, "policy | premium | 120 francs | since 2023-01-01", True),
        (POLICY, "policy | deductible | 500 francs | since 2023-01-01", False),
        (POLICY, "policy | deductible | 500 francs | ended", False),
        (DUES, "Verein | Beitrag | 25 Euro | since 2020-07-01", True),
        (DUES, "Verein | Beitrag | 25 Euro | since 2018-01-01", False),
        (DUES, "Verein | Aufnahmegebühr | 50 Euro | since 2018-01-01", True),
        (DUES, "Verein | Aufnahmegebühr | 50 Euro | since 2020-07-01", False),
        (CELLAR, "bail | loyer | 700 euros | since 2018-03-03", True),
        (CELLAR, "bail | loyer | 700 euros | since 2020-06-01", False),
        (CELLAR, "bail | cave | cave | since 2020-06-01", True),
        (CELLAR, "bail | loyer | 700 euros | until 2020-06-01", False),
        (CELLAR_ZH, "租约 | 房租 | 700元 | since 2018-03-03", True),
        (CELLAR_ZH, "租约 | 房租 | 700元 | since 2020-06-01", False),
        (CELLAR_ZH, "租约 | 物业管理 | 李强 | until 2021-12-31", True),
        (CELLAR_ZH, "租约 | 房租 | 700元 | until 2021-12-31", False),
        (FIRM, "Vesta | founded by | Mia Falk | since 1999", True),
        (FIRM, "Vesta | based in | Turin | since 2012", False),
        (FIRM, "Vesta | owns | Orlin | since 2012", True),
        (FIRM, "Orlin | makes | pumps | since 2012", True),
        (FIRM, "Orlin | makes | pumps | ended", False),
        (FIRM, "Vesta | owns | Orlin | ended", False),
    ],
)
def test_a_time_is_that_of_its_fact(text, reply, left):
    (fact,) = facts_of(reply)

    ((kept,), lost) = keep_said([fact], "", text, Facts(), dated=False)

    assert (kept.line == fact.line) == left
    assert bool(lost[MADE_UP]) == (not left)
    assert (kept.subject, kept.object) == (fact.subject, fact.object)
    if fact.status != "holds" and not left and kept.since == fact.since:
        assert kept.status == "holds"


def test_what_is_known_ends_where_the_text_says_so():
    memory = "Lease 7 | deposit | 300 francs\nLease 7 | parking | 50 francs"
    text = "The deposit is no longer due. Parking is paid in advance."
    reply = facts_of(
        "Lease 7 | deposit | 300 francs | ended\nLease 7 | parking | 50 francs | ended"
    )

    kept, lost = keep_said(reply, memory, text, Facts(), dated=False)

    assert [one.line for one in kept] == ["Lease 7 | deposit | 300 francs | ended"]
    assert lost[MADE_UP] == 1


def test_what_has_one_object_at_a_time_ends_by_the_next_one():
    reply = facts_of("user | lives in | Rome | ended\nuser | lives in | Bern")

    kept, lost = keep_said(reply, "user | lives in | Rome", "I moved to Bern.", Facts(), dated=True)

    assert ([one.line for one in kept], lost) == ([one.line for one in reply], {})
