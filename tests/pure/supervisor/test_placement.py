"""Which GPUs a pool gets, and what its workers see of them."""

from __future__ import annotations

from typing import Final

import pytest

from atomr_mp import errors
from atomr_mp.supervision.placement import ComputeMode, Gpu, check_standby, choose, environment, notes, visible

GIB: Final = 2**30


def gpu(uuid: str, **facts: object) -> Gpu:
    """Return a GPU with a UUID."""
    return Gpu(uuid=uuid, name="H100", memory_bytes=80 * GIB, **facts)  # type: ignore[arg-type]


A: Final = gpu("GPU-aa11")
B: Final = gpu("GPU-ab22")
C: Final = gpu("GPU-cc33")
SLICES: Final = (gpu("MIG-1111"), gpu("MIG-2222"))
DIVIDED: Final = gpu("GPU-dd44", slices=SLICES)
LOST: Final = Gpu(uuid="", name="GPU 1", problem="NVML reports: GPU is lost")
WHOLE: Final = [A, B, C]
MIXED: Final = [A, DIVIDED, C]


def uuids(gpus: list[Gpu]) -> list[str]:
    """Return what was chosen, in order."""
    return [each.uuid for each in gpus]


@pytest.mark.parametrize(
    ("wanted", "chosen"),
    [
        ("all", WHOLE),
        ("2", [A, B]),
        ("3", WHOLE),
        ("2,", [C]),
        ("0,2", [A, C]),
        ("2, 0", [C, A]),
        ("GPU-ab22", [B]),
        ("GPU-ab", [B]),
        ("GPU-c,1", [C, B]),
    ],
)
def test_gpus_are_chosen_by_number_index_and_uuid(wanted: str, chosen: list[Gpu]) -> None:
    """In the order in which they are named; the beginning of a UUID is enough."""
    assert choose(WHOLE, wanted) == chosen


@pytest.mark.parametrize(
    ("wanted", "chosen"),
    [
        ("all", [A, *SLICES, C]),
        ("2", [A, SLICES[0]]),
        ("1,", [*SLICES]),
        ("GPU-dd44", [*SLICES]),
        ("MIG-2222,2", [SLICES[1], C]),
    ],
)
def test_slices_stand_in_for_a_divided_gpu(wanted: str, chosen: list[Gpu]) -> None:
    """It keeps its one index, and each slice is a device."""
    assert choose(MIXED, wanted) == chosen


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        ("0", "a single number says how many, and there can be 1 to 3; a GPU by its index is `0,`"),
        ("4", "there can be 1 to 3"),
        ("0,3", "3 names no GPU"),
        ("GPU-a", "GPU-a names several GPUs"),
        ("GPU-x", "GPU-x names no GPU"),
        ("a100", "a100 names no GPU"),
        ("-1", "-1 names no GPU"),
        ("0,GPU-aa", "H100 GPU-aa11 (80.0 GiB) comes twice"),
        ("", "this names no GPU"),
        (",", "this names no GPU"),
    ],
)
def test_what_is_not_there_is_refused_with_what_was_found(wanted: str, why: str) -> None:
    """An operator sees the indices and UUIDs to choose from."""
    with pytest.raises(errors.ConfigurationError) as refused:
        choose(WHOLE, wanted)
    assert str(refused.value).startswith(f"--gpus {wanted}: ")
    assert why in str(refused.value)
    assert "0: H100 GPU-aa11 (80.0 GiB); 1: H100 GPU-ab22" in str(refused.value) or "twice" in why


def test_a_slice_is_not_chosen_beside_its_gpu() -> None:
    """The GPU stands for it already."""
    with pytest.raises(errors.ConfigurationError, match=r"MIG-1111.* comes twice"):
        choose(MIXED, "1,MIG-1111")


@pytest.mark.parametrize("wanted", ["all", "2", "1,"])
def test_a_gpu_that_cannot_be_used_is_refused_if_it_is_among_those_wanted(wanted: str) -> None:
    """With the reason; without it the others can be had."""
    with pytest.raises(errors.ConfigurationError, match=r"GPU 1 .*GPU is lost, or name others by --gpus"):
        choose([A, LOST, C], wanted)
    assert choose([A, LOST, C], "0,2") == [A, C]


def test_prohibited_compute_mode_is_refused_with_the_command_that_changes_it() -> None:
    """No process could make a context there."""
    prohibited = gpu("GPU-ee55", compute_mode=ComputeMode.PROHIBITED)
    with pytest.raises(errors.ConfigurationError, match="`nvidia-smi -i GPU-ee55 -c DEFAULT`"):
        choose([prohibited], "all")


@pytest.mark.parametrize(
    ("variable", "left"),
    [
        (None, ["GPU-aa11", "GPU-dd44", "GPU-cc33"]),
        ("2,0", ["GPU-cc33", "GPU-aa11"]),
        ("GPU-cc,1", ["GPU-cc33", "GPU-dd44"]),
        ("MIG-2222", ["MIG-2222"]),
    ],
)
def test_cuda_visible_devices_says_what_there_is(variable: str | None, left: list[str]) -> None:
    """Its order is that of the indices from then on, as in any CUDA program."""
    assert uuids(visible(MIXED, variable)) == left


def test_indices_count_among_what_is_visible() -> None:
    """As ordinals do in a program that runs with the same variable."""
    assert choose(visible(WHOLE, "2,0"), "0,") == [C]
    with pytest.raises(errors.ConfigurationError, match="GPU-ab22 names no GPU; found: 0: H100 GPU-cc33"):
        choose(visible(WHOLE, "2,0"), "GPU-ab22")


@pytest.mark.parametrize("variable", ["", ",", "-1", "NoDevFiles", "0,7", "0,0"])
def test_a_value_of_cuda_visible_devices_that_hides_or_names_nothing_is_refused(variable: str) -> None:
    """CUDA would go on with fewer GPUs, or none, and say nothing."""
    with pytest.raises(errors.ConfigurationError, match="CUDA_VISIBLE_DEVICES"):
        visible(WHOLE, variable)


def test_a_worker_sees_its_own_gpu_first_and_the_others_of_the_pool_behind_it() -> None:
    """So `cuda:0` is right in every worker, and memory of another one can be opened."""
    assert environment(B, [A, B, C]) == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "GPU-ab22,GPU-aa11,GPU-cc33",
    }
    assert environment(A, [A])["CUDA_VISIBLE_DEVICES"] == "GPU-aa11"


def test_a_slice_is_seen_alone() -> None:
    """CUDA shows a process one slice, and no GPU beside it."""
    pool = [A, *SLICES, C]
    assert environment(SLICES[1], pool)["CUDA_VISIBLE_DEVICES"] == "MIG-2222"
    assert environment(A, pool)["CUDA_VISIBLE_DEVICES"] == "GPU-aa11,GPU-cc33"


def test_an_operator_is_told_of_exclusive_mode_and_of_others_on_the_gpu() -> None:
    """Neither keeps the pool from starting, and each explains what may go wrong."""
    assert notes(A) == []
    shared = gpu("GPU-ff66", compute_mode=ComputeMode.EXCLUSIVE_PROCESS, pids=(7, 12), used_bytes=20 * GIB)
    exclusive, others = notes(shared)
    assert "one process only" in exclusive
    assert others == "when the pool was started, others used it (pid 7, 12); 20.0 of 80.0 GiB were taken"


@pytest.mark.parametrize("mode", [ComputeMode.EXCLUSIVE_PROCESS, ComputeMode.EXCLUSIVE_THREAD])
def test_a_gpu_that_admits_one_process_has_no_hot_standby(mode: ComputeMode) -> None:
    """The start says so, and what to take instead; anything else is as it was."""
    exclusive = gpu("GPU-ff66", compute_mode=mode)
    with pytest.raises(errors.ConfigurationError, match="use warm"):
        check_standby(exclusive, "hot")
    check_standby(exclusive, "warm")
    check_standby(A, "hot")


def test_an_operator_is_told_loudly_of_an_mps_server() -> None:
    """With it, a fault is everybody's."""
    (told,) = notes(A, mps="/tmp/nvidia-mps")
    assert "ISOLATION IS LOST" in told
    assert "/tmp/nvidia-mps" in told
