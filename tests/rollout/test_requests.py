"""From the config to sampling parameters and requests."""

from types import SimpleNamespace

import pytest

from corerl.contracts.config import DataConfig, ModelConfig, RolloutConfig, TrainConfig, ValSamplingConfig
from corerl.contracts.facts import BackendFacts
from corerl.contracts.rollout_backends import SamplingParams
from corerl.data.prompts import Prompt
from corerl.errors import DataError
from corerl.rollout.requests import check_media, greedy_sampling, training_sampling
from corerl_torch.evaluation import validation_sampling

ROLLOUT = RolloutConfig(
    n=5,
    temperature=0.7,
    top_p=0.9,
    top_k=40,
    ignore_eos=True,
    val_kwargs=ValSamplingConfig(do_sample=True, n=3, temperature=0.4, top_p=0.8, top_k=7),
)


def config(rollout=ROLLOUT):
    return TrainConfig(ModelConfig("x"), data=DataConfig(max_response_length=77), rollout=rollout)


def test_training_prompts_are_sampled_as_rollout_says():
    assert training_sampling(config(), (2, 3)) == SamplingParams(
        max_tokens=77, n=5, temperature=0.7, top_p=0.9, top_k=40, stop_token_ids=(2, 3), ignore_eos=True
    )


def test_the_greedy_response_is_one_with_the_same_limit_and_stop_tokens():
    assert greedy_sampling(training_sampling(config(), (2, 3))) == SamplingParams(
        max_tokens=77, n=1, temperature=0.0, top_p=1.0, top_k=-1, stop_token_ids=(2, 3), ignore_eos=True
    )


def test_validation_samples_as_its_own_options_say():
    assert validation_sampling(config(), (2,)) == SamplingParams(
        max_tokens=77, n=3, temperature=0.4, top_p=0.8, top_k=7, stop_token_ids=(2,)
    )


def test_validation_is_greedy_unless_it_is_to_sample_whatever_else_is_set():
    values = ValSamplingConfig(do_sample=False, n=3, temperature=0.4, top_p=0.8, top_k=7)
    assert validation_sampling(config(RolloutConfig(val_kwargs=values)), (2,)) == SamplingParams(
        max_tokens=77, n=3, temperature=0.0, top_p=1.0, top_k=-1, stop_token_ids=(2,)
    )


@pytest.mark.parametrize(("takes", "words"), [((), "text alone"), (("images",), "images")])
def test_media_that_the_engine_does_not_take_are_refused_with_the_prompt(takes, words):
    backend = SimpleNamespace(name="acme", facts=BackendFacts(takes))
    prompts = [Prompt(0, (1,), [], "s", "", {}), Prompt(4, (1,), [], "s", "", {}, {"videos": ["a.mp4"]})]
    check_media(prompts[:1], backend)
    with pytest.raises(DataError, match=f"prompt 4 has 'videos', and rollout backend 'acme' takes {words}: drop"):
        check_media(prompts, backend)
    check_media(prompts, SimpleNamespace(name="acme", facts=BackendFacts(("videos",))))
