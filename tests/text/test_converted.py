"""Documents that are converted by a process of its own, in bounds and without a way out."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from io import BytesIO
from pathlib import Path

import psutil
import pypdfium2
import pytest
from bombs import BOMBS, DOCUMENTS, write_docx, write_slow, write_xlsx
from documents import write_pages, write_scan

from memagent_graph import MemAgentRetriever, ReadingConfig, create_memagent, create_reading_tool
from memagent_graph.errors import (
    ConfigurationError,
    ConversionLimitError,
    MissingDependencyError,
    SourceError,
    UnreadableSourceError,
)
from memagent_graph.sync import to_thread
from memagent_graph.text import converter, ocr
from memagent_graph.text.conversion import FORMATS
from memagent_graph.text.converter import Converter
from memagent_graph.text.files import open_source
from memagent_graph.text.pdf import read_pdf
from memagent_graph.text.source import skips_of

MB = 1 << 20
HANG = 300
"""Seconds after which a test waits no longer for what takes a few."""
CPU_SECONDS = 60
"""Time of its own in which a conversion that nothing stops ends; the clock has no part in it."""


def whole(source):
    return source.read(0, source.length)


def converting(process=None):
    """The processes that convert for a process, this one by default."""
    found = []
    for child in (process or psutil.Process()).children(recursive=True):
        with suppress(psutil.Error):
            if child.status() != psutil.STATUS_ZOMBIE and "text.conversion" in str(child.cmdline()):
                found.append(child)
    return found


def wait_until(condition):
    until = time.monotonic() + HANG
    while not (found := condition()):
        assert time.monotonic() < until
        time.sleep(0.01)
    return found


def is_gone(process):
    with suppress(psutil.NoSuchProcess):
        return process.status() == psutil.STATUS_ZOMBIE
    return True


@pytest.fixture(scope="module")
def one_pool():
    """Idle processes stay for the next test that is not about them, too."""
    converter.shared.end()  # tests of other modules leave theirs
    yield
    converter.shared.end()


@pytest.fixture(autouse=True)
def no_process_stays(monkeypatch, request):
    """Nor is any given up because a busy machine is slow."""
    shares = "one_pool" in request.fixturenames

    def none_stays():
        if shares:
            return len(converting()) == len(converter.shared._idle)
        converter.shared.end()
        return not converting()

    none_stays()
    monkeypatch.setattr(converter, "_KEPT_SECONDS", HANG)
    yield
    for process in converting():
        with suppress(psutil.Error):
            if process.status() == psutil.STATUS_STOPPED:  # it would never end
                process.kill()
    wait_until(none_stays)


@pytest.fixture(autouse=True)
def no_process_takes_long(monkeypatch):
    """A conversion ends by its own time, however long a busy machine takes to give it that."""
    start = Converter.__init__

    def start_limited(self):
        start(self)
        self._seen.rlimit(psutil.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))

    monkeypatch.setattr(Converter, "__init__", start_limited)
    monkeypatch.setenv("MEMAGENT_CONVERSION_SECONDS", "3600")


@pytest.fixture
def limit(monkeypatch):
    return lambda name, value: monkeypatch.setenv(f"MEMAGENT_CONVERSION_{name}", str(value))


@pytest.fixture
def bomb(tmp_path):
    """Takes a minute."""
    return write_slow(tmp_path / "slow.html")


@contextmanager
def peak():
    """Measures what this process grows by, and what all that it starts hold, at most, in MiB."""
    this = psutil.Process()
    others = {child.pid for child in this.children(recursive=True)}  # of other tests
    before, measured, done = this.memory_info().rss, [0.0], threading.Event()
    command = this.cmdline()

    def measure():
        while not done.wait(0.01):
            total = this.memory_info().rss - before
            for child in this.children(recursive=True):
                if child.pid in others:
                    continue
                with suppress(psutil.Error):
                    # Between fork and exec, a child is told to hold what this process holds.
                    if child.cmdline() != command:
                        total += child.memory_info().rss
            measured[0] = max(measured[0], total / MB)

    thread = threading.Thread(target=measure)
    thread.start()
    try:
        yield measured
    finally:
        done.set()
        thread.join()


@pytest.mark.slow
@pytest.mark.usefixtures("one_pool")
def test_each_format_is_converted(tmp_path):
    for name, write in DOCUMENTS.items():
        write(tmp_path / name, f"Hello {name}")

    source = open_source(tmp_path)

    assert [part.name for part in source.parts] == [
        f"{tmp_path.name}/{name}" for name in sorted(DOCUMENTS)
    ]
    for part in source.parts:
        assert f"Hello {part.name.rpartition('/')[2]}" in whole(part)
    # No library writes Outlook's messages, so that only real ones could be read here.
    covered = {FORMATS[Path(name).suffix] for name in DOCUMENTS}
    assert covered == set(FORMATS.values()) - {FORMATS[".msg"], FORMATS[".png"]}


@pytest.mark.usefixtures("one_pool")
class TestSeveral:
    @pytest.fixture
    def pages(self, tmp_path):
        names = [f"{number}.html" for number in range(6)]
        return [DOCUMENTS["a.html"](tmp_path / name, f"page {name}") for name in names]

    @pytest.mark.parametrize("given_as", ["folder", "glob", "list"])
    def test_they_are_read_in_order(self, given_as, pages, tmp_path):
        document = {"folder": tmp_path, "glob": tmp_path / "*.html", "list": pages}[given_as]

        source = open_source(document)

        assert [whole(part) for part in source.parts] == [f"page {n}.html" for n in range(6)]

    def test_a_broken_one_of_a_list_is_an_error_and_ends_the_others(self, pages, bomb, tmp_path):
        broken = (tmp_path / "2.html").rename(tmp_path / "2.docx")

        with pytest.raises(UnreadableSourceError, match=r"2\.docx"):
            open_source([broken, bomb, *pages[3:]])

        converter.shared.end()
        assert not converting()

    def test_files_that_lead_out_of_a_folder_are_not_even_converted(
        self, tmp_path, tmp_path_factory, monkeypatch
    ):
        outside = DOCUMENTS["a.html"](tmp_path_factory.mktemp("outside") / "a.html", "private")
        (tmp_path / "a.html").symlink_to(outside)
        DOCUMENTS["a.html"](tmp_path / ".b.html", "hidden")
        (tmp_path / "c.txt").write_text("shown")
        monkeypatch.delattr(converter.Converters, "convert")

        source = open_source(tmp_path)

        assert len(skips_of(source)) == 2
        assert whole(source.parts[0]) == "shown"


@pytest.mark.usefixtures("one_pool")
class TestReport:
    """Every source that is opened has a record."""

    @pytest.mark.slow
    def test_each_source_says_what_read_it_or_why_it_was_skipped(self, tmp_path):
        (tmp_path / "a.txt").write_bytes(
            "Müller zahlt die Miete für Größe.\n".encode("latin-1") * 9
        )
        write_pages(tmp_path / "b.pdf", [[(72, 700, "Ann signed.")], []])
        DOCUMENTS["a.html"](tmp_path / "c.docx", "no archive")
        asked = {"question": "Who signed?", "document": tmp_path}

        parts = [*create_memagent().stream(asked, stream_mode=["custom", "values"])]

        text, pdf, docx = parts[-1][1]["sources"]
        assert parts[-1][1]["sources"] == [
            *next(part["sources"] for _, part in parts if part.get("event") == "opened")
        ]
        assert (text["by"], text["skipped"]) == ("text", None)
        assert text["encoding"] not in {None, "utf-8"}
        assert pdf["by"].startswith("pypdfium2 ")
        assert "no text on page 2" in pdf["warnings"][0]
        assert docx["name"] == f"{tmp_path.name}/c.docx"
        assert (docx["by"], docx["skipped"][:22]) == (None, "it cannot be converted")

    def test_a_retriever_and_a_tool_name_what_was_not_read(self, tmp_path):
        (tmp_path / "a.txt").write_text("The lease was signed by Ann Kestrel.")
        DOCUMENTS["a.html"](tmp_path / "c.docx", "no archive")

        found = MemAgentRetriever(corpus=[tmp_path], model="extractive").invoke("Who signed?")
        tool = create_reading_tool("extractive", sources={"leases": tmp_path})

        (line,) = found[0].metadata["skipped"]
        assert line.startswith(f"skipped {tmp_path.name}/c.docx: it cannot be converted")
        assert found[0].metadata["warnings"] == []
        said = tool.invoke({"questions": ["Who signed?"], "source": "leases"})
        assert f"Not read: {tmp_path.name}/c.docx." in said


@pytest.mark.usefixtures("one_pool")
class TestWarnings:
    def test_pages_without_text_are_named_by_number(self, tmp_path):
        said = [(72, 700, "Ann signed.")]
        scan = write_pages(tmp_path / "scan.pdf", [said, [], said, []])

        source = open_source(scan)
        output = create_memagent().invoke({"question": "Who signed?", "document": tmp_path})

        assert "scan.pdf: no text on pages 2, 4 of 4" in source.warnings[0]
        assert "scan.pdf: no text on pages 2, 4 of 4" in output["warnings"][0]
        assert not open_source(write_pages(tmp_path / "full.pdf", [said])).warnings

    def test_a_file_that_is_encrypted_says_that_it_needs_a_password(self, tmp_path):
        office = tmp_path / "a.docx"
        office.write_bytes(
            bytes.fromhex("d0cf11e0a1b11ae1") + "EncryptedPackage".encode("utf-16-le")
        )

        with pytest.raises(UnreadableSourceError, match=r"a\.docx .* needs a password"):
            open_source(office)
        with pytest.raises(UnreadableSourceError, match=r"e\.pdf .* needs a password"):
            open_source(write_encrypted(tmp_path / "e.pdf"))

    def test_what_took_too_long_is_named_with_the_limit_in_the_output(self, bomb, tmp_path, limit):
        limit("SECONDS", 0.5)
        (tmp_path / "a.txt").write_text("Ann signed.")

        output = create_memagent().invoke({"question": "Who signed?", "document": tmp_path})

        skipped = f"skipped {tmp_path.name}/{bomb.name}: it takes longer than 0.5 s"
        assert output["warnings"][0].startswith(skipped)
        assert "Ann" in output["answer"]


class TestScans:
    @pytest.fixture(autouse=True)
    def ocr(self):
        pytest.importorskip("rapidocr")

    @pytest.mark.slow
    def test_pages_without_a_text_layer_are_read_by_ocr_and_named(self, tmp_path):
        said = [(72, 700, "Ann Smith signed the lease on 3 May 2021."), (72, 680, "Rent: $1,250")]
        write_scan(tmp_path / "lease.pdf", [[(72, 700, "Lease")], [], said])

        output = create_memagent().invoke({"question": "Who signed?", "document": tmp_path})
        source = open_source(tmp_path / "lease.pdf")

        at = source.text.index("Ann Smith signed the lease on 3 May 2021.\nRent: $1,250")
        assert source.locate(at).page == 3
        warnings = [line.partition(".pdf: ")[2] for line in source.warnings]
        assert warnings == ["words of pages 1, 3 come from OCR.", "no text on page 2 of 3."]
        assert output["sources"][0]["warnings"] == [
            f"{tmp_path.name}/lease.pdf: {line}" for line in warnings
        ]
        assert "Ann Smith" in output["answer"]

    def test_where_there_is_no_time_the_other_pages_are_read(self, tmp_path, limit):
        limit("SECONDS", 9)
        scan = write_scan(tmp_path / "scan.pdf", [[(72, 700, "Ann signed.")]]).read_bytes()
        text = write_pages(tmp_path / "text.pdf", [[(72, 700, "Odo signed.")]]).read_bytes()
        joined = pypdfium2.PdfDocument(text)
        joined.import_pages(pypdfium2.PdfDocument(scan))
        joined.save(tmp_path / "text.pdf")

        source = open_source(tmp_path / "text.pdf")

        assert whole(source).strip() == "Odo signed."
        left_out, blank = source.warnings
        assert "did not run OCR on page 2: raise MEMAGENT_CONVERSION_SECONDS" in left_out
        assert "no text on page 2 of 2" in blank

    @pytest.mark.parametrize(
        ("name", "value", "warning"),
        [
            ("MOST_PIXELS", 1_000_000, "did not run OCR on page 1: a picture is too large."),
            ("_engine", lambda: 1 / 0, "OCR failed on page 1 (ZeroDivisionError)."),
        ],
    )
    def test_a_page_that_is_too_large_for_ocr_or_fails_is_named(
        self, tmp_path, monkeypatch, name, value, warning
    ):
        scan = write_scan(tmp_path / "scan.pdf", [[(72, 700, "Ann signed.")]]).read_bytes()
        monkeypatch.setattr(ocr, name, value)

        found = read_pdf(scan)

        assert not found.text.strip()
        assert found.warnings == (warning,)

    def test_columns_are_read_one_after_the_other_and_rows_of_tables_across(self):
        def line(left, top, right, text):
            return ocr.Box(left, top, right, top + 10, text)

        columns = [line(0, 20 * n, 200, f"left {n}") for n in range(1, 7)]
        columns[2] = columns[2]._replace(bottom=columns[2].top)  # flat, as a dash is
        columns += [line(230, 20 * n + 2, 430, f"right {n}") for n in range(1, 7)]
        table = [line(90 * n, 20 * m, 90 * n + 40, f"{m}.{n}") for m in range(6) for n in range(3)]
        heading, foot = line(100, 0, 330, "Title"), line(180, 140, 250, "7")

        assert ocr.order_lines([*reversed(columns), foot, heading]) == [
            "Title",
            *(f"left {n}" for n in range(1, 7)),
            *(f"right {n}" for n in range(1, 7)),
            "7",
        ]
        assert ocr.order_lines(table)[:2] == ["0.0 0.1 0.2", "1.0 1.1 1.2"]


def write_encrypted(path):
    """A PDF that opens with a password only."""
    plain = write_pages(path, [[(72, 700, "Ann signed.")]]).read_bytes()
    key, salt = "<" + "41" * 32 + ">", "<" + "42" * 16 + ">"
    encrypt = f"/Encrypt << /Filter /Standard /V 1 /R 2 /P -4 /O {key} /U {key} >>"
    encrypt += f" /ID [{salt}{salt}]"
    path.write_bytes(plain.replace(b"/Root 1 0 R", f"/Root 1 0 R {encrypt}".encode()))
    return path


class TestLimits:
    @pytest.mark.slow
    @pytest.mark.parametrize("name", BOMBS)
    def test_a_bomb_of_each_format_stays_under_the_limit_on_memory(self, name, tmp_path, limit):
        limit("MEMORY_MB", 384)
        document = BOMBS[name](tmp_path / name)

        with peak() as measured, pytest.raises(ConversionLimitError) as refused:
            open_source(document)

        assert refused.value.limit == "memory"
        assert name in str(refused.value)
        assert "384 MB of memory" in str(refused.value)
        assert "MEMAGENT_CONVERSION_MEMORY_MB" in str(refused.value)
        # The kernel's limit is a quarter higher, libraries apart.
        assert 30 < measured[0] < 384 * 1.5

    def test_a_document_that_takes_too_long_says_so(self, bomb, limit):
        limit("SECONDS", 0.5)

        with pytest.raises(ConversionLimitError, match="longer than 0.5 seconds") as refused:
            open_source(bomb)

        assert refused.value.limit == "time"
        assert "MEMAGENT_CONVERSION_SECONDS" in str(refused.value)
        assert not converting()

    def test_a_text_that_is_too_long_says_so(self, tmp_path, limit):
        limit("OUTPUT_MB", 1)
        page = tmp_path / "long.html"
        page.write_text("words " * 200_000)

        with pytest.raises(ConversionLimitError, match="longer than 1 MB") as refused:
            open_source(page)

        assert refused.value.limit == "output"
        assert "MEMAGENT_CONVERSION_OUTPUT_MB" in str(refused.value)

    @pytest.mark.parametrize("value", ["much", "0", "nan", "inf"])
    def test_a_limit_that_is_none_is_refused(self, value, tmp_path, limit):
        limit("SECONDS", value)

        with pytest.raises(ConfigurationError, match="MEMAGENT_CONVERSION_SECONDS"):
            open_source(DOCUMENTS["a.html"](tmp_path / "a.html", "Hello"))

    @pytest.mark.slow
    def test_a_cell_far_from_the_others_does_not_fill_the_memory(self, tmp_path, limit):
        limit("MEMORY_MB", 384)
        rows = '<row r="1048576"><c r="XFD1048576"><v>12</v></c></row>'

        assert "| 12 |" in whole(open_source(write_xlsx(tmp_path / "a.xlsx", rows)))


class TestEnd:
    async def test_cancelling_a_reading_ends_the_conversion(self, bomb):
        asked = {"question": "Who signed?", "document": bomb}
        reading = asyncio.create_task(create_memagent().ainvoke(asked))
        process = (await asyncio.to_thread(wait_until, converting))[0]

        reading.cancel()

        with pytest.raises(asyncio.CancelledError):
            await reading
        await asyncio.to_thread(wait_until, lambda: is_gone(process))

    async def test_who_waits_for_a_turn_can_be_cancelled(self, bomb, tmp_path):
        page = DOCUMENTS["a.html"](tmp_path / "a.html", "Hello")
        opening = [
            asyncio.create_task(to_thread(partial(open_source, document)))
            for document in [bomb] * converter.AT_ONCE + [page]
        ]
        await asyncio.to_thread(wait_until, lambda: len(converting()) == converter.AT_ONCE)

        for task in reversed(opening):
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        await asyncio.to_thread(wait_until, lambda: not converting())
        assert whole(open_source(page)) == "Hello"

    @pytest.mark.slow
    def test_the_deadline_of_a_reading_ends_the_conversion(self, bomb):
        agent = create_memagent(config=ReadingConfig(deadline=1))

        with pytest.raises(SourceError, match="not open after 1 second,"):
            agent.invoke({"question": "Who signed?", "document": bomb})

        wait_until(lambda: not converting())

    @pytest.mark.slow
    def test_ctrl_c_ends_the_conversion(self, bomb):
        command = [sys.executable, "-m", "memagent_graph", "ask", "Who signed?", str(bomb)]
        with subprocess.Popen(
            [*command, "--store", "none"], stderr=subprocess.PIPE, start_new_session=True
        ) as asking:
            process = wait_until(lambda: converting(psutil.Process(asking.pid)))[0]
            os.killpg(asking.pid, signal.SIGINT)
            _, said = asking.communicate(timeout=HANG)

        assert asking.returncode == 130
        assert b"Traceback" not in said
        wait_until(lambda: is_gone(process))

    async def test_ctrl_c_while_the_process_starts_is_not_lost(self, bomb, tmp_path, monkeypatch):
        """Imports that pass over an interrupt are rare, and said nothing for minutes."""
        (tmp_path / "sitecustomize.py").write_text(
            "from pathlib import Path\nfrom time import sleep\n"
            f"here = Path({str(tmp_path)!r})\n(here / 'begun').touch()\n"
            "while not (here / 'interrupted').exists():\n"
            "    try:\n        sleep(0.01)\n    except KeyboardInterrupt:\n        pass\n"
        )
        monkeypatch.syspath_prepend(str(tmp_path))
        opening = asyncio.create_task(to_thread(partial(open_source, bomb)))
        await asyncio.to_thread(wait_until, (tmp_path / "begun").exists)

        converting()[0].send_signal(signal.SIGINT)
        (tmp_path / "interrupted").touch()

        with pytest.raises(asyncio.CancelledError):
            await opening

    @pytest.mark.slow
    @pytest.mark.parametrize("while_it", ["starts", "converts"])
    def test_a_killed_parent_takes_the_conversion_with_it(self, while_it, bomb):
        code = "from pathlib import Path\nfrom memagent_graph.text.files import open_source\n"
        code += f"open_source(Path({str(bomb)!r}))"
        with subprocess.Popen([sys.executable, "-c", code]) as parent:
            process = wait_until(lambda: converting(psutil.Process(parent.pid)))[0]
            if while_it == "converts":  # its memory is limited from then on
                unlimited = psutil.Process().rlimit(psutil.RLIMIT_DATA)
                wait_until(lambda: process.rlimit(psutil.RLIMIT_DATA) != unlimited)
            parent.kill()

        wait_until(lambda: is_gone(process))


class TestProcesses:
    @pytest.mark.slow
    def test_so_many_documents_are_converted_at_once_and_others_wait(self, tmp_path):
        page = DOCUMENTS["a.html"](tmp_path / "a.html", "Hello " * 1000)
        most = 0

        with ThreadPoolExecutor(6) as pool:
            opening = [pool.submit(open_source, page) for _ in range(6)]
            while not all(one.done() for one in opening):
                most = max(most, len(converting()))

        assert {one.result().length for one in opening} == {5999}
        assert most == converter.AT_ONCE

    def test_documents_one_after_the_other_share_a_process_until_nobody_needs_it(
        self, tmp_path, monkeypatch
    ):
        page = DOCUMENTS["a.html"](tmp_path / "a.html", "Hello")

        seen = set()
        for _ in range(3):
            open_source(page)
            seen |= {process.pid for process in converting()}
        assert len(seen) == 1
        monkeypatch.setattr(converter, "_KEPT_SECONDS", 0.1)
        open_source(page)

        wait_until(lambda: not converting())

    def test_one_that_was_killed_is_replaced(self, tmp_path):
        page = DOCUMENTS["a.html"](tmp_path / "a.html", "Hello")
        open_source(page)
        process = converting()[0]
        process.kill()
        process.wait(HANG)

        assert whole(open_source(page)) == "Hello"

    @pytest.mark.slow
    def test_a_fork_has_its_own(self, tmp_path):
        page = DOCUMENTS["a.html"](tmp_path / "a.html", "Hello")
        code = f"""if True:
            import os
            from pathlib import Path
            from memagent_graph.text import converter as converters
            from memagent_graph.text.files import open_source
            converters._KEPT_SECONDS = {HANG}
            open_source(Path({str(page)!r}))
            before, = converters.shared._idle
            if fork := os.fork():
                open_source(Path({str(page)!r}))
                assert os.waitpid(fork, 0)[1] == 0
                assert list(converters.shared._idle) == [before]
            else:
                open_source(Path({str(page)!r}))
                after, = converters.shared._idle
                assert before is not after
            """

        subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=HANG)


class TestConfinement:
    @pytest.fixture
    def library(self, tmp_path, monkeypatch):
        """Puts something else in the place of the library that reads HTML."""

        def put(code, reaches="''"):
            folder = tmp_path / "instead" / "selectolax"
            folder.mkdir(parents=True)
            (folder / "__init__.py").touch()
            lines = "\n        ".join(code.splitlines())
            (folder / "lexbor.py").write_text(
                "import os, socket, subprocess, sys, types\n"
                "SelectolaxError = ValueError\n"
                "class LexborHTMLParser:\n"
                "    def __init__(self, text):\n"
                f"        {lines}\n"
                f"        text = types.SimpleNamespace(tag='-text', text_content={reaches})\n"
                "        has = {'iter': lambda **_: [text], 'css_first': lambda _: None}\n"
                "        has |= {'css': lambda _: [], 'mem_id': 0}\n"
                "        self.root = types.SimpleNamespace(**has)\n"
            )
            monkeypatch.syspath_prepend(folder.parent)
            return DOCUMENTS["a.html"](tmp_path / "a.html", "Hello")

        return put

    def test_a_converter_can_neither_connect_nor_start_nor_write(
        self, library, openai_server, tmp_path
    ):
        port, trap = openai_server.port, str(tmp_path / "trap")
        attempts = [
            "os.getpid()",
            f"socket.create_connection(('127.0.0.1', {port}))",
            f"socket.getaddrinfo('localhost', {port})",
            f"__import__('urllib.request').request.urlopen('http://127.0.0.1:{port}/')",
            f"subprocess.run(['touch', {trap!r}])",
            f"os.system('touch ' + {trap!r})",
            f"os.posix_spawnp('touch', ['touch', {trap!r}], os.environ)",
            "os.fork() or os._exit(0)",
            f"open({trap!r}, 'wb', buffering=0).write(b'x')",
        ]
        code = (
            f"done = []\nfor attempt in {attempts}:\n"
            "    try:\n        eval(attempt)\n        done.append(attempt)\n"
            "    except OSError:\n        pass"
        )

        assert whole(open_source(library(code, "str(done)"))) == "['os.getpid()']"
        assert openai_server.accepted == 0
        assert not Path(trap).stat().st_size

    def test_what_a_document_refers_to_is_not_fetched(self, openai_server, tmp_path):
        url = f"http://127.0.0.1:{openai_server.port}/x"
        doctype = f'<!DOCTYPE x SYSTEM "{url}" [<!ENTITY % y SYSTEM "{url}">%y;]>'
        document = write_docx(tmp_path / "a.docx", "<w:p/>", doctype)

        with pytest.raises(SourceError):
            open_source(document)

        assert openai_server.accepted == 0

    def test_keys_are_not_in_its_environment(self, library, monkeypatch):
        monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
        document = library("", "repr(dict(os.environ))")

        text = whole(open_source(document))

        assert "PYTHONPATH" in text
        assert "sk-very-secret" not in text

    def test_nothing_is_imported_from_the_current_folder(self, tmp_path, monkeypatch):
        trap = tmp_path / "trap"
        for name in ("json", "openpyxl", "zipfile"):
            (tmp_path / f"{name}.py").write_text(f"import os\nos.mkdir({str(trap)!r})\n")
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend("")
        sys.path_importer_cache.clear()

        document = open_source(DOCUMENTS["a.html"](tmp_path / "a.html", "Hello"))

        assert whole(document) == "Hello"
        assert not trap.exists()

    @pytest.mark.slow
    def test_the_program_that_reads_is_not_run_again_and_imports_no_library(self, tmp_path):
        page = DOCUMENTS["a.html"](tmp_path / "a.html", "Hello")
        program = tmp_path / "program.py"
        program.write_text(
            "import sys\nfrom pathlib import Path\n"
            "from memagent_graph.text.files import open_source\n"
            "print('begin', 'psutil' in sys.modules)\n"
            f"print(open_source(Path({str(page)!r})).text)\n"
            "print(*{'lxml', 'openpyxl', 'pypdfium2', 'selectolax'} & sys.modules.keys())\n"
        )

        done = subprocess.run(
            [sys.executable, program], capture_output=True, text=True, check=True, timeout=HANG
        )

        assert done.stdout == "begin False\nHello\n\n"


class TestBrokenProcesses:
    library = TestConfinement.library

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("code", "said"),
        [
            ("os.abort()", "status -6"),
            ("os._exit(3)", "status 3"),
            ("raise ValueError('odd')", "odd"),
        ],
    )
    def test_one_that_ends_by_itself_is_an_error_and_the_next_goes_on(self, code, said, library):
        document = library(code)

        for _ in range(2):
            with pytest.raises(UnreadableSourceError, match=said):
                open_source(document)

    def test_a_converter_that_wants_gigabytes_at_once_is_refused_them(self, library, limit):
        limit("MEMORY_MB", 256)
        document = library("bytes(8 << 30)")  # never touched: no look at it would show them

        with pytest.raises(ConversionLimitError) as refused:
            open_source(document)
        assert refused.value.limit == "memory"

    def test_one_that_holds_the_interpreter_is_ended_in_time(self, library, limit):
        limit("SECONDS", 0.5)
        document = library("import re; re.match('(a|a)*$', 'a' * 99 + 'b')")

        with pytest.raises(ConversionLimitError) as refused:
            open_source(document)
        assert refused.value.limit == "time"

    def test_what_libraries_print_is_no_reply(self, library):
        assert whole(open_source(library("print('{}'); os.write(1, b'{}')", "'text'"))) == "text"

    @pytest.mark.parametrize("is_whole", [True, False])
    def test_a_library_that_is_missing_or_broken_names_the_extra(self, library, tmp_path, is_whole):
        document = library("import no_such_module")
        if not is_whole:
            (tmp_path / "instead" / "selectolax" / "lexbor.py").write_text("import no_such_module")

        with pytest.raises(MissingDependencyError, match=r"memagent-graph\[documents\]"):
            open_source(document)


@pytest.mark.usefixtures("one_pool")
@pytest.mark.parametrize("open_it", [lambda path: BytesIO(path.read_bytes()), Path.read_bytes])
def test_the_name_of_a_stream_or_bytes_says_its_format_and_nothing_is_cached(
    tmp_path, monkeypatch, open_it
):
    monkeypatch.setenv("MEMAGENT_CACHE", str(tmp_path / "cache"))
    path = write_pages(tmp_path / "lease.PDF", [[(72, 700, "Ann signed.")]])

    source = open_source(open_it(path), name=str(path))

    assert whole(source).strip() == "Ann signed."
    assert source.locate(0).page == 1
    assert source.uri is None
    assert not [*(tmp_path / "cache").rglob("*.*")]
