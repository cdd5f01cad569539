from hypothesis import given
from hypothesis import strategies as st

from memagent_inspector.facts import lines_of
from memagent_inspector.history import Run, compare, side

texts = st.text(st.sampled_from("ab \n.é漢"), max_size=60) | st.text(max_size=60)


@given(texts, texts)
def test_the_runs_of_each_side_are_its_text(before, after):
    runs = compare(before, after)

    assert "".join(run.text for run in side(runs, "removed")) == before
    assert "".join(run.text for run in side(runs, "added")) == after
    assert all(run.text for run in runs)


def test_what_is_too_long_for_words_is_marked_as_a_whole():
    before, after = "a " * 2_000, "b " * 2_000

    assert compare(before, after) == [Run("removed", before), Run("added", after)]
    many = "x\n" * 3_000
    assert compare(many, f"{many}y") == [Run("removed", many), Run("added", f"{many}y")]


@given(st.lists(st.text(st.sampled_from("ab. "), max_size=12), max_size=6), st.data())
def test_the_pieces_of_a_line_are_the_line(lines, data):
    from memory_versions import make_version

    from memagent_graph.evidence.places import Evidence

    known = data.draw(st.lists(st.text(st.sampled_from("ab. "), max_size=4), max_size=4))
    evidence = tuple(Evidence(text, "a", 1, 0, 1) for text in known)

    found = lines_of(make_version("\n".join(lines), evidence=evidence))

    shown = ["".join(piece.text for piece in line) for line in found]
    assert shown == [line for line in lines if line.strip()]
    assert all(piece.text in known for line in found for piece in line if piece.evidence)
