"""Key files: private, replaced as a whole, never overwritten."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
import zmq

from atomr_mp import cli, errors
from atomr_mp.remote import keys


def admitted(name: str = "alice", public: str | None = None) -> keys.AdmittedKey:
    """Return an entry with a new key."""
    return keys.AdmittedKey(name=name, public=[public or keys.new_pair().public])


def test_a_public_key_is_no_option(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that begins with a dash could not be given to `atomr-mp keys admit`."""
    drawn = iter([(b"-" + b"a" * 39, b"b" * 40), (b"c" * 40, b"d" * 40)])
    monkeypatch.setattr(zmq, "curve_keypair", lambda: next(drawn))
    assert keys.new_pair() == keys.KeyPair("c" * 40, "d" * 40)


def test_files_are_the_owner_s_alone(tmp_path: Path) -> None:
    """They are made so, and are read only if they are so."""
    pair = keys.new_pair()
    path = tmp_path / "new" / keys.SERVER_FILE
    keys.write_new(path, keys.ServerKeys(public=pair.public, secret=pair.secret))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert keys.read_server(path.parent).secret == pair.secret
    path.chmod(0o640)
    with pytest.raises(errors.ConfigurationError, match="nobody else"):
        keys.read_server(path.parent)


def test_a_key_is_never_overwritten(tmp_path: Path) -> None:
    """Whoever uses it would be locked out."""
    pair = keys.new_pair()
    content = keys.ServerKeys(public=pair.public, secret=pair.secret)
    keys.write_new(tmp_path / "server.key", content)
    with pytest.raises(errors.ConfigurationError, match="never overwritten"):
        keys.write_new(tmp_path / "server.key", content)


def test_a_client_has_two_keys_while_it_changes_over(tmp_path: Path) -> None:
    """It cannot have three. One of the two can be revoked by itself."""
    first, second = keys.new_pair().public, keys.new_pair().public
    keys.change_admitted(tmp_path, lambda before: before.admitting(admitted(public=first)))
    keys.change_admitted(tmp_path, lambda before: before.admitting(admitted(public=second)))
    assert set(keys.read_admitted(tmp_path).by_key()) == {first, second}
    with pytest.raises(errors.ConfigurationError, match="revoke the old one"):
        keys.change_admitted(tmp_path, lambda before: before.admitting(admitted()))
    keys.change_admitted(tmp_path, lambda before: before.revoking(first)[0])
    assert set(keys.read_admitted(tmp_path).by_key()) == {second}


def test_a_key_is_one_client_s(tmp_path: Path) -> None:
    """A session is bound to it."""
    public = keys.new_pair().public
    keys.change_admitted(tmp_path, lambda before: before.admitting(admitted("alice", public)))
    with pytest.raises(errors.ConfigurationError, match="alice"):
        keys.change_admitted(tmp_path, lambda before: before.admitting(admitted("bob", public)))


@pytest.mark.parametrize("text", ["", "short", "x" * 41, '"' * 40])
def test_what_is_no_key_is_refused(text: str) -> None:
    """The error says what a key is."""
    with pytest.raises(errors.ConfigurationError, match="Z85"):
        keys.check_key(text)


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"public": "x"}', b"\xff\xfe"])
def test_a_damaged_file_is_refused(tmp_path: Path, content: bytes) -> None:
    """Nothing is admitted by what cannot be read."""
    path = tmp_path / keys.SERVER_FILE
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(errors.ConfigurationError):
        keys.read_server(tmp_path)


def test_keys_are_not_kept_in_the_run_directory(tmp_path: Path) -> None:
    """The pool's processes write there, and its start cleans it."""
    with pytest.raises(errors.ConfigurationError, match="elsewhere"):
        keys.check_outside(tmp_path / "run" / "keys", tmp_path / "run")
    keys.check_outside(tmp_path / "keys", tmp_path / "run")


def test_files_from_before_a_right_was_known_stay_valid(tmp_path: Path) -> None:
    """Their keys do not have it."""
    public = keys.new_pair().public
    keys.change_admitted(tmp_path, lambda before: before.admitting(admitted("bob", public)))
    file = tmp_path / keys.ADMITTED_FILE
    content = json.loads(file.read_text(encoding="utf-8"))
    del content["keys"][0]["kernels"]
    file.write_text(json.dumps(content), encoding="utf-8")
    (found,) = keys.read_admitted(tmp_path).keys
    assert (found.name, found.public, found.kernels) == ("bob", [public], False)


def test_the_list_begins_with_the_server_s_public_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It can be given to further clients long after it was made; without a key there is none."""
    where = ["--keys-dir", str(tmp_path)]
    assert cli.main(["keys", "list", *where]) == 0
    assert capsys.readouterr().out == ""
    assert cli.main(["keys", "new", *where]) == 0
    public = capsys.readouterr().out.strip()
    assert cli.main(["keys", "list", *where]) == 0
    assert capsys.readouterr().out == f"the server's public key: {public}\n"
