"""The parts of weights that a loader reads."""

import random

import pytest
import torch

from corerl_engines.remote.pieces import Reads, box_of, find


def random_view(tensor, rng):
    for _ in range(rng.randint(0, 3)):
        if not tensor.ndim:
            return tensor
        dim = rng.randrange(tensor.ndim)
        size = tensor.shape[dim]
        kind = rng.choice(["narrow", "select", "transpose", "split", "step", "flat", "chunk"])
        if kind == "narrow" and size:
            start = rng.randrange(size)
            tensor = tensor.narrow(dim, start, rng.randint(1, size - start))
        elif kind == "select" and size:
            tensor = tensor.select(dim, rng.randrange(size))
        elif kind == "transpose":
            tensor = tensor.transpose(dim, rng.randrange(tensor.ndim))
        elif kind == "split" and size % 2 == 0 and size:
            tensor = tensor.unflatten(dim, (2, size // 2))
        elif kind == "step" and size > 2:
            tensor = tensor[(slice(None),) * dim + (slice(rng.randrange(2), None, 2),)]
        elif kind == "flat" and tensor.is_contiguous():
            tensor = tensor.view(-1)
        elif kind == "chunk" and size:
            tensor = tensor.chunk(2, dim)[-1]
    return tensor


@pytest.mark.parametrize("seed", range(5))
def test_a_box_has_all_elements_of_a_view_and_no_others_if_they_are_a_box(seed):
    rng = random.Random(seed)
    exact = 0
    for _ in range(200):
        shape = [rng.randint(1, 6) for _ in range(rng.randint(0, 3))]
        whole = torch.arange(torch.Size(shape).numel()).view(shape)
        view = random_view(whole, rng)
        box = box_of(view, shape)
        inside = whole[tuple(slice(start, stop) for start, stop in box)] if shape else whole
        elements = {*view.flatten().tolist()}
        assert elements <= {*inside.flatten().tolist()}
        exact += len(elements) == inside.numel()
    assert exact > 150  # others are views of every second element, or of a flat range over rows


def test_a_loader_that_computes_reads_and_copies_nothing_else():
    parameter, bias = torch.full((4, 6), 7.0), torch.full((3,), 7.0)

    def load(named):
        for name, tensor in named:
            if name == "plain":
                parameter[:2].copy_(tensor.narrow(0, 2, 2))
            elif name == "turned":
                parameter[2:].copy_(tensor.t()[:2])
            elif name == "computed":
                bias.copy_((tensor.to("cpu")[3:6] * 2 + 1).float())
            elif name == "unused":
                assert tensor.shape == (5,)
        return {"parameter", "bias"}

    named = [["plain", (8, 6), "float32"], ["turned", (6, 4), "float32"]]
    found = find(load, [*named, ["unused", (5,), "bfloat16"], ["half", (0, 4), "float32"]])
    assert found.reads.boxes == {
        "plain": [[[2, 4], [0, 6]]],
        "turned": [[[0, 6], [0, 2]]],
        "unused": [],
        "half": [],
    }
    assert [box for box, _ in found.reads.direct("plain")] == [[[2, 4], [0, 6]]]
    assert found.reads.direct("turned") is None and found.reads.direct("unused") == []
    assert found.loaded == {"parameter", "bias"}
    computed = find(load, [*named, ["computed", (9,), "float16"]]).reads
    assert computed.boxes["computed"] == [[[0, 9]]] and not computed.is_plain
    assert computed.direct("plain") is None  # another weight's values pass by the loader alone
    assert (parameter == 7).all() and (bias == 7).all()


def test_a_loader_that_looks_at_values_is_an_error():
    with pytest.raises((RuntimeError, NotImplementedError)):
        find(lambda named: [tensor.item() for _, tensor in named], [["scale", (1,), "float32"]])


def test_a_change_of_parameters_outside_copies_forbids_to_pass_by_the_loader():
    parameter = torch.ones(4)

    def load(named):
        for _, tensor in named:
            parameter.copy_(tensor)
            parameter.mul_(2)

    assert find(load, [["w", (4,), "float32"]]).reads.direct("w") is None


def test_fills_are_noted_and_made():
    parameter, reads = torch.ones(4), Reads()
    with reads:
        parameter[:3].copy_(reads.given("w", (3,), torch.float32))
        parameter[3:].fill_(0)
    assert len(reads.fills) == 1 and reads.direct("w")
    parameter.fill_(5)
    reads.fills[0]()
    assert parameter.tolist() == [5, 5, 5, 0]
