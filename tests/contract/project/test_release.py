"""`scripts/release`: it finds archives that are not what git has, and a whole run shows what would be published."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Final

import pytest

import release
from atomr_mp import __version__

ROOT: Final = Path(__file__).parents[3]
DEADLINE_S: Final = 500.0


def known() -> list[str]:
    """Return the files of git that an archive should have."""
    try:
        return release.known_files()
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs git, and a checkout of it")


def archives(folder: Path, of_sdist: list[str], of_wheel: list[str]) -> Path:
    """Make an sdist and a wheel of empty files."""
    with tarfile.open(folder / "a-1.tar.gz", "w:gz") as sdist:
        for name in (*of_sdist, "PKG-INFO"):
            sdist.addfile(tarfile.TarInfo(f"a-1/{name}"), io.BytesIO())
    with zipfile.ZipFile(folder / "a-1-py3-none-any.whl", "w") as wheel:
        for name in (*of_wheel, "a-1.dist-info/METADATA"):
            wheel.writestr(name, b"")
    return folder


def test_archives_with_the_files_of_git_are_accepted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The wheel has the two packages, the sdist all but what only CI needs."""
    files = known()
    packaged = sorted(release.packaged(files))
    assert {name.partition("/")[0] for name in packaged} == {"atomr_mp", "atomr_mp_workers"}
    release.check_files(archives(tmp_path, files, packaged))
    assert f"have the files of git, {len(files) + 1} and {len(packaged)}" in capsys.readouterr().out


@pytest.mark.parametrize("archive", ["sdist", "wheel"])
@pytest.mark.parametrize("change", ["lacks", "has files that git does not know"])
def test_a_file_too_many_or_too_few_ends_the_release(tmp_path: Path, archive: str, change: str) -> None:
    """It names the archive and the file."""
    files = {"sdist": known(), "wheel": sorted(release.packaged(known()))}
    name = files[archive].pop() if change == "lacks" else "atomr_mp/secret.key"
    if change != "lacks":
        files[archive].append(name)
    with pytest.raises(SystemExit, match=rf"a-1\S+ {change}.*{re.escape(name)}"):
        release.check_files(archives(tmp_path, files["sdist"], files["wheel"]))


@pytest.mark.timeout(DEADLINE_S)
def test_a_release_builds_checks_and_shows_two_archives(tmp_path: Path) -> None:
    """From the checkout as it is; their names, sizes and digests are shown, and that nothing was published."""
    known()
    done = subprocess.run(
        [str(ROOT / "scripts" / "release"), str(tmp_path)],
        env={"PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin", "ATOMR_MP_VENV": sys.prefix},
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    names = {f"atomr_mp-{__version__}-py3-none-any.whl", f"atomr_mp-{__version__}.tar.gz"}
    assert {path.name for path in tmp_path.iterdir()} == names
    for name in names:
        assert re.search(rf"{re.escape(name)}\n  [\d,]+ bytes, sha256 [0-9a-f]{{64}}\n", done.stdout)
    assert f"  Version: {__version__}\n" in done.stdout
    assert done.stdout.endswith("release: nothing was published\n")
