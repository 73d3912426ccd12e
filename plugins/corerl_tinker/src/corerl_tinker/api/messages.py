"""Tinker's binary messages (protocol buffers, proto3): names, numbers and types of the fields that are read or written.

Fields that the server has no use for are left out; a reader skips them.
"""

from typing import Any

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessages

PACKAGE = "tinker_public"

SCALARS = {
    "bytes": FieldDescriptorProto.TYPE_BYTES,
    "string": FieldDescriptorProto.TYPE_STRING,
    "int32": FieldDescriptorProto.TYPE_INT32,
    "uint32": FieldDescriptorProto.TYPE_UINT32,
    "int64": FieldDescriptorProto.TYPE_INT64,
    "bool": FieldDescriptorProto.TYPE_BOOL,
    "double": FieldDescriptorProto.TYPE_DOUBLE,
}

FLOAT32, INT64 = 1, 2
"""dtypes of tensors"""

STOP, LENGTH = 0, 1
"""reasons of a sample's end"""

MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "SparseCsr": {"values": (1, "bytes"), "crow_indices": (2, "bytes"), "col_indices": (3, "bytes")},
    "Tensor": {
        "dense": (1, "bytes"),
        "sparse_csr": (2, "SparseCsr"),
        "dtype": (3, "int32"),
        "shape": (4, "repeated int64"),
    },
    "EncodedTextChunk": {"tokens": (1, "bytes")},
    "ImageChunk": {"data": (1, "bytes")},
    "DmelChunk": {"dmel": (1, "bytes")},
    "Chunk": {"encoded_text": (1, "EncodedTextChunk"), "image": (2, "ImageChunk"), "dmel": (3, "DmelChunk")},
    "Datum": {"model_input": (1, "repeated Chunk"), "loss_fn_inputs": (2, "map Tensor")},
    "LossConfigValue": {"number": (1, "double"), "text": (2, "string")},
    "ForwardBackwardRequest": {
        "model_id": (1, "string"),
        "seq_id": (2, "int32"),
        "data": (3, "repeated Datum"),
        "loss_fn": (4, "string"),
        "loss_fn_config": (5, "map double"),
        "forward_only": (6, "bool"),
        "loss_fn_config_v2": (7, "map LossConfigValue"),
    },
    "BatchedTensor": {
        "data": (1, "bytes"),
        "offsets": (2, "bytes"),
        "dtype": (3, "int32"),
        "trailing_shape": (4, "repeated int64"),
    },
    "ArrayRecord": {"type_tag": (1, "string"), "fields": (2, "map BatchedTensor"), "num_datums": (3, "int64")},
    "ForwardBackwardOutput": {
        "loss_fn_output_type": (1, "string"),
        "loss_fn_outputs": (2, "repeated ArrayRecord"),
        "metrics": (3, "map double"),
    },
    "TopkLogprobs": {"token_ids": (1, "bytes"), "logprobs": (2, "bytes"), "k": (3, "uint32"), "length": (4, "uint32")},
    "PromptAltTokens": {"tokens": (1, "Tensor"), "logprobs": (2, "Tensor")},
    "SampledSequence": {
        "stop_reason": (1, "int32"),
        "tokens": (2, "bytes"),
        "logprobs": (3, "bytes"),
        "topk_sampled_logprobs": (4, "TopkLogprobs"),
    },
    "SampleResponse": {
        "sequences": (1, "repeated SampledSequence"),
        "prompt_logprobs": (2, "bytes"),
        "topk_prompt_logprobs": (3, "TopkLogprobs"),
        "target_prompt_logprobs": (5, "Tensor"),
        "prompt_alt_tokens": (6, "PromptAltTokens"),
    },
}
"""message -> field -> (number, type); ``map T`` has texts as keys. An enum is an int32, which has the same bytes"""


def _add_field(owner: Any, name: str, number: int, kind: str) -> None:
    rule, _, base = kind.rpartition(" ")
    field = owner.field.add(name=name, number=number, label=FieldDescriptorProto.LABEL_OPTIONAL)
    if rule:
        field.label = FieldDescriptorProto.LABEL_REPEATED
    if rule == "map":
        title = "".join(part.capitalize() for part in name.split("_"))
        entry = owner.nested_type.add(name=f"{title}Entry")
        entry.options.map_entry = True
        _add_field(entry, "key", 1, "string")
        _add_field(entry, "value", 2, base)
        field.type, field.type_name = FieldDescriptorProto.TYPE_MESSAGE, f".{PACKAGE}.{owner.name}.{entry.name}"
    elif base in SCALARS:
        field.type = SCALARS[base]
    else:
        field.type, field.type_name = FieldDescriptorProto.TYPE_MESSAGE, f".{PACKAGE}.{base}"


def _classes() -> dict[str, Any]:
    """The messages, in a pool of their own: a program may have others of the same names."""
    file = FileDescriptorProto(name="corerl_tinker.proto", package=PACKAGE, syntax="proto3")
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            _add_field(message, field, number, kind)
    found = GetMessages([file], pool=DescriptorPool())
    return {name: found[f"{PACKAGE}.{name}"] for name in MESSAGES}


CLASSES = _classes()
"""name -> class of a message"""
