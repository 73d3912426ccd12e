"""Sizes of CUDA graphs that an engine gets."""

from types import SimpleNamespace

import pytest

from corerl_vllm_engine.graphs import missing_sizes


def config(largest, requests):
    return SimpleNamespace(
        compilation_config=SimpleNamespace(max_cudagraph_capture_size=largest),
        scheduler_config=SimpleNamespace(max_num_seqs=requests),
    )


def test_a_step_of_all_requests_is_captured():
    assert missing_sizes(config(512, 1024), {}) == {"max_cudagraph_capture_size": 1024}
    assert missing_sizes(config(512, 1024), {"compilation_config": {"mode": 0}, "enforce_eager": False}) == {
        "max_cudagraph_capture_size": 1024
    }


@pytest.mark.parametrize(
    ("largest", "requests", "arguments"),
    [
        (512, 256, {}),
        (512, 512, {}),
        (0, 1024, {}),  # without graphs
        (None, 1024, {}),
        (512, 1024, {"enforce_eager": True}),
        (512, 1024, {"max_cudagraph_capture_size": 512}),
        (512, 1024, {"cudagraph_capture_sizes": [1, 512]}),
        (512, 1024, {"compilation_config": {"cudagraph_capture_sizes": [1, 512]}}),
        (512, 1024, {"compilation_config": 3}),
    ],
)
def test_sizes_that_suffice_or_were_chosen_stay(largest, requests, arguments):
    assert missing_sizes(config(largest, requests), arguments) == {}
