"""Documents are converted once: what they became is kept, for this user, up to a limit."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from bombs import DOCUMENTS
from documents import write_headed
from hypothesis import example, given
from hypothesis import strategies as st
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

from memagent_graph import RedisStore
from memagent_graph.text import cache as caches
from memagent_graph.text import converter
from memagent_graph.text.cache import Cache, forget_converted, seal, unseal
from memagent_graph.text.files import open_source
from memagent_graph.text.source import Converted

KEY = "0123456789abcdef"


@pytest.fixture(scope="module", autouse=True)
def one_process():
    """Converts for all tests: what they ask of the cache has nothing to do with it."""
    yield
    converter.shared.end()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where entries are kept."""
    monkeypatch.setenv("MEMAGENT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("LANGGRAPH_AES_KEY", raising=False)
    caches._cache.cache_clear()
    return tmp_path / "cache" / "converted"


@pytest.fixture
def converted(monkeypatch):
    """The names of files that were converted, as it happens."""
    names = []
    convert = converter.Converters.convert

    def count(self, request):
        names.append(Path(request.path).name)
        return convert(self, request)

    monkeypatch.setattr(converter.Converters, "convert", count)
    return names


@pytest.fixture
def page(tmp_path):
    return DOCUMENTS["a.html"](tmp_path / "a.html", "swordfish")


def whole(source):
    return source.read(0, source.length)


def name(number):
    """Of an entry, as those of documents are."""
    return f"{number:064x}-{number:016x}"


def entries(folder):
    return sorted(folder.iterdir())


def test_of_a_folder_a_second_opening_converts_none_and_one_changed_file_is_one(
    folder, converted, tmp_path
):
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    DOCUMENTS["a.html"](corpus / "a.html", "Ann owns it.")
    write_headed(corpus / "b.docx", [(1, "Owners"), (0, "Bo owns it.")])
    first = open_source(corpus)
    converted.clear()

    second, third = open_source(corpus), open_source({"uri": first.uri})

    assert converted == []
    assert whole(first) == whole(second) == whole(third)
    assert first.digest == second.digest == third.digest
    at = whole(second).index("Bo owns")
    assert first.locate(at) == second.locate(at)
    assert second.locate(at).heading == "Owners"
    DOCUMENTS["a.html"](corpus / "a.html", "Nobody owns it.")
    assert "Nobody owns it." in whole(open_source(corpus))
    assert converted == ["a.html"]


class TestKey:
    def test_a_file_with_the_same_bytes_is_not_converted_again_wherever_it_is(
        self, folder, converted, page, tmp_path
    ):
        copy = tmp_path / "copy.html"
        copy.write_bytes(page.read_bytes())

        first, second = open_source(page), open_source(copy)

        assert converted == ["a.html"]
        assert whole(first) == whole(second)
        assert second.name == str(copy)

    def test_what_is_kept_is_of_the_bytes_that_were_converted(self, folder, page, monkeypatch):
        """Else a file that changes in between puts another's text into the cache."""
        original, swapped = page.read_bytes(), b"<p>planted</p>"
        convert = converter.Converters.convert

        def swap(self, request):
            page.write_bytes(swapped)
            return convert(self, request)

        with monkeypatch.context() as patched:
            patched.setattr(converter.Converters, "convert", swap)
            planted = open_source(page)
        page.write_bytes(original)

        assert whole(planted) == "planted"
        assert whole(open_source(page)) == "swordfish"
        assert planted.digest != open_source(page).digest


class TestEntries:
    @given(st.text(), st.lists(st.integers(0, 2**32 - 1)), st.text("0123456789abcdef-", min_size=1))
    @example("a\udc80", [], "k")
    def test_an_entry_gives_back_what_was_kept(self, text, pages, key):
        found = Converted.decode(unseal(key, seal(key, Converted(text, pages).encode())))

        assert (found.text, found.pages) == (text, pages)

    @given(st.data())
    def test_an_entry_that_is_not_whole_or_of_another_key_is_none(self, data):
        entry = seal("key", Converted("some text", [0, 5]).encode())
        at = data.draw(st.integers(0, len(entry) - 1))
        byte = data.draw(st.integers(0, 255).filter(lambda byte: byte != entry[at]))

        for wrong in (entry[:at], entry[:at] + bytes([byte]) + entry[at + 1 :], entry + b"x"):
            with pytest.raises(ValueError):  # noqa: PT011 - of any kind
                unseal("key", wrong)
        with pytest.raises(ValueError):  # noqa: PT011
            unseal("other", entry)

    def test_a_torn_or_foreign_entry_is_removed_and_the_document_converted(
        self, folder, converted, page
    ):
        open_source(page)
        (entry,) = entries(folder)
        good = entry.read_bytes()
        altered = good.replace(b"swordfish", b"shellfish")
        assert altered != good

        for bad in (good[:-1], b"", b"\xff", b"planted\n" + good, altered):
            entry.write_bytes(bad)
            assert whole(open_source(page)) == "swordfish"
            assert entry.read_bytes() == good

        assert converted == ["a.html"] * 6

    def test_another_entry_under_its_name_is_not_taken_for_it(self, folder, page, tmp_path):
        other = DOCUMENTS["a.html"](tmp_path / "b.html", "planted")
        open_source(page)
        (entry,) = entries(folder)
        open_source(other)
        (planted,) = set(entries(folder)) - {entry}
        entry.write_bytes(planted.read_bytes())

        assert whole(open_source(page)) == "swordfish"

    def test_entries_are_readable_by_their_owner_only(self, folder, page):
        before = os.umask(0)
        try:
            open_source(page)
        finally:
            os.umask(before)

        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert [stat.S_IMODE(entry.stat().st_mode) for entry in entries(folder)] == [0o600]

    @pytest.mark.parametrize("mode", [0o777, 0o750, 0o701])
    def test_a_folder_that_others_can_enter_is_not_used(self, mode, folder, converted, page):
        open_source(page)
        folder.chmod(mode)

        open_source(page)

        assert converted == ["a.html"] * 2
        forget_converted()
        open_source(page)
        assert not entries(folder)

    def test_a_link_in_place_of_the_folder_is_not_followed(self, folder, page, tmp_path):
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        folder.parent.mkdir()
        folder.symlink_to(tmp_path / "elsewhere")

        open_source(page)

        assert not entries(tmp_path / "elsewhere")


class TestSettings:
    def test_off_keeps_nothing(self, folder, converted, page, monkeypatch, tmp_path):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
        monkeypatch.setenv("MEMAGENT_CACHE", "off")

        for _ in range(2):
            open_source(page)

        assert converted == ["a.html"] * 2
        assert not (tmp_path / "xdg").exists()

    def test_a_user_without_a_home_has_no_cache(self, folder, page, monkeypatch):
        def homeless():
            raise RuntimeError

        for name in ("MEMAGENT_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(Path, "home", homeless)

        assert whole(open_source(page)) == "swordfish"
        assert forget_converted("0" * 64) == forget_converted() == 0


def size_of(cache):
    return sum(path.stat().st_size for path in entries(cache.folder))


class TestLimit:
    def keep(self, cache, number, size=1000):
        cache.keep(name(number), b"x" * size)

    def test_the_least_recently_used_go_first(self, tmp_path):
        cache = Cache(tmp_path / "cache", 10_000)
        for number in range(8):
            self.keep(cache, number)
            os.utime(cache.folder / name(number), (number, number))
        assert cache.find(name(1), 10_000) is not None  # used, and so the newest

        for number in range(8, 12):
            self.keep(cache, number)

        left = {path.name for path in entries(cache.folder)}
        assert {name(1), name(11)} <= left
        assert not {name(0), name(2), name(3)} & left
        assert size_of(cache) <= 10_000

    @given(st.lists(st.integers(0, 3000), max_size=30))
    def test_it_stays_below_its_limit_after_every_entry(self, tmp_path_factory, sizes):
        cache = Cache(tmp_path_factory.mktemp("c") / "cache", 8000)

        for number, size in enumerate(sizes):
            self.keep(cache, number, size)
            assert size_of(cache) <= 8000
            assert cache.find(name(number), 8000) is not None

    def test_what_a_killed_process_began_is_removed_in_time(self, tmp_path):
        cache = Cache(tmp_path / "cache", 8000)
        self.keep(cache, 1)
        old, young = (cache.folder / f"{name(number)}.x.new" for number in (2, 3))
        for path in (old, young):
            path.write_text("begun")
        os.utime(old, (1, 1))

        self.keep(Cache(cache.folder, 8000), 4)

        assert entries(cache.folder) == [cache.folder / name(1), young, cache.folder / name(4)]

    def test_files_that_it_did_not_write_stay(self, tmp_path):
        cache = Cache(tmp_path / "cache", 8000)
        self.keep(cache, 1)
        (cache.folder / "folder").mkdir()
        mine = [cache.folder / "thesis.docx", cache.folder / f"x{name(2)}"]
        for path in mine:
            path.write_text("x" * 50_000)
            os.utime(path, (1, 1))

        self.keep(Cache(cache.folder, 8000), 3)

        assert cache.forget() == 2
        assert all(path.exists() for path in mine)


class TestTrouble:
    @pytest.mark.parametrize("name", ["utime", "scandir"])
    def test_a_folder_that_cannot_be_written_is_no_failure(
        self, name, folder, converted, page, monkeypatch
    ):
        def refuse(*arguments):
            raise PermissionError(arguments)

        open_source(page)
        monkeypatch.setattr(os, name, refuse)
        monkeypatch.setattr(caches, "mkstemp", refuse)
        DOCUMENTS["a.html"](page.with_name("b.html"), "other")

        assert whole(open_source(page)) == "swordfish"
        assert whole(open_source(page.with_name("b.html"))) == "other"
        assert converted == ["a.html", "b.html"]

    @pytest.mark.parametrize("where", ["file", "/proc/no/such"])
    def test_a_folder_that_cannot_be_made_is_no_failure(self, where, page, tmp_path, monkeypatch):
        (tmp_path / "file").write_text("in the way")
        monkeypatch.setenv("MEMAGENT_CACHE", str(tmp_path / where))

        for _ in range(2):
            assert whole(open_source(page)) == "swordfish"

    @pytest.mark.slow
    def test_processes_that_write_at_once_leave_whole_entries(self, tmp_path):
        code = f"""if True:
            from pathlib import Path
            from memagent_graph.text.cache import Cache
            cache = Cache(Path({str(tmp_path / "cache")!r}), 200_000)
            names = {[name(number) for number in range(20)]}
            for turn in range(60):
                for number in range(20):
                    cache.keep(names[number], str(number).encode() * 5_000)
                    found = cache.find(names[19 - number], 1 << 20)
                    other = 19 - number
                    assert found in (None, str(other).encode() * 5_000)
            """

        running = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]

        assert [process.wait() for process in running] == [0, 0]
        assert entries(tmp_path / "cache")
        assert not list((tmp_path / "cache").glob("*.new"))


class TestForgetting:
    def test_a_document_is_forgotten_by_the_digest_of_its_source(self, folder, page, tmp_path):
        other = open_source(DOCUMENTS["a.html"](tmp_path / "b.html", "other"))
        source = open_source(page)
        (folder / f"{source.digest}-{'0' * 16}.x.new").write_text(
            "swordfish"
        )  # another process began it

        assert forget_converted(source.digest) == 2

        assert [entry.name.partition("-")[0] for entry in entries(folder)] == [other.digest]
        assert forget_converted(source.digest) == 0

    def test_all_are_counted_and_forgotten_also_when_keeping_is_off(
        self, folder, page, monkeypatch, tmp_path
    ):
        monkeypatch.delenv("MEMAGENT_CACHE")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
        monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "xdg"))
        monkeypatch.setenv("HOME", str(tmp_path / "xdg"))
        open_source(page)
        monkeypatch.setenv("MEMAGENT_CACHE", "off")

        assert [forget_converted(), forget_converted()] == [1, 0]


class TestEncryption:
    @pytest.fixture(autouse=True)
    def key(self, folder, monkeypatch):
        pytest.importorskip("Crypto", reason="EncryptedSerializer needs pycryptodome")
        monkeypatch.setenv("LANGGRAPH_AES_KEY", KEY)

    def test_entries_are_encrypted_with_the_key_of_the_store(self, folder, converted, page):
        for _ in range(2):
            assert whole(open_source(page)) == "swordfish"

        assert converted == ["a.html"]
        (entry,) = entries(folder)
        assert b"swordfish" not in entry.read_bytes()

    def test_plain_entries_are_removed_when_a_key_is_set(self, folder, page, monkeypatch):
        monkeypatch.delenv("LANGGRAPH_AES_KEY")
        open_source(page)
        assert b"swordfish" in entries(folder)[0].read_bytes()
        monkeypatch.setenv("LANGGRAPH_AES_KEY", KEY)

        assert whole(open_source(page)) == "swordfish"

        assert [b"swordfish" in entry.read_bytes() for entry in entries(folder)] == [False]

    def test_an_entry_cannot_be_planted_without_the_key(self, folder, page):
        open_source(page)
        (entry,) = entries(folder)
        entry.write_bytes(seal(entry.name, Converted("planted").encode()))

        assert whole(open_source(page)) == "swordfish"

    def test_once_a_store_encrypts_no_plain_text_is_kept(
        self, folder, converted, page, monkeypatch
    ):
        monkeypatch.delenv("LANGGRAPH_AES_KEY")
        serializer = EncryptedSerializer.from_pycryptodome_aes(key=KEY.encode())
        RedisStore.from_url("redis://127.0.0.1:1", serializer=serializer).close()

        open_source(page)

        assert not folder.exists()
        monkeypatch.setenv("LANGGRAPH_AES_KEY", KEY)
        for _ in range(2):
            open_source(page)
        assert converted == ["a.html"] * 2

    @pytest.mark.parametrize("broken", ["key", "package"])
    def test_nothing_is_kept_where_it_cannot_be_encrypted(self, broken, folder, page, monkeypatch):
        if broken == "key":
            monkeypatch.setenv("LANGGRAPH_AES_KEY", "short")
        else:
            monkeypatch.setitem(sys.modules, "Crypto.Cipher", None)
            caches._cache.cache_clear()

        assert whole(open_source(page)) == "swordfish"

        assert not folder.exists()
