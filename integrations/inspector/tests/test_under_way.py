import asyncio
import re
import threading
from contextlib import contextmanager

import pytest
from fixed_readers import ChainReader, numbered
from inspecting import at, text_of
from servers.redis_server import wait_until

from memagent_graph import ReadingConfig, create_memagent

pytestmark = pytest.mark.slow

SECONDS = 300
QUESTION = "Which number is the last?"


class Gated(ChainReader):
    """Keeps the memories that it was given; reads a section when the gate lets it."""

    def __init__(self):
        super().__init__()
        self.gate = threading.Semaphore(0)
        self.memories: list[str] = []

    async def update(self, step, *, config=None):
        self.memories.append(step.memory.text)
        assert await asyncio.to_thread(self.gate.acquire, timeout=SECONDS)
        return await super().update(step, config=config)

    def open(self, sections: int = 1000) -> None:
        self.gate.release(sections)


@contextmanager
def reading(store, **asked):
    """A reading under way; it ends with the block."""
    reader, out = Gated(), {}
    agent = create_memagent(reader, config=ReadingConfig(chunk_tokens=40), store=store)
    asked = {"question": QUESTION, "document": numbered(60), **asked}
    thread = threading.Thread(target=lambda: out.update(agent.invoke(asked)))
    thread.start()
    reader.out, reader.end = out, lambda: (reader.open(), thread.join(SECONDS))
    try:
        yield reader
    finally:
        reader.end()
        assert not thread.is_alive()


def field(html: str, name: str) -> str:
    return re.search(rf'name="{name}" value="([^"]*)"', html)[1]


def begun(bank, sections: int = 1):
    """The reading that is under way, once it has read so many sections."""
    wait_until(lambda: any(fold.step >= sections for fold in bank.under_way()), "the reading")
    return bank.under_way()[0].memory


def form_of(page, memory):
    """The form for the memory of a reading, from the reading's page."""
    html = page.get(at("/reading", of=memory)).text
    path = re.search(r'href="(/edit[^"]*)"', html)[1].replace("&amp;", "&")
    return page.get(path).text


def edit(page, form, text):
    data = {name: field(form, name) for name in ("of", "seen", "back")}
    return page.post("/edit", data={**data, "text": text}), data


@pytest.mark.parametrize("name", [None, "numbers"])
def test_a_reading_is_listed_edited_and_reads_on_from_the_edit(page, bank, store, name):
    def is_shown():
        state = re.search(r"state=([^\"]*)", page.get(folds).text)[1]
        return page.get(f"{folds}&state={state}").status_code == 204

    with reading(store, memory_name=name) as reader:
        reader.open(1)
        memory = begun(bank)
        folds = at("/reading/folds", of=memory)
        listed = text_of(page.get("/under-way"))
        assert memory in listed
        assert QUESTION in listed
        assert "section 1 of about" in listed

        answer, _ = edit(page, form_of(page, memory), "Ann said so.")

        assert answer.headers["location"] == at("/reading", of=memory)
        assert "taken at the next section" in page.get(answer.headers["location"]).text
        reader.open(2)
        wait_until(lambda: "Ann said so." in reader.memories, "the section that is read again")
        taken = r"edited</span> <span>taken <time"
        wait_until(lambda: re.search(taken, page.get(folds).text), "the time of the edit")
        wait_until(is_shown, "no news, once what was read is stored")
        assert '<span class="tag">edited</span>' in page.get("/under-way").text
    assert "Nothing is being read now" in page.get("/under-way").text
    assert "Ann said so." in {version.text for version in bank.history(reader.out["version"])}


def test_an_older_text_can_be_gone_back_to_in_a_reading(page, bank, store):
    with reading(store) as reader:
        reader.open(2)

        form = form_of(page, begun(bank, 2))

        older = re.findall(r'href="(/edit[^"]*start=[^"]*)"', form)
        assert older
        first = page.get(older[-1].replace("&amp;", "&"))
        assert field(first.text, "seen") == field(form, "seen")
        text = bank.get(re.search(r"start=(\w+)", older[-1])[1]).text
        assert f"\n{text}</textarea>" in text_of(first)
