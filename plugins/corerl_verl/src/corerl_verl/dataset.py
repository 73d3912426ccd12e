"""Data sets of verl: a subclass of ``RLHFDataset``, as ``data.custom_cls`` of CoreRL.

::

    # corerl_data.py
    from corerl_verl.dataset import adapted
    from my_data import MyDataset  # a subclass of verl's RLHFDataset, unchanged

    MyDataset = adapted(MyDataset)

    data: {custom_cls: "./corerl_data.py:MyDataset"}

Where verl is not installed, the subclass can begin with ``from corerl_verl.dataset import RLHFDataset``.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from omegaconf import OmegaConf

from corerl.contracts.config import DataConfig
from corerl.errors import DataError

COLUMNS = ("data_source", "prompt", "reward_model", "extra_info", "images", "videos")
_DEFAULTS: dict[str, Any] = {
    "prompt_key": "prompt",
    "image_key": "images",
    "video_key": "videos",
    "return_raw_chat": True,
    "return_full_prompt": False,
    "need_tools_kwargs": False,
    "cache_dir": "~/.cache/verl/rlhf",
    "use_shm": False,
    "filter_overlong_prompts_workers": 1,
}
"""keys of verl's section ``data`` that CoreRL does not have"""


class VerlDataset(Protocol):
    """verl's contract of a data set."""

    def __len__(self) -> int: ...

    def __getitem__(self, item: int) -> Mapping[str, Any]: ...


class RLHFDataset:
    """The part of verl's class that its subclasses use: files, ``dataframe``, and the chat of a row.

    Args:
        data_files: parquet files.
        tokenizer: the model's.
        config: verl's section ``data``.
        processor: None: images are processed by CoreRL.
        max_samples: largest number of rows; -1: all.
    """

    def __init__(
        self, data_files: Any, tokenizer: Any, config: Any, processor: Any = None, max_samples: int = -1
    ) -> None:
        self.data_files = [data_files] if isinstance(data_files, str) else list(data_files)
        self.original_data_files = list(self.data_files)
        self.tokenizer, self.processor, self.config, self.max_samples = tokenizer, processor, config, max_samples
        self.prompt_key = config.get("prompt_key", "prompt")
        self.image_key = config.get("image_key", "images")
        self.video_key = config.get("video_key", "videos")
        self.max_prompt_length = config.get("max_prompt_length", 1024)
        self._download()
        self._read_files_and_tokenize()

    def _download(self, use_origin_parquet: bool = False) -> None:
        """Nothing: the files are local."""

    def _read_files_and_tokenize(self) -> None:
        """Read ``self.dataframe``, a list of rows."""
        from corerl.data.files import read_parquet

        rows = [dict(row) for file in self.data_files for _, row in read_parquet(file, (), None)]
        self.dataframe: Any = rows[: self.max_samples] if self.max_samples > 0 else rows
        self.dataframe = self.maybe_filter_out_long_prompts(self.dataframe)

    def maybe_filter_out_long_prompts(self, dataframe: Any = None) -> Any:
        """The rows themselves: CoreRL filters by data.filter_overlong_prompts."""
        return dataframe

    def _build_messages(self, example: dict[str, Any]) -> Any:
        """The chat of a row."""
        return example[self.prompt_key]

    def __len__(self) -> int:
        return len(self.dataframe)

    def __getitem__(self, item: int) -> Mapping[str, Any]:
        row = dict(self.dataframe[item])
        return row | {"raw_prompt": self._build_messages(row)}


class Adapted:
    """Rows of a data set of verl, by CoreRL's contract of ``data.custom_cls``.

    Args:
        dataset: the class.
        files, data, tokenizer, split: of CoreRL.
    """

    def __init__(self, dataset: type[Any], files: Sequence[str], data: DataConfig, tokenizer: Any, split: str) -> None:
        limit = data.val_max_samples if split == "val" else None
        config = OmegaConf.create({**_DEFAULTS, **_plain(data)})
        arguments = {"data_files": list(files), "tokenizer": tokenizer, "processor": None, "config": config}
        self.name = dataset.__name__
        self.dataset: VerlDataset = _made(dataset, arguments, limit or -1)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Mappings with the columns of a prompt file.

        Raises:
            DataError: a row has no chat.
        """
        for number in range(len(self.dataset)):
            item = self.dataset[number]
            row = dict(self._columns(number)) | {name: item[name] for name in COLUMNS if name in item}
            chat = item.get("raw_prompt", row.get("prompt"))
            if chat is None:
                raise DataError(f"{self.name}, row {number}: has neither raw_prompt nor prompt")
            yield row | {"prompt": [dict(message) for message in chat]}

    def _columns(self, number: int) -> Mapping[str, Any]:
        frame = getattr(self.dataset, "dataframe", None)
        row = frame[number] if frame is not None and len(frame) == len(self.dataset) else {}
        return {name: row[name] for name in COLUMNS if isinstance(row, Mapping) and name in row}


def _made(dataset: type[Any], arguments: dict[str, Any], limit: int) -> Any:
    """verl passes max_samples since version 0.6."""
    import inspect

    parameters = inspect.signature(dataset).parameters
    if "max_samples" in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        arguments = {**arguments, "max_samples": limit}
    return dataset(**arguments)


def _plain(data: DataConfig) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(data)


class _Factory:
    """Callable as CoreRL calls ``data.custom_cls``."""

    def __init__(self, dataset: type[Any]) -> None:
        self.dataset = dataset

    def __call__(self, files: Sequence[str], *, data: DataConfig, tokenizer: Any, split: str) -> Adapted:
        return Adapted(self.dataset, files, data, tokenizer, split)


def adapted(dataset: type[Any]) -> _Factory:
    """A data set of verl for ``data.custom_cls``.

    Args:
        dataset: a subclass of ``RLHFDataset``, verl's or this module's.
    """
    return _Factory(dataset)
