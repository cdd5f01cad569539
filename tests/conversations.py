"""Random conversations with tools, and the rules of strict chat servers for them."""

from __future__ import annotations

from itertools import count

from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage

_number = count()


def _id():
    return f"m{next(_number)}"


@st.composite
def turns(draw, most=12):
    """Turns up to a point at which the model is called: lists of messages, each with an id."""
    found = []
    for _ in range(draw(st.integers(1, most))):
        turn = []
        if draw(st.booleans()) and draw(st.booleans()):
            turn.append(SystemMessage(f"system {_id()}", id=_id()))
        turn.append(HumanMessage(f"human {_id()} says something.", id=_id()))
        for _ in range(draw(st.integers(0, 3))):
            turn += _tools(draw)
        found.append(turn)
        if draw(st.booleans()) or len(found) < most:
            found[-1].append(AIMessage(f"reply {_id()}", id=_id()))
    if isinstance(found[-1][-1], AIMessage):  # a model is called after a human or a tool
        found[-1].pop()
    return found


def _tools(draw):
    ids = [_id() for _ in range(draw(st.integers(1, 3)))]
    calls = [{"name": "look", "args": {"q": one}, "id": one} for one in ids]
    messages = [AIMessage(draw(st.sampled_from(["", "Let me look."])), tool_calls=calls, id=_id())]
    for one in draw(st.permutations(ids)):
        status = draw(st.sampled_from(["success", "error"]))
        text = f"result {_id()}" * draw(st.integers(1, 9))
        messages.append(ToolMessage(text, tool_call_id=one, status=status, name="look", id=_id()))
        if draw(st.integers(0, 9)) == 0:
            messages.append(SystemMessage(f"system {_id()}", id=_id()))
    return messages


def is_valid(messages) -> bool:
    """Whether a strict server takes them: it begins with a human, and every call is answered,
    by its own results, before anything else is said."""
    said = [message for message in messages if not isinstance(message, SystemMessage)]
    if not said or not isinstance(said[0], HumanMessage):
        return False
    open_calls = set()
    for message in said:
        if isinstance(message, ToolMessage):
            if message.tool_call_id not in open_calls:
                return False
            open_calls.remove(message.tool_call_id)
            continue
        if open_calls:
            return False
        if isinstance(message, AIMessage):
            open_calls = {call["id"] for call in message.tool_calls}
    return not open_calls
