import numpy as np

from corerl.contracts.rollout_backends import GenerationRequest, SamplingParams
from corerl_hf.batching import plan_batches
from corerl_hf.decoding import _fill_holes


def requests(*prompts, n=1):
    return [
        GenerationRequest(str(number), prompt, SamplingParams(max_tokens=1, n=n))
        for number, prompt in enumerate(prompts)
    ]


def test_batches_are_of_nearly_one_size_and_hold_every_sample_once():
    batches = plan_batches(requests([1], [2], [3], n=4), max_batch_size=5)
    assert [len(batch) for batch in batches] == [4, 4, 4]
    found = [(row.number, row.sample) for batch in batches for row in batch]
    assert sorted(found) == [(number, sample) for number in range(3) for sample in range(4)]


def test_shorter_prompts_come_first_and_equal_ones_stand_together():
    [batch] = plan_batches(requests([5, 5, 5], [7], [5, 5], [6], [5, 5, 5], [7]), max_batch_size=10)
    assert [row.number for row in batch] == [3, 1, 5, 2, 0, 4]


def test_no_request_gives_no_batch():
    assert plan_batches([], max_batch_size=4) == []


def test_the_last_rows_fill_the_places_of_finished_ones():
    going = np.array([True, False, True, False, True, True])
    assert _fill_holes(going).tolist() == [0, 4, 2, 5]
