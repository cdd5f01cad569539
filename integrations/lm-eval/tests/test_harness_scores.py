"""Our scores against the harness's own metric functions, which take seconds to import."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from memagent_graph.evaluation.samples import exact_match, normalize, substring_match

LENGTH = 4096
words = st.sampled_from(["the", "A", "an", "Paris", "paris,", "in", "42", "4.2", "e-mail", "(x)"])
texts = st.lists(words, max_size=6).map(" ".join) | st.text(
    st.characters(min_codepoint=32, max_codepoint=126), max_size=12
)
# The harness strips what was answered, so a wanted string must not begin or end in a space.
wanted = texts.filter(lambda text: text and text == text.strip())


@pytest.mark.slow
@given(texts, st.lists(wanted, min_size=1, max_size=4))
def test_the_share_of_all_wanted_strings_is_what_ruler_tasks_of_the_harness_score(answer, wanted):
    from lm_eval.tasks.ruler.common_utils import process_results

    scored = process_results({"max_length": LENGTH, "outputs": wanted}, [answer])

    assert substring_match(answer, wanted, "all") == scored[str(LENGTH)]


@pytest.mark.slow
@given(texts, wanted)
def test_one_wanted_string_scores_as_in_the_harness_tasks_that_ask_for_any(answer, one):
    from lm_eval.tasks.ruler.common_utils import process_results_part

    # Of several the harness scores the share even here; RULER's own script, and ours, whether
    # there is one.
    scored = process_results_part({"max_length": LENGTH, "outputs": [one]}, [answer])

    assert substring_match(answer, [one], "any") == scored[str(LENGTH)]


@pytest.mark.slow
@given(texts, st.lists(texts, min_size=1, max_size=4))
def test_an_exact_match_is_that_of_the_harness_for_squad_like_tasks(answer, wanted):
    from lm_eval.tasks.mlqa.utils import process_results_en

    assume(normalize(answer))  # that two empty texts agree is a rule of SQuAD 2.0 only

    scored = process_results_en({"answers": wanted}, [answer])

    assert exact_match(answer, wanted) == scored["exact_match"]
