"""The handler of flashinfer.comm.mixed_comm, with its attributes for the memory of the ranks.

The handler of cuda_gctx.comm has all other names of FlashInfer's.
"""

from __future__ import annotations

from cuda_gctx import comm
from cuda_gctx.comm import CommBackend, MixedCommMode, MixedCommOp, run_mixed_comm

__all__ = ["MixedCommHandler", "MixedCommMode", "MixedCommOp", "run_mixed_comm"]


class MixedCommHandler(comm.MixedCommHandler):
    """A handler of cuda_gctx.comm with FlashInfer's attributes for its memory."""

    @property
    def uc_ptr_list(self) -> list[int]:
        """The addresses of the workspaces of all ranks, by rank; empty on the CPU."""
        return list(self.workspace_addresses)

    @property
    def uc_buffer_dict(self) -> dict[str, int]:
        """The address of the workspace of this rank, as "raw"; empty on the CPU."""
        addresses = self.workspace_addresses
        return {"raw": addresses[self.para_info.world_rank]} if addresses else {}

    @property
    def mc_ptr_dict(self) -> dict[str, int]:
        """Empty: there is no multicast memory."""
        return {}

    @property
    def _vm_mapped(self) -> bool:
        """True while there is memory at the addresses."""
        return bool(self.workspace_addresses) and self.is_running and not self.is_released

    @property
    def _vmm_comm_backend(self) -> CommBackend:
        """The connection of the ranks on the host."""
        return self.comm_backend
