"""Fields of requests that no dialect reads: refused if they bind the answer, else named once, unless they are notes."""

from collections.abc import Mapping, Sequence
from typing import Any

from corerl.contracts.tokenizers import ChatTokenizer
from corerl_gateway.errors import invalid, unsupported
from corerl_gateway.fields import Fields
from corerl_gateway.notices import name_once

_POLICY, _FORM = "it would change the policy", "the policy's output is not constrained; ask for it in the prompt"
_STOPS, _TEMPLATE = (
    "the stop tokens are those of the run; send texts to stop at",
    "the chat template is that of the run",
)

REFUSED: Mapping[str, tuple[str, tuple[Any, ...]]] = {
    **{
        name: (_FORM, ({}, [], ""))
        for name in (
            *("structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "grammar"),
            *("json_schema", "regex", "ebnf", "structural_tag", "output_format"),
        )
    },
    **{
        name: (_POLICY, ({}, [], ""))
        for name in (
            *("logit_bias", "bad_words", "allowed_token_ids", "logits_processors", "custom_logit_processor"),
            "vllm_xargs",
        )
    },
    "min_tokens": (_POLICY, (0,)),
    "min_new_tokens": (_POLICY, (0,)),
    "best_of": (_POLICY, (1,)),
    "use_beam_search": (_POLICY, (False,)),
    "length_penalty": (_POLICY, (1, 0)),
    "thinking_token_budget": (_POLICY, ()),
    "stop_regex": (_STOPS, ([], "")),
    "ignore_eos": (_STOPS, (False,)),
    "chat_template": (_TEMPLATE, ()),
    "chat_template_kwargs": (f"{_TEMPLATE}, and so are its arguments", ({},)),
    "documents": ("send the texts in messages", ([],)),
    "truncate_prompt_tokens": ("send fewer messages", (-1,)),
    "prompt_logprobs": ("only sampled tokens have log-probs", (0, False)),
    "echo": ("the answer has the policy's text alone", (False,)),
    "suffix": ("the policy writes at the end of a chat", ("",)),
}
"""field of the body, or of ``sampling_params`` -> (remedy, values without an effect); dialects refuse further ones"""

NOTES = frozenset(
    (
        *("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prediction"),
        *("prompt_cache_retention", "client_metadata", "cache_control", "cache_salt", "priority", "request_id"),
        *("include_obfuscation", "continuous_usage_stats", "detail", "eager_input_streaming", "speed"),
        *("id", "type", "status", "index", "phase", "annotations", "citations", "signature", "caller", "logprobs"),
        *("encrypted_content", "summary", "refusal", "audio", "created_by", "data", "return_token_ids"),
    )
)
"""names of fields that ask for nothing: notes of clients, and parts of answers that clients send back"""

HARMLESS: Mapping[str, tuple[Any, ...]] = {
    "parallel_tool_calls": (True,),
    "disable_parallel_tool_use": (False,),
    "strict": (False,),
    "truncation": ("disabled",),
    "reasoning_effort": ("none",),
    "thinking": ({"type": "disabled"},),
}
"""name of a field -> values without an effect"""


def refuse_unknown(fields: Fields) -> None:
    """Raise ApiError for a field that would bind the answer, which the policy cannot honour."""
    for name, (remedy, harmless) in REFUSED.items():
        fields.refuse(name, remedy, *harmless)


def read_stop_ids(fields: Fields) -> tuple[int, ...]:
    """``stop_token_ids``."""
    value = fields.get("stop_token_ids") or []
    if not isinstance(value, list) or any(type(each) is not int for each in value):
        raise invalid(fields.path("stop_token_ids"), "a list of whole numbers")
    return tuple(value)


def texts_of(stop_token_ids: Sequence[int], tokenizer: ChatTokenizer, path: str = "stop_token_ids") -> tuple[str, ...]:
    """The texts of stop tokens beside those of the run.

    Raises:
        ApiError: one is no special token: its text may be a part of other tokens.
    """
    further = [each for each in stop_token_ids if each not in tokenizer.stop_token_ids]
    special = {number: text for text, number in tokenizer.special_tokens.items()} if further else {}
    if any(each not in special for each in further):
        raise unsupported(path, "only special tokens stop the policy; send texts to stop at")
    return tuple(special[each] for each in further)


def name_unread(fields: Fields) -> None:
    """Print the fields of a request that had no effect, once a process."""
    name_once(path for path, value in fields.unread() if _asks(path.rpartition(".")[2], value))


def _asks(name: str, value: Any) -> bool:
    return name not in NOTES and value not in ([], {}, "") and value not in HARMLESS.get(name, ())
