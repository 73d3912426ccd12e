import torch

from corerl.contracts.experience import collate


def test_a_row_is_the_prompt_followed_at_once_by_the_response():
    batch = collate([[1, 2], [3]], [[4], [5, 6, 7]], [0, 1])
    assert batch.input_ids.tolist() == [[1, 2, 4, 0], [3, 5, 6, 7]]
    assert batch.lengths.tolist() == [3, 4]
    assert batch.response_mask.tolist() == [[True, False, False], [True, True, True]]


def test_masks_and_log_probs_are_padded_to_the_longest_response():
    batch = collate([[1], [1]], [[4, 5], [6]], [0, 0], masks=[[False, True], [True]], log_probs=[[-1.0, -2.0], [-3.0]])
    assert batch.response_mask.tolist() == [[False, True], [True, False]]
    assert batch.rollout_log_probs.tolist() == [[-1.0, -2.0], [-3.0, 0.0]]


def test_select_keeps_the_order_and_trims_to_the_longest_row():
    batch = collate([[1, 2, 3], [4], [5]], [[6, 7], [8], [9]], [0, 1, 2])
    part = batch.select(torch.tensor([2, 1]))
    assert part.input_ids.tolist() == [[5, 9], [4, 8]]
    assert part.group_ids.tolist() == [2, 1]
    assert part.response_mask.shape == (2, 1)


def test_prediction_index_points_at_the_position_before_each_response_token():
    batch = collate([[1, 2], [3]], [[4], [5, 6]], [0, 1])
    positions, real = batch.prediction_index(batch.input_ids.shape[1])
    # rows are [1 2 4] and [3 5 6]: 4 is predicted at index 1, 5 at 3 (the 3), 6 at 4 (the 5)
    assert positions.tolist() == [1, 3, 4]
    assert real.tolist() == [[True, False], [True, True]]
    assert batch.input_ids.flatten()[positions + 1].tolist() == [4, 5, 6]


def test_prediction_index_counts_masked_response_tokens_too():
    batch = collate([[1]], [[2, 3]], [0], masks=[[False, True]])
    assert batch.prediction_index(3)[0].tolist() == [0, 1]


def test_no_rows_can_be_selected():
    none = collate([[1, 2]], [[3]], [0]).select(torch.zeros(0, dtype=torch.int64))
    assert len(none) == 0
    assert none.input_ids.shape == none.response_mask.shape == (0, 0)
