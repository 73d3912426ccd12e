import torch

from corerl_engines.remote.copies import Copies


def spread(buffer: torch.Tensor, layer: torch.Tensor, factor: float = 3.0) -> None:
    """As an engine: B is scaled in place, a layer is erased, and gets A, and a rank's rows of B."""
    left, right = buffer[:12].view(4, 3), buffer[12:].view(2, 3)
    left *= factor
    layer[:] = 0
    layer[0, :2].copy_(right, non_blocking=True)
    layer[1].copy_(left)


def test_repeated_copies_are_those_of_the_engine():
    values = torch.randn(2, 18, generator=torch.Generator().manual_seed(0)).bfloat16()
    buffer, layer, true = values[0].clone(), torch.zeros(2, 4, 3).bfloat16(), torch.zeros(2, 4, 3).bfloat16()
    with Copies([buffer]) as noted:
        spread(buffer, layer)
    assert noted.is_whole
    buffer.copy_(values[1])
    noted.repeat()
    spread(values[1].clone(), true)
    assert torch.equal(layer, true) and layer.any()


def test_copies_of_other_values_are_no_repetition():
    buffer, layer = torch.randn(18), torch.zeros(2, 4, 3)
    for make in (
        lambda: layer[0].copy_(torch.stack([buffer[:6], buffer[6:12]]).view(4, 3)),
        lambda: spread(buffer.clone(), layer),
        lambda: (spread(buffer, layer), buffer.mul_(2)),
        lambda: buffer.mul_(torch.tensor(2.0)),
    ):
        with Copies([buffer]) as noted:
            make()
        assert not noted.is_whole
