from __future__ import annotations

import pytest

from atomr_mp import errors
from atomr_mp.supervision.directives import DIRECTIVES, Directive, directive
from tests.in_turn import in_turn
from tests.pure.protocol.test_errors import CLASSES


@in_turn("cls", CLASSES)
def test_every_error_has_a_directive(cls: type[errors.AtomrError]) -> None:
    """There is an answer to whatever a worker reports."""
    assert directive(cls("it happened")) in Directive


@pytest.mark.parametrize(
    ("cls", "expected"),
    [
        (errors.ContextPoisoned, Directive.RESTART),
        (errors.WorkerLost, Directive.RESTART),
        (errors.SetupFailed, Directive.RESTART),
        (errors.OutOfMemory, Directive.RESUME),
        (errors.LibraryError, Directive.RESUME),
        (errors.InvalidRequest, Directive.RESUME),
        (errors.ActorFailed, Directive.RESUME),
        (errors.DeadlineExceeded, Directive.RESUME),
        (errors.ActorLoadFailed, Directive.STOP),
        (errors.ConfigurationError, Directive.STOP),
        (errors.Unrecoverable, Directive.STOP),
        (errors.PoolLost, Directive.ESCALATE),
    ],
)
def test_an_error_asks_for_what_cures_it(cls: type[errors.AtomrError], expected: Directive) -> None:
    """A new process where it helps, no process where it does not, nothing where nothing is broken."""
    assert directive(cls("it happened")) is expected


def test_a_class_without_a_row_has_its_nearest_bases_directive() -> None:
    """An error that is added later is treated as what it is a kind of."""

    class NewPoison(errors.ContextPoisoned):
        code = "new_poison"

    assert NewPoison not in DIRECTIVES
    assert directive(NewPoison("it happened")) is Directive.RESTART
