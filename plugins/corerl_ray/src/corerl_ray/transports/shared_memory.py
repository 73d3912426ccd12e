"""Memory that another process of this machine opens by a handle: CUDA IPC, or an unnamed file on the CPU."""

import os
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Shared:
    """A (bytes,) uint8 tensor, and the JSON with which another process opens it."""

    data: Tensor
    handle: dict[str, Any]

    @classmethod
    def new(cls, size: int, device: torch.device) -> "Shared":
        if device.type == "cpu":
            file = os.memfd_create("corerl-weights")
            os.ftruncate(file, size)
            path = f"/proc/{os.getpid()}/fd/{file}"
            return cls(open_handle({"path": path, "size": size}), {"path": path, "size": size, "file": file})
        data = torch.empty(size, dtype=torch.uint8, device=device)
        _, *parts = data.untyped_storage()._share_cuda_()  # type: ignore[no-untyped-call]
        return cls(data, {"cuda": [part.hex() if isinstance(part, bytes) else part for part in parts], "size": size})

    @property
    def source(self) -> dict[str, Any]:
        """As ``corerl_engine.weights`` opens it, in an engine's process."""
        if "path" in self.handle:
            return {"path": self.handle["path"]}
        uuid = torch.cuda.get_device_properties(self.data.device).uuid
        return {"device": str(uuid), "handle": self.handle["cuda"]}

    def close(self) -> None:
        """Allow no further opening; open memory remains."""
        if "file" in self.handle:
            os.close(self.handle["file"])


def open_handle(handle: dict[str, Any]) -> Tensor:
    """The same memory; on a GPU it must be this process's current one."""
    if "path" in handle:
        return torch.from_file(handle["path"], shared=True, size=handle["size"], dtype=torch.uint8)
    torch.cuda.init()  # type: ignore[no-untyped-call]
    parts = [bytes.fromhex(part) if isinstance(part, str) else part for part in handle["cuda"]]
    storage: Any = torch.UntypedStorage._new_shared_cuda(torch.cuda.current_device(), *parts)
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage, 0, (handle["size"],), (1,))


def forget() -> None:
    """Free memory that no other process has open."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.ipc_collect()  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()
