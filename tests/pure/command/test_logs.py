from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from atomr_mp import errors
from atomr_mp.process.files.logs import PrivateFileHandler, RotatedOutput
from tests.support import full_disk


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the log is to be."""
    return tmp_path / "device-0.log"


def test_a_small_log_is_left_alone(path: Path) -> None:
    """Rotation starts above the limit; the file is private and continued by the next to open it."""
    for _ in range(2):
        with RotatedOutput(path, max_bytes=100) as output:
            os.write(output.fileno(), b"x" * 50)
            output.check()
            assert not os.get_inheritable(output.fileno())
    assert path.read_bytes() == b"x" * 100
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_child_goes_on_writing_across_rotations(path: Path) -> None:
    """Its descriptor stays; every line it wrote is in one of the parts, in order."""
    code = "for line in open(0): print(line * 10, end='', flush=True); print(file=__import__('sys').stderr)"
    with RotatedOutput(path, max_bytes=30, keep=3) as output:
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", code],
            stdin=subprocess.PIPE,
            stdout=output.fileno(),
            stderr=subprocess.PIPE,
            text=True,
        )
        with child:
            assert child.stdin is not None
            assert child.stderr is not None
            for n in range(5):
                child.stdin.write(f"{n}\n")
                child.stdin.flush()
                assert child.stderr.readline() == "\n"
                output.check()
                output.check()
                if n in {0, 2}:
                    assert path.stat().st_size == 20
    parts = [part.read_text() for part in (Path(f"{path}.2"), Path(f"{path}.1"), path)]
    assert parts == ["0\n" * 10 + "1\n" * 10, "2\n" * 10 + "3\n" * 10, "4\n" * 10]


def test_only_so_many_parts_are_kept(path: Path) -> None:
    """The oldest is replaced; nothing else is left in the directory."""
    with RotatedOutput(path, max_bytes=1, keep=2) as output:
        for n in range(5):
            os.write(output.fileno(), b"%d%d" % (n, n))
            output.check()
    assert [Path(f"{path}{end}").read_bytes() for end in (".2", ".1", "")] == [b"33", b"44", b""]
    assert {found.name for found in path.parent.iterdir()} == {path.name, f"{path.name}.1", f"{path.name}.2"}


def test_nothing_is_kept_if_so_wanted(path: Path) -> None:
    """The file is then only cut."""
    with RotatedOutput(path, max_bytes=1, keep=0) as output:
        os.write(output.fileno(), b"many")
        output.check()
    assert [found.name for found in path.parent.iterdir()] == [path.name]
    assert path.stat().st_size == 0


def test_of_a_burst_the_end_is_kept(path: Path) -> None:
    """A part is no larger than twice the limit, however much came between checks; it says what it lacks."""
    with RotatedOutput(path, max_bytes=10) as output:
        os.write(output.fileno(), b"a" * 1000 + b"0123456789" * 2)
        output.check()
    assert Path(f"{path}.1").read_bytes() == b"[1000 bytes left out]\n" + b"0123456789" * 2


def test_a_full_disk_costs_the_rotation_and_one_warning(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is raised, the log and its older parts stay, and it works again when there is space."""
    with RotatedOutput(path, max_bytes=1000) as output:
        os.write(output.fileno(), b"old" * 400)
        output.check()
        os.write(output.fileno(), b"new" * 400)
        with full_disk(500):
            for _ in range(3):
                output.check()
                output.new_incarnation("generation 2")
        assert [record.levelno for record in caplog.records] == [logging.WARNING]
        assert path.read_bytes() == b"new" * 400
        assert {found.name for found in path.parent.iterdir()} == {path.name, f"{path.name}.1"}
        output.check()
    assert path.stat().st_size == 0
    assert Path(f"{path}.1").read_bytes().endswith(b"new")
    assert Path(f"{path}.2").read_bytes().endswith(b"old")


def test_an_incarnation_begins_with_one_line(path: Path) -> None:
    """Whatever the header holds; a file that was removed meanwhile is made anew."""
    with RotatedOutput(path) as output:
        output.new_incarnation("generation 1\nof \udcff")
        assert path.read_text() == "generation 1 of \\udcff\n"
        path.unlink()
        output.check()
        output.new_incarnation("generation 2")
        assert path.read_text() == "generation 2\n"


def test_a_new_worker_begins_a_line_of_its_own(path: Path) -> None:
    """Though the one before has ended in the middle of a line."""
    with RotatedOutput(path) as output:
        output.new_incarnation("generation 1")
        os.write(output.fileno(), b"half")
        output.new_incarnation("generation 2")
    assert path.read_text() == "generation 1\nhalf\ngeneration 2\n"


def test_a_log_that_cannot_be_opened_is_a_typed_error(path: Path) -> None:
    """A link is not followed; closing twice is fine."""
    path.symlink_to("elsewhere")
    with pytest.raises(errors.ConfigurationError, match=r"device-0\.log cannot be opened"):
        RotatedOutput(path)
    path.unlink()
    output = RotatedOutput(path)
    output.close()
    output.close()


def test_a_log_that_was_removed_and_cannot_be_made_anew_stays_a_file(path: Path) -> None:
    """A descriptor of -1 would be a pipe for `subprocess`, which has no reader; and the next attempt makes it."""
    with RotatedOutput(path) as output:
        path.unlink()
        path.mkdir()
        output.new_incarnation("lost")
        assert os.fstat(output.fileno()).st_nlink == 0
        path.rmdir()
        output.new_incarnation("kept")
        assert path.read_text() == "kept\n"


def test_the_supervisor_s_log_is_its_user_s_alone(path: Path) -> None:
    """Whatever the umask; one that an earlier life left open to others is closed to them."""
    path.touch()
    path.chmod(0o644)
    umask = os.umask(0)
    handler = PrivateFileHandler(path, maxBytes=100, backupCount=1)
    try:
        for line in ("x" * 90, "y" * 90):
            handler.emit(logging.makeLogRecord({"msg": line}))
    finally:
        handler.close()
        os.umask(umask)
    parts = [path, Path(f"{path}.1")]
    assert [part.read_text()[0] for part in parts] == ["y", "x"]
    assert [part.stat().st_mode & 0o777 for part in parts] == [0o600, 0o600]
