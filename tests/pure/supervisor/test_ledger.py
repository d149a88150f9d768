"""What there is against what is believed: an honest pool has nothing unaccounted, and whatever is added is found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomr_mp.protocol import process_tags
from atomr_mp.protocol.messages.operators import Inventory, ProcessHeld, RemoteSessionStatus, RemoteStatus, SessionHeld
from atomr_mp.supervision.audit.findings import Finding, Inspection, State, Supervision
from atomr_mp.supervision.audit.ledger import compare
from atomr_mp.supervision.audit.observed import Memfd, Observed, Process, Socket

EPOCH: Final = bytes(range(16))
LABEL: Final = process_tags.epoch_label(EPOCH)
SUPERVISOR: Final = 100
CLIENT: Final = 900


def process(pid: int, **facts: Any) -> Process:
    """Return a process."""
    default: dict[str, Any] = {"start_ticks": pid * 10, "parent": 1, "group": pid, "since": 0.0, "command": "x"}
    return Process(pid=pid, **default | facts)


def slab(device: int, generation: int, epoch: bytes = EPOCH) -> Memfd:
    """Return a worker's slab."""
    return Memfd(process_tags.slab_name(epoch, device, generation), 4096)


def pool(devices: int, clients: int = 1) -> tuple[dict[str, Any], Inventory]:
    """Return an honest pool: what there is, as a dict to be changed, and what is believed."""
    workers = {device: 200 + device for device in range(devices)}
    slabs = {device + 1: slab(device, 3) for device in range(devices)}
    slabs[50] = Memfd(process_tags.client_slab_name(EPOCH), 8192)
    clients_pids = [CLIENT + number for number in range(clients)]
    processes = {
        SUPERVISOR: process(SUPERVISOR, watches=tuple(workers.values()), opened=frozenset({50})),
        **{
            pid: process(
                pid,
                parent=SUPERVISOR,
                marked=True,
                opened=frozenset({device + 1}),
                mapped=frozenset({device + 1, 50}),
                descriptors={"socket": 3},
            )
            for device, pid in workers.items()
        },
        **{pid: process(pid, mapped=frozenset(slabs)) for pid in clients_pids},
        7: process(7, marked=False),
    }
    observed = {
        "processes": processes,
        "slabs": slabs,
        "sockets": {
            "session.sock": Socket(0.0, (SUPERVISOR,)),
            **{f"d{device}-g3.sock": Socket(0.0, (pid,)) for device, pid in workers.items()},
        },
        "notes": frozenset(workers.values()),
        "survivors": frozenset(workers.values()),
        "supervisor": SUPERVISOR,
        "epoch": LABEL,
    }
    believed = Inventory(
        id=1,
        epoch=EPOCH,
        backend="host",
        processes=[
            ProcessHeld("worker", pid, pid * 10, device, 3, slab_bytes=4096, leases=1)
            for device, pid in workers.items()
        ],
        sessions=[SessionHeld(number, "c", pid, "calls") for number, pid in enumerate(clients_pids)],
        memfds=[50],
        complete=True,
    )
    return observed, believed


def states(findings: list[Finding], state: State) -> list[str]:
    """Return what findings of a state are about."""
    return [each.kind for each in findings if each.state is state]


@given(st.integers(1, 4), st.integers(1, 3))
def test_an_honest_pool_has_nothing_unaccounted(devices: int, clients: int) -> None:
    """Each process, socket, session and slab is shown, and all of them are well."""
    observed, believed = pool(devices, clients)
    findings = compare(Observed(**observed), Supervision.ANSWERS, believed)
    assert {each.state for each in findings} == {State.OK}
    assert states(findings, State.OK).count("process") == devices
    assert states(findings, State.OK).count("session") == clients


def test_remote_clients_are_told_and_who_is_cut_is_held() -> None:
    """A relay that listens nowhere is a finding, with its address."""
    observed, believed = pool(1, 1)
    sessions = [RemoteSessionStatus("far", "alice", connected, 100) for connected in (True, False)]
    remote = RemoteStatus("tcp://10.0.0.5:5570", 9, True, 0, 0, sessions, 10)
    findings = compare(Observed(**observed), Supervision.ANSWERS, msgspec.structs.replace(believed, remote=remote))
    assert states(findings, State.OK).count("relay") == 1
    assert states(findings, State.HELD) == ["session"]
    assert sum("alice: 100 bytes" in each.what for each in findings) == 2
    silent = msgspec.structs.replace(remote, listening=False, sessions=[], pid=0)
    findings = compare(Observed(**observed), Supervision.ANSWERS, msgspec.structs.replace(believed, remote=silent))
    assert states(findings, State.UNACCOUNTED) == ["relay"]


def with_process(observed: dict[str, Any], **facts: Any) -> dict[str, Any]:
    """Return what there is with one more process."""
    added = process(**{"pid": 666} | facts)
    return observed | {"processes": observed["processes"] | {added.pid: added}}


def with_supervisor(observed: dict[str, Any], **facts: Any) -> dict[str, Any]:
    """Return what there is with another supervisor."""
    changed = observed["processes"][SUPERVISOR]._replace(**facts)
    return observed | {"processes": observed["processes"] | {SUPERVISOR: changed}}


def without(observed: dict[str, Any], pid: int) -> dict[str, Any]:
    """Return what there is without a process."""
    return observed | {"processes": {key: each for key, each in observed["processes"].items() if key != pid}}


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda o: with_process(o, parent=SUPERVISOR), "process"),
        (lambda o: with_process(o, parent=SUPERVISOR, zombie=True), "process"),
        (lambda o: with_process(o, marked=True), "process"),
        (lambda o: with_process(o, group=200), "process"),
        (lambda o: o | {"sockets": o["sockets"] | {"d0-g2.sock": Socket(0.0, ())}}, "socket"),
        (lambda o: o | {"sockets": o["sockets"] | {"d0-g3.sock": Socket(0.0, ())}}, "socket"),
        (lambda o: o | {"sockets": o["sockets"] | {"session.sock": Socket(0.0, (7,))}}, "socket"),
        (lambda o: o | {"notes": o["notes"] | {4711}}, "note"),
        (lambda o: with_supervisor(o, watches=(200, 201, -1)), "descriptor"),
        (lambda o: with_supervisor(o, watches=(200, 201, 7)), "descriptor"),
        (lambda o: with_supervisor(o, opened=frozenset({50, 1})), "descriptor"),
        (lambda o: without(o, CLIENT), "session"),
        (lambda o: o | {"slabs": o["slabs"] | {1: slab(0, 3)._replace(nbytes=8192)}}, "memory"),
        (lambda o: o | {"slabs": o["slabs"] | {1: slab(0, 3)._replace(nbytes=1)}}, "memory"),
    ],
)  # fmt: skip
def test_whatever_is_added_or_missing_is_found(change: Any, kind: str) -> None:
    """One thing more or less than there has to be is one finding."""
    observed, believed = pool(2)
    findings = compare(Observed(**change(observed)), Supervision.ANSWERS, believed)
    assert states(findings, State.UNACCOUNTED) == [kind]


def test_what_a_running_request_has_made_is_not_shown_yet() -> None:
    """So it is not compared."""
    observed, believed = pool(2)
    more = observed | {"slabs": observed["slabs"] | {1: slab(0, 3)._replace(nbytes=8192)}}
    running = [msgspec.structs.replace(each, running=1) for each in believed.processes]
    found = compare(Observed(**more), Supervision.ANSWERS, msgspec.structs.replace(believed, processes=running))
    assert not states(found, State.UNACCOUNTED)


def test_a_believed_process_must_be_the_same_one() -> None:
    """Another that has its pid by now is not."""
    observed, believed = pool(1)
    changed = observed["processes"] | {200: observed["processes"][200]._replace(start_ticks=5)}
    found = compare(Observed(**observed | {"processes": changed}), Supervision.ANSWERS, believed)
    assert states(found, State.UNACCOUNTED) == ["process"]


def test_what_an_actor_has_started_is_its_worker_s() -> None:
    """However deep, and whatever its mark and group, for as long as the worker lives."""
    observed, believed = pool(1)
    changed = with_process(with_process(observed, pid=500, parent=200, marked=True), pid=501, parent=500, marked=True)
    changed = with_process(changed, pid=502, parent=SUPERVISOR, marked=True, worker=(0, 3))
    found = compare(Observed(**changed), Supervision.ANSWERS, believed)
    assert not states(found, State.UNACCOUNTED)
    assert sum("started by the worker of device 0 generation 3" in each.what for each in found) == 3
    changed = with_process(changed, pid=502, parent=SUPERVISOR, marked=True, worker=(0, 2))
    assert states(compare(Observed(**changed), Supervision.ANSWERS, believed), State.UNACCOUNTED) == ["process"]


def test_what_a_living_client_has_mapped_of_the_dead_is_shown_with_its_pid() -> None:
    """It is held, not unaccounted for; that of other pools does not matter here."""
    observed, believed = pool(1)
    slabs = observed["slabs"] | {60: slab(0, 2), 61: slab(0, 2, epoch=bytes(16))}
    client = observed["processes"][CLIENT]._replace(mapped=frozenset(slabs))
    changed = observed | {"slabs": slabs, "processes": observed["processes"] | {CLIENT: client}}
    found = [each for each in compare(Observed(**changed), Supervision.ANSWERS, believed) if each.state is not State.OK]
    assert [(each.state, each.kind, each.pid, each.nbytes) for each in found] == [(State.HELD, "memory", CLIENT, 4096)]
    assert "device 0 generation 2, which has ended" in found[0].what


def test_leases_of_nobody_are_found() -> None:
    """Where no session lives or waits for its end."""
    observed, believed = pool(1, clients=0)
    found = compare(Observed(**observed), Supervision.ANSWERS, believed)
    assert states(found, State.UNACCOUNTED) == ["session"]


@pytest.mark.parametrize(
    ("state", "pid", "mapped", "expected"),
    [
        ("ended", None, [], State.HELD),
        ("ended", CLIENT, [1], State.HELD),
        ("ended", CLIENT, [50], State.UNACCOUNTED),  # its own memory only
        ("ended", CLIENT + 9, [], State.UNACCOUNTED),
        ("ended", 9, [1], State.UNACCOUNTED),
        ("maps", CLIENT, [1], State.HELD),
        ("maps", CLIENT, [], State.UNACCOUNTED),
        ("maps", 9, [1], State.UNACCOUNTED),
        ("parts", CLIENT, [], State.HELD),
        ("parts", 9, [1], State.UNACCOUNTED),
    ],
)
def test_an_ended_session_s_memory_waits_for_who_has_it(
    state: str, pid: int | None, mapped: list[int], expected: State
) -> None:
    """A process that has none of it mapped, or the relay, which unmaps it at once, is waited for in vain."""
    observed, believed = pool(1)
    processes = observed["processes"] | {9: process(9, parent=SUPERVISOR, marked=True)}
    for each in (CLIENT, 9):
        processes[each] = processes[each]._replace(mapped=frozenset(mapped))
    ended = SessionHeld(7, "?", pid, state)
    remote = RemoteStatus("tcp://10.0.0.5:5570", 9, True, 0, 0, [], 10)
    changed = msgspec.structs.replace(
        believed,
        processes=[*believed.processes, ProcessHeld("relay", 9, 90)],
        sessions=[*believed.sessions, ended],
        remote=remote,
    )
    found = compare(Observed(**observed | {"processes": processes}), Supervision.ANSWERS, changed)
    assert [each.state for each in found if "session 7 has ended" in each.what] == [expected]
    assert states(found, State.UNACCOUNTED) == ["session"] * (expected is State.UNACCOUNTED)


@given(st.integers(0, 4), st.integers(0, 4), st.sampled_from(["calls", "cut", "ended", "maps", "parts"]))
def test_memory_for_more_sessions_than_there_are_is_found(held: int, known: int, state: str) -> None:
    """A worker says for how many it has some, those included that have ended."""
    observed, believed = pool(1, clients=0)
    sessions = [SessionHeld(number, "c", None, state) for number in range(known)]
    (worker,) = believed.processes
    changed = msgspec.structs.replace(
        believed, processes=[msgspec.structs.replace(worker, sessions=held, leases=0)], sessions=sessions
    )
    found = compare(Observed(**observed), Supervision.ANSWERS, changed)
    assert any("holds memory for" in each.what for each in found) is (held > known)


def test_who_uses_a_gpu_is_told_where_the_pids_are_ours() -> None:
    """The pool's and others'; pids of another namespace mean nothing here."""
    observed, believed = pool(1)
    using = {"GPU-1": [(200, 2**30), (CLIENT, 5), (7, 6), (31337, 7)]}
    found = compare(Observed(**observed | {"gpus": using}), Supervision.ANSWERS, believed)
    assert [(each.pid, each.nbytes) for each in found if each.kind == "gpu"] == using["GPU-1"]
    found = compare(Observed(**observed | {"gpus": {"GPU-1": [(31337, 7)]}}), Supervision.ANSWERS, believed)
    assert ["another pid namespace" in each.what for each in found if each.kind == "gpu"] == [True]


def test_memory_of_a_worker_whose_board_is_not_believed_is_held() -> None:
    """What it says of it is not known; the worker is replaced, and its memory goes with it."""
    observed, believed = pool(2)
    damaged = msgspec.structs.replace(believed.processes[0], slab_bytes=0, leases=0, believed=False)
    believed = msgspec.structs.replace(believed, processes=[damaged, *believed.processes[1:]])
    found = compare(Observed(**observed), Supervision.ANSWERS, believed)
    assert states(found, State.UNACCOUNTED) == []
    assert [(each.pid, each.nbytes) for each in found if each.state is State.HELD] == [(200, 4096)]


def on_gpus(*gpus: Mapping[int, int | None], running: int = 0) -> list[Finding]:
    """Return what is found of a CUDA pool in mid-failover: its GPUs' users, and how much each takes, if known."""
    observed, believed = pool(1)
    roles = {200: "worker", 201: "standby", 202: "predecessor"}
    contexts = {pid: process(pid, parent=SUPERVISOR, marked=True, descriptors={"gpu": 20}) for pid in roles}
    observed |= {"slabs": {50: observed["slabs"][50]}, "processes": observed["processes"] | contexts}
    held = [
        ProcessHeld(role, pid, pid * 10, 0, 3 + number, slab_bytes=2**30, leases=1, running=running)
        for number, (pid, role) in enumerate(roles.items())
    ]
    sockets = {f"d0-g{each.generation}.sock": Socket(0.0, (each.pid,)) for each in held}
    believed = msgspec.structs.replace(believed, backend="cuda", processes=held)
    observed |= {
        "sockets": observed["sockets"] | sockets,
        "gpus": {
            f"GPU-{number}": [(pid, nbytes or 0) for pid, nbytes in gpu.items()] for number, gpu in enumerate(gpus)
        },
    }
    return compare(Observed(**observed), Supervision.ANSWERS, believed)


def test_worker_standby_and_predecessor_take_memory_of_a_gpu() -> None:
    """Each has its context and its slabs, and maybe a context on another GPU; so has whoever else computes there."""
    ours = {200: 2 * 2**30, 201: 2**30 + 5, 202: 2**30}
    found = on_gpus({**ours, CLIENT: 5, 31337: 2**30}, {200: 2**28})
    assert states(found, State.UNACCOUNTED) == []
    assert [(each.pid, each.nbytes) for each in found if each.kind == "gpu"] == [
        *({**ours, CLIENT: 5, 31337: 2**30}.items()),
        (200, 2**28),
    ]
    what = [each.what for each in found if each.kind == "gpu"]
    assert [text.partition(",")[0] for text in what[:3]] == [
        "the worker of device 0 generation 3",
        "the standby of device 0 generation 4",
        "the predecessor of device 0 generation 5",
    ]


def test_a_worker_without_the_memory_that_it_says_it_has_is_found() -> None:
    """Unless something runs there, which may make some or give it back just now."""
    less = {200: 2**30 - 1, 201: 2**30, 202: 2**30}
    assert [each.pid for each in on_gpus(less) if each.state is State.UNACCOUNTED] == [200]
    assert states(on_gpus(less, running=1), State.UNACCOUNTED) == []


@pytest.mark.parametrize("using", [{200: None, 201: None}, {4711: None}, {7: 3, CLIENT: 4}, {}])
def test_what_a_driver_does_not_tell_is_nobody_s_fault(using: dict[int, int | None]) -> None:
    """In a container: no amounts, pids of another namespace, some of which mean something else here, or nothing."""
    found = on_gpus(using)
    assert states(found, State.UNACCOUNTED) == []
    told = [each for each in found if each.kind == "gpu"]
    if not using:
        assert told == []
    elif 200 in using:
        assert [(each.pid, each.nbytes) for each in told] == [(200, None), (201, None)]
        assert all(each.what.endswith("how much is not told") for each in told)
    else:
        assert ["another pid namespace" in each.what for each in told] == [True]


@pytest.mark.parametrize(
    ("supervision", "processes", "files"),
    [
        (Supervision.KILLED, State.UNACCOUNTED, State.HELD),
        (Supervision.ENDED, State.UNACCOUNTED, State.UNACCOUNTED),
        (Supervision.SILENT, State.OK, State.OK),
    ],
)
def test_without_a_supervisor_what_is_left_is_told(supervision: Supervision, processes: State, files: State) -> None:
    """Files of a killed one go with the next start; its processes should be gone."""
    observed, _ = pool(2)
    found = compare(Observed(**observed), supervision, None)
    assert {each.state for each in found if each.kind == "process"} == {processes}
    assert {each.state for each in found if each.kind in {"socket", "note"}} == {files}
    assert {each.state for each in found if each.kind == "memory"} == {State.HELD}
    empty = Observed({}, {}, supervisor=SUPERVISOR if supervision is Supervision.KILLED else 0)
    assert len(compare(empty, supervision, None)) == 1


def test_a_worker_that_has_ended_under_a_silent_supervisor_is_a_finding() -> None:
    """The zombie, its socket and its note are findings; those of another worker are well."""
    observed, _ = pool(2)
    processes, sockets = dict(observed["processes"]), dict(observed["sockets"])
    pid, name = 201, "d1-g3.sock"
    processes[pid] = processes[pid]._replace(zombie=True)
    sockets[name] = sockets[name]._replace(listeners=())
    observed |= {"processes": processes, "sockets": sockets}
    found = compare(Observed(**observed), Supervision.SILENT, None)
    unwell = [each for each in found if each.state is State.UNWELL and each.kind != "supervisor"]
    assert {each.kind for each in unwell} == {"process", "socket", "note"}
    assert [each.pid for each in unwell if each.kind == "process"] == [pid]
    assert {each.remedy for each in unwell} == {"the supervisor replaces it once it answers"}
    assert len([each for each in found if each.state is State.OK and each.kind in {"process", "socket", "note"}]) == 4


PIDS: Final = st.sampled_from([1, 7, SUPERVISOR, 200, 201, CLIENT])
SLABS: Final = st.frozensets(st.sampled_from([1, 2, 50, 60]))
PROCESSES: Final = st.dictionaries(
    PIDS,
    st.builds(
        Process,
        pid=PIDS,
        start_ticks=st.sampled_from([1, 2000, 2010]),
        parent=PIDS,
        group=PIDS,
        since=st.just(0.0),
        command=st.just("x"),
        zombie=st.booleans(),
        marked=st.booleans(),
        watches=st.lists(PIDS | st.just(-1), max_size=2).map(tuple),
        opened=SLABS,
        mapped=SLABS,
    ),
)


@given(PROCESSES, st.sampled_from(Supervision), st.frozensets(PIDS), st.frozensets(PIDS))
def test_anything_can_be_compared(
    processes: Mapping[int, Process], supervision: Supervision, notes: frozenset[int], survivors: frozenset[int]
) -> None:
    """Whatever a look finds, it is findings; each process that is believed is shown."""
    observed, believed = pool(2)
    slabs = observed["slabs"] | {60: slab(0, 2)}
    named = {pid: each._replace(pid=pid) for pid, each in processes.items()}
    found = Observed(**observed | {"processes": named, "slabs": slabs, "notes": notes, "survivors": survivors})
    answered = believed if supervision is Supervision.ANSWERS else None
    findings = compare(found, supervision, answered)
    assert findings
    if answered is not None:
        told = {each.pid for each in findings if each.kind == "process"}
        assert {each.pid for each in answered.processes} <= told


def test_resident_memory_is_told_with_its_users() -> None:
    """What the supervisor keeps, what it does not keep, and what it keeps without knowing."""
    observed, believed = pool(2)
    name = process_tags.resident_name(EPOCH)
    observed["slabs"] |= {inode: Memfd(name, 2**21) for inode in (70, 71, 72)}
    processes = observed["processes"]
    processes[SUPERVISOR] = processes[SUPERVISOR]._replace(opened=frozenset({50, 70, 72}))
    processes[200] = processes[200]._replace(mapped=frozenset({1, 50, 70, 71}))
    believed = msgspec.structs.replace(believed, memfds=[50, 70])
    findings = compare(Observed(**observed), Supervision.ANSWERS, believed)
    told = [(each.state, each.what) for each in findings if each.state is not State.OK or "resident" in each.what]
    assert [state for state, _ in told] == [State.UNACCOUNTED, State.OK, State.HELD, State.HELD]
    assert "inode 72" in told[0][1]
    assert [what.partition(", which")[0] for _, what in told[1:]] == [
        f"resident memory of 2,097,152 bytes, used by {users}" for users in ("pid 200", "pid 200", "nobody")
    ]
    left = compare(Observed(**with_process(observed, mapped=frozenset({70}))), Supervision.ENDED, None)
    assert (State.HELD, "pid 666 has resident memory of 2,097,152 bytes mapped") in [
        (each.state, each.what) for each in left
    ]


def looked(*names: str) -> list[Finding]:
    """Return a look at which these are unaccounted for, or unwell if so named."""
    states = {"unwell": State.UNWELL}
    found = [Finding(states.get(name, State.UNACCOUNTED), "x", name) for name in names]
    return [Finding(State.OK, "process", "fine"), *found]


@given(
    st.lists(
        st.tuples(st.floats(0.01, 1.0), st.frozensets(st.sampled_from(["a", "b", "unwell"]))), min_size=1, max_size=20
    )
)
def test_only_what_lasts_is_told(steps: list[tuple[float, frozenset[str]]]) -> None:
    """It was there at each look for so long; and the watch goes on for as long as anything has still to last."""
    watch, now_s = Inspection(1.0), 0.0
    since_s: dict[str, float] = {}
    for step_s, names in steps:
        now_s += step_s
        since_s = {name: since_s.get(name, now_s) for name in names}
        lasting = {name for name in names if now_s - since_s[name] >= 1.0}
        assert watch.look(now_s, looked(*sorted(names))) is (lasting == names)
        assert {each.what for each in watch.findings} == {"fine", *lasting}


def test_names_of_memory_say_whose_it_is() -> None:
    """Those of others have no known owner."""
    assert process_tags.owner(process_tags.slab_name(EPOCH, 3, 17)) == (LABEL, (3, 17), False)
    assert process_tags.owner(process_tags.client_slab_name(EPOCH)) == (LABEL, None, False)
    assert process_tags.owner(process_tags.resident_name(EPOCH)) == (LABEL, None, True)
    assert [process_tags.owner(name) for name in ("", "atomr-mp-board", "atomr-mp-slab", "atomr-mp-client-x")] == [
        None
    ] * 4
