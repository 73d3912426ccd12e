"""Between Tinker's binary messages and arrays; whatever a client sends is checked."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from corerl_tinker.api.messages import CLASSES, FLOAT32, INT64, LENGTH, STOP
from corerl_tinker.errors import UserError
from corerl_tinker.training.data import Datum, LossRequest
from corerl_tinker.training.losses import LOSSES
from corerl_tinker.training.sampler import SampleRequest, SampleResult
from corerl_tinker.training.trainer import LossResult

NUMBERS: dict[int, np.dtype[Any]] = {FLOAT32: np.dtype(np.float32), INT64: np.dtype(np.int64)}
MOST_CELLS = 2**26
"""of a tensor that a request names in a sparse form"""
NO_TOKEN, NO_LOG_PROB = 0, -99999.0
"""Tinker's marks of an empty place among likeliest tokens"""


class Limits:
    """What the model can read.

    Args:
        vocabulary: token ids are below.
        length: tokens of a sequence.
    """

    def __init__(self, vocabulary: int, length: int) -> None:
        self.vocabulary, self.length = vocabulary, length

    def check(self, tokens: NDArray[np.int64], where: str) -> None:
        """
        Raises:
            UserError: no token, too many, or one outside of the vocabulary.
        """
        if not len(tokens):
            raise UserError(f"{where} has no token")
        if tokens.shape[0] > self.length:
            raise UserError(f"{where} has {len(tokens)} tokens, and this server takes {self.length}")
        if tokens.min() < 0 or tokens.max() >= self.vocabulary:
            wrong = tokens[(tokens < 0) | (tokens >= self.vocabulary)][0]
            raise UserError(f"{where} has the token {wrong}, outside of the vocabulary of {self.vocabulary}")


def parse_forward_backward(body: bytes) -> Any:
    """The message of a body.

    Raises:
        UserError: it is none.
    """
    message = CLASSES["ForwardBackwardRequest"]()
    try:
        message.ParseFromString(body)
    except DecodeError as error:
        raise UserError("the body is no ForwardBackwardRequest") from error
    return message


def read_loss_request(message: Any, limits: Limits) -> LossRequest:
    """Check and read a forward_backward.

    Raises:
        UserError: an unknown loss, or wrong data; the message names the place.
    """
    name = message.loss_fn
    if name not in LOSSES:
        raise UserError(f"loss_fn {name!r:.80} is not supported: use {', '.join(LOSSES)}, or forward_backward_custom")
    if not message.data:
        raise UserError("the request has no data")
    config = {**LOSSES[name].config}
    for key, value in [
        *message.loss_fn_config.items(),
        *((key, each.text or each.number) for key, each in message.loss_fn_config_v2.items()),
    ]:
        if key not in config:
            known = ", ".join(config) or "none"
            raise UserError(f"loss_fn_config has {key!r:.80}; {name} knows {known}")
        if not isinstance(value, float) or not np.isfinite(value):
            raise UserError(f"loss_fn_config[{key!r}] must be a finite number")
        config[key] = value
    data = [_datum(each, name, limits, f"data[{number}]") for number, each in enumerate(message.data)]
    if any(set(datum.inputs) != set(data[0].inputs) for datum in data):
        raise UserError("all data of a request must have the same loss_fn_inputs")
    given = {key: value for key, value in config.items() if key not in data[0].inputs}
    return LossRequest(name, given, data, not message.forward_only)


def _datum(message: Any, name: str, limits: Limits, where: str) -> Datum:
    loss = LOSSES[name]
    tokens = _tokens(message.model_input, f"{where}.model_input")
    limits.check(tokens, f"{where}.model_input")
    inputs = {key: f"{where}.loss_fn_inputs[{key!r:.80}]" for key in message.loss_fn_inputs}
    needed = ("target_tokens", *loss.needs)
    for key in needed:
        if key not in inputs:
            raise UserError(f"{where}.loss_fn_inputs has no {key!r}, which {name} needs")
    for key in inputs:
        if key not in (*needed, *loss.per_token):
            raise UserError(f"{inputs[key]} is unknown to {name}, which reads {', '.join((*needed, *loss.per_token))}")
    arrays = {key: _array(message.loss_fn_inputs[key], place) for key, place in inputs.items()}
    targets = arrays.pop("target_tokens")
    if targets.dtype != np.int64 or targets.ndim not in (1, 2) or targets.size == 0:
        raise UserError(f"{inputs['target_tokens']} must be int64, of shape [T] or [T, K]")
    if len(targets) != len(tokens):
        raise UserError(f"{inputs['target_tokens']} has {len(targets)} rows for {len(tokens)} tokens of model_input")
    if targets.min() < 0 or targets.max() >= limits.vocabulary:
        raise UserError(f"{inputs['target_tokens']} has a token outside of the vocabulary of {limits.vocabulary}")
    for key, array in arrays.items():
        if array.shape != targets.shape:
            raise UserError(f"{inputs[key]} has shape {list(array.shape)}, and target_tokens {list(targets.shape)}")
        if not np.isfinite(array).all():
            raise UserError(f"{inputs[key]} has a value that is not finite")
    flat = targets.ndim == 1
    wide = {key: array.astype(np.float32).reshape(len(tokens), -1) for key, array in arrays.items()}
    return Datum(tokens, targets.reshape(len(tokens), -1), wide, flat)


def _tokens(chunks: Any, where: str) -> NDArray[np.int64]:
    found = []
    for number, chunk in enumerate(chunks):
        if not chunk.HasField("encoded_text"):
            raise UserError(f"{where}[{number}] is no text: this server takes tokens alone")
        if len(chunk.encoded_text.tokens) % 4:
            raise UserError(f"{where}[{number}] has {len(chunk.encoded_text.tokens)} bytes of int32 tokens")
        found.append(np.frombuffer(chunk.encoded_text.tokens, "<i4"))
    return np.concatenate(found).astype(np.int64) if found else np.zeros(0, np.int64)


def _array(message: Any, where: str) -> NDArray[Any]:
    """A tensor, dense; absent values of a sparse one are 0.

    Raises:
        UserError: dtype, shape or bytes do not agree.
    """
    dtype, shape = NUMBERS.get(message.dtype), tuple(message.shape)
    if dtype is None or any(size < 0 for size in shape) or len(shape) > 2:
        raise UserError(f"{where} must be float32 or int64, of one or two dimensions")
    is_sparse = message.HasField("sparse_csr")
    data = message.sparse_csr.values if is_sparse else message.dense
    if len(data) % dtype.itemsize:
        raise UserError(f"{where} has {len(data)} bytes of {dtype}")
    values: NDArray[Any] = np.frombuffer(data, dtype)
    if not is_sparse:
        shape = shape or (len(values),)
        if int(np.prod(shape, dtype=object)) != len(values):
            raise UserError(f"{where} has shape {list(shape)} and {len(values)} values")
        return values.reshape(shape)
    return dense(values, message.sparse_csr.crow_indices, message.sparse_csr.col_indices, shape, where)


def dense(
    values: NDArray[Any], rows: Any, columns: Any, shape: Sequence[int], where: str, pad: int = 0
) -> NDArray[Any]:
    """A matrix of its compressed rows (CSR); ``rows`` and ``columns``: int64 as bytes or arrays.

    Raises:
        UserError: the indices are wrong.
    """
    if isinstance(rows, bytes):
        if len(rows) % 8 or len(columns) % 8:
            raise UserError(f"{where} has indices that are no int64")
        rows, columns = np.frombuffer(rows, np.int64), np.frombuffer(columns, np.int64)
    if len(shape) != 2 or shape[0] * shape[1] > MOST_CELLS or len(rows) != shape[0] + 1 or len(columns) != len(values):
        raise UserError(f"{where} has no shape of a sparse matrix")
    counts = np.diff(rows)
    is_right = rows[0] == 0 and rows[-1] == len(values) and (counts >= 0).all()
    if not is_right or (len(columns) and (columns.min() < 0 or columns.max() >= shape[1])):
        raise UserError(f"{where} has indices outside of its shape")
    whole = np.full(tuple(shape), pad, values.dtype)
    whole[np.repeat(np.arange(shape[0]), counts), columns] = values
    return whole


def write_loss_result(result: LossResult) -> bytes:
    """The message of a forward_backward's answer; data of one width follow each other in a record."""
    message = CLASSES["ForwardBackwardOutput"](loss_fn_output_type="ArrayRecord")
    message.metrics["loss:sum"] = result.loss
    start = 0
    while start < len(result.log_probs):
        trailing = result.log_probs[start].shape[1:]
        end = start
        while end < len(result.log_probs) and result.log_probs[end].shape[1:] == trailing:
            end += 1
        record = message.loss_fn_outputs.add(type_tag="ArrayRecord", num_datums=end - start)
        _batched(record.fields["logprobs"], result.log_probs[start:end])
        start = end
    return bytes(message.SerializeToString())


def _batched(message: Any, arrays: Sequence[NDArray[np.float32]]) -> None:
    data = [np.ascontiguousarray(array, np.float32).tobytes() for array in arrays]
    message.data, message.dtype = b"".join(data), FLOAT32
    message.offsets = np.cumsum([0, *map(len, data)], dtype=np.int64).tobytes()
    message.trailing_shape.extend(arrays[0].shape[1:])


def write_sample_result(request: SampleRequest, result: SampleResult) -> bytes:
    """The message of a sample's answer."""
    message = CLASSES["SampleResponse"]()
    for number, sample in enumerate(result.samples):
        sequence = message.sequences.add(stop_reason=STOP if sample.finish_reason == "stop" else LENGTH)
        sequence.tokens = np.asarray(sample.token_ids, np.int32).tobytes()
        sequence.logprobs = np.asarray(sample.log_probs, np.float32).tobytes()
        if request.sample_top:
            _top(sequence.topk_sampled_logprobs, result.sample_scores[number], request.sample_top, 0, 0)
    scores, length = result.scores, len(request.prompt)
    if not scores:
        return bytes(message.SerializeToString())
    first = length - request.prompt_log_probs if request.prompt_log_probs else 0
    if request.prompt_log_probs:
        log_probs = np.full(length, np.nan, np.float32)
        first = max(1, first)
        log_probs[first:] = scores["log_probs"][first - 1 :, 0]
        message.prompt_logprobs = log_probs.tobytes()
    if request.top:
        _top(message.topk_prompt_logprobs, scores, request.top, 1, first)
    if request.targets is not None:
        found = np.where(request.targets >= 0, scores["log_probs"][:, 1:], 0.0)
        _tensor(message.target_prompt_logprobs, found.astype(np.float32))
    if request.draws:
        _tensor(message.prompt_alt_tokens.tokens, scores["drawn_ids"].astype(np.int64))
        _tensor(message.prompt_alt_tokens.logprobs, scores["drawn_log_probs"].astype(np.float32))
    return bytes(message.SerializeToString())


def _top(message: Any, scores: Mapping[str, NDArray[Any]], k: int, before: int, first: int) -> None:
    """Likeliest tokens of each position; the ``before`` first ones and those before ``first`` have none."""
    ids, log_probs = scores["top_ids"], scores["top_log_probs"]
    length = len(ids) + before
    whole = np.full((length, k), NO_TOKEN, np.int32), np.full((length, k), NO_LOG_PROB, np.float32)
    width, start = ids.shape[1], max(first, before)
    for target, source in zip(whole, (ids, log_probs), strict=True):
        target[start:, :width] = source[start - before :]
    message.token_ids, message.logprobs = whole[0].tobytes(), whole[1].tobytes()
    message.k, message.length = k, length


def _tensor(message: Any, array: NDArray[Any]) -> None:
    message.dense, message.dtype = array.tobytes(), FLOAT32 if array.dtype == np.float32 else INT64
    message.shape.extend(array.shape)
