import torch

from corerl.batch.cuts import mini_batches


def test_mini_batches_hold_whole_groups_in_the_order_of_their_ids():
    groups = torch.tensor([2, 0, 1, 0, 2, 1])
    assert [rows.tolist() for rows in mini_batches(groups, 2)] == [[1, 2, 3, 5], [0, 4]]
