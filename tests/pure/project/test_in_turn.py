from __future__ import annotations

import pytest

from tests.in_turn import in_turn


def test_all_cases_run_and_all_that_fail_are_told(tmp_path: object) -> None:
    """Whether they fail by an assertion, an error or an exception that was expected; each with its values."""
    ran: list[int] = []

    @in_turn("number, word", [(1, "one"), (2, "two"), pytest.param(3, "three", id="last"), (4, "four")])
    def test(tmp_path: object, number: int, word: str) -> None:
        del tmp_path
        ran.append(number)
        if number == 2:
            assert len(word) == 4
        elif number == 3:
            with pytest.raises(KeyError):
                str(word)
        elif number == 4:
            raise LookupError(word)

    with pytest.raises(BaseExceptionGroup, match="3 of 4 cases") as told:
        test(tmp_path=tmp_path)
    assert ran == [1, 2, 3, 4]
    assert [type(each) for each in told.value.exceptions] == [AssertionError, pytest.fail.Exception, LookupError]
    assert told.value.exceptions[0].__notes__ == ["with number, word = (2, 'two')"]


def test_no_case_is_a_mistake() -> None:
    """A list that has become empty shows nothing."""
    with pytest.raises(AssertionError, match="no case"):
        in_turn("number", [])(lambda number: None)  # noqa: ARG005 - its name
