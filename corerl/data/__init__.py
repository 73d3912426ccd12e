"""Data: prompt files in, token ids out.

:mod:`~corerl.data.schema` and :mod:`~corerl.data.messages` check the rows of prompt files,
:mod:`~corerl.data.prompts` templates, measures and cuts them, :mod:`~corerl.data.sampler` gives their order.
"""

from corerl.data.files import read_parquet
from corerl.data.messages import Message, check_messages, without_nulls
from corerl.data.report import Location
from corerl.data.tokenizer import load_tokenizer

__all__ = ["Location", "Message", "check_messages", "load_tokenizer", "read_parquet", "without_nulls"]
