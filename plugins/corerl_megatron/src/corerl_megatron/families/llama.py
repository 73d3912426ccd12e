"""Llama 2 and 3, and models with the same ``model_type``."""

from corerl_megatron.families.family import ATTENTION, MLP, NORMS, PLAIN, Family

FAMILY = Family(layer=(*NORMS, *ATTENTION, *MLP), assumes={**PLAIN, "mlp_bias": False})
