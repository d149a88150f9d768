"""The inputs of programs: where they may be declared, what they may be called, and what stands for an array."""

from __future__ import annotations

import inspect
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from atomr_mp import errors
from atomr_mp.libraries.program import Program
from atomr_mp.libraries.world_program import WorldProgram
from atomr_mp_workers.device.host import HostDevice
from tests.actor_libraries import libraries_on


@pytest.fixture(scope="module")
def libraries() -> Any:
    """Libraries on the host, without a worker."""
    return libraries_on(HostDevice(), "host")


def test_an_input_may_come_after_a_step_and_in_a_body(libraries: Any) -> None:
    """As help says; it is given to each run, whichever way that takes."""
    with libraries.program() as p:
        flag = p.input("flag", (), "int64")
        total = p.elementwise.maximum(flag, flag)
        late = p.input("late", (), "int64")
        p.elementwise.add(total, late, total)
        with p.if_(flag):
            within = p.input("within", (), "int64")
            p.elementwise.add(total, within, total)
        p.elementwise.add(total, within, total)
        p.returns(total)
    assert p.run(flag=1, late=10, within=100).array == 211
    assert p.run(flag=0, late=10, within=100).array == 110
    assert "after a step" not in inspect.getdoc(Program.input).split("Raises")[1]  # type: ignore[union-attr]


def test_an_input_has_no_name_that_a_run_cannot_take(libraries: Any) -> None:
    """Such a program could never be run."""
    runs = {
        each.name
        for run in (Program.run, WorldProgram.run)
        for each in inspect.signature(run).parameters.values()
        if each.kind is not inspect.Parameter.VAR_KEYWORD
    }
    assert runs == {"self", "deadline_s"}
    with libraries.program() as p:
        for name in runs:
            with pytest.raises(errors.InvalidRequest, match=f"cannot be named '{name}'"):
                p.input(name, (), "int64")
        x = p.input("inputs", (), "int64")
        p.returns(p.elementwise.add(x, x))
    assert p.run(inputs=2).array == 4


def test_a_truth_value_is_no_length(libraries: Any) -> None:
    """Of no input and no temporary, where True would count as 1."""
    with libraries.program() as p:
        wrong: list[Any] = [True, (True, 3), [2, np.True_]]
        for shape in wrong:
            with pytest.raises(errors.InvalidRequest, match=r"shape is .*True_?; it must be a whole number"):
                p.input("x", shape, "int64")
            with pytest.raises(errors.InvalidRequest, match=r"shape is .*True_?; it must be a whole number"):
                p.empty(shape, "int64")


@pytest.mark.parametrize(
    ("dtype", "number"),
    [
        ("int64", 3),
        ("int64", np.int64(3)),
        ("int8", np.int8(3)),
        ("float64", 3.0),
        ("float32", np.float32(3)),
        ("complex128", 3 + 1j),
        ("bfloat16", ml_dtypes.bfloat16(3)),
    ],
)
def test_a_number_is_an_input_without_dimensions(libraries: Any, dtype: str, number: Any) -> None:
    """In an actor as for a client, so a program is run in the same way from both."""
    with libraries.program() as p:
        x = p.input("x", (), dtype)
        p.returns(p.elementwise.add(x, p.elementwise.subtract(x, x)))
    for _ in range(2):
        assert p.run(x=number).array == number
    with pytest.raises(errors.InvalidRequest, match=r"input x is .* of shape \(1,\); the program takes"):
        p.run(x=np.asarray([number]))


@pytest.mark.parametrize("flag", [True, False, np.True_, np.False_])
def test_a_truth_value_is_the_input_of_a_branch(libraries: Any, flag: Any) -> None:
    """As NumPy has it: a bool without dimensions."""
    with libraries.program() as p:
        condition, x = p.input("flag", (), "bool"), p.input("x", (), "int64")
        total = p.elementwise.add(x, x)
        with p.if_(condition):
            p.elementwise.add(total, x, total)
        p.returns(total)
    assert p.run(flag=flag, x=1).array == 2 + flag


@pytest.mark.parametrize("wrong", [None, "3", [3], 2**70, np.datetime64(1, "s"), np.str_("3"), 1.5, np.int32(3)])
def test_what_is_no_such_number_is_refused(libraries: Any, wrong: Any) -> None:
    """With a typed error."""
    with libraries.program() as p:
        x = p.input("x", (), "int64")
        p.returns(p.elementwise.add(x, x))
    with pytest.raises(errors.InvalidRequest):
        p.run(x=wrong)
    assert p.run(x=2).array == 4
