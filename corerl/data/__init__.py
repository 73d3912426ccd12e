"""Data: prompt files in, token ids out.

:mod:`~corerl.data.schema` checks the rows of prompt files, :mod:`~corerl.data.prompts` templates, measures and cuts
them, :mod:`~corerl.data.sampler` gives their order.
"""

from corerl.data.files import read_parquet
from corerl.data.tokenizer import load_tokenizer

__all__ = ["load_tokenizer", "read_parquet"]
