"""Images in requests of every dialect become the same message; images that are no data are refused."""

from typing import Any

import pytest
from gateway_toys import Recording, Script, ask

URL = "data:image/png;base64,AAAA"
FILE = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
IMAGE = {"type": "image", "image": URL}

CHAT, RESPONSES, MESSAGES = "/chat/completions", "/responses", "/messages"

REQUESTS: dict[str, Any] = {
    CHAT: lambda part: {"messages": [{"role": "user", "content": [{"type": "text", "text": "see"}, part]}]},
    RESPONSES: lambda part: {"input": [{"role": "user", "content": [{"type": "input_text", "text": "see"}, part]}]},
    MESSAGES: lambda part: {
        "max_tokens": 5,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "see"}, part]}],
    },
}

PARTS = [
    (CHAT, {"type": "image_url", "image_url": {"url": URL, "detail": "low"}}),
    (RESPONSES, {"type": "input_image", "image_url": URL}),
    (MESSAGES, {"type": "image", "source": FILE}),
    (MESSAGES, {"type": "image", "source": {"type": "url", "url": URL}}),
]


def asked(path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The messages that the model is asked with; the model of bytes then refuses the image."""
    model = Recording(Script("5"))
    answer = ask(model, path, {"model": "tiny", **body}, status=400)
    assert "a chat has an image, and the model reads text alone" in answer["error"]["message"]
    return model.asked[0]["messages"]


@pytest.mark.parametrize(("path", "part"), PARTS)
def test_an_image_is_a_part_of_its_message(path: str, part: dict[str, Any]) -> None:
    assert asked(path, REQUESTS[path](part)) == [{"role": "user", "content": [{"type": "text", "text": "see"}, IMAGE]}]


def test_a_result_of_a_tool_may_be_an_image() -> None:
    result = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image", "source": FILE}]}
    said = asked(MESSAGES, {"max_tokens": 5, "messages": [{"role": "user", "content": [result]}]})
    assert said == [{"role": "tool", "content": [IMAGE], "tool_call_id": "t"}]
    output = {"type": "function_call_output", "call_id": "t", "output": [{"type": "input_image", "image_url": URL}]}
    assert asked(RESPONSES, {"input": [{"role": "user", "content": "x"}, output]})[1]["content"] == [IMAGE]


@pytest.mark.parametrize(
    ("path", "part", "place"),
    [
        (CHAT, {"type": "image_url", "image_url": {"url": "http://127.0.0.1/a.png"}}, "image_url.url"),
        (CHAT, {"type": "image_url", "image_url": {"url": "media:" + 64 * "0"}}, "image_url.url"),
        (RESPONSES, {"type": "input_image", "image_url": "/etc/passwd"}, "image_url"),
        (RESPONSES, {"type": "input_image", "file_id": "f"}, "file_id"),
        (MESSAGES, {"type": "image", "source": {"type": "url", "url": "file:///etc/passwd"}}, "source.url"),
        (MESSAGES, {"type": "image", "source": {"type": "base64", "data": "AAAA"}}, "source.media_type"),
    ],
)
def test_an_image_that_is_no_data_is_refused(path: str, part: dict[str, Any], place: str) -> None:
    model = Recording(Script("5"))
    answer = ask(model, path, {"model": "tiny", **REQUESTS[path](part)}, status=400)
    assert f"content[1].{place}'" in answer["error"]["message"] and not model.nodes


def test_the_policys_own_turns_have_no_images() -> None:
    said = [{"role": "assistant", "content": [{"type": "image_url", "image_url": {"url": URL}}]}]
    answer = ask(Recording(Script("5")), CHAT, {"model": "tiny", "messages": said}, status=400)
    assert "messages[0].content[0].type" in answer["error"]["message"]
