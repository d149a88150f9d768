"""Which sessions may use kernels: the supervisor's word, programs, and machines without walls for a compiler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pytest

from atomr_mp import errors
from atomr_mp.protocol.libraries import program
from atomr_mp.protocol.libraries.kernels import Compile, Load
from atomr_mp.protocol.messages.rights import KernelsFor, kernels_refusal
from atomr_mp.protocol.messages.session import RemoteOrigin
from atomr_mp_workers.libraries.arrival import arrival_of
from atomr_mp_workers.libraries.kernels import rights
from atomr_mp_workers.libraries.program.definitions import recall
from atomr_mp_workers.memory.blocks import Holder

SOURCE: Final = Compile("source")


def session(refused: str = "", *, remote: bool = False) -> Holder:
    """Return a session's holder."""
    holder = Holder(1)
    holder.no_kernels, holder.is_relayed = refused, remote
    return holder


def run(*steps: str, place: int = -1, whole: bool = True) -> program.RunProgram:
    """Return a run of a program of such steps."""
    pairs = [each.partition(".") for each in steps]
    definition = program.Definition(
        [], [], [], [program.ProgramStep(library, name, b"") for library, _, name in pairs], []
    )
    encoded = program.DEFINITIONS.encode(definition)
    digest = program.digest(encoded) if place >= 0 else b""
    return program.RunProgram(encoded if whole else b"", [], [], [], digest, place)


@pytest.mark.parametrize(
    ("setting", "may"),
    [("off", (False, False, False)), ("local", (True, False, True)), ("all", (True, True, True))],
)
def test_the_setting_and_the_key_say_who_may(setting: KernelsFor, may: tuple[bool, bool, bool]) -> None:
    """A refusal names the setting, and what would let the client; it fits into the message to the workers."""
    long = "n" * 64
    origins = (None, RemoteOrigin(long), RemoteOrigin(long, operate=False, kernels=True))
    for may_this, origin in zip(may, origins, strict=True):
        refused = kernels_refusal(setting, origin)
        assert (refused == "") is may_this
        assert may_this or repr(setting) in refused
        assert len(refused) <= 400
        assert may_this or setting == "off" or ("--kernels" in refused and long in refused)


def test_every_request_of_the_library_asks() -> None:
    """On arrival, before it waits for anything."""
    for name in ("compile", "load", "launch"):
        found = arrival_of(f"kernels.{name}", None)  # type: ignore[arg-type]
        assert found.recall is rights.admitted
        assert found.recall(SOURCE, session()) is SOURCE
        with pytest.raises(errors.KernelsForbidden, match="for a reason"):
            found.recall(SOURCE, session("for a reason"))


def test_without_walls_only_clients_of_this_machine_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    """What they could read of its files is theirs anyway."""
    monkeypatch.setattr(rights, "confines", lambda: False)
    for request in (SOURCE, Load(b"code", "ptx")):
        assert rights.admitted(request, session()) is request
        with pytest.raises(errors.KernelsForbidden, match="has no Landlock"):
            rights.admitted(request, session(remote=True))
    monkeypatch.setattr(rights, "confines", lambda: True)
    assert rights.admitted(SOURCE, session(remote=True)) is SOURCE


def test_the_sessions_of_a_group_take_turns_as_one() -> None:
    """As those of a remote client's key; others each for itself, and an actor's own code too."""
    alone, first, second = (session(remote=True) for _ in range(3))
    first.group = second.group = "a key"
    owners = [rights.owner_of(rights.admitted(Compile("source"), each)) for each in (alone, first, second)]
    assert owners == [alone, "a key", "a key"]
    assert rights.owner_of(Compile("source")) is None


STEPS: Final[list[tuple[Sequence[str], bool]]] = [
    ((), True),
    (("blas.gemm", "elementwise.add"), True),
    (("kernels.launch",), False),
    (("blas.gemm", "kernels.launch"), False),
    (("kernels.other",), False),
]


@pytest.mark.parametrize(("steps", "harmless"), STEPS)
def test_a_program_with_a_launch_is_refused(steps: Sequence[str], *, harmless: bool) -> None:
    """However it is sent, and however often; those who may run kernels are not asked."""
    holder = session("for a reason")
    for request in (run(*steps), run(*steps, place=3), run(*steps, place=3, whole=False), run(*steps)):
        if harmless:
            assert recall(request, holder).program
        else:
            with pytest.raises(errors.KernelsForbidden, match=r"is kernels\.\w+: for a reason"):
                recall(request, holder)
        assert rights.admitted_program(run(*steps), session()).program
    assert bool(holder.harmless) is harmless


def test_a_program_that_cannot_be_read_is_refused() -> None:
    """It may hide anything."""
    request = program.RunProgram(b"what is this", [], [], [])
    with pytest.raises(errors.InvalidRequest, match="cannot be decoded"):
        recall(request, session("for a reason"))


def test_few_programs_are_remembered() -> None:
    """As many as a session has places."""
    holder = session("for a reason")
    for number in range(3 * program.PLACES):
        recall(run(*["blas.gemm"] * number), holder)
        assert len(holder.harmless) <= program.PLACES
