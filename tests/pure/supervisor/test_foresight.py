"""What a device's next processes have ready: the list of imports, and what the supervisor does about one that fails."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomr_mp.protocol.messages import control
from atomr_mp.protocol.messages.control import MAX_MODULES, MAX_MODULES_AT_A_TIME, ImportedModule
from atomr_mp.supervision.imports import LONGEST_IMPORT_S, MAX_ENDS, ImportList
from atomr_mp.supervisor.processes.foresight import Foresight
from atomr_mp.supervisor.processes.parting import Parting
from tests.pure.supervisor.test_settling import Timers

START_S: Final = 300.0


def modules(*names: str) -> list[ImportedModule]:
    """Return modules of these names."""
    return [ImportedModule(name, bytes(16)) for name in names]


def names(found: ImportList) -> list[str]:
    """Return all names of a list."""
    messages = list(found.in_messages())
    assert all(0 < len(each) <= MAX_MODULES_AT_A_TIME for each in messages)
    return [module.name for each in messages for module in each]


ALL: Final = ["a", "a.b", "a.b.c", "ab", "b"]
NAMES: Final = st.sampled_from(ALL)
STEPS: Final = st.lists(
    st.tuples(st.just("add"), st.lists(NAMES, max_size=4))
    | st.tuples(st.sampled_from(["end", "late"]), NAMES)
    | st.just(("clear", ""))
)


@given(STEPS)
def test_what_is_barred_stays_barred_until_the_code_changes(steps: list[tuple[str, Any]]) -> None:
    """With all that is inside it; nothing is listed twice, and too many ends are the last."""
    found, barred, ends = ImportList(), set[str](), 0
    for step, what in (("add", ALL), *steps, ("add", ALL)):
        before = names(found)
        match step:
            case "add":
                new = [module.name for module in found.add(modules(*what))]
                assert names(found) == before + new
                assert set(new) <= set(what)
            case "clear":
                found.clear()
                barred, ends = set(), 0
            case _:
                assert found.bar(what, ended=step == "end") == (what in before)
                if what in before:
                    barred.add(what)
                    ends += step == "end"
        assert len(set(names(found))) == len(names(found))
        assert not any(name == each or name.startswith(f"{each}.") for name in names(found) for each in barred)
        assert ends < MAX_ENDS or names(found) == []


def test_the_list_has_a_limit() -> None:
    """Whatever a worker says."""
    found = ImportList()
    for start in range(0, 2 * MAX_MODULES, 100):
        found.add(modules(*(f"m{number}" for number in range(start, start + 100))))
    assert names(found) == [f"m{number}" for number in range(MAX_MODULES)]


class Process:
    """A process of a device, which keeps its messages."""

    def __init__(self) -> None:
        self.generation = self.pid = 1
        self.parting: Final = Parting()
        self.was_ready = self.leaving = self.drained = self.killed = False
        self.told: list[Any] = []
        self.patience: list[float] = []

    def tell(self, message: object) -> None:
        """Note a message."""
        self.told.append(message)

    def expect_ready(self, timeout_s: float) -> None:
        """Note a timer."""
        self.patience.append(timeout_s)

    def kill(self) -> None:
        """Note a kill."""
        self.leaving = self.killed = True

    @property
    def imports(self) -> list[str]:
        """The modules that it has to import."""
        orders = [each for each in self.told if isinstance(each, control.ImportAhead)]
        return [module.name for order in orders for module in order.modules]


class Scene:
    """A worker, its standby, and the foresight of both."""

    def __init__(self) -> None:
        self.timers: Final = Timers()
        self.events: list[str] = []
        self.worker: Any = Process()
        self.standby: Any = Process()
        log: Any = SimpleNamespace(note=lambda _event, text, **_: self.events.append(text))
        loop: Any = self.timers
        self.foresight: Final = Foresight(log, loop, lambda: START_S)
        standby: Any = self.standby
        self.foresight.imported(modules("numpy", "scipy", "scipy.stats"), standby)

    def briefed(self) -> list[str]:
        """Return the modules that another process would have to import."""
        process: Any = Process()
        self.foresight.brief(process, other_code=False)
        return list(process.imports)


def test_the_standby_hears_of_imports_and_every_further_process_at_its_start() -> None:
    """Each name once."""
    scene = Scene()
    scene.foresight.imported(modules("scipy", "torch"), scene.standby)
    scene.foresight.imported(modules("scipy", "torch"), scene.standby)
    assert scene.standby.imports == scene.briefed() == ["numpy", "scipy", "scipy.stats", "torch"]
    scene.foresight.forget_imports()
    assert scene.briefed() == []


def test_a_process_of_a_reload_hears_of_usage_alone() -> None:
    """Its own code has imported nothing yet; libraries and memory are its clients' wishes."""
    scene, ready = Scene(), control.MakeReady(["blas.gemm"], 1, 0)
    scene.foresight.used(control.Used(["blas.gemm"], 1, 0), None)
    process: Any = Process()
    scene.foresight.brief(process, other_code=True)
    scene.foresight.imported(modules("torch"), process)
    assert process.told == [ready]
    scene.foresight.promoted(scene.standby)
    scene.foresight.brief(scene.standby, other_code=False)
    assert scene.standby.told[1:3] == [ready, control.ImportAhead(modules("numpy", "scipy", "scipy.stats", "torch"))]
    scene.foresight.promoted(process)
    assert scene.briefed() == []


def test_an_import_that_ends_a_standby_is_barred() -> None:
    """An end that somebody has asked for is not the import's, nor is one that comes when it is over."""
    for name, wish, barred in (("scipy", "", True), ("scipy", "reload", False), ("", "", False), ("evil", "", False)):
        scene = Scene()
        scene.foresight.importing(scene.standby, "numpy")
        scene.foresight.importing(scene.standby, name)
        scene.standby.parting.wished(wish)
        assert scene.foresight.ended(scene.standby, inside=True) is barred
        assert scene.briefed() == (["numpy"] if barred else ["numpy", "scipy", "scipy.stats"])
        assert len(scene.events) == barred
        scene.timers.run_until(LONGEST_IMPORT_S)
        assert len(scene.events) == barred


def test_a_kill_from_outside_is_no_import_s_unless_it_comes_again() -> None:
    """At the same module: the kernel's for its memory, which no supervisor can tell from somebody's."""
    scene = Scene()
    for name in ("numpy", "scipy.stats"):
        scene.foresight.importing(scene.standby, name)
        assert not scene.foresight.ended(scene.standby, inside=False)
    assert scene.briefed() == ["numpy", "scipy", "scipy.stats"]
    scene.foresight.importing(scene.standby, "scipy.stats")
    assert scene.foresight.ended(scene.standby, inside=False)
    assert scene.briefed() == ["numpy", "scipy"]
    scene.foresight.forget_imports()
    scene.foresight.imported(modules("numpy"), None)
    scene.foresight.importing(scene.standby, "numpy")
    assert not scene.foresight.ended(scene.standby, inside=False)


@pytest.mark.parametrize("role", ["standby", "worker"])
def test_a_process_whose_import_takes_too_long_is_replaced(role: str) -> None:
    """Its loop is held up, whether it stands by, starts, or has just taken over."""
    scene = Scene()
    process = getattr(scene, role)
    scene.foresight.importing(process, "numpy")
    scene.timers.run_until(LONGEST_IMPORT_S - 1)
    scene.foresight.importing(process, "scipy")
    scene.timers.run_until(LONGEST_IMPORT_S)
    assert not scene.events
    scene.timers.run_until(2 * LONGEST_IMPORT_S)
    assert "importing scipy ahead of requests takes longer than 10 s" in scene.events[0]
    assert scene.briefed() == ["numpy"]
    assert process.killed
    assert not scene.foresight.ended(process, inside=False)


def test_all_but_the_last_message_of_a_list_say_that_more_follow() -> None:
    """A process that starts is not ready before it has imported all of it."""
    for count in (0, 1, control.MAX_MODULES_AT_A_TIME, control.MAX_MODULES_AT_A_TIME + 1, control.MAX_MODULES):
        scene = Scene()
        scene.foresight.forget_imports()
        scene.foresight.imported(modules(*map(str, range(count))), None)
        process: Any = Process()
        scene.foresight.brief(process, other_code=False)
        assert [message.more for message in process.told] == [True] * (len(process.told) - 1) + [False] * bool(count)
        assert len(process.imports) == count


def test_imports_do_not_count_as_the_start_s_time() -> None:
    """Each begins the time anew, before the process is ready, but only those that were ordered."""
    scene = Scene()
    scene.foresight.importing(scene.standby, "evil")
    scene.foresight.importing(scene.standby, "")
    assert scene.standby.patience == []
    scene.foresight.importing(scene.standby, "numpy")
    scene.foresight.importing(scene.standby, "")
    assert scene.standby.patience == [START_S] * 2
    scene.standby.was_ready = True
    scene.foresight.importing(scene.standby, "scipy")
    assert scene.standby.patience == [START_S] * 2
