"""Messages in one form: parts of text, image and video; calls of tools."""

from pathlib import Path
from typing import Any

import pytest

from corerl.contracts.config import ModelConfig
from corerl.errors import DataError
from corerl_torch.messages import normalized
from corerl_torch.tokenizers import load_tokenizer


def test_a_function_call_is_a_tool_call() -> None:
    old = {"role": "assistant", "content": "", "function_call": {"name": "f", "arguments": "{}"}}
    [message] = normalized([old], "row 3")
    call = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
    assert message == {"role": "assistant", "content": "", "tool_calls": [call]}


@pytest.mark.parametrize("wrong", ["[]", [{"id": "1"}], [None], {"function": {"name": "f"}}])
def test_calls_of_another_form_are_an_error(wrong: Any) -> None:
    with pytest.raises(DataError, match=r"^row 3, message 0: tool_calls must be a list of"):
        normalized([{"role": "assistant", "content": "", "tool_calls": wrong}], "row 3")


def content_of(*parts: Any) -> Any:
    return normalized([{"role": "user", "content": list(parts)}], "row 3")[0]["content"]


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def test_parts_of_text_alone_are_one_text() -> None:
    assert content_of(text("a"), {"type": "input_text", "text": "b"}) == "ab"


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ({"type": "image"}, {"type": "image"}),
        ({"type": "image", "image": None, "text": None}, {"type": "image"}),
        ({"type": "image", "image": b"x"}, {"type": "image", "image": b"x"}),
        ({"type": "image", "image": {"bytes": b"x", "path": None}}, {"type": "image", "image": b"x"}),
        ({"type": "image_url", "image_url": {"url": "data:x", "detail": "low"}}, {"type": "image", "image": "data:x"}),
        ({"type": "input_image", "image_url": "data:x"}, {"type": "image", "image": "data:x"}),
        ({"type": "video", "video": [b"x"], "fps": 2.0}, {"type": "video", "video": [b"x"], "fps": 2.0}),
    ],
)
def test_images_and_videos_have_one_form(part: dict[str, Any], expected: dict[str, Any]) -> None:
    assert content_of(text("a"), part) == [text("a"), expected]


@pytest.mark.parametrize(
    ("part", "lost"),
    [
        ({"type": "text", "text": "a", "image_url": {"url": "data:x"}}, "image_url"),
        ({"type": "input_text", "text": "a", "video": [b"x"]}, "video"),
        ({"type": "text", "text": "a", "image": None, "input_audio": {"data": "x"}}, "input_audio"),
        ({"type": "image", "image": b"x", "text": "a caption"}, "text"),
    ],
)
def test_a_part_of_two_media_is_an_error(part: dict[str, Any], lost: str) -> None:
    with pytest.raises(
        DataError, match=rf"^row 3, message 0: a part of type {part['type']} has '{lost}', too: give it"
    ):
        content_of(part)


@pytest.mark.parametrize("kind", ["audio", "input_audio", "audio_url", "file", "document", "tool_result", None])
def test_a_part_that_nothing_reads_is_an_error(kind: Any) -> None:
    with pytest.raises(DataError, match=r"^row 3, message 0: has a part .*; parts are text, image and video"):
        content_of(text("a"), {"type": kind, "data": "x"})


def test_a_tokenizer_of_text_refuses_images_and_templates_of_texts_refuse_parts(
    tiny_tokenizer_dir: Path, tmp_path: Path
) -> None:
    """Some templates write what they do not know as Python."""
    (tmp_path / "python.jinja").write_text("{% for m in messages %}{{ m.content | trim }}{% endfor %}")
    model = ModelConfig(path=str(tiny_tokenizer_dir), chat_template=str(tmp_path / "python.jinja"))
    tokenizer = load_tokenizer(model)
    for part, words in (
        ({"type": "image_url", "image_url": "data:x"}, "has an image, and the model's tokenizer reads text alone"),
        ({"type": "image"}, "takes texts alone, and no parts"),
    ):
        chat = [{"role": "user", "content": [text("a"), part]}]
        with pytest.raises(DataError, match=rf"^row 3: .*{words}"):
            tokenizer.render(chat, "row 3", add_generation_prompt=True)
    chat = [{"role": "user", "content": [text("a"), text("b")]}, {"role": "user", "content": "{'type': 'c'}"}]
    assert tokenizer.render(chat, "row 3", add_generation_prompt=True) == "ab{'type': 'c'}"
