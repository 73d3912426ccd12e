"""2 and 4 ranks, over gloo, beside ``torch`` on one device: everything that megatron-core runs on the CPU."""

import functools
import itertools
import json
import os

import megatron_jobs as jobs
import pytest
import torch

from corerl_testing.training_ranks import assert_covered

pytestmark = pytest.mark.xdist_group("ranks")  # which are started once

CUTS = ({"max_sequences": 100}, {"max_sequences": 1}, {"max_tokens": 16})
TENSOR, CONTEXT = {"tensor_model_parallel_size": 2}, {"context_parallel_size": 2}
LAYOUTS = ((1, {}), (2, {}), (2, TENSOR), (2, CONTEXT), (4, TENSOR), (4, {**TENSOR, **CONTEXT}))


def case(layout, model=("qwen2", True), **job):
    return layout, model, {"cut": CUTS[2], **job}


EVERY = os.environ.get("CORERL_EVERY_LAYOUT") == "1"
"""every case, which takes minutes; otherwise some of each layout"""

MODELS = tuple(itertools.product(("qwen2", "qwen3", "llama"), (True, False)))
CASES = [
    *(case(layout, model) for layout, model in itertools.product(LAYOUTS[2:4], MODELS)),
    *(case(layout, MODELS[number]) for number, layout in enumerate(LAYOUTS)),
    *(case(layout, cut=cut) for layout, cut in itertools.product(LAYOUTS[1:4], CUTS[:2])),
    *(case(layout, head="value") for layout in LAYOUTS[1:]),
    *(case(layout, vocabulary=True) for layout in LAYOUTS[2:4]),
    *(case(layout, rows=rows) for layout, rows in zip(LAYOUTS[1:], (1, 3, 1, 1, 1), strict=True)),
    *(case(layout, ("qwen3", False), options={"logits_chunk_size": None}) for layout in LAYOUTS[2:4]),
]
CASES.sort(key=lambda each: LAYOUTS.index(each[0]))  # ranks are started once for each layout
CASES = CASES if EVERY else [each for each in CASES[1::3] if each[0][0] < 4]
NEW = [case(layout, (f"{name} dense", False)) for name in ("deepseek_v3", "glm4_moe") for layout in LAYOUTS[2:]]
CASES += NEW if EVERY else NEW[:1]
CASES += [case(layout, of_logits=True) for layout in (LAYOUTS if EVERY else LAYOUTS[2:4])]
CASES += [case(layout, kept=True) for layout in (LAYOUTS if EVERY else LAYOUTS[2:4])]


@functools.cache
def alone(text):
    return jobs.run(json.loads(text))


def beside(worlds, folder, layout, job):
    """What the ranks gave, and what one device gives."""
    job = {"kind": "agree", "model": folder, "start": True, **job}
    expected = alone(json.dumps(job))
    size, options = layout
    results = worlds(size, **options).run(**job)
    for result in (*results, expected):
        assert "error" not in result, result["error"]
    return results, expected


@pytest.mark.parametrize(("layout", "model", "job"), CASES)
def test_ranks_agree_with_one_device(worlds, model_dirs, layout, model, job):
    results, expected = beside(worlds, model_dirs[model], layout, job)
    sharing = layout[1].get("tensor_model_parallel_size", 1) * layout[1].get("context_parallel_size", 1)
    ranks = layout[0] // sharing
    assert [result["place"] for result in results] == [(rank // sharing, ranks) for rank in range(layout[0])]
    for name, true in expected["before"].items():
        together = torch.zeros_like(true)
        for result in results:
            part = result["before"][name]
            together[result["place"][0] :: ranks, : part.shape[1]] = part
            assert torch.equal(part, results[result["place"][0] * sharing]["before"][name])
        torch.testing.assert_close(together, true, rtol=1e-5, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")
    assert_covered(results)
    for result in results:
        assert result["metrics"] == results[0]["metrics"]
        assert result["metrics"] == pytest.approx(expected["metrics"], rel=1e-5)
        for which in ("start", "gradient", "weights"):
            assert result[which].keys() == expected["weights"].keys()
        for name, true in expected["start"].items():
            assert torch.equal(result["start"][name], true), name
        for name, true in expected["gradient"].items():
            assert (result["gradient"][name] - true).norm() <= 1e-5 * true.norm() + 1e-8, name
        for name, true in expected["weights"].items():
            torch.testing.assert_close(result["weights"][name], true, rtol=0, atol=1e-5)


@pytest.mark.parametrize("layout", LAYOUTS if EVERY else LAYOUTS[2:4])
def test_ranks_learn_from_a_teacher_as_one_device_does(worlds, model_dirs, layout):
    job = {"kind": "distill", "model": model_dirs["qwen2", False], "cut": CUTS[2]}
    expected, (size, options) = jobs.run(job), layout
    assert expected["loss"] > 0.05
    for result in worlds(size, **options).run(**job):
        assert "error" not in result, result["error"]
        assert result["loss"] == pytest.approx(expected["loss"], rel=1e-5)
        for name, true in expected["gradient"].items():
            assert (result["gradient"][name] - true).norm() <= 1e-5 * true.norm() + 1e-8, name


def test_gradients_are_clipped_by_the_norm_over_all_ranks(worlds, model_dirs):
    job = {"grad_clip": 0.01, "cut": CUTS[2]}
    results, expected = beside(worlds, model_dirs["qwen3", True], (4, TENSOR), job)
    assert results[3]["metrics"]["grad_norm"] == pytest.approx(expected["metrics"]["grad_norm"], rel=1e-5)
    for name, true in expected["weights"].items():
        torch.testing.assert_close(results[3]["weights"][name], true, rtol=0, atol=1e-5)
