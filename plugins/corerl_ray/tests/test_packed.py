"""Many small objects as one argument of a call."""

import pickle
import sys

import numpy as np
import ray
import torch

from corerl.contracts.rollout_backends import Completion
from corerl_ray.kept import Arrays, Tokens
from corerl_ray.packed import Packed


class Mine:
    """Of a module that another process may not have."""


def test_references_and_arrays_are_sent_by_ray_and_all_else_is_pickled() -> None:
    reference, tensor, array = ray.ObjectRef(bytes(range(28))), torch.arange(3), np.arange(4)
    arrays = Arrays(reference)
    given = [Completion(Tokens(arrays, column, 5, 9), (), "stop", 7) for column in (0, 1)]
    packed = Packed.of({"given": given, "columns": [tensor, array, tensor]})
    assert isinstance(packed, Packed) and [type(each) for each in packed.others].count(ray.ObjectRef) == 1
    found = Packed(pickle.loads(pickle.dumps(packed.objects)), packed.others).value()
    assert [each.weight_version for each in found["given"]] == [7, 7]
    first, second = (each.token_ids for each in found["given"])
    assert (first.start, first.stop, first.column, second.column) == (5, 9, 0, 1)
    assert first.arrays is second.arrays and first.arrays.reference is reference
    assert found["columns"][0] is tensor is found["columns"][2] and found["columns"][1] is array


def test_what_only_ray_can_send_stays_as_it_is(monkeypatch) -> None:
    unnamed = [lambda: 1]
    assert Packed.of(unnamed) is unnamed
    monkeypatch.setattr(Mine, "__module__", "__main__")
    monkeypatch.setattr(sys.modules["__main__"], "Mine", Mine, raising=False)
    of_the_program = [Mine()]
    assert Packed.of(of_the_program) is of_the_program
