import os
from base64 import b64encode
from io import BytesIO
from pathlib import Path

import pytest
from langgraph.store.memory import InMemoryStore
from mcp import Client

from memagent_graph.errors import (
    ConfigurationError,
    SourceChangedError,
    SourceError,
    SourceNotFoundError,
    UnreadableSourceError,
)
from memagent_mcp_server import Roots, create_server
from memagent_mcp_server.roots import open_unlinked

SECRET = "The password is swordfish."


@pytest.fixture
def roots(tmp_path):
    """Two roots, and next to them a secret to which links of theirs lead."""
    contracts, minutes = tmp_path / "contracts", tmp_path / "minutes.txt"
    (contracts / "2024").mkdir(parents=True)
    (contracts / "2024" / "lease.txt").write_text("The rent is paid by Mr. Fox.")
    minutes.write_text("They met.")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.txt").write_text(SECRET)
    (contracts / "link.txt").symlink_to(outside / "secret.txt")
    (contracts / "link").symlink_to(outside)
    (contracts / "circle").symlink_to(contracts / "circle")
    (contracts / ".env").write_text(SECRET)
    (contracts / "shown.txt").symlink_to(contracts / ".env")
    os.mkfifo(contracts / "pipe")
    return Roots([contracts, minutes])


def whole(source):
    return source.read(0, source.length)


def test_a_root_and_all_below_it_is_read_by_its_name_or_its_path(roots, tmp_path):
    lease = tmp_path / "contracts" / "2024" / "lease.txt"

    for asked in ("contracts/2024/lease.txt", "contracts/./2024/../2024/lease.txt", str(lease)):
        source = roots.open(asked)
        assert whole(source) == "The rent is paid by Mr. Fox."
        assert source.name == "contracts/2024/lease.txt"
    folder = roots.open("contracts")
    place = folder.locate(whole(folder).index("Mr. Fox"))
    assert "Fox" in whole(roots.open(place.name))
    assert "swordfish" not in whole(folder)
    assert whole(roots.open("minutes.txt")) == "They met."
    assert roots.names == ["contracts", "minutes.txt"]


def test_a_picture_below_a_root_is_read_and_shown_unless_it_became_another_file(roots, tmp_path):
    image = pytest.importorskip("PIL.Image")
    pytest.importorskip("lxml")
    path = tmp_path / "contracts" / "door.png"
    image.new("RGB", (64, 64), "red").save(path)

    source = roots.open("contracts/door.png")

    assert whole(source) == "[picture 1]"
    assert source.load_picture(source.pictures[0])[0] == "image/png"
    image.new("RGB", (64, 64), "blue").save(tmp_path / "outside" / "other.png")
    path.unlink()
    path.symlink_to(tmp_path / "outside" / "other.png")
    with pytest.raises(SourceChangedError):
        source.load_picture(source.pictures[0])


async def test_a_picture_is_read_from_the_call_itself(roots):
    image = pytest.importorskip("PIL.Image")
    pytest.importorskip("lxml")
    kept = BytesIO()
    image.new("RGB", (64, 64), "red").save(kept, "PNG")
    encoded = b64encode(kept.getvalue()).decode()
    server = create_server("extractive", roots=roots, store=InMemoryStore())

    async def read(source):
        async with Client(server) as client:
            asked = {"question": "What is shown?", "source": source}
            return await client.call_tool("read", asked)

    found = await read(f"data:image/png;base64,{encoded}")
    wrong = ("%", "aGk=", encoded[:40], "")
    refused = {data: await read(f"data:image/png;base64,{data}") for data in wrong}

    assert not found.is_error
    assert found.structured_content["coverage"] == 1
    assert all(one.is_error for one in refused.values())
    assert "not base64" in refused["%"].content[0].text
    assert "no picture" in refused["aGk="].content[0].text


BELOW = (
    ".. . / ~ * outside/secret.txt contracts/.. contracts/../outside/secret.txt "
    "contracts/2024/../../outside/secret.txt contracts/link.txt contracts/link "
    "contracts/link/secret.txt contracts/link/../outside/secret.txt contracts/circle "
    "contracts/*/secret.txt contracts/lin?/secret.txt minutes.txt/../outside/secret.txt "
    "contracts\\..\\outside\\secret.txt contracts/%2e%2e/outside/secret.txt "
    "contracts/\0/../../outside/secret.txt contracts/\ud800"
)
ELSEWHERE = (
    "/etc/passwd /proc/self/environ /dev/stdin file:///etc/passwd https://example.org/ "
    "http://127.0.0.1:8000/secret http://[::1]/secret ftp://localhost/secret "
    "http://169.254.169.254/latest/meta-data/ data:text/plain,secret redis://localhost"
)
LONG = ["contracts/" + "x" * 5000, "x" * 100_000]


@pytest.mark.parametrize("asked", ["", *BELOW.split(), *LONG, *ELSEWHERE.split()])
def test_what_lies_outside_the_roots_is_refused(roots, asked, tmp_path):
    with pytest.raises(SourceError) as refused:
        roots.open(asked)

    assert "swordfish" not in str(refused.value)
    assert len(str(refused.value)) < 1000


def test_a_refusal_does_not_tell_whether_there_is_such_a_file(roots, tmp_path):
    def refusal(name):
        with pytest.raises(SourceError) as refused:
            roots.open(name)
        return str(refused.value).replace(name, "")

    for folder in (tmp_path / "outside", "contracts/../outside", "contracts/link"):
        assert refusal(f"{folder}/secret.txt") == refusal(f"{folder}/no-such.txt")


@pytest.mark.parametrize("asked", ["contracts/.env", "contracts/shown.txt"])
def test_hidden_files_are_refused_also_through_a_link(roots, asked):
    with pytest.raises(SourceError, match="hidden"):
        roots.open(asked)


def test_special_files_are_refused_and_not_waited_for(roots):
    with pytest.raises(UnreadableSourceError, match="pipe"):
        roots.open("contracts/pipe")


def test_a_path_below_a_root_that_names_nothing_says_so_without_the_servers_own_paths(
    roots, tmp_path
):
    with pytest.raises(SourceNotFoundError, match="There is no contracts/none") as missing:
        roots.open("contracts/none")

    assert str(tmp_path) not in str(missing.value)


@pytest.mark.parametrize("part", ["2024", "2024/lease.txt"])
@pytest.mark.parametrize("asked", ["contracts/2024/lease.txt", "contracts/2024"])
def test_what_becomes_a_link_between_the_look_and_the_opening_is_not_followed(
    roots, tmp_path, monkeypatch, part, asked
):
    target = tmp_path / "contracts" / part
    outside = tmp_path / "outside"
    (outside / "lease.txt").write_text(SECRET)

    def swap_and_open(path, flags):
        if not target.is_symlink():
            target.rename(tmp_path / "away")
            target.symlink_to(outside if part == "2024" else outside / "lease.txt")
        return open_unlinked(path, flags)

    monkeypatch.setattr("memagent_mcp_server.roots.open_unlinked", swap_and_open)
    with pytest.raises(SourceError) as refused:
        roots.open(asked)

    assert target.is_symlink()
    assert "swordfish" not in str(refused.value)


def test_a_root_may_be_a_link_which_is_resolved_once(tmp_path):
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text(name)
    link = tmp_path / "root"
    link.symlink_to(tmp_path / "first")
    roots = Roots([link])
    link.unlink()
    link.symlink_to(tmp_path / "second")

    assert roots.names == ["first"]
    assert whole(roots.open("first/a.txt")) == "first"


def test_roots_that_cannot_be_told_apart_or_do_not_exist_are_refused_at_the_start(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name / "x").mkdir(parents=True)

    for paths in ([tmp_path / "a" / "x", tmp_path / "b" / "x"], [tmp_path / "none"], ["/"], []):
        with pytest.raises(ConfigurationError):
            Roots(paths)


def test_with_a_clients_roots_only_what_lies_in_both_is_opened(roots, tmp_path):
    contracts, minutes = tmp_path / "contracts", tmp_path / "minutes.txt"
    lease = "contracts/2024/lease.txt"

    for within in ([contracts / "2024"], [contracts / "2024" / "lease.txt"], [tmp_path], ["/"]):
        addresses = [Path(place).as_uri() for place in within]
        assert "Mr. Fox" in whole(roots.open(lease, addresses))
    for within in ([], [minutes], [tmp_path / "outside"], [contracts / "link"], [contracts / "20"]):
        with pytest.raises(SourceError, match="cannot be read here"):
            roots.open(lease, [place.as_uri() for place in within])
    with pytest.raises(SourceError, match="one of contracts/2024, minutes.txt, or"):
        roots.open("contracts", [(contracts / "2024").as_uri(), minutes.as_uri()])
    with pytest.raises(SourceError, match="nothing in common"):
        roots.open(lease, [])


def test_a_clients_roots_open_nothing_outside_the_servers(roots, tmp_path):
    for asked in (tmp_path / "outside" / "secret.txt", "/etc/passwd", "contracts/.env"):
        with pytest.raises(SourceError):
            roots.open(str(asked), ["file:///", tmp_path.as_uri()])


ADDRESSES = "/ file: file:. file://other.example/ http://localhost/ file://[/ file:///%00 data:,"


@pytest.mark.parametrize("address", ["", *ADDRESSES.split(), "file:///" + "x" * 10_000])
def test_an_address_that_names_no_folder_of_this_machine_opens_nothing(roots, address):
    with pytest.raises(SourceError, match="nothing in common"):
        roots.open("minutes.txt", [address])


def test_a_clients_root_is_written_with_escapes(tmp_path):
    folder = tmp_path / "a b#c%20d"
    folder.mkdir()
    (folder / "x.txt").write_text("here")

    roots = Roots([tmp_path])

    assert whole(roots.open(str(folder / "x.txt"), [folder.as_uri()])) == "here"
