"""What holds of an engine of one GPU holds of one with two stages of layers: tests of ``test_engine``."""

from collections.abc import Callable

import pytest
import test_engine
import torch
from vllm_engine import DEVICE, one_more_engine

from corerl.contracts.config import RolloutConfig
from corerl_vllm.backend import VllmBackend

pytestmark = [
    one_more_engine,
    pytest.mark.skipif(DEVICE == "cuda" and torch.cuda.device_count() < 2, reason="needs two CUDA devices"),
    pytest.mark.xdist_group("vllm"),
]


@pytest.fixture(scope="module")
def backend(start: Callable[..., VllmBackend], engine_python: str) -> VllmBackend:
    return start(
        rollout=RolloutConfig(pipeline_model_parallel_size=2),
        python=engine_python,
        load_format="dummy",
        bucket_mb=1,
        environment={"VLLM_CPU_OMP_THREADS_BIND": "nobind"} if DEVICE == "cpu" else {},
    )


test_the_first_update = test_engine.test_nothing_is_generated_from_dummy_weights_and_the_first_update_makes_it_ready
test_greedy_answers = test_engine.test_greedy_answers_are_those_of_hf_after_the_same_update
test_an_update_in_flight = (
    test_engine.test_an_update_in_flight_keeps_what_runs_and_its_later_tokens_are_of_the_new_weights
)
test_an_update_that_fails = test_engine.test_an_update_that_fails_ends_the_calls_that_wait_for_it
test_a_cancelled_call = test_engine.test_a_call_that_is_cancelled_leaves_the_engine_nothing_to_do
test_seeds = test_engine.test_a_seed_gives_the_same_samples_whatever_runs_beside_them
test_many_prompts = test_engine.test_more_seeded_prompts_than_the_engine_takes_at_once_are_all_answered
test_the_load = test_engine.test_the_load_is_the_schedulers
test_aborts = test_engine.test_requests_of_one_id_in_two_calls_are_both_aborted
test_memory = test_engine.test_memory_comes_back_in_two_steps
test_a_core_that_dies = test_engine.test_an_engine_whose_core_dies_while_generating_is_one_error_within_seconds
