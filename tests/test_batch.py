import asyncio
from itertools import count

import pytest
from fixed_readers import ChainReader, Watched, numbered
from langgraph.checkpoint.memory import InMemorySaver

from memagent_graph import ReadingConfig, create_memagent, read_many
from memagent_graph.errors import ConfigurationError, ModelError, QuestionError
from memagent_graph.text.files import open_source

CONFIG = ReadingConfig(chunk_tokens=50, retry_interval=0.001)


def task(number, **others):
    return {"question": "What?", "document": f"Text {number}. " + numbered(20), **others}


def failing(*numbers):
    texts = tuple(f"Text {number}." for number in numbers)
    return lambda step: ModelError("told to fail") if step.chunk.text.startswith(texts) else None


def test_each_task_gives_the_result_that_it_gives_alone():
    agent = create_memagent(ChainReader(), config=CONFIG)
    tasks = [task(number, id=f"t{number}", note=number) for number in range(20)]

    results = {result.id: result for result in read_many(agent, tasks, concurrency=7)}

    assert set(results) == {f"t{number}" for number in range(20)}
    for each in tasks:
        alone = agent.invoke({key: each[key] for key in ("question", "document")})
        assert results[each["id"]].output["memory"] == alone["memory"]
        assert results[each["id"]].task is each


async def test_failed_tasks_have_their_errors_and_the_others_go_on():
    agent = create_memagent(Watched(failing(3, 5)), config=CONFIG)
    tasks = [*map(task, range(8)), {"document": "no question"}, None, "text"]

    results = {result.id: result async for result in read_many(agent, tasks)}

    errors = {name: result.error for name, result in results.items() if result.error}
    assert set(errors) == {"3", "5", "8", "9", "10"}
    assert isinstance(errors["3"], ModelError)
    assert all(isinstance(errors[number], QuestionError) for number in ("8", "9", "10"))
    assert all(results[str(number)].output["answer"] for number in (0, 1, 2, 4, 6, 7))


async def test_only_so_many_tasks_are_taken_at_a_time_and_they_may_be_endless():
    reader = Watched(delay=0.001, together=5)
    taken = count()
    endless = (task(number) for number in taken)
    results = read_many(create_memagent(reader, config=CONFIG), endless, concurrency=5)

    found = []
    async for result in results:
        found.append(result.id)
        if len(found) == 20:
            break

    assert reader.most == 5
    assert next(taken) <= 20 + 2 * 5


@pytest.mark.parametrize("sync", [True, False])
async def test_leaving_the_loop_leaves_no_task_behind(sync):
    reader = Watched(delay=0.01)
    results = read_many(create_memagent(reader, config=CONFIG), map(task, count()), concurrency=8)

    def leave():
        for _ in results:
            break

    async def aleave():
        generator = aiter(results)
        await anext(generator)
        await generator.aclose()

    await (asyncio.to_thread(leave) if sync else aleave())

    assert reader.running == 0


async def test_cancelling_the_consumer_cancels_the_readings():
    reader = Watched(delay=0.01)
    agent = create_memagent(reader, config=CONFIG)

    async def consume():
        async for _ in read_many(agent, map(task, count()), concurrency=8):
            pass

    consumer = asyncio.create_task(consume())
    await asyncio.sleep(0.05)
    consumer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await consumer

    assert reader.running == 0
    assert len(asyncio.all_tasks()) == 1


def test_with_a_checkpointer_a_stopped_task_goes_on_where_it_was():
    saver, reader = InMemorySaver(), ChainReader()
    stopping = create_memagent(
        reader, config=CONFIG, checkpointer=saver, interrupt_after=["overwrite_memory"]
    )
    stopping.invoke(task(1), {"configurable": {"thread_id": "1"}})
    assert len(reader.spans) == 1
    agent = create_memagent(reader, config=CONFIG, checkpointer=saver)

    [result] = read_many(agent, [task(1, id=1)])

    assert len(reader.spans) == len(set(reader.spans))
    assert result.output["coverage"] == 1


def test_no_concurrency_is_an_error():
    with pytest.raises(ConfigurationError, match="at least 1"):
        read_many(create_memagent(ChainReader()), [], concurrency=0)


def test_progress_is_shown_when_asked_for(capsys):
    agent = create_memagent(Watched(failing(1)), config=CONFIG)

    list(read_many(agent, map(task, range(3)), progress=True))
    list(read_many(agent, map(task, range(3))))

    shown = capsys.readouterr()
    assert "failed=1" in shown.err
    assert not shown.out


def about(document, *numbers):
    return [{"question": f"What is {number}?", "document": document} for number in numbers]


def test_tasks_about_one_document_that_follow_one_another_are_read_in_one_pass(monkeypatch):
    opened = []
    monkeypatch.setattr(
        "memagent_graph.graph.nodes.open_source",
        lambda document: opened.append(document) or open_source(document),
    )
    one, two = numbered(20), numbered(30)
    tasks = [*about(one, 1, 2, 3), *about(two, 1), *about(one, 4, 1)]
    tasks[1]["note"] = "kept"
    reader = Watched()
    agent = create_memagent(reader, config=CONFIG)

    results = {result.id: result for result in read_many(agent, tasks)}

    assert opened == [one, two, one]
    assert [results[str(number)].task for number in range(6)] == tasks
    for number, each in enumerate(tasks):
        alone = agent.invoke({key: each[key] for key in ("question", "document")})
        output = results[str(number)].output
        assert output.keys() == alone.keys()
        assert output["memory"] == alone["memory"]


def test_no_more_tasks_than_concurrency_are_read_in_one_pass_and_each_has_the_calls_it_has_alone():
    reader = Watched(delay=0.001, together=3)
    config = CONFIG.model_copy(update={"max_calls": 3})

    results = list(read_many(create_memagent(reader, config=config), ONE, concurrency=3))

    assert [result.output["usage"]["calls"] for result in results] == [3] * len(ONE)
    assert reader.most == 3


ONE = about(numbered(20), *range(8))


def test_one_failing_task_does_not_fail_those_about_the_same_document():
    fails = {"What is 2?": ModelError("down"), "What is 5?": TypeError("a bug")}
    reader = Watched(lambda step: fails.get(step.question))

    agent = create_memagent(reader, config=CONFIG)
    blank = {"question": " ", "document": ONE[0]["document"]}

    results = {result.id: result for result in read_many(agent, [*ONE, blank])}

    errors = {name: result.error for name, result in results.items() if result.error}
    kinds = {"2": ModelError, "5": TypeError, "8": QuestionError}
    assert {name: type(error) for name, error in errors.items()} == kinds
    assert all(results[str(number)].output["answer"] for number in (0, 1, 3, 4, 6, 7))


async def test_with_a_checkpointer_or_asynchronous_tasks_each_is_read_alone():
    async def coming():
        for each in ONE:
            yield each

    saver = InMemorySaver()
    agent = create_memagent(ChainReader(), config=CONFIG, checkpointer=saver)
    expected = {str(number) for number in range(len(ONE))}

    assert {result.id for result in read_many(agent, ONE)} == expected
    assert {saved.config["configurable"]["thread_id"] for saved in saver.list(None)} == expected
    alone = create_memagent(ChainReader(), config=CONFIG)
    assert {result.id async for result in read_many(alone, coming())} == expected


def test_a_stream_that_several_tasks_share_is_read_for_all_of_them(tmp_path):
    file = tmp_path / "text.txt"
    file.write_text(numbered(20))

    with file.open() as stream:
        results = list(read_many(create_memagent(), about(stream, 3, 4)))

    assert [result.error for result in results] == [None, None]
