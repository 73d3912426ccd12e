"""Each family of docs/models.md on two ranks, beside ``torch`` on one device."""

import os

import pytest
import rank_jobs
import torch
from safetensors.torch import load_file

from corerl_torch.families.columns import COLUMNS
from corerl_torch.families.table import FAMILIES
from family_models import write_model

pytestmark = pytest.mark.xdist_group("ranks")  # which are started once

ALWAYS = ("qwen3_next", "gpt_oss", "deepseek_v3")
"""a recurrent state, sinks, latent attention with routers whose bias is a buffer"""

EVERY = os.environ.get("CORERL_EVERY_FAMILY") == "1"
STATES = {column.feature: column for column in COLUMNS if column.backend == "fsdp"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {}


@pytest.fixture(
    params=[each for each in FAMILIES if EVERY or each.model_type in ALWAYS], ids=lambda each: each.model_type
)
def family(request):
    return request.param


@pytest.fixture
def job(family, folders, tmp_path_factory):
    if family.model_type not in folders:
        folders[family.model_type] = str(write_model(tmp_path_factory.mktemp(family.model_type), family))
    return {"model": folders[family.model_type], "config": {"load_format": "auto"}}


MOVED = 5e-5
"""after a step, whose size is the gradient over itself and an eps of 1e-3: 1e-6 of a gradient is 1e-5 of a weight"""


ADAPTED = 2e-3
"""of a gradient behind adapters that one step has moved from 0 to some 0.03: they differ by up to MOVED"""


ROUNDED = {"gemma4_text": 5}
"""how many times as far as others' the gradients of a family in float32 are from those in float64: 6e-6, not 1e-6;
behind adapters that a step has moved, 3e-2, so these adapters begin at 0"""


def require_same(results, expected, family, tolerance=1e-5):
    times = ROUNDED.get(family.model_type, 1)
    for result in results:
        assert "error" not in result, result["error"]
        for name, true in expected["gradient"].items():
            assert (result["gradient"][name] - true).norm() <= times * tolerance * true.norm() + 1e-8, name
        assert result["weights"].keys() == expected["weights"].keys()
        for name, true in expected["weights"].items():
            torch.testing.assert_close(result["weights"][name], true, rtol=0, atol=times * MOVED)


def together(results, name, like):
    """The log-probs of the ranks in the order of the whole batch."""
    found = torch.zeros_like(like)
    for rank, result in enumerate(results):
        part = result["before"][name]
        found[rank :: len(results), : part.shape[1]] = part
    return found


def test_two_ranks_have_the_numbers_of_one_device(worlds, family, job):
    assert family.state(STATES["packed"]) in ("proven", "padded")
    expected = rank_jobs.run({**job, "kind": "agree"})
    results = worlds[2].run(**job, kind="agree", fsdp={})
    require_same(results, expected, family)
    true = expected["before"]["log_probs"]
    torch.testing.assert_close(together(results, "log_probs", true), true, rtol=1e-5, atol=1e-5)


def test_two_ranks_share_rows(worlds, family, job):
    require_shared(worlds, family, job, "ulysses", {"ulysses_sequence_parallel_size": 2})


def test_two_ranks_share_a_context(worlds, family, job):
    if family.model_type != "gpt_oss" and not EVERY:
        pytest.skip("runs with CORERL_EVERY_FAMILY=1")
    require_shared(worlds, family, job, "context", {"context_parallel_size": 2})


def require_shared(worlds, family, job, feature, options):
    """Ranks that share every row have the numbers of one device."""
    results = worlds[2].run(**job, kind="agree", fsdp=options)
    if family.state(STATES[feature]) == "refused":
        for result in results:
            assert "2 slices packed rows, and those of" in result["error"] and "cannot be packed" in result["error"]
        return
    expected = rank_jobs.run({**job, "kind": "agree"})
    require_same(results, expected, family)
    for result in results:
        torch.testing.assert_close(result["before"]["log_probs"], expected["before"]["log_probs"], rtol=1e-5, atol=1e-5)


def test_two_ranks_divide_the_experts(worlds, family, job):
    if family.model_type != "deepseek_v3" and not EVERY:
        pytest.skip("runs with CORERL_EVERY_FAMILY=1")
    results = worlds[2].run(**job, kind="agree", fsdp={"expert_parallel_size": 2})
    if family.state(STATES["experts"]) == "refused":
        for result in results:
            assert "expert_parallel_size: must be 1: the experts of" in result["error"]
        return
    expected = rank_jobs.run({**job, "kind": "agree"})
    require_same(results, expected, family)
    true = expected["before"]["log_probs"]
    torch.testing.assert_close(together(results, "log_probs", true), true, rtol=1e-5, atol=1e-5)


def test_two_ranks_train_adapters(worlds, family, job):
    adapters = {"lora_rank": 2, "target_modules": list(family.adapted) or "all-linear"}
    warm = family.model_type not in ROUNDED
    job = {**job, "kind": "agree", "warm": warm, "config": {**job["config"], **adapters}}
    require_same(worlds[2].run(**job, fsdp={}), rank_jobs.run(job), family, ADAPTED)


def test_two_ranks_export_what_one_device_exports(worlds, job, tmp_path):
    job = {**job, "kind": "train", "seeds": [0]}
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    expected = rank_jobs.run({**job, "export": str(tmp_path / "one")})
    for result in worlds[2].run(**job, fsdp={}, save=str(tmp_path), export=str(tmp_path / "two")):
        assert "error" not in result, result["error"]
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    assert one.keys() == two.keys() >= expected["weights"].keys()
    for name, true in one.items():
        torch.testing.assert_close(two[name], true, rtol=0, atol=MOVED)


def test_two_ranks_divide_the_matrices(worlds, family, job):
    results = worlds[2].run(**job, kind="agree", fsdp={"tensor_model_parallel_size": 2})
    if family.state(STATES["tensor"]) == "refused":
        for result in results:
            assert "tensor_model_parallel_size: must be 1: no test proves a plan for" in result["error"]
        return
    expected = rank_jobs.run({**job, "kind": "agree"})
    require_same(results, expected, family)
    for result in results:
        for name, true in expected["before"].items():
            torch.testing.assert_close(result["before"][name], true, rtol=1e-5, atol=1e-5)
