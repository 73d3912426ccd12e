"""Rows of files as conversations."""

import pytest

from corerl_tools.episodes.conversation import conversation
from corerl_tools.episodes.messages import spoken

REQUEST = {"read": 3, "sampled": 2, "finish_reason": "stop"}


def requests(*of_requests):
    names = ("parent", "asked", "sent", "answered")
    return [
        REQUEST | {"number": number} | dict(zip(names, each, strict=True)) for number, each in enumerate(of_requests)
    ]


def row(**columns):
    return {"prompt": [{"role": "user", "content": "q"}], "response": "r", **columns}


def says(role, text=""):
    return {"role": role, "content": text}


def test_each_message_of_the_policy_gets_its_turn_its_tokens_and_its_times():
    talk = conversation(
        row(
            episode=[says("assistant", "a"), says("tool", "4"), says("assistant", "b")],
            turn_runs=[[0, 2], [-1, 3], [2, 2]],
            requests=requests((-1, 0.0, 1.0, 2.0), (0, 2.0, 2.0, 3.0), (0, 5.0, 5.5, 6.0)),
            turn_rewards=[0.5, 0.0, -1.0],
            seconds={"began": 1.0, "played": 6.0, "scored": 1.0},
        )
    )
    assert [(item.said.role, item.tokens) for item in talk.items] == [
        ("assistant", (0, 2)),
        ("tool", None),
        ("assistant", (5, 7)),
    ]
    last = talk.items[2].asked
    assert (last.number, last.reward, last.times.tool, last.times.waiting, last.times.generating) == (
        2,
        -1,
        2,
        0.5,
        0.5,
    )
    assert talk.seconds == {"waiting": 1.5, "generating": 2.5, "tool": 2.0, "scoring": 1.0}


def test_tokens_that_were_read_without_a_message_are_a_part():
    talk = conversation(
        row(episode=[says("assistant", "a"), says("assistant", "b")], turn_runs=[[0, 2], [-1, 3], [1, 2]])
    )
    assert [(item.said.role, item.tokens) for item in talk.items] == [
        ("assistant", (0, 2)),
        ("read", (2, 5)),
        ("assistant", (5, 7)),
    ]


def test_messages_that_do_not_match_the_turns_come_before_the_tokens():
    talk = conversation(row(episode=[says("assistant", "all of it")], turn_runs=[[0, 2], [-1, 3], [1, 2]]))
    assert [(item.said.role, item.tokens) for item in talk.items] == [
        ("assistant", None),
        *(("assistant", (0, 2)), ("read", (2, 5)), ("assistant", (5, 7))),
    ]


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({}, [("response", "r")]),
        ({"prompt": "q"}, [("response", "r")]),
        ({"episode": [says("tool", "4")]}, [("tool", "4"), ("response", "r")]),
        ({"episode": [says("assistant", "a"), says("tool", "4")]}, [("assistant", "a"), ("tool", "4")]),
    ],
)
def test_files_without_turns_are_conversations_too(columns, expected):
    talk = conversation(row(**columns))
    assert [(item.said.role, item.said.text) for item in talk.items] == expected
    assert talk.seconds == {} and talk.branches == []


def test_a_branch_names_the_turn_that_it_continues():
    branch = {"shared": 5, "prompt": "and", "response": "b", "response_length": 4}
    asked = requests((-1, 0.0, 0.0, 1.0), (0, 1.0, 1.0, 2.0), (-1, 2.0, 2.0, 3.0))
    branches = [branch | {"turn_runs": [[1, 2]]}, branch | {"turn_runs": [[-1, 2], [2, 2]], "prompt": ""}]
    first, second = conversation(row(requests=asked, branches=branches)).branches
    assert (first.after, first.shared, second.after) == (0, 5, None)
    assert [(item.said.role, item.said.text) for item in first.items] == [("read", "and"), ("assistant", "b")]
    assert (first.items[1].asked.number, second.items[0].asked.number) == (1, 2)


def test_what_the_file_lacks_is_named():
    assert (
        conversation(row(branches_left_out=3, requests_left_out=0, artifacts_left_out=1)).left_out
        == "3 branches, 1 artifacts"
    )


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"function": {"name": "add", "arguments": {"a": 2}}}],
            },
            ("assistant", "", "", (("add", '{"a": 2}'),), ""),
        ),
        (
            {
                "role": "assistant",
                "content": [{"type": "text", "text": "t"}, {"type": "tool_use", "name": "f", "input": {}}],
            },
            ("assistant", "t", "", (("f", "{}"),), ""),
        ),
        (
            {"role": "user", "content": [{"type": "tool_result", "content": [{"type": "text", "text": "4"}]}]},
            ("user", "4", "", (), ""),
        ),
        ({"role": "tool", "content": "4", "tool_call_id": "7"}, ("tool", "4", "", (), "7")),
        ({"role": "assistant", "content": "c", "reasoning_content": "r"}, ("assistant", "c", "r", (), "")),
        ({"role": "assistant", "content": "c", "tool_calls": "none"}, ("assistant", "c", "", (), "")),
        (7, ("", "7", "", (), "")),
    ],
)
def test_messages_of_both_forms_are_text(message, expected):
    said = spoken(message)
    assert (said.role, said.text, said.reasoning, said.calls, said.name) == expected
