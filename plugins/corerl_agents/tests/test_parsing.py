# ruff: noqa: E501
"""Turns of every family: calls, reasoning, and what is neither."""

import json
import random
from types import SimpleNamespace

import pytest
from chat_families import FAMILIES, load_family, written
from recorded import ADD, LOOK

from corerl_agents.parsing import FORMATS, Parser, format_of
from corerl_agents.parsing.contract import schemas_of, typed

TOOLS = [ADD, LOOK]
S = schemas_of(TOOLS)


def calls(name, text):
    found = FORMATS[name].calls(text, S)
    return [(call.name, json.loads(call.arguments)) for call in found.calls], found.content, found.malformed


THREE = ("add", {"a": 1, "b": 2})
GOOD = [
    ("hermes", '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>', [THREE]),
    ("hermes", '<tool_call>{"arguments": "{\\"a\\": 1, \\"b\\": 2}", "name": "add"}</tool_call>', [THREE]),
    ("qwen_xml", "<tool_call><function=add><parameter=a>1</parameter><parameter=b>2</parameter></function></tool_call>", [THREE]),
    ("qwen_xml", "<tool_call>\n<function=look_up>\n<parameter=word>\n12\n</parameter>\n</function>\n</tool_call>", [("look_up", {"word": "12"})]),
    ("qwen_xml", "<tool_call>\n<function=noop>\n</function>\n</tool_call>", [("noop", {})]),
    ("glm", "<tool_call>noop</tool_call>", [("noop", {})]),
    ("glm", "<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n<arg_key>b</arg_key>\n<arg_value>2</arg_value></tool_call>", [THREE]),
    ("llama", '{"name": "add", "parameters": {"a": 1, "b": 2}}', [THREE]),
    ("llama", '<|python_tag|>{"name": "add", "parameters": {"a": 1, "b": 2}}; {"name": "noop", "parameters": {}}', [THREE, ("noop", {})]),
    ("llama", '<function=add>{"a": 1, "b": 2}</function>', [THREE]),
    ("llama", '<|python_tag|>look_up.call(word="ü")', [("look_up", {"word": "ü"})]),
    ("deepseek", '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>{"a": 1, "b": 2}<｜tool▁call▁end｜><｜tool▁calls▁end｜>', [THREE]),
    ("mistral", '[TOOL_CALLS][{"name": "add", "arguments": {"a": 1, "b": 2}, "id": "abcdefghi"}]', [THREE]),
    ("mistral", '[TOOL_CALLS]add[ARGS]{"a": 1, "b": 2}[TOOL_CALLS]noop[ARGS]{}', [THREE, ("noop", {})]),
    ("json", '{"name": "add", "arguments": {"a": 1, "b": 2}}', [THREE]),
    ("json", '```json\n{\n  "name": "add",\n  "arguments": {"a": 1, "b": 2}\n}\n```', [THREE]),
    ("json", '```\n{"name": "add", "parameters": {"a": 1, "b": 2}}\n```\n', [THREE]),
    ("json", '<tool_call>\n{"name": "add", "arguments": "{\\"a\\": 1, \\"b\\": 2}"}\n</tool_call>', [THREE]),
    ("json", '<tools>\n{"arguments": {"a": 1, "b": 2}, "name": "add"}\n</tools>', [THREE]),
    ("json", '{"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": 2}}}', [THREE]),
    ("json", '[{"name": "add", "arguments": {"a": 1, "b": 2}}, {"name": "look_up", "arguments": {"word": "```\\n}"}}]', [THREE, ("look_up", {"word": "```\n}"})]),
    ("json", '```json\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n{"name": "look_up", "arguments": {}}\n```', [THREE, ("look_up", {})]),
    ("json", '```json\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n```\n\n```json\n{"name": "look_up", "arguments": {}}\n```', [THREE, ("look_up", {})]),
    ("harmony", '<|start|>assistant to=functions.add<|channel|>commentary json<|message|>{"a": 1, "b": 2}<|call|>', [THREE]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "expected"), GOOD)
def test_calls(name, text, expected):
    assert calls(name, text) == (expected, "", 0)


BAD = [
    ("hermes", '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}'),
    ("hermes", '<tool_call>{"name": "add", "arguments": {"a": 1, "b": }}</tool_call>'),
    ("hermes", '<tool_call>{"name": "add", "arguments": [1, 2]}</tool_call>'),
    ("hermes", '<tool_call>{"name": "", "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "add"}</tool_call>'),
    ("hermes", '<tool_call>{"name": "add", "arguments": {"a": NaN}}</tool_call>'),
    ("hermes", "<tool_call>" + "[" * 100_000 + "</tool_call>"),
    ("hermes", "<tool_call>" + "9" * 10_000 + "</tool_call>"),
    ("json", '{"name": "add", "arguments": {"a": 1, "b": '),
    ("json", '```json\n{"name": "add", "arguments": {"a": 1, "b": }}\n```'),
    ("json", '{"name": "add", "arguments": [1, 2]}'),
    ("json", '{"name": "add", "arguments": {"a": NaN}}'),
    ("json", '{"name": "sub", "arguments": {"a": 1}}'),
    ("json", '{"name": "add", "arguments": ' + '{"a":' * 100_000),
    ("qwen_xml", "<tool_call><function=add><parameter=a>1</function></tool_call>"),
    ("qwen_xml", "<tool_call>add(1, 2)</tool_call>"),
    ("glm", "<tool_call>two words<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>"),
    ("glm", "<tool_call>add<arg_key>a</arg_key></tool_call>"),
    ("llama", '{"name": "add", "parameters": {"a": 1,'),
    ("llama", "<|python_tag|>import os"),
    ("deepseek", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁calls▁end｜>"),
    ("mistral", '[TOOL_CALLS]{"name": "add"'),
    ("harmony", "<|channel|>commentary to=functions.add<|message|>{1}<|call|>"),
]


@pytest.mark.parametrize(("name", "text"), BAD)
def test_malformed_calls_are_content_and_counted(name, text):
    found, content, malformed = calls(name, text)
    assert (found, malformed) == ([], 1)
    assert content == (text if name != "harmony" else "{1}")


def test_a_call_beside_a_malformed_one_is_a_call():
    good = '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>'
    assert calls("hermes", f"<tool_call>{{}}</tool_call>{good}") == ([THREE], "<tool_call>{}</tool_call>", 1)


def test_a_call_without_tags_leaves_the_text_around_it():
    call = '{"name": "add", "arguments": {"a": 1, "b": 2}}'
    assert calls("json", f"I add.\n\n```json\n{call}\n```\nDone.") == ([THREE], "I add.\n\nDone.", 0)
    assert calls("json", f'{call} {{"name": "Ann", "age": 3}}') == ([THREE], '{"name": "Ann", "age": 3}', 0)
    assert calls("json", f"{call}{call[:-5]}") == ([THREE], call[:-5], 1)


MISSED = [
    (text, len(expected), "json" if name == "llama" and text[:1] == "{" else name) for name, text, expected in GOOD
]


@pytest.mark.parametrize(("text", "count", "spelling"), MISSED)
def test_a_call_in_the_spelling_of_another_format_is_missed(tmp_path_factory, text, count, spelling):
    """The policy of a template without calls: each call of a known tool is counted, with the format that reads it."""
    if "noop" in text:
        pytest.skip("a call of an unknown tool is none")
    parsed = parser_without_calls(tmp_path_factory).parse(text, "", TOOLS)
    reads = {found.name for found in FORMATS.values() if len(found.calls(text, S).calls) == count}
    assert (parsed.content, parsed.missed) == (text, count) and parsed.spelling in reads
    assert spelling in reads


def parser_without_calls(tmp_path_factory):
    return Parser(load_family(tmp_path_factory.mktemp("family"), "qwen2.5"), "plain")


def test_a_turn_that_is_read_or_malformed_or_has_no_tools_misses_nothing(tmp_path_factory):
    parser = Parser(load_family(tmp_path_factory.mktemp("family"), "qwen2.5"), "hermes")
    tagged, bare = (next(text for name, text, _ in GOOD if name == wanted) for wanted in ("hermes", "json"))
    for text in (
        tagged,
        tagged + bare,
        tagged.replace("}\n<", "\n<"),
        "add and look_up",
        '{"name": "sub", "arguments": {}}',
    ):
        assert parser.parse(text, "", TOOLS).missed == 0
    assert parser.parse(bare, "", ()).missed == 0
    assert parser.parse(bare, "", TOOLS).missed == 1


@pytest.mark.parametrize("text", ["", "4", '{"answer": 4}', "a < b > c", "say <tool_calls>"])
@pytest.mark.parametrize("name", FORMATS)
def test_a_text_without_a_call_is_content(name, text):
    assert calls(name, text) == ([], text, 0)


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "plain"])
def test_no_text_raises(name):
    """Pieces of calls in any order."""
    of = {"json": "hermes"}.get(name, name)
    rng, family = random.Random(0), next(each for each in FAMILIES.values() if each.format == of)
    whole = written(family, "x", [("add", {"a": 1, "b": "ü\n"})], "hm")
    for _ in range(300):
        cuts = sorted(rng.sample(range(len(whole)), 4))
        parts = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
        text = "".join(rng.choices(parts, k=5))
        for call in FORMATS[name].calls(text, S).calls:
            assert isinstance(json.loads(call.arguments), dict)


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("12", "string", "12"),
        ("12", "integer", 12),
        ("[1]", "array", [1]),
        ("True", "boolean", True),
        ("x y", "integer", "x y"),
    ],
)
def test_values_without_quotes_have_the_type_of_the_schema(text, kind, value):
    assert typed(text, {"type": kind}) == value


@pytest.fixture(scope="module")
def thinker(tmp_path_factory):
    return Parser(load_family(tmp_path_factory.mktemp("qwen3"), "qwen3"), "hermes")


@pytest.mark.parametrize(
    ("text", "prompt", "reasoning", "content"),
    [
        ("<think>\na\n</think>\n\nb", "", "a", "b"),
        ("a\n</think>\n\nb", "assistant\n<think>\n", "a", "b"),
        ("a", "assistant\n<think>\n", "a", ""),
        ("a</think>b", "", "a", "b"),
        ("<think>\n\n</think>\n\nb", "", "", "b"),
        ("b", "<think>\n\n</think>\n\n", "", "b"),
        ("b <think>c</think>", "", "", "b <think>c</think>"),
    ],
)
def test_reasoning(thinker, text, prompt, reasoning, content):
    parsed = thinker.parse(text, prompt, ())
    assert (parsed.reasoning, parsed.content) == (reasoning, content)


def test_a_template_without_reasoning_leaves_the_tags_in_the_content(tmp_path):
    parser = Parser(load_family(tmp_path, "qwen2.5"), "hermes")
    assert parser.parse("<think>a</think>b", "", ()).content == "<think>a</think>b"


def test_without_tools_calls_are_content(thinker):
    text = '<tool_call>{"name": "add", "arguments": {}}</tool_call>'
    assert thinker.parse(text, "", ()).content == text
    assert thinker.parse(text, "", [ADD]).calls


RESPONSE_TEMPLATE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "thinking": {"open": "<think>", "close": "</think>"},
        "tool_calls": {
            "open": "<tool_call>",
            "close": "</tool_call>",
            "content": "json",
            "repeats": True,
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"content": "text"},
    },
}


def test_the_response_template_of_the_tokenizer_comes_first(tmp_path):
    """Also if it breaks on a text that the policy made up."""
    tokenizer = load_family(tmp_path, "qwen3")
    tokenizer.tokenizer.response_template = RESPONSE_TEMPLATE
    assert format_of(tokenizer) == "transformers"
    assert format_of(tokenizer, "hermes") == "hermes"
    parser = Parser(tokenizer, "transformers")
    prompt = "<|im_start|>user\n?<|im_end|>\n<|im_start|>assistant\n"
    call = '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>'
    parsed = parser.parse(f"<think>hm</think>x{call}", prompt, [ADD])
    assert (parsed.content.strip(), parsed.reasoning, parsed.malformed) == ("x", "hm", 0)
    assert [(each.name, json.loads(each.arguments)) for each in parsed.calls] == [THREE]
    assert not parser.parse(call, prompt, ()).calls
    broken = parser.parse("<tool_call>{1}</tool_call>", prompt, [ADD])
    assert (broken.content, broken.calls, broken.malformed) == ("<tool_call>{1}</tool_call>", (), 1)


def test_a_tokenizer_that_shows_no_template_is_plain():
    assert format_of(SimpleNamespace(tokenizer=SimpleNamespace())) == "plain"
