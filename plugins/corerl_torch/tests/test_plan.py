"""The plan of a transfer from sharded to sharded, and the boxes that it is made of."""

import itertools
import random
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore

from corerl.errors import RunError
from corerl_torch.weights import as_in_files, held
from corerl_torch.weights.boxes import disjoint, part, size, whole, without
from corerl_torch.weights.plan import ALIGNMENT, Plan, Weight, make


def random_box(shape, rng):
    return tuple(tuple(sorted(rng.sample(range(length + 1), 2))) for length in shape)


def random_cover(shape, rng, ranks):
    """Boxes of each rank, together the whole; some held by several."""
    boxes = [whole(shape)]
    for _ in range(rng.randrange(4)):
        chosen = boxes.pop(rng.randrange(len(boxes)))
        hole = random_box(shape, rng)
        common = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(chosen, hole, strict=True))
        if all(a < b for a, b in common):
            boxes += [common, *without(chosen, common)]
        else:
            boxes.append(chosen)
    held = [[] for _ in range(ranks)]
    for box in boxes:
        for rank in rng.sample(range(ranks), rng.randint(1, ranks)):
            held[rank].append(box)
    return held


def deliver(plan: Plan, tensors, held, needed):
    """Play the rounds with bytes: per receiver and weight, the values and how often each element arrived."""
    arrived = [
        {name: (torch.full_like(tensors[name], -1), torch.zeros(tensors[name].shape, dtype=torch.int)) for name in own}
        for own in needed
    ]
    for each in plan.rounds:
        buffers = [torch.zeros(sum(row), dtype=torch.uint8) for row in each.bytes]
        for one in each.parts:
            own = next(
                box
                for box in held[one.sender][one.name]
                if all(a <= c and d <= b for (a, b), (c, d) in zip(box, one.box, strict=True))
            )
            assert one.sent_at % ALIGNMENT == one.received_at % ALIGNMENT == 0
            values = part(part(tensors[one.name], whole(tensors[one.name].shape), own), own, one.box)
            flat = values.contiguous().view(-1).view(torch.uint8)
            buffers[one.sender][one.sent_at + ALIGNMENT :][: len(flat)] = flat
        inboxes = []
        for port in range(len(held)):
            chunks = [buffer.split(row)[port] for buffer, row in zip(buffers, each.bytes, strict=True)]
            inboxes.append(torch.cat(chunks))
        for one in each.parts:
            values, counts = arrived[one.receiver][one.name]
            inbox = inboxes[plan.ports[one.receiver]]
            flat = inbox[one.received_at + ALIGNMENT :][: size(one.box) * values.element_size()]
            to = part(values, whole(values.shape), one.box)
            to.copy_(flat.view(values.dtype).view(to.shape))
            part(counts, whole(values.shape), one.box).add_(1)
    return arrived


@pytest.mark.parametrize("seed", range(40))
def test_every_needed_element_arrives_once_for_random_layouts(seed: int):
    rng = random.Random(seed)
    senders, receivers = rng.randint(1, 4), rng.randint(1, 5)
    weights, tensors = [], {}
    held, needed = [{} for _ in range(senders)], [{} for _ in range(receivers)]
    for number in range(rng.randint(1, 5)):
        name = f"w{number}"
        shape = tuple(rng.randint(1, 6) for _ in range(rng.randint(1, 3)))
        tensors[name] = torch.arange(shape.numel() if isinstance(shape, torch.Size) else torch.Size(shape).numel())
        tensors[name] = (tensors[name] + 1000 * number).to(torch.int32).view(shape)
        weights.append(Weight(name, shape, "int32", 4))
        for rank, boxes in enumerate(random_cover(shape, rng, senders)):
            held[rank][name] = boxes
        for own in needed:
            if rng.random() < 0.8:
                own[name] = [random_box(shape, rng) for _ in range(rng.randint(1, 3))]
    ports = [rng.randrange(senders) for _ in range(receivers)]
    plan = make(weights, held, needed, ports, rng.choice([1, 200, 10_000]))
    arrived = deliver(plan, tensors, held, needed)
    expected = 0
    for own, given in zip(needed, arrived, strict=True):
        for name, boxes in own.items():
            wanted = torch.zeros(tensors[name].shape, dtype=torch.int)
            for box in boxes:
                part(wanted, whole(wanted.shape), box).fill_(1)
            values, counts = given[name]
            assert torch.equal(counts, wanted)
            assert torch.equal(values[wanted == 1], tensors[name][wanted == 1])
            expected += int(wanted.sum()) * 4
    assert plan.values == expected
    moved = sum(size(one.box) * 4 for each in plan.rounds for one in each.parts)
    crossed = sum(
        size(one.box) * 4 for each in plan.rounds for one in each.parts if one.sender != plan.ports[one.receiver]
    )
    assert (moved, crossed) == (plan.values, plan.crossing)


def test_no_round_of_several_weights_exceeds_its_limit():
    weights = [Weight(f"w{number}", (number + 1,), "float32", 4) for number in range(30)]
    held = [{weight.name: [whole(weight.shape)] for weight in weights}]
    plan = make(weights, held, held, [0], 150)
    assert len(plan.rounds) > 5
    assert all(each.bytes[0][0] <= 150 for each in plan.rounds)


def test_rounds_use_the_memory_that_the_largest_weight_needs():
    weights = [Weight(f"w{number}", (16,), "float32", 4) for number in range(30)]
    weights.insert(7, Weight("embed", (256,), "float32", 4))
    held = [{weight.name: [whole(weight.shape)] for weight in weights}]
    plan = make(weights, held, held, [0], 150)
    assert plan.room() == (1040, 1040)  # 256 · 4 and a digest
    assert [len(each.parts) for each in plan.rounds] == [7, 1, 13, 10]  # 13 · (64 + 16) = 1040


def test_a_weight_that_nobody_holds_is_named():
    weight = Weight("lm_head.weight", (4, 2), "bfloat16", 2)
    with pytest.raises(RunError, match=r"holds \[2:4, 0:2\] of the weight 'lm_head.weight' \[4, 2\]"):
        make([weight], [{"lm_head.weight": [((0, 2), (0, 2))]}], [{"lm_head.weight": [whole((4, 2))]}], [0], 100)
    with pytest.raises(RunError, match="the weight 'other', which the policy does not have"):
        make([weight], [{}], [{"other": [whole((4, 2))]}], [0], 100)


def test_replicas_share_the_work_of_sending():
    weights = [Weight(f"w{number}", (100,), "float32", 4) for number in range(40)]
    everything = {weight.name: [whole(weight.shape)] for weight in weights}
    plan = make(weights, [everything] * 4, [everything], [3], 1000)
    assert plan.crossing == 0  # the receiver's own port has all
    plan = make(weights, [everything, everything, {}], [everything], [2], 1000)
    sent = [sum(size(one.box) for each in plan.rounds for one in each.parts if one.sender == rank) for rank in range(2)]
    assert sent == [2000, 2000]


def layers(hidden=64, width=160, heads=4, kv=2, vocabulary=1000, count=2):
    """Name -> shape, and the dimension that an engine under tensor parallel divides; None: every rank has it."""
    head = hidden // heads
    yield "embed", (vocabulary, hidden), 0
    for layer in range(count):
        for name, shape, dim in (
            ("q", (heads * head, hidden), 0),
            ("k", (kv * head, hidden), 0),
            ("v", (kv * head, hidden), 0),
            ("o", (hidden, heads * head), 1),
            ("gate", (width, hidden), 0),
            ("up", (width, hidden), 0),
            ("down", (hidden, width), 1),
            ("norm", (hidden,), None),
        ):
            yield f"{layer}.{name}", shape, dim
    yield "norm", (hidden,), None
    yield "lm_head", (vocabulary, hidden), 0


def half(shape, dim, rank):
    box = list(whole(shape))
    if dim is not None:
        each = shape[dim] // 2
        box[dim] = (rank * each, (rank + 1) * each)
    return tuple(box)


@pytest.mark.parametrize(("trainer", "crossing"), [("tp", 0.01), ("fsdp", 0.3)])
def test_two_ranks_to_two_ranks_send_the_model_once(trainer: str, crossing: float):
    shapes = list(layers())
    weights = [Weight(name, shape, "bfloat16", 2) for name, shape, _ in shapes]
    needed = [{name: [half(shape, dim, rank)] for name, shape, dim in shapes} for rank in range(2)]
    held = needed if trainer == "tp" else [{name: [half(s, 0, rank)] for name, s, _ in shapes} for rank in range(2)]
    plan = make(weights, held, needed, [0, 1], 20_000)
    model = 2 * sum(torch.Size(shape).numel() for _, shape, _ in shapes)
    assert plan.values <= 1.1 * model
    assert plan.crossing <= crossing * model


@pytest.fixture
def four_ranks():
    """As rank ``rank`` of four, without the others."""

    def join(rank: int):
        if dist.is_initialized():
            dist.destroy_process_group()
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=4)

    yield join
    dist.destroy_process_group()


MESHES = [
    ((4,), (Shard(0),)),
    ((4,), (Shard(1),)),
    ((2, 2), (Replicate(), Shard(0))),
    ((2, 2), (Shard(0), Shard(1))),
    ((2, 2), (Shard(0), Shard(0))),
    ((2, 2), (_StridedShard(0, split_factor=2), Shard(0))),
    ((2, 2), (Shard(0), _StridedShard(0, split_factor=2))),
]


def test_stacks_of_experts_are_pieces_of_each_expert_by_the_names_of_files():
    config = SimpleNamespace(model_type="qwen3_moe")
    stacks = {"gate_up_proj": torch.arange(3 * 8 * 5.0).view(3, 8, 5), "down_proj": torch.arange(60.0).view(3, 5, 4)}
    named = [(f"model.layers.0.mlp.experts.{name}", stack) for name, stack in stacks.items()]
    expected = dict(as_in_files(config, named))
    found = list(held.pieces(config, named, torch.bfloat16))
    assert [piece.name for piece in found] == list(expected)
    for piece in found:
        assert torch.equal(piece.tensor, expected[piece.name]) and piece.dtype == torch.bfloat16
        assert piece.box == whole(piece.shape) == whole(piece.tensor.shape)


def test_boxes_of_a_dtensor_are_the_values_of_its_ranks(four_ranks):
    for rank in range(4):
        four_ranks(rank)
        for (mesh, placements), shape in itertools.product(MESHES, [(8, 6), (7, 3), (3, 9), (1, 1)]):
            whole_tensor = torch.arange(torch.Size(shape).numel()).view(shape)
            if any(isinstance(each, _StridedShard) for each in placements) and shape[0] % 4:
                continue  # torch divides them evenly alone
            made = distribute_tensor(whole_tensor, init_device_mesh("cpu", mesh), list(placements), src_data_rank=None)
            found = list(held.local_boxes(made))
            assert sum(size(box) for box, _ in found) == made.to_local().numel()
            assert len(disjoint(box for box, _ in found)) == len(found)
            for box, values in found:
                assert torch.equal(values, part(whole_tensor, whole(shape), box)), (mesh, placements, shape, rank)
