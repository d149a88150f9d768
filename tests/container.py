"""A container as far as it can be had without an engine: a file system of its own, read-only, and another user.

Needs root. The system's own folders are what an image would have brought.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[1]
USER: Final = 10001
"""The user of the image in docs/examples."""

ENTER: Final = r"""
set -euo pipefail
root=$1 tmp_mode=$2 shm_bytes=$3
shift 3
mount -t tmpfs -o mode=0755 tmpfs "$root"
bring() {  # PATH [TARGET]: show a file or folder of the host inside
    local target="$root${2:-$1}"
    if [[ -L $1 && $# == 1 ]]; then
        mkdir -p "$(dirname "$target")"
        cp -P "$1" "$target"
    elif [[ -d $1 ]]; then
        mkdir -p "$target"
        mount --rbind "$1" "$target"
    elif [[ -e $1 ]]; then
        mkdir -p "$(dirname "$target")"
        touch "$target"
        mount --bind "$1" "$target"
    fi
}
shopt -s dotglob nullglob
for each in /* /opt/* /root/*; do  # /root, entry by entry, since others may not enter it
    case $each in
        /opt | /root | /tmp | /run | /app | /source | /opt/inference) ;;
        *) bring "$each" ;;
    esac
done
mkdir -p "$root/opt" "$root/root" "$root/run" "$root/app"
mkdir "$root/tmp"
mount -t tmpfs -o "mode=$tmp_mode" tmpfs "$root/tmp"
mount -t tmpfs -o "mode=1777,size=$shm_bytes" tmpfs "$root/dev/shm"
while [[ $1 != -- ]]; do
    bring "$1" "$2"
    shift 2
done
shift
mount -o remount,ro "$root"
exec chroot "$root" "$@"
"""

NO_RIGHTS: Final = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs")


class Box:
    """Runs commands as a container's user. Of their file system, only /tmp and /dev/shm can be written.

    Args:
        folder: Of the caller's own, for the mount point.
        inside: Files and folders of the host, by their places inside.
        tmp_mode: Of /tmp.
        shm_bytes: The size of /dev/shm.
    """

    def __init__(
        self, folder: Path, inside: Mapping[str, Path], *, tmp_mode: str = "1777", shm_bytes: int = 64 << 20
    ) -> None:
        self._root: Final = folder / "box"
        self._root.mkdir()
        # What is below /tmp on the host would be hidden.
        own = {str(path): path for path in (ROOT, Path(sys.prefix)) if path.is_relative_to("/tmp")}
        pairs = [str(each) for place, path in {**own, **inside}.items() for each in (path, place)]
        self._enter: Final = [
            *("unshare", "--mount", "--propagation", "private", "bash", "-c", ENTER, "enter"),
            *(str(self._root), tmp_mode, str(shm_bytes), *pairs, "--"),
        ]

    def command(self, *command: str, first: tuple[str, ...] = ()) -> list[str]:
        """Return the command line that runs a command inside as the user, and another as root without rights before."""
        user = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--no-new-privs", *command]
        if not first:
            return [*self._enter, *user]
        both = '"${@:2:$1}"; exec "${@:2+$1}"'
        before = [*NO_RIGHTS, *first]
        return [*self._enter, "bash", "-euc", both, "both", str(len(before)), *before, *user]

    def as_root(self, *command: str) -> list[str]:
        """Return the command line that runs a command inside as root."""
        return [*self._enter, *command]


def needs_boxes() -> pytest.MarkDecorator:
    """Return a mark that skips where no file system of one's own can be had, and says why."""
    reason = ""
    if os.geteuid() != 0:
        reason = "only root can run a process as another user in a file system of its own"
    elif not all(map(shutil.which, ("unshare", "setpriv", "chroot"))):
        reason = "needs unshare, setpriv and chroot: apt-get install util-linux"
    elif subprocess.run(["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/tmp"], check=False).returncode != 0:
        reason = "this system allows no mounts, as in most containers"
    return pytest.mark.skipif(bool(reason), reason=reason)
