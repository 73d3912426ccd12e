"""Digests of what a run reads by name, for its checkpoints: rows, files, weights of models, the tokenizer.

=====================================  ==============================================================
name                                   content
=====================================  ==============================================================
``rows of data.train_files``           rows, in their order, as :class:`corerl.data.report.LoadReport` has them
``reward.scorer: ./score.py``          a local file or module that a key of the config names, and its imports
``model.path: ./model``                the safetensors files of a local folder that a key names
``tokenizer: chat_template.jinja``     a file of the model beside weights
=====================================  ==============================================================
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from corerl.checkpoint.sources import files_of
from corerl.config.interpolations import texts_of
from corerl.contracts.tokenizers import ChatTokenizer

WHOLE, SAMPLES, SAMPLE = 2**26, 8, 2**20
"""bytes up to which all of a file counts; of longer ones, this number of parts of this many bytes"""


def digests(
    config: Mapping[str, Any], rows: Mapping[str, str], tokenizer: ChatTokenizer | None = None
) -> dict[str, str]:
    """Name -> digest.

    Args:
        config: as plain values.
        rows: key of files -> digest of their rows, '' if it is not known.
        tokenizer: of the model; a model whose config cannot be read is an error of its loading.
    """
    found = {f"rows of {key}": digest for key, digest in rows.items() if digest}
    for place, value in texts_of(config):
        key = ".".join(place)
        if not key.startswith((*rows, "model.chat_template")) and (files := files_of(value)):
            found[f"{key}: {value}"] = _digest(part for file in files for part in _parts(file))
    if tokenizer is not None:
        with suppress(Exception):
            found |= {f"tokenizer: {name}": _digest([content]) for name, content in tokenizer.model_files().items()}
    return found


def _parts(file: Path) -> Iterator[bytes]:
    with suppress(OSError), file.open("rb") as content:
        size = file.stat().st_size
        yield f"{file.name} {size} ".encode()
        if size <= WHOLE:
            yield content.read()
            return
        for number in range(SAMPLES):
            content.seek((size - SAMPLE) * number // (SAMPLES - 1))
            yield content.read(SAMPLE)


def _digest(parts: Iterable[bytes]) -> str:
    found = hashlib.sha256()
    for part in parts:
        found.update(part)
    return found.hexdigest()
