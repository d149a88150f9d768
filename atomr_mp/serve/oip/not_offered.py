"""Triton's calls that this server does not answer, or not without a switch, each with its reason. Pure."""

from __future__ import annotations

from typing import Final

from atomr_mp.serve.problems import Problem

SHARED_MEMORY_OFF: Final = "shared memory is off; `atomr-mp serve --allow-client-shm` offers it"

_CUDA_SHARED_MEMORY: Final = (
    "GPUs' memory is not shared; send tensors as raw data, or have them in system shared memory"
)

NOT_OFFERED: Final = {
    "RepositoryModelLoad": "models are methods of the pool's actors; `atomr-mp reload` loads their code again",
    "RepositoryModelUnload": "models are methods of the pool's actors, which are there as long as the pool",
    **{
        f"{kind}SharedMemory{verb}": why
        for kind, why in (("System", SHARED_MEMORY_OFF), ("Cuda", _CUDA_SHARED_MEMORY))
        for verb in ("Status", "Register", "Unregister")
    },
    "TraceSetting": "traces have no settings here",
    "LogSettings": "the log has no settings here beyond the options of `atomr-mp serve`",
}
"""Reasons, by gRPC's name of the call."""

PATHS: Final = {
    "/v2/repository/models/{}/load": "RepositoryModelLoad",
    "/v2/repository/models/{}/unload": "RepositoryModelUnload",
    **{
        f"/v2/{kind.lower()}sharedmemory/{path}": f"{kind}SharedMemory{verb}"
        for kind in ("System", "Cuda")
        for path, verb in (
            ("status", "Status"),
            ("region/{}/status", "Status"),
            ("region/{}/register", "Register"),
            ("region/{}/unregister", "Unregister"),
            ("unregister", "Unregister"),
        )
    },
    "/v2/trace/setting": "TraceSetting",
    "/v2/models/{}/trace/setting": "TraceSetting",
    "/v2/logging": "LogSettings",
}
"""Those names by HTTP's paths."""


def problem_of(name: str) -> Problem:
    """Return the refusal of a call."""
    return Problem(501, "not_offered", f"{name} is not offered: {NOT_OFFERED[name]}")
