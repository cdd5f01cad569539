import pytest

from memagent_graph.config import ReadingConfig
from memagent_graph.errors import ConfigurationError, ModelError
from memagent_graph.evidence.places import Memory, Unsupported
from memagent_graph.readers.base import Step
from memagent_graph.readers.chat import ChatReader
from memagent_graph.readers.resolve import resolve_reader
from memagent_graph.testing import ScriptedChatModel
from memagent_graph.text.chunks import Chunk
from memagent_graph.text.source import TextSource

TEXT = "Mary Okafor was a painter in Oslo.\n\nThe harbour was closed for the winter, as ever."
PAINTER = "Mary Okafor painted in Oslo."
NEVER = "The harbour was never closed for the winter."
WRONG = "Oscar Wilde was a painter in Oslo."


async def marked(verify, *lines, before=Memory(), text=TEXT):  # noqa: B008 - immutable
    reader = ChatReader(ScriptedChatModel("\n".join(lines)), verify=verify)
    chunk = Chunk(text, 0, len(text), 20, TextSource(text))
    update = await reader.update(Step("Who?", before, chunk))
    return update.memory


async def test_it_decides_whatever_names_and_numbers_say():
    def verify(passage, statement):
        return 0.49 if "never" in statement else 0.5

    memory = await marked(verify, PAINTER, NEVER, WRONG)

    assert memory.unsupported == (Unsupported(NEVER),)
    whole = await marked(lambda *_: 1, WRONG)
    assert (whole.text, whole.unsupported) == (WRONG, ())
    assert whole.evidence == (await marked(None, WRONG)).evidence


async def test_what_it_refused_stays_refused_when_it_is_only_rewritten():
    before = await marked(lambda *_: 0, NEVER)
    rewritten = "Never was the harbour closed in winter."
    again = await marked(lambda *_: 1, rewritten, before=before, text="x")

    assert before.unsupported == (Unsupported(NEVER),)
    assert [item.text for item in again.unsupported] == [rewritten]


@pytest.mark.parametrize("given", [1.1, -0.1, float("nan"), None, "yes"])
async def test_what_is_no_probability_is_refused(given):
    with pytest.raises(ConfigurationError, match="probability from 0 to 1, not"):
        await marked(lambda *_: given, PAINTER)


async def test_a_function_that_fails_is_an_error_of_the_model_which_names_the_statement():
    with pytest.raises(ModelError, match=r"function failed for 'Mary Okafor.*: 'No such key'"):
        await marked(lambda *_: {}["No such key"], PAINTER)


def test_a_reader_that_is_made_already_takes_none():
    reader = ChatReader(ScriptedChatModel("."))

    with pytest.raises(ConfigurationError, match="give them to the Reader itself"):
        resolve_reader(reader, config=ReadingConfig(), verify=lambda *_: 1)


async def test_answers_are_verified_against_the_memory_a_short_one_with_its_question():
    asked = []

    def verify(passage, statement):
        asked.append((passage, statement))
        return 0.0 if "Oslo" in statement else 1.0

    memory = Memory("Mary Okafor painted in Oslo. Ann Lee painted in Bergen.")
    answers = ["Oslo", "Ann Lee painted in Bergen."]
    reader = ChatReader(ScriptedChatModel(*answers), verify=verify)

    refused = await reader.respond("Where did Mary Okafor paint?", memory)
    passed = await reader.respond("Where did Mary Okafor paint?", memory)

    assert asked[0] == ("Mary Okafor painted in Oslo.", "Where did Mary Okafor paint? Oslo")
    assert (refused.found, refused.unsupported) == (False, (Unsupported("Oslo"),))
    assert asked[1][1] == answers[1]
    assert (passed.found, passed.unsupported) == (True, ())
