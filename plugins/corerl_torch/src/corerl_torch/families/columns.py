"""The columns of docs/models.md: features of backends, and the tests that prove them."""

from typing import Literal, NamedTuple

State = Literal["proven", "padded", "refused", "not proven"]


class Column(NamedTuple):
    """A feature of a backend.

    Attributes:
        state: of a family that says nothing else.
        test: ``file::function`` that proves it; '' without one.
        title: of the column.
    """

    backend: str
    feature: str
    title: str
    state: State = "not proven"
    test: str = ""

    @property
    def key(self) -> str:
        """``backend.feature``."""
        return f"{self.backend}.{self.feature}"


HERE = "plugins/corerl_torch/tests/families/test_families.py"
ON_RANKS = "plugins/corerl_fsdp/tests/test_families_on_ranks.py"
MEGATRON = "plugins/corerl_megatron/tests"
MEGATRON_AGREES = f"{MEGATRON}/test_ranks_agree.py::test_ranks_agree_with_one_device"
MEGATRON_MOVES = f"{MEGATRON}/test_weights.py::test_weights_come_out_as_they_went_in_also_of_a_checkpoint_without_ranks"
MEGATRON_ROUTES = f"{MEGATRON}/test_router_replay.py::test_outputs_and_gradients_of_experts_are_those_of_torch"
MEGATRON_ADAPTS = f"{MEGATRON}/test_adapters.py::test_ranks_have_the_gradients_of_one_device"
MEGATRON_LACKS = (
    f"{MEGATRON}/test_arithmetic.py::test_a_family_that_megatron_core_cannot_run_is_refused_with_the_missing_part"
)
IN_VLLM = "plugins/corerl_vllm/tests/test_families.py::test_a_family_has_the_trainers_log_probs_after_an_update"
IN_SGLANG = "plugins/corerl_sglang/tests/test_families.py::test_a_family_has_the_trainers_log_probs"

COLUMNS: tuple[Column, ...] = (
    Column("torch", "packed", "packed", "proven", f"{HERE}::test_packed_rows_have_the_numbers_of_padded_rows"),
    Column("torch", "prefixes", "prefixes", "proven", f"{HERE}::test_shared_prefixes_have_the_numbers_of_plain_rows"),
    Column("torch", "step", "a step", "proven", f"{HERE}::test_a_step_of_grpo_changes_the_trained_weights_alone"),
    Column("torch", "lora", "LoRA", "proven", f"{HERE}::test_adapters_merge_into_an_export"),
    Column("torch", "export", "export", "proven", f"{HERE}::test_an_export_agrees_with_the_engine"),
    Column("fsdp", "packed", "packed", "proven", f"{ON_RANKS}::test_two_ranks_have_the_numbers_of_one_device"),
    Column("fsdp", "ulysses", "Ulysses", "proven", f"{ON_RANKS}::test_two_ranks_share_rows"),
    Column("fsdp", "context", "context parallel", "proven", f"{ON_RANKS}::test_two_ranks_share_a_context"),
    Column("fsdp", "tensor", "tensor parallel", "proven", f"{ON_RANKS}::test_two_ranks_divide_the_matrices"),
    Column("fsdp", "experts", "expert parallel", "refused", f"{ON_RANKS}::test_two_ranks_divide_the_experts"),
    Column("fsdp", "lora", "LoRA", "proven", f"{ON_RANKS}::test_two_ranks_train_adapters"),
    Column("fsdp", "export", "export", "proven", f"{ON_RANKS}::test_two_ranks_export_what_one_device_exports"),
    Column("megatron", "packed", "packed", "refused", MEGATRON_AGREES),
    Column("megatron", "tensor", "tensor parallel", "refused", MEGATRON_AGREES),
    Column("megatron", "lora", "LoRA", "refused", MEGATRON_ADAPTS),
    Column("megatron", "export", "export", "refused", MEGATRON_MOVES),
    Column("hf", "lora", "LoRA", "proven", f"{HERE}::test_adapters_merge_into_an_export"),
    Column("hf", "export", "export", "proven", f"{HERE}::test_an_export_agrees_with_the_engine"),
    Column("vllm", "tensor", "tensor parallel"),
    Column("vllm", "lora", "LoRA"),
    Column("vllm", "export", "export", "proven", IN_VLLM),
    Column("sglang", "tensor", "tensor parallel"),
    Column("sglang", "lora", "LoRA"),
    Column("sglang", "export", "export", "proven", IN_SGLANG),
)

REFUSED_BY_MEGATRON = (
    f"{MEGATRON}/test_arithmetic.py::test_a_family_without_a_mapping_is_named_with_those_that_have_one"
)
