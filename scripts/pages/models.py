"""Write docs/models.md from "## Proofs" on, from the table of families.

Run it after a change of plugins/corerl_torch/src/corerl_torch/families/::

    python -m scripts.pages.models
"""

from collections.abc import Iterable

from corerl_torch.families.columns import COLUMNS, Column
from corerl_torch.families.table import FAMILIES, Family
from corerl_torch.families.vision import VISION, VISION_COLUMNS
from scripts.known_names import ROOT
from scripts.pages.markdown import table

PAGE = ROOT / "docs" / "models.md"
MARK = "## Proofs\n"

INTRODUCTION = """
[`scripts/pages/models.py`](../scripts/pages/models.py) makes these tables from
[`table.py`](../plugins/corerl_torch/src/corerl_torch/families/table.py).
"""

TITLES = {
    "torch": "Strategy `torch`",
    "fsdp": "Strategy `fsdp`",
    "megatron": "Strategy `megatron`",
    "hf": "Engine `hf`",
    "vllm": "Engine `vllm`",
    "sglang": "Engine `sglang`",
}

NOTES = {
    "fsdp": "Two ranks. All families are tested with `CORERL_EVERY_FAMILY=1`, three of them always. Tensor parallel\n"
    "follows the plans of transformers (`base_model_tp_plan`); those with experts are refused.",
    "megatron": "Seven families have a [mapping](../plugins/corerl_megatron/README.md) of weights. Others are\n"
    "refused; if megatron-core lacks a part of a family, the error names the part. megatron-core runs experts,\n"
    "pipelines and sequence parallel only on CUDA. Tests run layers with experts on one rank, and on two that share\n"
    "tokens, with stand-ins for the CUDA device. Tensor parallel of DeepSeek-V3 and GLM-4-MoE is tested in layers\n"
    "without experts. [`megatron_parity.py`](../benchmarks/gpu/megatron_parity.py) compares the rest on GPUs.",
    "vllm": "An update of weights in vLLM's CPU build, with `CORERL_EVERY_FAMILY=1`. The CUDA build has more kernels,\n"
    "so a family that is not proven here may work there.",
    "sglang": "SGLang 0.5.17 on a GPU, in bf16: log-probs of a folder's weights and of an update have a mean distance\n"
    "of at most four times the rounding of transformers in bf16. Mistral and Phi-4 are tested without sliding\n"
    "windows, which SGLang ignores. It has no module for the text models of Qwen3.5. Every proven family\n"
    "ran on an H100 or an H200.",
}

IMAGES = """[Models that read images](vision.md), with prompts of text, of an image and of several. Rows of
[`vision.py`](../plugins/corerl_torch/src/corerl_torch/families/vision.py). The strategy `megatron` refuses images.
Other families take the generic way with a line of `corerl check`, or are refused: those that place images by a way of
their own (Idefics 3), and those whose masks of attention are made from the types of tokens (PaliGemma, Gemma 3n)."""


def render(page: str) -> str:
    """The page with new tables."""
    text = page.partition(MARK)[0] + MARK + INTRODUCTION
    for backend, title in TITLES.items():
        columns = [each for each in COLUMNS if each.backend == backend]
        note = f"{NOTES[backend]}\n\n" if backend in NOTES else ""
        rows = [[each.name, *(cell(each, column) for column in columns)] for each in FAMILIES]
        text += f"\n### {title}\n\n{note}{table(['family', *(each.title for each in columns)], rows)}"
    text += "\n### Limits\n\n" + limits("`model_type` of the text", FAMILIES)
    rows = [[each.name, *(cell(each, column) for column in VISION_COLUMNS)] for each in VISION.values()]
    titles = [f"`{each.backend}`: {each.title}" for each in VISION_COLUMNS]
    text += f"\n### Images\n\n{IMAGES}\n\n{table(['family', *titles], rows)}"
    return text + "\n" + limits("`model_type`", VISION.values())


def limits(kind: str, families: Iterable[Family]) -> str:
    """A table of the models of each family and its limit."""
    rows = [(each.name, f"`{each.model_type}`", each.models, each.note) for each in families]
    return table(("family", kind, "models", "limit"), rows)


def cell(family: Family, column: Column) -> str:
    """The state, linked to the file of its test."""
    state, test = str(family.state(column)), family.test(column)
    if column.feature == "lora" and state == "proven" and family.adapted:
        state += ", attention"
    path, _, function = test.partition("::")
    return f'[{state}](../{path} "{function}")' if test else state


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text()))
