"""What a client's user has opened there bounds what is read here."""

import pytest
from mcp.types import ErrorData, ListRootsResult, Root
from mcp_serving import connected

pytestmark = pytest.mark.slow

QUESTION = "When does the vault open?"


@pytest.fixture
def options(tmp_path):
    for name in ("mine", "theirs"):
        (tmp_path / "books" / name).mkdir(parents=True)
        (tmp_path / "books" / name / "a.txt").write_text("The vault opens at 6:40.")
    return ["--root", tmp_path / "books", "--store", "none", "--model", "extractive"]


class Listing:
    def __init__(self, *folders):
        self.folders = list(folders)
        self.asked = 0

    async def __call__(self, context):
        self.asked += 1
        return ListRootsResult(roots=[Root(uri=folder.as_uri()) for folder in self.folders])


async def read(client, source):
    result = await client.call_tool("read", {"question": QUESTION, "source": source})
    return "refused" if result.is_error else result.structured_content["answer"]


async def test_only_what_both_have_opened_is_read_and_a_change_holds_at_once(connect, tmp_path):
    books, listing = tmp_path / "books", Listing(tmp_path / "books" / "mine", tmp_path)
    sources = ("books", "books/mine/a.txt", "books/theirs/a.txt", str(tmp_path / "log"))
    seen = []

    async with connect(list_roots_callback=listing) as client:
        for folders in ([tmp_path], [books / "mine"], [tmp_path / "elsewhere"], [books / "theirs"]):
            listing.folders = folders
            seen.append([await read(client, source) for source in sources])
        tool = next(tool for tool in (await client.list_tools()).tools if tool.name == "read")

    yes, no = "The vault opens at 6:40.", "refused"
    expected = [[yes, yes, no], [yes, no, no], [no, no, no], [no, yes, no]]
    assert [answers[1:] for answers in seen] == expected
    assert [answers[0] == no for answers in seen] == [False, True, True, True]
    assert listing.asked == 16
    assert set(tool.input_schema["properties"]) == {"question", "source"}


@pytest.mark.parametrize("transport", ["stdio"], indirect=True)
async def test_for_a_client_that_does_not_list_its_roots_nothing_is_read(connect):
    async def fail(context):
        return ErrorData(code=-32603, message="no")

    async with connect(list_roots_callback=fail) as client:
        with pytest.raises(Exception, match="no"):
            await client.call_tool("read", {"question": QUESTION, "source": "books/mine"})


async def test_roots_of_another_machine_are_not_asked_for(options, tmp_path):
    listing, headers = Listing(tmp_path / "elsewhere"), {"x-forwarded-for": "203.0.113.7"}
    given = {"headers": headers, "list_roots_callback": listing}

    async with connected("http", "legacy", tmp_path / "log", *options, **given) as client:
        answer = await read(client, "books/mine/a.txt")

    assert answer == "The vault opens at 6:40."
    assert listing.asked == 0
