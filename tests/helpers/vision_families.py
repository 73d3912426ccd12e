"""The families of models of images that tests build: some always, all of docs/models.md with CORERL_EVERY_FAMILY=1."""

import os

from corerl_torch.families.vision import VISION

ALWAYS = ("qwen2_5_vl", "qwen3_vl", "gemma3")
"""positions in three dimensions, and tokens of images that see each other"""

FAMILIES = [name for name in VISION if name in ALWAYS or os.environ.get("CORERL_EVERY_FAMILY") == "1"]
FEW = [name for name in FAMILIES if name != "qwen3_vl" or len(FAMILIES) > len(ALWAYS)]
"""for tests of what families have in common"""
