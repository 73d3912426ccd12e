# ruff: noqa: E501, RUF005
"""Chat templates with the structure of model families, and tokenizers of bytes with their special tokens."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from corerl.contracts.config import ModelConfig
from corerl.data import load_tokenizer


@dataclass(frozen=True)
class Family:
    """A family of models.

    Attributes:
        special: special tokens, ids from 256 on.
        end: the token at the end of a turn; ``call_end``: of a turn with calls.
        call: (name, JSON of the arguments) of one call as the policy writes it; ``{0}``, ``{1}``.
        around: text before and after all calls of a turn.
        think: reasoning as the policy writes it, or ''.
        stops: the stop tokens, the end-of-sequence token first.
    """

    template: str
    special: tuple[str, ...]
    end: str
    format: str
    call: str = ""
    around: tuple[str, str] = ("", "")
    between: str = "\n"
    think: str = ""
    call_end: str = ""
    stops: tuple[str, ...] = ()
    several: bool = True


_CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

_TOOLS_FIRST = (
    "{%- if tools %}<|im_start|>system\n{% if messages[0].role == 'system' %}{{ messages[0].content }}\n{% endif %}"
    "tools:{% for tool in tools %}\n{{ tool | tojson }}{% endfor %}\nSHOW<|im_end|>\n"
    "{%- elif messages[0].role == 'system' %}<|im_start|>system\n{{ messages[0].content }}<|im_end|>\n{% endif %}"
)
_LAST_USER = (
    "{%- set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}"
    "{% endif %}{% endfor %}"
)
_RESULTS = (
    "{%- elif m.role == 'tool' %}{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}"
    "\n<tool_response>\n{{ m.content }}\n</tool_response>"
    "{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>\n{% endif %}"
)
_CHATML_CALLS = {
    "json": '{% if m.content or not loop.first %}\n{% endif %}<tool_call>\n{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>',
    "xml": "{% if m.content or not loop.first %}\n{% endif %}<tool_call>\n<function={{ c.function.name }}>{% for k, v in c.function.arguments | items %}\n<parameter={{ k }}>\n"
    "{{ v if v is string else v | tojson }}\n</parameter>{% endfor %}\n</function>\n</tool_call>",
}


def _chatml(calls: str, show: str, *, thinks: bool, prompt: str = "") -> str:
    thought = (
        "{% if m.reasoning_content and loop.index0 > ns.last %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
        if thinks
        else ""
    )
    return (
        _TOOLS_FIRST.replace("SHOW", show) + _LAST_USER + "{%- for m in messages %}"
        "{%- if m.role == 'user' or (m.role == 'system' and not loop.first) %}<|im_start|>{{ m.role }}\n{{ m.content }}"
        "<|im_end|>\n{%- elif m.role == 'assistant' %}<|im_start|>assistant\n" + thought + "{{ m.content }}"
        "{%- for c in m.tool_calls or [] %}"
        + _CHATML_CALLS[calls]
        + "{% endfor %}<|im_end|>\n"
        + _RESULTS
        + "{% endif %}"
        "{%- endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n" + prompt + "{% endif %}"
    )


_HERMES_CALL = '<tool_call>\n{{"name": "{0}", "arguments": {1}}}\n</tool_call>'

FAMILIES = {
    "qwen2.5": Family(
        _chatml("json", "<tool_call>{name, arguments}</tool_call>", thinks=False),
        _CHATML,
        "<|im_end|>",
        "hermes",
        _HERMES_CALL,
    ),
    "qwen3": Family(
        _chatml("json", "<tool_call>{name, arguments}</tool_call>", thinks=True),
        _CHATML,
        "<|im_end|>",
        "hermes",
        _HERMES_CALL,
        think="<think>\n{0}\n</think>\n\n",
    ),
    "qwen3-thinking": Family(
        _chatml("json", "<tool_call>{name, arguments}</tool_call>", thinks=True, prompt="<think>\n"),
        _CHATML,
        "<|im_end|>",
        "hermes",
        _HERMES_CALL,
        think="{0}\n</think>\n\n",
    ),
    "qwen3-coder": Family(
        _chatml("xml", "<function=f><parameter=p>", thinks=False),
        _CHATML,
        "<|im_end|>",
        "qwen_xml",
        "<tool_call>\n<function={0}>{2}\n</function>\n</tool_call>",
    ),
    "llama": Family(
        "{{ '<|begin_of_text|>' }}{%- for m in messages %}"
        "{%- if m.role == 'assistant' and m.tool_calls %}"
        "{%- if m.tool_calls | length != 1 %}{{ raise_exception('one call at a time') }}{% endif %}"
        "{%- set f = m.tool_calls[0].function %}<|start_header_id|>assistant<|end_header_id|>\n\n"
        '{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}<|eot_id|>'
        "{%- elif m.role == 'tool' %}<|start_header_id|>ipython<|end_header_id|>\n\n{{ m.content }}<|eot_id|>"
        "{%- else %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
        "{% if tools and loop.first %}{{ tools | tojson }} {name, parameters}\n{% endif %}{{ m.content }}<|eot_id|>"
        "{%- endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}",
        (
            "<|end_of_text|>",
            "<|begin_of_text|>",
            "<|start_header_id|>",
            "<|end_header_id|>",
            "<|eot_id|>",
            "<|python_tag|>",
        ),
        "<|eot_id|>",
        "llama",
        '{{"name": "{0}", "parameters": {1}}}',
        between=";",
        several=False,
    ),
    "deepseek": Family(
        "{%- set ns = namespace(after_tool=false) %}{{ '<｜begin▁of▁sentence｜>' }}"
        "{%- for m in messages %}{% if m.role == 'system' %}{{ m.content }}{% if tools %}{{ tools | tojson }}{% endif %}"
        "{%- elif m.role == 'user' %}{% set ns.after_tool = false %}<｜User｜>{{ m.content }}"
        "{%- elif m.role == 'assistant' %}{% if not ns.after_tool %}<｜Assistant｜>{% endif %}{% set ns.after_tool = false %}"
        "{{ m.content.split('</think>')[-1] }}{% if m.tool_calls %}<｜tool▁calls▁begin｜>{% for c in m.tool_calls %}"
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{{ c['function']['name'] + '\n```json\n' + c['function']['arguments'] + '\n```' }}"
        "<｜tool▁call▁end｜>{% endfor %}<｜tool▁calls▁end｜>{% endif %}<｜end▁of▁sentence｜>"
        "{%- elif m.role == 'tool' %}{% set ns.after_tool = true %}<｜tool▁output▁begin｜>{{ m.content }}<｜tool▁output▁end｜>"
        "{%- endif %}{% endfor %}{% if add_generation_prompt and not ns.after_tool %}<｜Assistant｜>{% endif %}",
        ("<｜end▁of▁sentence｜>", "<｜begin▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", "<｜tool▁calls▁begin｜>")
        + ("<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>")
        + ("<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"),
        "<｜end▁of▁sentence｜>",
        "deepseek",
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{0}\n```json\n{1}\n```<｜tool▁call▁end｜>",
        ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        between="",
        think="<think>\n{0}\n</think>\n\n",
    ),
    "glm": Family(
        "[gMASK]<sop>{%- if tools %}<|system|>\n{{ tools | tojson }} <arg_key>{% endif %}"
        + _LAST_USER
        + "{%- for m in messages %}"
        "{%- if m.role == 'user' %}<|user|>\n{{ m.content }}"
        "{%- elif m.role == 'system' %}<|system|>\n{{ m.content }}"
        "{%- elif m.role == 'assistant' %}<|assistant|>{% if m.reasoning_content and loop.index0 > ns.last %}"
        "\n<think>{{ m.reasoning_content }}</think>{% endif %}\n{{ m.content }}"
        "{%- for c in m.tool_calls or [] %}\n<tool_call>{{ c.function.name }}{% for k, v in c.function.arguments | items %}"
        "\n<arg_key>{{ k }}</arg_key>\n<arg_value>{{ v if v is string else v | tojson }}</arg_value>{% endfor %}\n</tool_call>"
        "{%- endfor %}"
        "{%- elif m.role == 'tool' %}{% if messages[loop.index0 - 1].role != 'tool' %}<|observation|>{% endif %}"
        "\n<tool_response>\n{{ m.content }}\n</tool_response>"
        "{%- endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}",
        ("<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"),
        "<|user|>",
        "glm",
        "<tool_call>{0}{3}\n</tool_call>",
        ("\n", ""),
        think="\n<think>{0}</think>",
        call_end="<|observation|>",
        stops=("<|endoftext|>", "<|user|>", "<|observation|>"),
    ),
    "harmony": Family(
        "<|start|>system<|message|>channels: analysis, commentary, final<|end|>"
        "{%- if tools %}<|start|>developer<|message|>{{ tools | tojson }}<|end|>{% endif %}"
        + _LAST_USER
        + "{%- for m in messages %}"
        "{%- if m.role == 'assistant' %}"
        "{%- if m.thinking and loop.index0 > ns.last %}<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>{% endif %}"
        "{%- if m.content %}<|start|>assistant<|channel|>final<|message|>{{ m.content }}"
        "{%- if loop.last and not add_generation_prompt %}<|return|>{% else %}<|end|>{% endif %}{% endif %}"
        "{%- for c in m.tool_calls or [] %}{% set ns.name = c.function.name %}<|start|>assistant<|channel|>commentary to=functions."
        "{{ c.function.name }} <|constrain|>json<|message|>{{ c.function.arguments | tojson }}<|call|>{% endfor %}"
        "{%- elif m.role == 'tool' %}<|start|>functions.{{ ns.name }} to=assistant<|channel|>commentary<|message|>"
        "{{ m.content | tojson }}<|end|>"
        "{%- else %}<|start|>{{ 'developer' if m.role == 'system' else m.role }}<|message|>{{ m.content }}<|end|>{% endif %}"
        "{%- endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}",
        ("<|return|>", "<|start|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|end|>", "<|call|>"),
        "<|return|>",
        "harmony",
        "<|channel|>commentary to=functions.{0} <|constrain|>json<|message|>{1}",
        think="<|channel|>analysis<|message|>{0}<|end|><|start|>assistant",
        call_end="<|call|>",
        stops=("<|return|>", "<|call|>"),
        several=False,
    ),
    "mistral": Family(
        "<s>" + _LAST_USER + "{%- for m in messages %}{% if m.role in ('user', 'system') %}"
        "{%- if tools and loop.index0 == ns.last %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}[INST]{{ m.content }}[/INST]"
        "{%- elif m.role == 'assistant' %}{{ m.content }}{% if m.tool_calls %}[TOOL_CALLS][{% for c in m.tool_calls %}"
        '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}, "id": "{{ c.id }}"}'
        "{{ ', ' if not loop.last }}{% endfor %}]{% endif %}</s>"
        "{%- elif m.role == 'tool' %}{% if m.tool_call_id | length != 9 %}{{ raise_exception('ids have 9 characters') }}{% endif %}"
        '[TOOL_RESULTS]{"content": {{ m.content | tojson }}, "call_id": "{{ m.tool_call_id }}"}[/TOOL_RESULTS]'
        "{%- endif %}{% endfor %}",
        ("</s>", "<s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]")
        + ("[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
        "</s>",
        "mistral",
        '{{"name": "{0}", "arguments": {1}}}',
        ("[TOOL_CALLS][", "]"),
        between=", ",
    ),
}
"""name -> family; the templates imitate the structure of published ones, with the same markers"""


def write_family(folder: Path, name: str) -> Path:
    """The folder of a tokenizer, whose ids below 256 are bytes."""
    from corerl_testing.tiny_model import _byte_characters

    family = FAMILIES[name]
    backend = Tokenizer(models.BPE(vocab={each: byte for byte, each in enumerate(_byte_characters())}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in family.special])
    fast: Any = PreTrainedTokenizerFast
    tokenizer = fast(
        tokenizer_object=backend,
        eos_token=(family.stops or (family.end,))[0],
        extra_special_tokens=list(family.special),
        chat_template="".join(
            part if part.startswith("{") else part.replace("\n", "{{ '\\n' }}")
            for part in re.split(r"(\{[{%].*?[%}]\})", family.template, flags=re.DOTALL)
        ),
    )
    tokenizer.save_pretrained(folder)
    stops = family.stops or (family.end,)
    ids = ", ".join(str(256 + family.special.index(stop)) for stop in stops)
    (folder / "generation_config.json").write_text(f'{{"eos_token_id": [{ids}]}}')
    return folder


def load_family(folder: Path, name: str) -> Any:
    return load_tokenizer(ModelConfig(path=str(write_family(folder, name))))


def xml_of(arguments: dict[str, Any]) -> str:
    return "".join(
        f"\n<parameter={key}>\n{value if isinstance(value, str) else json.dumps(value)}\n</parameter>"
        for key, value in arguments.items()
    )


def pairs_of(arguments: dict[str, Any]) -> str:
    return "".join(
        f"\n<arg_key>{key}</arg_key>\n<arg_value>{value if isinstance(value, str) else json.dumps(value)}</arg_value>"
        for key, value in arguments.items()
    )


def written(family: Family, content: str, calls: Sequence[tuple[str, dict[str, Any]]] = (), thought: str = "") -> str:
    """A turn as a policy of the family writes it, with the token that ends it."""
    text = family.think.format(thought) if thought and family.think else ""
    if family.format == "harmony" and not calls:
        return f"{text}<|channel|>final<|message|>{content}{family.end}"
    text += ("\n" if family.format == "glm" else "") + content
    if not calls:
        return text + family.end
    spelled = [
        family.call.format(name, json.dumps(given, ensure_ascii=False), xml_of(given), pairs_of(given))
        for name, given in calls
    ]
    joined = family.around[0] + family.between.join(spelled) + family.around[1]
    gap = "\n" if content and family.format in ("hermes", "qwen_xml") else ""
    return text + gap + joined + (family.call_end or family.end)
