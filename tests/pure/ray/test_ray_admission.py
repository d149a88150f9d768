from __future__ import annotations

import pytest

from atomr_mp import errors
from atomr_mp.ray.admission import admit, is_full
from atomr_mp.remote.keys import Admitted, AdmittedKey, new_pair


def key(name: str) -> AdmittedKey:
    """Return a key to be admitted."""
    return AdmittedKey(name=name, public=[new_pair().public])


def names(admitted: Admitted) -> list[str]:
    """Return whose keys are admitted."""
    return [each.name for each in admitted.keys]


def test_the_oldest_key_without_a_session_gives_way() -> None:
    """Ray may start any number of processes that call a pool; the list of their keys does not grow without end."""
    admitted = Admitted()
    for name in ("a", "b", "c"):
        assert not is_full(admitted, key(name), 3)
        admitted = admit(admitted, key(name), (), 3)
    assert is_full(admitted, key("d"), 3)
    admitted = admit(admitted, key("d"), {"a", "c"}, 3)
    assert names(admitted) == ["a", "c", "d"]


def test_no_key_with_a_session_gives_way() -> None:
    """Otherwise the session's calls would end."""
    admitted = admit(Admitted(keys=[key("a"), key("b")]), key("c"), {"a", "b"}, 2)
    assert names(admitted) == ["a", "b", "c"]


def test_a_client_that_comes_again_takes_nobodys_place() -> None:
    """It has its key already."""
    again = key("b")
    before = Admitted(keys=[key("a"), again])
    assert not is_full(before, again, 2)
    assert set(names(admit(before, again, (), 2))) == {"a", "b"}


def test_a_key_has_one_owner() -> None:
    """No node takes another's place by its key."""
    before = Admitted(keys=[key("a")])
    with pytest.raises(errors.ConfigurationError, match="admitted already"):
        admit(before, AdmittedKey(name="b", public=list(before.keys[0].public)), ())
