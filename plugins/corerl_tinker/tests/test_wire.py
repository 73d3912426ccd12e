"""Requests that no client should send are refused, and say what is wrong."""

import numpy as np
import pytest
from tinker_toys import datum

from corerl_tinker.api.messages import CLASSES
from corerl_tinker.api.wire import Limits, parse_forward_backward, read_loss_request, write_loss_result
from corerl_tinker.errors import UserError
from corerl_tinker.training.trainer import LossResult

LIMITS = Limits(259, 64)
NAN = float("nan")


def message(*data, loss="cross_entropy", **config):
    made = CLASSES["ForwardBackwardRequest"](model_id="m", seq_id=1, loss_fn=loss)
    made.data.extend(data)
    for name, value in config.items():
        made.loss_fn_config[name] = value
    return parse_forward_backward(made.SerializeToString())


def sparse(values, rows, columns, shape, dtype=2):
    tensor = CLASSES["Tensor"](dtype=dtype)
    tensor.sparse_csr.values = np.asarray(values, np.int64 if dtype == 2 else np.float32).tobytes()
    tensor.sparse_csr.crow_indices = np.asarray(rows, np.int64).tobytes()
    tensor.sparse_csr.col_indices = np.asarray(columns, np.int64).tobytes()
    tensor.shape.extend(shape)
    return tensor


def with_input(name, tensor):
    made = datum(range(40, 42))
    made.loss_fn_inputs[name].CopyFrom(tensor)
    return made


def image():
    made = datum()
    made.model_input.add().image.data = b"x"
    return made


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (message(), "no data"),
        (message(datum([1, 2, 259])), r"data\[0\].model_input has the token 259, outside of the vocabulary of 259"),
        (message(datum(), datum([1, -5])), r"data\[1\].model_input has the token -5"),
        (message(datum([1, 2], targets=[2, 400])), "'target_tokens'. has a token outside of the vocabulary"),
        (message(datum(range(65))), "65 tokens, and this server takes 64"),
        (message(datum([])), "no token"),
        (message(datum([1, 2, 3], targets=[1, 2])), "2 rows for 3 tokens"),
        (message(datum(weights=[1.0])), r"weights'. has shape \[1\], and target_tokens \[10\]"),
        (message(datum(weights=[NAN] * 10)), "weights'. has a value that is not finite"),
        (message(datum(weights=[np.inf] * 10)), "not finite"),
        (message(datum(mask=[1.0] * 10)), "mask'. is unknown to cross_entropy, which reads target_tokens, weights"),
        (message(datum(), loss="ppo"), "has no 'logprobs', which ppo needs"),
        (message(datum(), loss="magic"), "loss_fn 'magic' is not supported: use cross_entropy"),
        (message(datum(), beta=1.0), "loss_fn_config has 'beta'; cross_entropy knows none"),
        (message(datum(logprobs=[0.0] * 10, advantages=[0.0] * 10), loss="dro", beta=NAN), "must be a finite number"),
        (message(image()), "is no text"),
        (message(with_input("target_tokens", sparse([1, 2], [0, 1, 2], [0, 5], [2, 2]))), "outside of its shape"),
        (message(with_input("target_tokens", sparse([1, 2], [0, 2, 1], [0, 1], [2, 2]))), "outside of its shape"),
        (message(with_input("target_tokens", sparse([], [0] * 3, [], [2, 2**40]))), "no shape of a sparse"),
        (message(with_input("target_tokens", CLASSES["Tensor"](dense=b"123", dtype=2))), "3 bytes of int64"),
        (message(with_input("target_tokens", CLASSES["Tensor"](dtype=2, shape=[-1]))), "must be float32 or int64"),
        (message(with_input("target_tokens", CLASSES["Tensor"](dtype=2, shape=[2**62, 2**62]))), "and 0 values"),
    ],
)
def test_wrong_data_are_refused(given, error):
    with pytest.raises(UserError, match=error):
        read_loss_request(given, LIMITS)


def test_random_bytes_are_no_request():
    with pytest.raises(UserError, match="no ForwardBackwardRequest"):
        parse_forward_backward(b"\xff" * 50)


def test_sparse_targets_are_those_of_the_matrix():
    made = with_input("target_tokens", sparse([7, 8, 9], [0, 1, 3], [1, 0, 2], [2, 3]))
    made.loss_fn_inputs["weights"].CopyFrom(sparse([0.5, 1, 2], [0, 1, 3], [1, 0, 2], [2, 3], dtype=1))
    [read] = read_loss_request(message(made), LIMITS).data
    assert read.targets.tolist() == [[0, 7, 0], [8, 0, 9]]
    assert read.inputs["weights"].tolist() == [[0, 0.5, 0], [1, 0, 2]]


def test_results_of_one_width_share_a_record():
    arrays = [np.full(shape, value, np.float32) for value, shape in enumerate([(3,), (2,), (2, 2), (4,)])]
    read = CLASSES["ForwardBackwardOutput"]()
    read.ParseFromString(write_loss_result(LossResult(arrays, 1.5)))
    records = [(record.num_datums, list(record.fields["logprobs"].trailing_shape)) for record in read.loss_fn_outputs]
    assert records == [(2, []), (1, [2]), (1, [])]
    offsets = np.frombuffer(read.loss_fn_outputs[0].fields["logprobs"].offsets, np.int64)
    assert offsets.tolist() == [0, 12, 20] and dict(read.metrics) == {"loss:sum": 1.5}
