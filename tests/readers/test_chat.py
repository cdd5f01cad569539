import pytest
from langchain_core.messages import AIMessage
from langgraph.errors import GraphInterrupt
from tokenizers import Tokenizer, models

from memagent_graph import ReadingConfig, create_memagent
from memagent_graph.errors import EmptyReplyError, RefusalError, TransientModelError
from memagent_graph.evidence.places import Memory
from memagent_graph.models.endpoint import ChatEndpoint
from memagent_graph.prompts import Prompts
from memagent_graph.readers.base import Step
from memagent_graph.readers.chat import ChatReader
from memagent_graph.testing import ScriptedChatModel
from memagent_graph.text.chunks import Chunk
from memagent_graph.text.files import open_source
from memagent_graph.text.tokens import load_tokenizer

CHUNK = Chunk("The ferry leaves at nine.", 0, 25, 6, open_source("The ferry leaves at nine."))
STEP = Step("When?", Memory("Old notes."), CHUNK)


def reader(reply, **fields):
    reply = AIMessage(reply, **fields) if fields or isinstance(reply, list) else reply
    return ChatReader(ScriptedChatModel(reply), config=ReadingConfig(memory_tokens=70))


async def update(content, **fields):
    return await reader(content, **fields).update(STEP)


async def test_an_update_shows_question_memory_and_chunk_and_limits_the_reply():
    asked = reader("At nine.")

    found = await asked.update(STEP)

    [prompt], [call] = asked.model.prompts, asked.model.calls
    assert all(text in prompt for text in ("When?", "Old notes.", "The ferry leaves at nine."))
    assert call.options["max_tokens"] == 70
    assert (found.memory.text, found.usage.calls) == ("At nine.", 1)


def tokenizer(special=(), added=()):
    made = Tokenizer(models.WordLevel({"a": 0, "?": 1}, unk_token="?"))
    made.add_special_tokens([*special])
    made.add_tokens([*added])
    return made


async def test_no_text_can_forge_a_control_token_of_the_models_tokenizer():
    text = "Then §turn§ and ~~tool~~ and STOPNOW in <table> and a word of two  spaces."
    known = tokenizer(["§turn§", "STOPNOW"], ["~~tool~~", "<table>", "  ", "word", "\n"])
    model = ScriptedChatModel("At nine.")
    agent = create_memagent(model, tokenizer=known)

    await agent.ainvoke({"question": f"When? {text}", "document": text})

    made = "Then ‹turn§ and ‹~tool~~ and S‹TOPNOW in <table> and a word of two  spaces."
    update, answer = model.prompts
    assert update.count(made) == 2
    assert answer.count(made) == 2  # the question, and a passage
    assert not any(token in update + answer for token in ("§turn§", "~~tool~~", "STOPNOW"))


def test_a_models_own_tokenizer_is_asked_for_its_control_tokens():
    class Local(ScriptedChatModel):
        tokenizer: object = None

    transformers = pytest.importorskip("transformers")  # the lowest versions have none
    own = tokenizer(["§turn§"])
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=own)
    for held in (own, load_tokenizer(own), fast):
        reader = ChatReader(Local("", tokenizer=held))

        assert "a ‹turn§ b" in reader.prompts.for_answer("a §turn§ b", "")


@pytest.mark.parametrize(
    "content",
    [
        *("", "  \n", "<think>hm</think>", [], "<|channel>thought\nShe may", "analysisShe may"),
        '<details type="reasoning">She may',
    ],
)
async def test_a_reply_without_text_is_an_error_worth_a_repeat(content):
    with pytest.raises(EmptyReplyError):
        await update(content)


async def test_errors_of_any_client_become_ours_and_an_interrupt_is_none():
    with pytest.raises(TransientModelError) as caught:
        await reader(ConnectionResetError("gone")).update(STEP)
    with pytest.raises(GraphInterrupt):
        await reader(GraphInterrupt()).update(STEP)

    assert isinstance(caught.value.__cause__, ConnectionResetError)


def test_fingerprints_tell_apart_what_shapes_the_memory_and_nothing_else():
    def of(prompts=None, config=None, **fields):
        fields = {"model": "m", "base_url": "http://a/v1", **fields}
        made = ChatReader(ChatEndpoint(**fields), prompts=prompts, config=config)
        return made.identity.fingerprint

    same = of()
    assert of(api_key="k") == of(timeout=3) == same
    different = {
        of(model="n"),
        of(base_url="http://b/v1"),
        of(temperature=0.5),
        of(seed=3),
        of(prompts=Prompts(answer="{question} {memory}")),
        of(config=ReadingConfig(memory_tokens=99)),
        same,
    }
    assert len(different) == 7


async def test_a_merge_shows_all_memories_and_limits_the_reply():
    asked = reader("Both.")

    found = await asked.merge("When?", [Memory("First notes."), Memory("Second notes.")])

    [prompt], [call] = asked.model.prompts, asked.model.calls
    assert prompt.index("When?") < prompt.index("First notes.") < prompt.index("Second notes.")
    assert call.options["max_tokens"] == 70
    assert (found.memory.text, found.usage.calls) == ("Both.", 1)


FACTS = "It rained all day.\n\nThe owner of project P003 is Ann Lee.\n\nThe ferry left at noon.\n"


def asked(*replies, **config):
    model = ScriptedChatModel(*replies)
    agent = create_memagent(model, config=ReadingConfig(**config))
    return agent.invoke({"question": "Who owns P003?", "document": FACTS})


def test_what_a_model_wrote_in_its_own_words_and_its_answer_have_their_places():
    out = asked("- Project P003 belongs to Ann Lee.", r"It says so. \boxed{Ann Lee}")

    (found,) = out["evidence"]
    assert found["text"] == "Project P003 belongs to Ann Lee."
    assert FACTS[found["start"] : found["end"]] == "The owner of project P003 is Ann Lee."
    assert found["line"] == 3
    assert out["citations"] == [found]


@pytest.mark.parametrize(
    "said",
    [
        "Each record has a `<reasoning>` element. He keeps 14 lamps.",
        "The log is written in <thinking> tags. He keeps 14 lamps.",
        "It ends with </think>. He keeps 14 lamps.",
        "A block is `<think>…</think>` there. He keeps 14 lamps.",
        "<analysis> is the first tag in the log.",
        "The lines end with </s>",
        "[/THINK] it said.",
        "analysis of the log: it ends at nine.",
        "analysis结果：渡轮九点出发。",
        "<details><summary>Ferry</summary>It leaves at nine.</details>",
    ],
)
async def test_notes_that_name_marks_of_reasoning_keep_them(said):
    assert (await update(said)).memory.text == said
    assert (await update(f"<think>so</think>{said}")).memory.text == said


@pytest.mark.slow
@pytest.mark.parametrize(
    "reply",
    [
        "<think>Is it so? Yes.</think>{}",
        "Is it so? Yes.\n</think>\n\n{}",
        "<thinking>so</thinking>{}<think>and then it was cut",
        "<|channel|>analysis<|message|>so<|end|><|start|>assistant<|channel|>final<|message|>{}<|return|>",
        "[THINK]so[/THINK]{}",
        "◁think▷so◁/think▷{}",
        "<seed:think>so</seed:think>{}",
        "<|START_THINKING|>so<|END_THINKING|><|START_RESPONSE|>{}<|END_RESPONSE|>",
        "<｜begin▁of▁thinking｜>so<｜end▁of▁thinking｜>{}",
        "<|begin_of_thought|>so<|end_of_thought|>\n<|begin_of_solution|>{}<|end_of_solution|>",
        "<analysis>so</analysis>\n\n{}",
        "<thought>so</thought><reflection>no</reflection>{}",
        "<scratchpad>so</scratchpad>{}",
        "<|channel>thought\nso<channel|>{}",
        "analysisSo it is.assistantcommentaryNo.assistantfinal{}",
        '<details type="reasoning" done="true"><summary>3 seconds</summary>\nso\n</details>\n{}',
        "<details>\n<summary>Thought for 3 seconds</summary>\nso\n</details>\n\n{}",
        "Here is my thought process:\nso\nHere is my response:\n{}",
        "[/INST] {}</s>",
        "<|im_start|>assistant\n{}<|im_end|>",
        "<|start_header_id|>assistant<|end_header_id|>\n\n{}<|eot_id|>",
        "<start_of_turn>model\n{}<end_of_turn>",
        "<|im_start|>assistant\n" * 30_000 + "{}" + "</s>" * 30_000,
    ],
)
async def test_what_a_model_thinks_aloud_is_not_memory(reply):
    assert (await update(reply.format("He keeps 14 lamps."))).memory.text == "He keeps 14 lamps."


@pytest.mark.parametrize(
    "blocks",
    [
        [{"type": "output_text", "text": "At nine.", "annotations": []}],
        [{"type": "reasoning", "reasoning": "Is it?"}, {"type": "text", "text": "At nine."}],
        [{"type": "text", "text": "so", "thought": True}, {"type": "text", "text": "At nine."}],
        [{"type": "reasoning", "text": "so"}, {"type": "text", "text": {"value": "At nine."}}],
        ["At ", {"type": "text", "text": None}, {"type": "text", "text": "nine."}],
    ],
)
async def test_the_text_of_a_reply_is_in_blocks_that_are_said(blocks):
    assert (await update(blocks)).memory.text == "At nine."


# LangChain joins the parts of a stream, and so "length" twice.
CUT_OFF = (
    "out_of_tokens incomplete budget_exceeded length lengthlength MAX_TOKENS "
    "FinishReason.MAX_TOKENS ERROR_LIMIT"
)
REFUSED = "content_filter SAFETY sensitive censored LANGUAGE"
BROKEN = "error insufficient_system_resource abort timed_out deadlineExceeded connection_lost"


@pytest.mark.parametrize(
    ("metadata", "whole"),
    [
        *(
            ({"finish_reason": reason}, True)
            for reason in ("stop", "COMPLETE", "tool_calls", "nonesuch")
        ),
        ({"stop_reason": "end_turn"}, True),
        *(({"finish_reason": reason}, False) for reason in CUT_OFF.split()),
        ({"stop_reason": "max_tokens"}, False),
        ({"stop_reason": "model_context_window_exceeded"}, False),
        ({"stopReason": "max_tokens"}, False),
        ({"done_reason": "length"}, False),
        ({"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}, False),
    ],
)
async def test_the_last_sentence_of_a_cut_off_reply_goes_in_every_provider_s_words(metadata, whole):
    found = await update("It leaves at nine. It ret", response_metadata=metadata)

    assert found.memory.text == ("It leaves at nine. It ret" if whole else "It leaves at nine.")


async def test_a_refusal_is_an_error_and_not_a_memory():
    with pytest.raises(RefusalError):
        await update("I can't help with that.", additional_kwargs={"refusal": "I can't."})


@pytest.mark.parametrize(
    ("metadata", "error"),
    [
        *(({"finish_reason": reason}, RefusalError) for reason in REFUSED.split()),
        ({"stop_reason": "refusal"}, RefusalError),
        ({"stopReason": "guardrail_intervened"}, RefusalError),
        ({"finish_reason": "STOP", "prompt_feedback": {"block_reason": "SAFETY"}}, RefusalError),
        ({"incomplete_details": {"reason": "content_filter"}}, RefusalError),
        *(({"finish_reason": reason}, TransientModelError) for reason in BROKEN.split()),
    ],
)
async def test_a_reply_that_was_refused_or_broken_off_is_no_memory(metadata, error):
    with pytest.raises(error):
        await update("It leaves", response_metadata=metadata)


@pytest.mark.parametrize(
    "fields",
    [
        {"usage_metadata": {"input_tokens": 9, "output_tokens": 3, "total_tokens": 12}},
        {"response_metadata": {"token_usage": {"prompt_tokens": 9, "completion_tokens": 3}}},
        {"response_metadata": {"usage": {"input_tokens": 9, "output_tokens": 3}}},
        {"response_metadata": {"prompt_eval_count": 9, "eval_count": 3}},
        {"response_metadata": {"usage": {"prompt_tokens": 9.0, "completion_tokens": "3"}}},
    ],
)
async def test_usage_is_read_in_every_class_s_words(fields):
    usage = (await update("x", **fields)).usage

    assert (usage.input_tokens, usage.output_tokens) == (9, 3)
