"""Engines with stages and data parallel ranks, against calculations by hand and a ring of events."""

import dataclasses
from typing import Any

import pytest

import model_by_hand
from corerl.cli.common import read_train_values
from corerl.contracts.config import DataConfig, ModelConfig, RolloutConfig, TrainConfig
from corerl.plugins import load_plugins
from corerl_check import GIB, ModelSize
from corerl_simulate import costs
from corerl_simulate.engine import EngineSpeed
from corerl_simulate.job import EnginePool, Job, Trainers, machine_of
from corerl_simulate.layouts import Layout, Refused, own_layout
from corerl_simulate.lengths import Fixed
from corerl_simulate.run import simulate
from corerl_simulate.table import Engine, Exchange, Gpu, Links, Overlap, Table, Training, read_table
from corerl_simulate.validation import shape
from corerl_tools.check import memory

SIZE = dataclasses.replace(model_by_hand.SIZE, parameters=680, trained=680, layers=4)
EXPERTS = dataclasses.replace(SIZE, parameters=680 + 4 * 288, in_experts=4 * 384, experts_of_token=1, intermediate=8)
"""four experts of 96 parameters in each layer, of which a token sees one"""
KIB = Gpu(1.0, 1e-9, 1e-9, 1e-9)
"""a thousand bytes and operations a second"""
NO_LINKS = Links(8, 1e9, 1e9, 0, 0)


def table_of(step_ms: float = 10.0, gpu: Gpu = KIB, links: Links = NO_LINKS) -> Table:
    return Table(
        "by hand",
        gpu,
        links,
        Training(0, 0, 1, 0, 0, 0, 0, 1),
        Exchange(0, 0, 0, 1, 0, 0, 2, 0, 0, 0),
        Overlap(1, 1, 1, 1, 0),
        {"vllm": Engine(step_ms=step_ms, most=8)},
    )


def job_of(size: ModelSize, *, stages: int = 1, data: int = 1, tensor: int = 1, n: int = 2, **options: Any) -> Job:
    config = TrainConfig(ModelConfig("none"), rollout=RolloutConfig(n=n))
    config.data = DataConfig(train_batch_size=2, max_prompt_length=10, max_response_length=100)
    config.rollout.pipeline_model_parallel_size, config.rollout.data_parallel_size = stages, data
    config.runtime.options = options
    pool = EnginePool("vllm", 1, tensor, 1, 1e9, stages * data * tensor, stages, data)
    return Job(config, {"actor": size}, Trainers(1), pool, old_log_probs=False, is_ray=True, most=99)


def round_of(jobs: int, servers: list[float]) -> float:
    """Seconds of a round of so many jobs in a ring of servers, each of which serves one at a time; by events."""
    free, ready, begun = [0.0] * len(servers), [0.0] * jobs, []
    for _ in range(200):
        for job in range(jobs):  # they never overtake
            moment = ready[job]
            for place, seconds in enumerate(servers):
                moment = max(moment, free[place]) + seconds
                free[place] = moment
            ready[job] = moment
        begun.append(ready[0])
    return (begun[-1] - begun[-101]) / 100


@pytest.mark.parametrize("running", [1, 2, 3, 4, 8, 64])
@pytest.mark.parametrize("processor", [0.001, 0.02, 0.3])
def test_a_round_is_that_of_micro_batches_in_a_ring_of_stages(running: int, processor: float) -> None:
    stages, weights, product = 4, 0.4, 0.05
    shares = [0.2, 0.2, 0.2, 0.4]  # the last has the output layer
    speed = EngineSpeed(
        step=processor, sample=0.001, least=weights, product=product, stages=stages, slowest=max(shares)
    )
    batches = min(stages, running)
    each = running / batches
    gpu = max(weights, product * each)
    ring = [processor + 0.001 * each, *(share * gpu for share in shares)]
    assert speed.decode(running, 0, 1) == pytest.approx(round_of(batches, ring))


def test_stages_have_the_throughput_of_their_gpus_and_the_latency_of_one() -> None:
    one, four = (EngineSpeed(0.001, least=0.4, product=0.05, stages=stages, slowest=1 / stages) for stages in (1, 4))
    assert 4096 / four.decode(4096, 0, 1) == pytest.approx(4 * 4096 / one.decode(4096, 0, 1), rel=1e-3)
    assert four.decode(1, 0, 1) == one.decode(1, 0, 1) == pytest.approx(0.401)


def test_a_round_of_two_stages_by_hand() -> None:
    speed = costs.engine_speed(SIZE, job_of(SIZE, stages=2), table_of())
    # a micro-batch of one sample: 10 ms and 320 bytes of logits on the processor, 680 parameters read, and of 5 + 0.5
    # tokens on average 64 bytes of keys and values each
    way = 0.01 + 0.32 + 1.36 + 5.5 * 0.064
    assert speed.decode(2, 10, 1) == pytest.approx(way)
    # of 40 samples the second stage, with the output layer, has 360 of 680 parameters to multiply: 20 times 1.36 s
    reads_at_once = Gpu(1.0, 1e-9, 1e-9, 1e9)
    quick = costs.engine_speed(SIZE, job_of(SIZE, stages=2), table_of(gpu=reads_at_once))
    assert quick.decode(40, 0, 1) == pytest.approx(2 * 360 / 680 * 20 * 1.36)
    assert speed.prefill == pytest.approx(360 / 680 * 1.36)  # one stage reads while the other does
    for running, tokens in ((1, 5), (2, 10), (40, 0), (40, 4000)):
        assert speed.steps(running, tokens, speed.decode(running, tokens, 7.5)) == pytest.approx(7.5)


def test_a_step_with_two_stages_takes_twice_the_processor_of_a_decode_step() -> None:
    fast = Gpu(1.0, 1e9, 1e9, 1e9)
    step = simulate(job_of(SIZE, stages=2), Fixed(100), 10, table_of(gpu=fast), steps=1)
    assert step.parts["gen"] == pytest.approx(100 * 2 * 0.01)
    alone = simulate(job_of(SIZE), Fixed(100), 10, table_of(gpu=fast), steps=1)
    assert alone.parts["gen"] == pytest.approx(100 * 0.01)


def test_data_parallel_ranks_divide_samples_and_experts_by_hand() -> None:
    links = Links(8, 1e-6, 1e9, 500, 0)  # a thousand bytes a second, half a millisecond a collective
    speed = costs.engine_speed(EXPERTS, job_of(EXPERTS, data=2), table_of(links=links))
    # each rank: 4 layers of 64 + 2 · 96 parameters and 40 outside are read; each sample multiplies 4 · (64 + 96) + 40;
    # 8 exchanges, and in each the half of 4 numbers of 2 bytes of every sample comes from the other rank
    products = max(2 * (4 * 256 + 40) / 1e3, 3 * 1.36)
    assert speed.decode(6, 0, 1) == pytest.approx(
        0.01 + 3 * 0.32 + products + 8 * 0.0005 + 6 * 8 * 4 / 1e3 + 0.064 * 3 / 2
    )
    one = costs.engine_speed(EXPERTS, job_of(EXPERTS), table_of(links=links))
    assert one.decode(3, 0, 1) == pytest.approx(0.01 + 3 * 0.32 + max(2 * (4 * 448 + 40) / 1e3, 4.08) + 0.064 * 3 / 2)
    # prompts of two samples are read by both ranks, those of one by one of them
    assert speed.prefill == pytest.approx(2 * (1.36 / 2 + 8 * 4 / 1e3))
    alone = costs.engine_speed(EXPERTS, job_of(EXPERTS, data=2, n=1), table_of(links=links))
    assert alone.prefill == pytest.approx(speed.prefill / 2)


def test_a_data_parallel_engine_computes_as_many_samples_as_its_ranks() -> None:
    fast = Gpu(1.0, 1e9, 1e9, 1e9)
    seconds = {}
    for data in (1, 2):
        job = job_of(EXPERTS, data=data, n=8)  # 16 responses, and a rank computes 8 at a time
        seconds[data] = simulate(job, Fixed(100), 10, table_of(gpu=fast), steps=1).parts["gen"]
    assert seconds == pytest.approx({1: 2 * 100 * 0.01, 2: 100 * 0.01})


def test_hosts_of_an_engine_get_hidden_states_once() -> None:
    links = Links(2, 1e9, 1e-6, 0, 0)
    job = job_of(SIZE, tensor=2, stages=2)  # a stage on each host: 2 tensors of 4 numbers of 2 bytes
    assert costs.engine_speed(SIZE, job, table_of(links=links)).sent == pytest.approx(2 * 8 / 1e3)
    job = job_of(EXPERTS, data=4)  # to the experts and back: of each sample the half comes from the other host
    sent = costs.engine_speed(EXPERTS, job, table_of(links=links)).sent
    assert sent == pytest.approx(4 * 2 * 8 / 2 / (2 * 1e3))


def test_weights_come_whole_or_in_parts() -> None:
    tebi = dataclasses.replace(SIZE, parameters=10**9, beside=10**8)
    table = table_of(links=dataclasses.replace(NO_LINKS, gpus_per_node=2))
    # 2 GB at 2 GB/s to two GPUs; four GPUs are on two hosts, of which the first passes them on, and the rate is lower
    assert costs.weights(job_of(tebi, stages=2), table) == pytest.approx(1.0)
    assert costs.weights(job_of(tebi, stages=4), table) == pytest.approx(1.1 + 1.0)
    parts = job_of(tebi, stages=2, weights_transport="exchange")
    assert costs.weights(parts, table) == pytest.approx(2 * (0.9 / 2 + 0.1) / 2)


def test_the_memory_of_a_rank_by_hand_is_that_of_corerl_check() -> None:
    given = [
        "model.path=none",
        "rollout.name=vllm",
        "model.dtype=bf16",
        "runtime.name=ray",
        "runtime.n_gpus_per_node=4",
    ]
    given += ["rollout.n_gpus_per_node=4", "actor.strategy=fsdp", "rollout.options.gpu_memory_utilization=0.5"]
    values, plugins = read_train_values(None, given)
    dimensions = {"hidden": 1000, "intermediate": 4000, "layers": 10, "heads": 10, "key_value_heads": 2}
    dense = shape({**dimensions, "head_size": 100, "tied": False})
    attention, wide, outside = 1000 * 100 * (20 + 4), 3 * 1000 * 4000, 151_936 * 1000
    assert dense.parameters == 10 * (attention + wide) + 2 * outside
    experts = dataclasses.replace(dense, in_experts=10 * wide, experts_of_token=1)
    table = read_table("h200")
    for size, tensor, stages, data, numbers, bytes_of_token in (
        (dense, 1, 4, 1, 3 * (attention + wide) + outside, 3 * 800),  # of 10 layers, the fullest stage has 3
        (dense, 2, 2, 1, (5 * (attention + wide) + outside) / 2, 5 * 400),
        (experts, 1, 1, 4, 10 * (attention + wide / 4) + 2 * outside, 10 * 800),
        (experts, 2, 1, 2, (10 * (attention + wide / 2) + 2 * outside) / 2, 10 * 400),
    ):
        names = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "data_parallel_size")
        values["rollout"] |= dict(zip(names, (tensor, stages, data), strict=True))
        layout = own_layout(values, plugins, {"actor": size}, table)
        assert isinstance(layout, Layout) and layout.job.engines.count == 1
        cache = 0.5 * 139.8 * GIB - 2 * numbers - 2 * GIB
        assert layout.job.engines.cache == pytest.approx(data * cache / bytes_of_token)
        config = layout.job.config
        machine = machine_of(config, table)
        found = memory.estimate(config, layout.parts, {"actor": size}, machine, frees_engine=False)
        [generation] = [phase for phase in found.phases if phase.name == "generation"]
        assert generation.parts["engine's weights"] == pytest.approx(2 * numbers)
        assert layout.memory[1] == pytest.approx(generation.total / GIB)
        longest = config.data.max_prompt_length + config.data.max_response_length
        assert found.sequences == data * int(cache / (bytes_of_token * longest))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((8, 1), "rollout.pipeline_model_parallel_size is 8, and the model has 4 layers"),
        ((1, 2), "rollout.data_parallel_size is 2, and the model has no experts to divide"),
        ((3, 1), "4 GPUs of engines cannot be divided by 1 tensor × 3 pipeline × 1 data parallel ranks"),
    ],
)
def test_an_engine_that_cannot_be_divided_so_is_refused(sizes: tuple[int, int], message: str) -> None:
    values = {"model": {"path": "none"}, "rollout": {"name": "vllm", "n_gpus_per_node": 4}}
    values["rollout"] |= {"pipeline_model_parallel_size": sizes[0], "data_parallel_size": sizes[1]}
    refused = own_layout(values, load_plugins(), {"actor": SIZE}, read_table("h200"))
    assert isinstance(refused, Refused) and refused.reason == message
