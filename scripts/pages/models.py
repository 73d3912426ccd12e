"""Write docs/models.md from "## Proofs" on, from the table of families.

Run it after a change of plugins/corerl_torch/src/corerl_torch/families/::

    python -m scripts.pages.models
"""

from corerl_torch.families.columns import COLUMNS, Column
from corerl_torch.families.table import FAMILIES, Family
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
    "fsdp": "Two ranks. All families are tested with `CORERL_EVERY_FAMILY=1`, three of them always.",
    "megatron": "Four families have a [mapping](../plugins/corerl_megatron/README.md) of weights. Others are refused.",
    "vllm": "An update of weights in vLLM's CPU build, with `CORERL_EVERY_FAMILY=1`. The CUDA build has more kernels,\n"
    "so a family that is not proven here may work there.",
    "sglang": "SGLang 0.5.17 on a GPU, in bf16: log-probs of a folder's weights and of an update have a mean distance\n"
    "of at most four times the rounding of transformers in bf16. Mistral and Phi-4 are tested without sliding\n"
    "windows, which SGLang ignores. It has no module for the text models of Qwen3.5.",
}


def render(page: str) -> str:
    """The page with new tables."""
    text = page.partition(MARK)[0] + MARK + INTRODUCTION
    for backend, title in TITLES.items():
        columns = [each for each in COLUMNS if each.backend == backend]
        note = f"{NOTES[backend]}\n\n" if backend in NOTES else ""
        rows = [[each.name, *(cell(each, column) for column in columns)] for each in FAMILIES]
        text += f"\n### {title}\n\n{note}{table(['family', *(each.title for each in columns)], rows)}"
    limits = [(each.name, f"`{each.model_type}`", each.models, each.note) for each in FAMILIES]
    return text + "\n### Limits\n\n" + table(("family", "`model_type` of the text", "models", "limit"), limits)


def cell(family: Family, column: Column) -> str:
    """The state, linked to the file of its test."""
    state, test = str(family.state(column)), family.test(column)
    if column.feature == "lora" and state == "proven" and family.adapted:
        state += ", attention"
    path, _, function = test.partition("::")
    return f'[{state}](../{path} "{function}")' if test else state


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text()))
