"""Checkpoints, exports and errors of several ranks."""

import os
import socket
import time
from functools import partial

import pytest
import rank_jobs
import torch
from safetensors.torch import load_file

from corerl.contracts.config import ModelConfig
from corerl.errors import ConfigError, DeadlineError, RunError
from corerl_check.size import model_size
from corerl_fsdp.options import FsdpOptions
from corerl_fsdp.reading import read_sharded
from corerl_testing.ranks import World
from corerl_testing.tiny_model import tiny_model
from corerl_torch import ranks

pytestmark = pytest.mark.xdist_group("ranks")  # which are started once

EVERY = os.environ.get("CORERL_EVERY_COMBINATION") == "1"
FSDP = {"fsdp": {}, "cut": {"max_tokens": 30}}

assert_same = partial(torch.testing.assert_close, rtol=0, atol=0)


@pytest.mark.parametrize("head", ["lm", *(["value"] if EVERY else [])])
def test_a_checkpoint_of_two_ranks_is_read_by_two_four_and_one(worlds, model_dirs, tmp_path, head):
    job = {"kind": "train", "model": model_dirs["qwen2", True], "head": head, **FSDP}
    straight = rank_jobs.run({"kind": "train", "model": job["model"], "head": head, "seeds": [0, 1, 2, 3]})
    saved = worlds[2].run(**job, seeds=[0, 1], save=str(tmp_path))[0]["weights"]
    assert_same(dict(read_sharded(tmp_path, ModelConfig(job["model"]))), saved)
    on_two = worlds[2].run(**job, load=str(tmp_path), seeds=[2, 3])
    uninterrupted = worlds[2].run(**job, seeds=[0, 1, 2, 3])
    assert_same(on_two[1]["weights"], uninterrupted[0]["weights"])
    on_four = worlds[4].run(**job, load=str(tmp_path), seeds=[2, 3])
    on_one = rank_jobs.run({**job, "load": str(tmp_path), "seeds": [2, 3]})
    for result in (*on_two, *on_four, on_one):
        assert_same(result["weights"], straight["weights"], atol=1e-5)


def test_a_write_is_bounded_by_no_deadline_of_the_ranks_and_costs_no_later_one(worlds, model_dirs, tmp_path):
    job = {"kind": "slow_writes", "model": model_dirs["qwen2", True], "fsdp": {"timeout": 1.0}}
    written = dict.fromkeys(("slow", "hung", "beside", "last"), "written")
    failed = "rank 1: [Errno 28] No space left on device"
    for result in worlds[2].run(**job, save=str(tmp_path)):
        assert result == {**written, "failed": failed, "hung before": "is being written"}
    for name in written:
        assert dict(read_sharded(tmp_path / name, ModelConfig(job["model"])))


def test_a_rate_that_changed_holds_after_loading(worlds, model_dirs, tmp_path):
    job = {"kind": "train", "model": model_dirs["qwen2", True], **FSDP}
    saved = worlds[2].run(**job, seeds=[0], save=str(tmp_path))[0]["weights"]
    still = worlds[2].run(**job, load=str(tmp_path), seeds=[1], optim={"lr": 1e-30})
    for result in still:
        assert_same(result["weights"], saved)


@pytest.mark.skipif(not EVERY, reason="CORERL_EVERY_COMBINATION=1")
def test_a_checkpoint_may_lack_the_optimizer_and_sums_be_rounded(worlds, model_dirs, tmp_path):
    job = {"kind": "train", "model": model_dirs["qwen2", True], "cut": {"max_tokens": 30}}
    light = {**job, "fsdp": {"save_optimizer": False}}
    worlds[2].run(**light, seeds=[0, 1], save=str(tmp_path))
    refused = worlds[2].run(**job, fsdp={}, load=str(tmp_path), seeds=[2])
    assert all("holds no state of the optimizer" in each["error"] for each in refused)
    loaded = [worlds[size].run(**light, load=str(tmp_path), seeds=[2])[0]["weights"] for size in (2, 4)]
    assert_same(loaded[0], loaded[1], atol=1e-5)
    exact, rounded = (worlds[2].run(**job, fsdp={"reduce_dtype": each}, seeds=[0])[0] for each in ("fp32", "bf16"))
    difference = max((exact["weights"][name] - each).abs().max() for name, each in rounded["weights"].items())
    assert 0 < difference < 1e-2


@pytest.mark.parametrize(("saving", "reading"), [({"fsdp_size": 2}, {}), *([({}, {"fsdp_size": 2})] if EVERY else [])])
def test_a_checkpoint_of_groups_with_copies_is_read_by_any_number_of_ranks(
    worlds, model_dirs, tmp_path, saving, reading
):
    job = {"kind": "train", "model": model_dirs["qwen2", True], "cut": FSDP["cut"]}
    straight = rank_jobs.run({**job, "seeds": [0, 1]})
    results = worlds[4].run(**job, seeds=[0], save=str(tmp_path), fsdp=saving)
    saved = results[0]["weights"]
    for result in results:
        assert_same(result["weights"], saved)
    assert_same(dict(read_sharded(tmp_path, ModelConfig(job["model"]))), saved)
    again = [worlds[4].run(**job, load=str(tmp_path), seeds=[1], fsdp=reading)[3]]
    again.append(worlds[2].run(**job, load=str(tmp_path), seeds=[1], fsdp={})[1])
    for result in again:
        assert_same(result["weights"], straight["weights"], atol=1e-5)


def test_two_ranks_hold_what_the_estimate_of_their_memory_says(worlds, model_dirs):
    """The sum over ranks is that of one model; gradients are divided when the last micro-batch is through."""
    config = {"load_format": "dummy", "dtype": "bf16"}
    model = ModelConfig(model_dirs["qwen2", True], **config)
    job = {"kind": "memory", "model": model.path, "config": config, "fsdp": {}, "cut": {"max_sequences": 2}}
    results = worlds[2].run(**job)
    size = model_size(model, "cpu")
    estimated = FsdpOptions().share(size, 2, model, updated=True)
    assert sum(result["weights"] for result in results) == 4 * size.parameters
    assert sum(result["optimizer"] for result in results) == 8 * size.parameters
    for result in results:
        assert result["weights"] + result["optimizer"] == pytest.approx(estimated.at_rest, rel=0.01)
        assert result["optimizer"] == pytest.approx(estimated.optimizer, rel=0.01)
        assert result["gradients"][0] == estimated.gradients == 4 * size.parameters
        assert result["gradients"][-1] == result["weights"]


@pytest.mark.parametrize("tied", [True, False])
def test_an_export_holds_the_trained_weights_and_the_tokenizer(worlds, tmp_path, tied):
    job = {"kind": "train", "model": str(tiny_model(tied=tied)), "config": {"load_format": "auto"}, **FSDP}
    trained = worlds[2].run(**job, seeds=[0], export=str(tmp_path))[0]["weights"]
    stored = load_file(tmp_path / "model.safetensors")
    assert_same({name: stored[name] for name in trained}, trained)
    assert ("lm_head.weight" in trained) == (not tied)
    again = rank_jobs.run({**job, "model": str(tmp_path), "seeds": []})
    assert_same(again["weights"], trained)
    assert (tmp_path / "tokenizer.json").is_file()


def test_weights_for_an_engine_are_cast_before_they_are_gathered(worlds, model_dirs):
    job = {"kind": "gathered", "model": model_dirs["qwen2", True], **FSDP}
    for rounded, held in worlds[2].run(**job):
        assert 0 < 2 * rounded == held


def test_offload_changes_no_number(worlds, model_dirs, tmp_path):
    """The policy sums gradients after every micro-batch, in the order of ``shard_gradients``: the bits are equal."""
    job = {"kind": "train", "model": model_dirs["qwen2", True], "cut": {"max_tokens": 30}, "seeds": [0, 1]}
    plain = worlds[2].run(**job, fsdp={"shard_gradients": True})[0]["weights"]
    offloaded = worlds[2].run(**job, fsdp={"offload_policy": True}, save=str(tmp_path))
    does_nothing = {"shard_gradients": True, "param_offload": True, "optimizer_offload": True}  # on the CPU
    apart = {"optimizer": {"name": "adamw", "offload_fraction": 0.5}}
    partly = worlds[2].run(**job, optim=apart, fsdp={"shard_gradients": True}, save=str(tmp_path / "partly"))
    for each in (*offloaded, *partly, *worlds[2].run(**job, fsdp=does_nothing)):
        assert_same(each["weights"], plain)
    if EVERY:
        on = [worlds[2].run(**job, fsdp={"offload_policy": each}, load=str(tmp_path)) for each in (True, False)]
        assert_same(on[0][0]["weights"], on[1][0]["weights"], atol=1e-6)
        exchanged = [worlds[2].run(**job, optim=one, fsdp={}, load=str(tmp_path / "partly")) for one in ({}, apart)]
        assert_same(exchanged[0][0]["weights"], exchanged[1][0]["weights"])


@pytest.mark.parametrize(("row", "rows"), [(1, [[], [0]]), (5, [[], [2]]), (6, [[3], []])])
def test_rows_that_are_not_finite_are_named_by_the_rank_that_has_them(worlds, model_dirs, row, rows):
    job = {"kind": "nonfinite", "model": model_dirs["qwen3", False], "bad_row": row, **FSDP}
    results = worlds[2].run(**job)
    assert [result["rows"] for result in results] == rows
    assert all(result["same"] for result in results)


@pytest.mark.parametrize("way", ["context", *(["ulysses_sequence"] if EVERY else [])])
def test_ranks_that_share_rows_name_those_that_are_not_finite_alike(worlds, model_dirs, way):
    options = {f"{way}_parallel_size": 2}
    job = {"kind": "nonfinite", "model": model_dirs["qwen3", False], "bad_row": 5, "fsdp": options}
    results = worlds[4].run(**job)
    assert [result["rows"] for result in results] == [[], [], [2], [2]]
    assert all(result["same"] for result in results)


def test_a_model_that_rank_0_cannot_read_is_an_error_on_all(worlds, model_dirs):
    job = {"kind": "build", "model": model_dirs["qwen2", True], "config": {"load_format": "auto"}, **FSDP}
    results = worlds[2].run(**job)
    assert all(result["error"].startswith("ModelError: model.path: ") for result in results)


def test_when_one_rank_raises_the_others_end_within_the_timeout(model_dirs):
    world = World(2, rank_jobs.run)
    job = {"kind": "fail", "model": model_dirs["qwen2", True], "fsdp": {"timeout": 2.0}, "rank": 1}
    try:
        world.run(**{**job, "rank": None})
        start = time.monotonic()
        waiting, raising = world.run(**job)
        assert raising["error"] == "ValueError: out of order"
        assert waiting["error"].startswith("WorkerLateError: rank 0 of 2 waited for another rank in update longer than")
        assert time.monotonic() - start < 30
    finally:
        world.close()


@pytest.fixture
def apart(monkeypatch):
    """As if this process had joined no group."""
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.distributed.distributed_c10d._world, "_default_pg", None)
    for name in ranks.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_variables_that_are_missing_are_named(apart):
    apart.setenv("RANK", "0")
    apart.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="RANK and WORLD_SIZE for this rank, and not LOCAL_RANK, MASTER_ADDR, MASTER"):
        ranks.join("cpu", 1.0)


def test_a_port_that_another_program_has_is_named_at_once(apart):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        for name, value in zip(ranks.VARIABLES, ("0", "2", "0", "127.0.0.1", port), strict=True):
            apart.setenv(name, value)
        with pytest.raises(
            RunError, match=rf"^rank 0 cannot listen at 127.0.0.1:{port}: another program has that port"
        ):
            ranks.join("cpu", 5.0)


def test_a_rank_that_nobody_meets_ends_within_the_timeout(apart):
    for name, value in zip(ranks.VARIABLES, ("1", "2", "1", "127.0.0.1", "1"), strict=True):
        apart.setenv(name, value)
    with pytest.raises(DeadlineError, match=r"rank 1 of 2 did not meet the others at 127.0.0.1:1 within \d+ s \("):
        ranks.join("cpu", 1.0)


def test_without_variables_the_environment_is_as_before(model_dirs):
    before = dict(os.environ)
    rank_jobs.run({"kind": "build", "model": model_dirs["qwen2", True], **FSDP})
    assert dict(os.environ) == before
