import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memagent_graph.evidence.align import align, carry
from memagent_graph.evidence.places import Evidence, Memory, Unsupported
from memagent_graph.evidence.statements import statements
from memagent_graph.evidence.support import cite
from memagent_graph.text.chunks import Chunk
from memagent_graph.text.source import JoinedSource, Location, TextSource

ROLLO = (
    "Rollo Lindqvist was born in 1911 in Bergen. He moved to Trieste and wrote twelve novels there."
)
MARY = "Mary Okafor was a painter. She was born on 3 May 1920 in Oslo, where 1,190 people lived."
HARBOUR = "The harbour was closed for two thirds of the winter, and 45% of the boats were sold."
TEXT = f"{ROLLO}\n\n{MARY}\n\n{HARBOUR}"
CHINESE = (
    "黑豹队的防守只丢了三百零八分。四分卫贾里德·艾伦在二〇一五年出生于丹佛市。他后来搬到纽约。"
)


def chunk_of(text: str, start: int = 0) -> Chunk:
    source = TextSource("x" * start + text, "book")
    return Chunk(text, start, start + len(text), len(text) // 4, source)


def read(text, chunk=TEXT, before=Memory(), question=""):  # noqa: B008 - immutable
    return align(text, before, chunk_of(chunk), question)


def quoted(aligned, chunk=TEXT):
    return [chunk[item.start : item.end] for item in aligned.memory.evidence]


def state(text, chunk=TEXT, **given):
    (note,) = read(text, chunk, **given).notes
    return note.state


def test_evidence_is_placed_in_the_whole_document():
    aligned = align("Mary Okafor painted.", Memory(), chunk_of(TEXT, 500), "")
    (item,) = aligned.memory.evidence
    start = 500 + TEXT.index("Mary")

    assert item == Evidence("Mary Okafor painted.", "book", 3, start, start + 26)


def test_evidence_has_the_page_and_the_heading_of_its_source():
    class Lease(TextSource):
        def locate(self, offset):
            return Location("lease.pdf", 40, page=offset, heading="Rent")

    aligned = align("Mary painted.", Memory(), Chunk(MARY, 0, len(MARY), 20, Lease(MARY)), "")
    (item,) = aligned.memory.evidence

    assert (item.page, item.heading, item.place) == (0, "Rent", "lease.pdf, page 0")
    assert Evidence("", "a.txt", 3, 0, 1).place == "a.txt:3"


CLAUSES = (
    "The monthly rent of Lease 9 is 361 euros. Notices are given in writing. The deposit of Lease "
    "9 is 867 dollars. Each party bears its own costs. The notice period of Lease 9 is 408 weeks. "
    "Headings are for convenience. The parking fee of Lease 9 is 308 francs since 1 January 2015."
)


def test_a_note_that_lists_what_many_sentences_say_rests_on_all_of_them():
    note = (
        "The contract states that the monthly rent of Lease 9 is 361 euros, the deposit of Lease 9 "
        "is 867 dollars, the notice period is 408 weeks, and the parking fee of Lease 9 is 308 "
        "francs since 1 January 2015."
    )
    aligned = read(note, CLAUSES)

    assert [one.state for one in aligned.notes] == ["supported"]
    found = [text.split(" is ")[1] for text in sorted(quoted(aligned, CLAUSES))]
    assert found == ["867 dollars.", "361 euros.", "408 weeks.", "308 francs since 1 January 2015."]


@pytest.mark.parametrize(
    ("clause", "missing"),
    [
        ("the deposit of Lease 9 is 868 dollars", "868"),  # stands nowhere
        ("the deposit of Lease 9 is 308 dollars", "308"),  # is something else's
        ("and 867", "867"),  # says nothing of what
    ],
)
def test_a_list_says_which_of_its_clauses_has_no_source(clause, missing):
    note = (
        f"The monthly rent of Lease 9 is 361 euros, {clause}, the notice period of Lease 9 is 408 "
        "weeks, and the parking fee of Lease 9 is 308 francs."
    )
    (judged,) = read(note, CLAUSES).notes

    assert (judged.state, {*judged.missing}) == ("unsupported", {missing})


@pytest.mark.parametrize(
    "line",
    [
        "- Mary Okafor: painter",
        "* **Mary Okafor**: a painter",
        "12. Mary Okafor was a painter.",
        "- [x] Mary Okafor was a painter",
        "> Mary Okafor was a painter.",
        '"occupation of Mary Okafor": "painter",',
    ],
)
def test_a_line_of_a_list_is_a_note_without_its_bullet(line):
    aligned = read(line)

    assert quoted(aligned)[0] == "Mary Okafor was a painter."
    assert all(item.text in line and item.text[0] not in "->1" for item in aligned.memory.evidence)


BORN = "Ann was born in Oslo.\n\nBo was born in Oslo."


@pytest.mark.parametrize(
    ("note", "chunk", "found"),
    [
        ("Rollo Lindqvist moved to Trieste and wrote novels.", ROLLO, re.split(r"(?<=\.) ", ROLLO)),
        ("## Bo\n- born in Oslo", BORN, ["Bo was born in Oslo."]),
        ("**Ann:**\n- born in Oslo", BORN, ["Ann was born in Oslo."]),
        ("防守丢了308分。贾里德·艾伦生于2015年", CHINESE, re.findall("[^。]+。", CHINESE)[:2]),
    ],
    ids=["one that lends a name", "a heading", "a bold one", "Chinese"],
)
def test_evidence_is_the_sentences_that_a_note_rests_on(note, chunk, found):
    assert sorted(quoted(read(note, chunk), chunk)) == sorted(found)


def test_each_field_of_an_object_has_evidence_of_its_own():
    aligned = read('{"name": "Mary Okafor", "harbour": "closed in winter"}')

    fields = ['{"name": "Mary Okafor",', '"harbour": "closed in winter"}']
    assert [note.text for note in aligned.notes] == fields
    assert quoted(aligned) == ["Mary Okafor was a painter.", HARBOUR]


def test_a_note_about_nothing_that_was_read_has_no_evidence():
    aligned = read("Nothing relevant has been found so far.")

    assert aligned.memory.evidence == ()
    assert aligned.notes[0].state == "unknown"


KEPT = Evidence("Lena sold 12 cars.", "other.txt", 7, 1000, 1020)


def test_a_line_that_rewrites_an_older_one_has_its_evidence():
    aligned = read("Twelve cars were sold by Lena", before=Memory("- Lena sold 12 cars.", (KEPT,)))

    (found,) = aligned.memory.evidence
    assert found == Evidence("Twelve cars were sold by Lena", "other.txt", 7, 1000, 1020)
    assert aligned.notes[0].state == "supported"


def test_a_line_that_joins_an_older_one_with_the_chunk_has_evidence_from_both():
    text = "Lena sold 12 cars; Mary Okafor was a painter in Oslo."
    aligned = read(text, before=Memory("Lena sold 12 cars.", (KEPT,)))

    assert {item.source for item in aligned.memory.evidence} == {"book", "other.txt"}
    assert aligned.notes[0].state == "supported"


@pytest.mark.parametrize(
    ("chunk", "text"),
    [
        (TEXT, "Rollo Lindqvist was born in 1920."),  # another's year
        (TEXT, "Rollo Lindqvist was born in 1911 in Helsinki."),
        (TEXT, "In Trieste he wrote 13 novels."),
        (TEXT, "Mary Okafor was born on 4 May 1920."),
        (TEXT, "54% of the boats were sold."),
        (TEXT, "The painter was Paula Okafor."),
        (TEXT, "Aristotle was a painter in Oslo."),
        (TEXT, "Mary Okafor was a painter for six years."),
        (CHINESE, "防守丢了309分。"),
        (CHINESE, "四分卫约翰·埃尔维在二〇一五年出生于丹佛市。"),
        (CHINESE, "四分卫贾里德·艾伦在2016年出生于丹佛市"),
    ],
)
def test_a_note_with_a_wrong_name_number_or_measure_is_unsupported(chunk, text):
    assert state(text, chunk) == "unsupported"


@pytest.mark.parametrize(
    ("chunk", "text"),
    [
        (TEXT, "Rollo wrote 12 novels in Trieste."),
        (TEXT, "Lindqvist wrote a dozen novels in Trieste."),
        (TEXT, "R. Lindqvist was born in 1911."),
        (TEXT, "Mary Okafor, born May 3, 1920"),
        (TEXT, "Mary Okafor, born 1920-05-03"),
        (TEXT, "Mary Okafor, born on the 3rd of May, 1920"),
        (TEXT, "1190 people lived in Oslo"),
        (TEXT, "one thousand one hundred and ninety people lived in Oslo"),
        (TEXT, "**Boats Sold**: 45 percent"),
        (TEXT, "Painting was what Mary Okafor did."),  # a word that opens a sentence is no name
        (TEXT, "Profession: painter (Mary Okafor)"),
        ("The National Football League began in 1920.", "The NFL began in 1920."),
        ("Canada sent two ships.", "The Canadian ships: 2"),
        ("It cost 1.2 million crowns.", "It cost 1,200,000 crowns."),
        ("The war lasted from 1914–18.", "The war lasted from 1914 to 1918."),
        ("The cable is 5 km long.", "The cable is 5km long."),
        ("He had 6½ sacks.", "He had 6.5 sacks."),
        ("Super Bowl XLIX was in Glendale.", "Super Bowl 49 was in Glendale."),
        ("In the twenty-first century it grew.", "In the 21st century it grew."),
        ("René Descartes was in Zürich.", "Rene Descartes was in Zurich."),
        ("The film M&M won prizes.", "Prizes for M&M, a film."),
        ("他在一九一二年五月三日出生。", "他出生于1912年5月3日。"),
        ("该市有一百二十万人口。", "该市人口为120万。"),
        ("It closed because of floods, debts and a fire.", "Three reasons: floods, debts, a fire."),
    ],
)
def test_another_form_of_a_name_or_number_is_the_same(chunk, text):
    assert state(text, chunk) == "supported"


def test_names_of_the_question_are_not_held_against_a_note():
    text = "Mary Okafor of Lagos was a painter."

    assert state(text) == "unsupported"
    assert state(text, question="Who lived in Lagos?") == "supported"


def test_a_note_in_another_script_than_the_chunk_is_not_judged():
    assert state("Jared Allen was born in Denver in 2015.", CHINESE) == "unknown"
    assert state("玛丽在奥斯陆出生于1921年", TEXT) == "unknown"


def test_nouns_of_german_are_not_taken_for_names():
    chunk = "Das Schiff ist im Hafen und der Kapitän schläft, und die Mannschaft ist nicht da."

    assert state("Der Kapitän schläft im Schiff während der Nacht", chunk) == "supported"


def test_the_question_decides_between_notes_that_have_the_answer_alike():
    memory = read("- Rollo wrote 12 novels\n- Mary Okafor was born on 3 May 1920 in Oslo").memory

    assert cite("12", memory)[0].text == "Rollo wrote 12 novels"
    for yes in ("Yes.", "**No!**", "“Yes.”", "`true`", "是的。"):
        assert cite(yes, memory, "Was Mary Okafor born in Oslo?")[0].text.startswith("Mary")
    assert cite("Yes.", memory) == ()


PIECES = (
    "Mary Rollo Oslo Bergen was born in 1911 twelve and the painter harbour. 四分卫 出生于 三百 3 "
    'May, - * ** : ## { } " \n \n\n . 。 1, ( )'
)
WORDS = st.sampled_from(PIECES.split(" "))
TEXTS = st.lists(WORDS, max_size=60).map(" ".join) | st.text(max_size=200)


@given(TEXTS, TEXTS, TEXTS, TEXTS)
def test_evidence_is_sentences_of_the_chunk_and_texts_of_the_memory(first, second, one, two):
    before = align(first, Memory(), chunk_of(one), "").memory
    chunk = chunk_of(two, start=1000)
    aligned = align(second, before, chunk, "Who was born?")
    spans = {(1000 + cut.start, 1000 + cut.end) for cut in statements(two)}
    older = {(item.start, item.end) for item in before.evidence}

    assert aligned == align(second, before, chunk, "Who was born?")
    assert aligned.memory.text == second
    assert all(item.text in second for item in aligned.memory.evidence)
    assert {(item.start, item.end) for item in aligned.memory.evidence} <= spans | older
    assert all(second[note.start : note.end] == note.text for note in aligned.notes)
    assert all(item in aligned.memory.evidence for note in aligned.notes for item in note.evidence)
    assert set(cite(first, aligned.memory)) <= set(aligned.memory.evidence)


@given(TEXTS, TEXTS, TEXTS)
def test_a_memory_that_did_not_change_keeps_its_evidence_exactly(text, one, two):
    before = align(text, Memory(), chunk_of(one), "").memory
    after = align(text, before, chunk_of(two), "").memory

    assert set(before.evidence) <= set(after.evidence)
    assert set(after.unsupported) <= set(before.unsupported)
    unplaced = {item.text for item in after.evidence} - {item.text for item in before.evidence}
    found_later = {item.text for item in {*after.evidence} - {*before.evidence}}
    assert found_later <= unplaced | {item.text for item in before.unsupported}


OSCAR = "Mary Okafor met Oscar Wilde in Oslo."


def test_a_line_without_a_place_gets_that_of_a_later_chunk_which_supports_it():
    before = read("- Mary Okafor was a painter.", chunk=HARBOUR).memory
    after = read(before.text, before=before).memory

    assert before.evidence == ()
    (found,) = after.evidence
    assert TEXT[found.start : found.end] == "Mary Okafor was a painter."


def test_an_unsupported_statement_stays_marked_until_a_chunk_supports_it():
    marked = read(f"- {OSCAR}\n- The harbour was closed.").memory
    carried = read(marked.text, HARBOUR, before=marked).memory
    supported = read(marked.text, OSCAR, before=carried).memory

    assert marked.unsupported == (Unsupported(OSCAR, ("Oscar", "Wilde")),)
    assert carried.unsupported == marked.unsupported
    assert supported.unsupported == ()


def test_a_name_that_was_missing_is_not_accounted_for_by_the_line_that_had_it():
    marked = read(f"- {OSCAR}").memory
    again = read("- In Oslo, Mary Okafor met Oscar Wilde.", HARBOUR, before=marked).memory
    without = read("- In Oslo, Mary Okafor met a poet.", HARBOUR, before=marked).memory

    assert [item.missing for item in again.unsupported] == [("Oscar", "Wilde")]
    assert without.unsupported == ()


def test_what_was_marked_in_one_of_several_memories_is_marked_in_the_merged_one():
    parts = [read(f"- {OSCAR}").memory, read("- The harbour was closed.").memory]
    merged = carry("- The harbour was closed. Mary Okafor met Oscar Wilde.", parts, "").memory
    same = carry(f"- {OSCAR}", parts, "").memory

    assert [item.missing for item in merged.unsupported] == [("Oscar", "Wilde")]
    assert same.unsupported == parts[0].unsupported


@pytest.mark.parametrize(
    "line",
    [
        "The lease was signed by Ann Kes-\ntrel in Hu-\nsum.",
        "The lease was signed by Ann Kes\u00adtrel in Hu\u200bsum.",
        "The lease was signed by Ann Kestrel in Ｈｕｓｕｍ.",
        "The lea-\nse was signed by Ann Kes\u2010\r\n  trel in Husum.",
    ],
)
def test_a_word_broken_or_disguised_in_the_text_supports_a_note_and_keeps_its_place(line):
    calm = "The sea was calm and the gulls were loud that morning. " * 20
    text = f"{calm}{line} {calm}"

    aligned = read("The lease was signed by Ann Kestrel in Husum.", text)

    assert aligned.notes[0].state == "supported"
    assert quoted(aligned, text) == [line]


BULL_RUN = "Who won the first battle of Bull Run?"
BORROWED = "The first battle of Bull Run was won by Rollo Lindqvist of Bergen."


def test_a_note_that_says_of_the_questions_subject_what_the_text_says_of_another_is_marked():
    for note in (BORROWED, "The harbour was closed in the battle of Bull Run."):
        assert state(note, question=BULL_RUN) == "unsupported"


@pytest.mark.parametrize(
    ("note", "chunk", "question"),
    [
        # Other words of the same sense, a subject of whom the text speaks as "he", the next link
        # of a chain, and a language in which all words differ.
        (
            "The Panthers defense surrendered 308 points.",
            "The Panthers defense gave up just 308 points in all of the season.",
            "How many points did the Panthers defense surrender?",
        ),
        ("Rollo Lindqvist was born in Bergen.", TEXT, "Where was Rollo Lindqvist born?"),
        ("Mary Okafor was born in Oslo.", TEXT, "In which town was the painter of Nets born?"),
        (
            "The keeper of the lighthouse of Skarvik is Ragna Solheim.",
            "Der Leuchtturm von Skarvik hat noch eine Wärterin, und sie heißt Ragna Solheim.",
            "Who keeps the lighthouse of Skarvik?",
        ),
    ],
)
def test_a_note_in_other_words_or_on_another_link_of_the_chain_is_not(note, chunk, question):
    assert state(note, chunk, question=question) != "unsupported"


def test_a_text_that_names_nobody_may_go_on_about_the_subject():
    lease = "The tenant pays 1,200 euros a month, and it is due on the first. Pets in cages: fine."
    asked = "What is the monthly rent in the lease between Berta Kestrel and Ulrich Nomad?"
    note = "The monthly rent in the lease between Berta Kestrel and Ulrich Nomad is 1,200 euros."

    assert state(note, lease, question=asked) == "supported"
    assert state(note, f"{lease} So wrote Ivo Brandt.", question=asked) == "unsupported"


def test_an_older_note_may_name_the_subject_unless_nothing_supports_it():
    named = "The first battle of Bull Run had a victor."
    doubtful = Memory(named, unsupported=(Unsupported(named),))

    assert state(BORROWED, question=BULL_RUN, before=Memory(named)) == "supported"
    assert state(BORROWED, question=BULL_RUN, before=doubtful) == "unsupported"


HOMES = [
    "Ann Kestrel signed the lease on 3 May.",
    "Ann Kestrel lives in Husum.",
    "Odo Brandt is the keeper of the lighthouse.",
    "The rent is 900 crowns.",
    "Odo Brandt lives in Trieste.",
]
SAME = "Do Ann Kestrel and Odo Brandt live in the same town?"


@pytest.mark.parametrize(
    ("question", "answer", "lines"),
    [
        ("Where does the person live who signed the lease?", "Husum", {1, 2}),
        ("Where?", "Ann Kestrel, who signed the lease, lives in Husum.", {1, 2}),
        ("Who keeps it, and what is the rent?", "Odo Brandt; the rent is 900 crowns.", {3, 4}),
        (SAME, "No, Ann Kestrel lives in Husum, and Odo Brandt in Trieste.", {2, 5}),
        (SAME, "No.", {2, 5}),
        ("Where does the keeper live?", "In Trieste, by the sea.", {3, 5}),
        ("Who signed the lease?", "Ann Kestrel", {1}),
        ("What is the rent?", "900 crowns", {4}),
    ],
)
def test_an_answer_cites_all_notes_that_it_rests_on_and_no_other(question, answer, lines):
    evidence = [Evidence(note, "s", line, 0, 9) for line, note in enumerate(HOMES, 1)]
    memory = Memory("\n".join(HOMES), tuple(evidence))

    assert {item.line for item in cite(answer, memory, question)} == lines


def test_a_note_that_changes_one_value_of_an_older_one_is_supported_by_the_chunk():
    filler = "The grass is green. The sky is blue. Here we go. There and back again.\n" * 3
    text = f"{filler}One of the special magic numbers for fair-yogurt is: 9375710.\n{filler}"
    chunk = Chunk(text, 0, len(text), 100, TextSource(text))
    question = "What is the special magic number for fair-yogurt mentioned in the provided text?"
    note = "The special magic number for fair-yogurt mentioned in the provided text is {}."

    made_up = align(note.format(100), Memory(), chunk, question).memory
    assert made_up.unsupported
    assert not align(note.format(9375710), made_up, chunk, question).memory.unsupported
    wrong = align(note.format(9375711), made_up, chunk, question).memory.unsupported
    assert wrong[0].missing == ("9375711",)


def test_evidence_names_the_part_that_it_stands_in():
    source = JoinedSource([TextSource(ROLLO, "a.txt"), TextSource(MARY, "b.txt")], "all")
    text = source.read(0, source.length)
    aligned = align("Mary painted.", Memory(), Chunk(text, 0, len(text), 40, source), "")

    assert [item.source for item in aligned.memory.evidence] == ["b.txt"]
