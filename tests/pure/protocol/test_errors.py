from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from typing import Any, Final

from hypothesis import given
from hypothesis import strategies as st

from atomr_mp import errors
from atomr_mp.protocol.codec import ErrorInfo
from atomr_mp.protocol.messages.control import FROM_WORKER, Fault
from atomr_mp_workers.host import FAULT_CHARS
from atomr_mp_workers.requests.raised import wire_form
from tests.in_turn import in_turn


def tree(cls: type[errors.AtomrError]) -> list[type[errors.AtomrError]]:
    """Return a class and all below it that the module itself defines."""
    below = [found for sub in cls.__subclasses__() if sub.__module__ == errors.__name__ for found in tree(sub)]
    return [cls, *below]


CLASSES: Final = sorted(tree(errors.AtomrError), key=lambda cls: cls.__name__)
FACTS: Final[dict[str, st.SearchStrategy[Any]]] = {
    "str": st.text(),
    "int": st.integers(-(2**63), 2**63 - 1),
    "bool": st.booleans(),
    "float": st.floats(allow_nan=False),
}
anything = st.one_of(*FACTS.values(), st.none(), st.lists(st.integers()), st.binary())


def facts(error: errors.AtomrError) -> dict[str, Any]:
    """Return what an error knows, its message included."""
    return {field.name: getattr(error, field.name) for field in dataclasses.fields(error)}


@st.composite
def any_error(draw: st.DrawFn) -> errors.AtomrError:
    """Draw an error of any class with any facts."""
    cls = draw(st.sampled_from(CLASSES))
    return cls(**{field.name: draw(FACTS[str(field.type)]) for field in dataclasses.fields(cls)})


@given(any_error())
def test_an_error_is_the_same_on_the_other_side(error: errors.AtomrError) -> None:
    """Class, message and facts survive the wire form, and the bytes of a message that carries it."""
    message = Fault(ErrorInfo.of(error))
    received = FROM_WORKER.decode(FROM_WORKER.encode(message))
    assert isinstance(received, Fault)
    for again in (errors.from_wire(*errors.to_wire(error)), received.error.error()):
        assert type(again) is type(error)
        assert facts(again) == facts(error)
        assert str(again) == error.message
        assert again.args == (error.message,)


@given(any_error(), st.integers(0, 99), st.lists(st.text()))
def test_an_error_is_the_same_after_pickling(error: errors.AtomrError, parts: int, notes: list[str]) -> None:
    """Users' own process pools may carry our errors, with what was added to them."""
    error.parts = parts
    for note in notes:
        error.add_note(note)
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is type(error)
        assert facts(again) == facts(error)
        assert (again.parts, getattr(again, "__notes__", [])) == (parts, notes)


@given(st.text(), st.text(), st.dictionaries(st.text(), anything))
def test_an_unknown_code_is_a_remote_error(code: str, message: str, fields: dict[str, Any]) -> None:
    """A newer peer never breaks an older one; the request counts as possibly executed unless it says otherwise."""
    error = errors.from_wire(f"no-{code}", message, fields)
    assert isinstance(error, errors.RemoteError)
    assert error.remote_code == f"no-{code}"
    assert error.message == message
    assert error.maybe_executed is bool(fields.get("maybe_executed", True))


@given(any_error(), st.data())
def test_facts_of_a_wrong_type_and_unknown_facts_are_ignored(error: errors.AtomrError, data: st.DataObject) -> None:
    """A fact that does not fit keeps its default; it never fails, and never ends up in the error."""
    code, message, fields = errors.to_wire(error)
    names = [*fields, "message", "code", "unknown"]
    received = data.draw(st.dictionaries(st.sampled_from(names), anything))
    again = errors.from_wire(code, message, received)
    assert type(again) is type(error)
    assert again.message == message
    assert again.code == code
    assert not hasattr(again, "unknown")
    for field in dataclasses.fields(again):
        if field.name != "message":
            fits = type(received.get(field.name)).__name__ == field.type
            expected = received[field.name] if fits else field.default
            assert getattr(again, field.name) == expected


def test_what_no_message_can_hold_is_made_to_fit() -> None:
    """An error can always be sent: names of files that are not UTF-8, huge numbers, endless tracebacks."""
    error = errors.OutOfMemory("no room for \udc80", requested_bytes=2**80)
    again = ErrorInfo.of(error).error()
    assert FROM_WORKER.encode(Fault(ErrorInfo.of(error)))
    assert isinstance(again, errors.OutOfMemory)
    assert again.message == "no room for ?"
    assert again.requested_bytes == 2**63 - 1
    long = errors.SetupFailed("x" * 10**6, traceback_text="first\n" + "\U0001f600" * 10**5 + "last")
    received = FROM_WORKER.decode(FROM_WORKER.encode(Fault(ErrorInfo.of(long))))
    assert isinstance(received, Fault)
    again = received.error.error()
    assert isinstance(again, errors.SetupFailed)
    assert again.traceback_text.endswith("last"), "the end of a traceback is what one needs"


def test_a_worker_s_last_word_fits_into_a_packet() -> None:
    """Whatever is in it; the kernel admits twice its default limit, less what it needs itself."""
    longest = errors.SetupFailed("\U0001f600" * 10**5, traceback_text="\U0001f600" * 10**5)
    assert len(FROM_WORKER.encode(Fault(wire_form(longest, FAULT_CHARS)))) < 2 * 212_992 - 32


@in_turn("cls", CLASSES)
def test_every_class_is_public_and_says_what_holds_and_what_to_do(cls: type[errors.AtomrError]) -> None:
    """The documentation of an error is its docstring; base classes only say what they are the base of."""
    assert cls.__name__ in errors.__all__
    assert cls.__doc__
    if tree(cls) == [cls]:
        said = inspect.getdoc(cls) or ""  # from Python 3.13 on it is kept without the indentation
        assert "\nHolds: " in said
        assert "\nDo: " in said


def test_codes_are_unique_and_the_list_of_names_is_complete() -> None:
    """A code names one class, and `__all__` names every class, and nothing that is not there."""
    assert len({cls.code for cls in CLASSES}) == len(CLASSES)
    assert {cls.__name__ for cls in CLASSES} | {"from_wire", "to_wire"} == set(errors.__all__)
    assert all("code" in vars(cls) for cls in CLASSES), "no class goes by its base's code"


@in_turn("cls", CLASSES)
def test_facts_have_the_types_that_cross(cls: type[errors.AtomrError]) -> None:
    """Every fact has a default and one of the types that the wire form knows."""
    for field in dataclasses.fields(cls):
        assert field.type in FACTS
        assert field.name == "message" or field.default is not dataclasses.MISSING
