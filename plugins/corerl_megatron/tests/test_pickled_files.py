"""What is read of a checkpoint of megatron-core that somebody else wrote."""

import io
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint import DefaultSavePlanner, FileSystemWriter, metadata, state_dict_saver
from torch.distributed.checkpoint.planner import WriteItem

from corerl.errors import ModelError
from corerl_megatron.pickled_files import METADATA, read_metadata, require_plain


class Harm:
    """A pickle of it makes the folder ``harmed`` where it is read."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.folder,)


class Packed(DefaultSavePlanner):
    """Writes objects that are packed already as they are, as megatron-core does."""

    def resolve_data(self, write_item: WriteItem) -> Any:
        item = self.lookup_object(write_item.index)
        return item if isinstance(item, io.BytesIO) else super().resolve_data(write_item)


def saved(folder: Path, packed: Any) -> Path:
    """A checkpoint with two tensors, one of them of a layer, and an object."""
    content = io.BytesIO()
    torch.save(packed, content)
    state = {"weight": torch.ones(3, dtype=torch.bfloat16), "layers": {"a": torch.ones(2)}, "object": content}
    state_dict_saver.save(state, storage_writer=FileSystemWriter(folder), planner=Packed(), no_dist=True)
    return folder


def test_what_describes_tensors_and_plain_objects_is_read(tmp_path: Path) -> None:
    folder = saved(tmp_path / "saved", [{"rate": 1.0, "rows": torch.ones(2)}])
    require_plain(folder)
    facts = read_metadata(folder).state_dict_metadata
    assert set(facts) == {"weight", "layers.a", "object"} and facts["weight"].size == torch.Size([3])


def test_metadata_that_names_code_is_refused(tmp_path: Path) -> None:
    folder = saved(tmp_path / "saved", 1)
    (folder / METADATA).write_bytes(pickle.dumps(Harm(tmp_path / "harmed")))
    with pytest.raises(ModelError, match=r"it names posix\.mkdir"):
        require_plain(folder)
    assert not (tmp_path / "harmed").exists()


class Attribute:
    """Its pickle is an attribute of an object, as Python 3.11.2 writes members of enumerations."""

    def __init__(self, owner: Any, name: str) -> None:
        self.owner, self.name = owner, name

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self.owner, self.name)


def test_members_of_enumerations_are_read_in_any_way_that_python_writes_them_and_no_other_attributes(
    tmp_path: Path,
) -> None:
    folder = saved(tmp_path / "saved", 1)
    facts = read_metadata(folder)
    kind = metadata._MEM_FORMAT_ENCODING
    facts.planner_data = Attribute(kind, "TORCH_CHANNELS_LAST")
    (folder / METADATA).write_bytes(pickle.dumps(facts))
    assert read_metadata(folder).planner_data is kind.TORCH_CHANNELS_LAST
    for owner, name in ((kind, "__init_subclass__"), (kind, "mro"), (torch.Size, "count")):
        facts.planner_data = Attribute(owner, name)
        (folder / METADATA).write_bytes(pickle.dumps(facts))
        with pytest.raises(ModelError):
            read_metadata(folder)


def test_code_behind_an_allowed_name_is_refused(tmp_path: Path) -> None:
    folder = saved(tmp_path / "saved", 1)
    for name in ("load", "Size.__class__", "os.system", "serialization.load"):
        (folder / METADATA).write_bytes(b"\x80\x04\x8c\x05torch\x8c" + bytes([len(name)]) + name.encode() + b"\x93.")
        with pytest.raises(ModelError, match="it names torch"):
            require_plain(folder)


def test_an_object_that_names_code_is_refused(tmp_path: Path) -> None:
    folder = saved(tmp_path / "saved", Harm(tmp_path / "harmed"))
    with pytest.raises(ModelError, match=r"'object' in .* was not read.*posix\.mkdir"):
        require_plain(folder)
    assert not (tmp_path / "harmed").exists()


@pytest.mark.parametrize("content", [b"", b"garbage", pickle.dumps(3), pickle.dumps({"a": 1})])
def test_damaged_metadata_is_named(tmp_path: Path, content: bytes) -> None:
    folder = saved(tmp_path / "saved", 1)
    (folder / METADATA).write_bytes(content)
    with pytest.raises(ModelError, match=r"\.metadata (is damaged|was not read)"):
        require_plain(folder)
