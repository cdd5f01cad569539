import hashlib
import json
import sys

import pytest
from typer.testing import CliRunner

from memagent_graph.cli.app import app

QUESTION = "When does the ferry leave?"
MONDAY = "The ferry leaves at nine. " + "It rained all day. " * 400
TUESDAY = "From today on the ferry leaves at ten. " + "The sun shone. " * 400


@pytest.fixture
def memagent(tmp_path):
    def run(*arguments, check=True, env=(), **options):
        environment = {"MEMAGENT_STORE": str(tmp_path / "store.sqlite"), **dict(env)}
        done = CliRunner().invoke(app, [*map(str, arguments)], env=environment, **options)
        assert done.exit_code == 0 or not check, done.output
        return done

    return run


@pytest.fixture
def diary(memagent, tmp_path):
    for name, text in (("monday", MONDAY), ("tuesday", TUESDAY)):
        (tmp_path / name).write_text(text)
        memagent("ask", QUESTION, tmp_path / name, "--name", "diary", "--set", "chunk_tokens=500")


def test_the_history_says_what_made_each_version(memagent, tmp_path):
    (tmp_path / "book").write_text(MONDAY)
    memagent("ask", QUESTION, tmp_path / "book", "--set", "chunk_tokens=500", "--set", "segments=2")
    key = memagent("memory", "list").stdout.split("\t")[0]

    history = memagent("memory", "history", key).stdout

    assert f"  merge of 2 memories, 0-{len(MONDAY)} of {tmp_path / 'book'}" in history
    assert "  chunk 1, 0-" in history


LOOKS = (
    "list | users | show diary | history diary | readings | edit diary | forget diary --yes | "
    "check | export"
)


@pytest.mark.slow
@pytest.mark.parametrize("words", LOOKS.split(" | "))
def test_a_store_that_does_not_exist_is_not_created(words, memagent, tmp_path):
    done = memagent("memory", *words.split(), check=False)

    assert done.stdout == ""
    absent = f"memagent: there is no store {tmp_path / 'store.sqlite'} yet; "
    assert done.stderr.startswith(("memagent: error: ", absent))
    assert "Traceback" not in done.stderr
    assert not [*tmp_path.iterdir()]


@pytest.mark.usefixtures("diary")
def test_a_stored_memory_is_asked_without_reading(memagent):
    done = memagent("ask", "What leaves at ten?", "--memory", "diary")

    assert done.stdout.startswith("From today on the ferry leaves at ten.")
    assert "in 1 call and" in done.stdout
    assert memagent("ask", "What shone?", check=False).exit_code == 2


@pytest.mark.slow
@pytest.mark.usefixtures("diary")
def test_an_edit_is_a_new_version_and_the_history_shows_it(memagent):
    before = memagent("memory", "history", "diary").stdout.split()[0]
    editor = f"{sys.executable} -c \"import sys; open(sys.argv[1], 'w').write('At eleven.')\""

    edited = memagent("memory", "edit", "diary", env={"EDITOR": editor, "VISUAL": editor})
    history = memagent("memory", "history", "diary").stdout
    diff = history.partition(before)[0]

    assert memagent("memory", "show", "diary").stdout == "At eleven.\n"
    assert "leaves at nine" in memagent("memory", "show", before).stdout
    assert diff.startswith(edited.stdout.strip())
    assert "  + At eleven." in diff.splitlines()
    assert "  - The ferry leaves at nine." in diff.splitlines()


@pytest.mark.slow
@pytest.mark.usefixtures("diary")
def test_memories_move_as_json_lines(memagent, tmp_path):
    lines = memagent("memory", "export").stdout
    other = {"env": {"MEMAGENT_STORE": str(tmp_path / "other.sqlite")}}

    imported = memagent("memory", "import", "-", input=lines, **other)

    assert all(json.loads(line) for line in lines.splitlines())
    assert imported.stdout.endswith(" versions imported\n")
    show = ("memory", "show", "diary")
    assert memagent(*show, **other).stdout == memagent(*show).stdout


@pytest.mark.slow
@pytest.mark.usefixtures("diary")
def test_a_memory_is_forgotten_with_its_versions(memagent):
    version = memagent("memory", "history", "diary").stdout.split()[0]

    preview = memagent("memory", "forget", "diary", "--dry-run").stdout
    refused = memagent("memory", "forget", "diary", input="n\n", check=False)
    assert "leaves at nine" in memagent("memory", "show", version).stdout
    forgotten = memagent("memory", "forget", "diary", "--yes")
    gone = memagent("memory", "show", version, check=False)

    assert preview.startswith("diary\t")
    assert preview.endswith(" versions that no other memory has\n")
    assert refused.exit_code == 1
    assert forgotten.stdout == preview
    assert "versions forgotten" in forgotten.stderr
    assert gone.exit_code == 1
    assert gone.stderr.startswith("memagent: error: There is no memory")


@pytest.mark.slow
@pytest.mark.usefixtures("diary")
def test_a_document_is_forgotten_by_its_path_its_name_or_its_digest(memagent, tmp_path):
    monday, tuesday = tmp_path / "monday", tmp_path / "tuesday"
    forget = ("memory", "forget", "--source")

    whole = memagent(*forget, monday, "--dry-run").stdout
    preview = memagent(*forget, tuesday, "--dry-run").stdout
    refused = memagent(*forget, tuesday, input="n\n", check=False)
    assert "leaves at ten" in memagent("memory", "show", "diary").stdout
    tuesday.write_text("It was written anew.")
    done = memagent(*forget, tuesday, "--yes")
    shown = memagent("memory", "show", "diary").stdout
    history = memagent("memory", "history", "diary").stdout
    digest = hashlib.sha256(MONDAY.encode()).hexdigest()
    monday.unlink()
    by_digest = memagent(*forget, digest, input="y\n")
    unknown = memagent(*forget, "wednesday", check=False)

    assert f"diary\thad nothing before and goes\ndiary\tis to read again\t{tuesday}" in whole
    assert "diary\tfalls back to what it was before" in preview
    assert refused.exit_code == 1
    assert preview in done.stdout
    assert "leaves at nine" in shown
    assert "leaves at ten" not in shown + history
    assert "diary\thad nothing before and goes" in by_digest.stdout
    assert memagent("memory", "list").stdout == ""
    assert unknown.exit_code == 1
    assert "no memory of a document of that name" in unknown.stderr


@pytest.mark.parametrize("store", ["redis://127.0.0.1:9/0", "/proc", "none"])
def test_a_store_that_is_not_there_is_one_line(memagent, store):
    done = memagent("memory", "list", "--store", store, check=False)

    assert done.exit_code == 1
    assert done.stderr.startswith("memagent: error: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_commands_see_the_memories_of_their_namespace_alone(memagent, tmp_path):
    (tmp_path / "book").write_text(MONDAY)
    asked = ("ask", QUESTION, tmp_path / "book", "--set", "chunk_tokens=500")
    place = ("--namespace", "ann/memagent")

    memagent(*asked, *place)
    again = memagent(*asked, *place)
    before = memagent("memory", "list")
    other = memagent(*asked)

    assert "in 1 call and" in again.stdout
    assert "in 1 call and" not in other.stdout
    assert before.stdout == ""
    listed = memagent("memory", "list", *place).stdout
    (name,) = (line.split("\t")[0] for line in listed.splitlines())
    assert "leaves at nine" in memagent("memory", "show", name, *place).stdout


@pytest.mark.parametrize("command", [("ask", "Who?", __file__), ("memory", "list"), ("doctor",)])
def test_a_namespace_that_langgraph_forbids_is_one_clear_line(memagent, command):
    done = memagent(*command, "--namespace", "ann//memagent", check=False)

    assert done.exit_code == 1
    assert "The namespace ('ann', '', 'memagent') cannot be used" in done.stderr
    assert "Traceback" not in done.stderr
