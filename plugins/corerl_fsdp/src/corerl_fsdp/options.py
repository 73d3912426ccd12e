"""Options of the training strategies; they import no torch."""

from dataclasses import dataclass
from typing import Literal

from corerl import option


@dataclass(frozen=True)
class TorchOptions:
    """What ``torch`` takes beside what every strategy is given."""

    use_remove_padding: bool = option(False, "lay the rows of a micro-batch end to end; no padding is computed")
    logits_chunk_size: int | None = option(
        1024, "positions whose logits exist at a time; null: those of the whole micro-batch", ge=1
    )
    compile: bool = option(
        False, "torch.compile decoder layers and what is made of the logits: faster, after a minute or so at the start"
    )
    lora_export: Literal["merged", "adapter"] = option(
        "merged", "with model.lora_rank: export the model, or a folder that peft loads beside the base"
    )


@dataclass(frozen=True)
class FsdpOptions(TorchOptions):
    """What ``fsdp`` takes: all of ``torch``, and how ranks share the model."""

    timeout: float = option(600.0, "seconds that a rank waits for the others, or for rank 0 to read the model", gt=0)
    reshard_after_forward: bool = option(
        True, "free a layer's gathered weights after its forward pass and gather them again in the backward pass"
    )
    param_offload: bool = option(False, "keep the weights on the CPU between calls; does nothing on the CPU")
    optimizer_offload: bool = option(
        False, "keep the optimizer's state on the CPU between its steps; does nothing on the CPU"
    )
    use_remove_padding: bool = option(True, "lay the rows of a micro-batch end to end; no padding is computed")
    ulysses_sequence_parallel_size: int = option(
        1, "consecutive ranks that share rows: each has a slice of the tokens, and of the heads in attention", ge=1
    )
