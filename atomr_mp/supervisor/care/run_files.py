"""Keeps the files of the run directory: what is removed while the pool runs is made anew.

A cleaner of temporary folders, or a person, may remove anything there at any time, and nothing tells of it. The paths
are compared with what is held open, once a second and when a client cannot connect: some stats, which cost little.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from atomr_mp import errors
from atomr_mp.process.files import disk
from atomr_mp.process.files.rundir import HeldRunDirectory
from atomr_mp.process.files.safedir import inode
from atomr_mp.protocol.messages import control
from atomr_mp.protocol.words import counted
from atomr_mp.supervision.lifecycle import State
from atomr_mp.supervisor.device.device import SupervisedDevice
from atomr_mp.supervisor.loop import Loop
from atomr_mp.supervisor.processes.incarnation import Incarnation
from atomr_mp.supervisor.sessions.sessions import Sessions
from atomr_mp.transport.session import SessionListener

LOOK_S: Final = 1.0
"""Time between two looks."""

AGAIN_S: Final = 0.5
"""Time after which a worker that has not bound its socket anew gets the order again; twice as long each further time.
"""

TRY_S: Final = 60.0
"""How often it is tried to write an event where that has failed, although the disk has room: no other may be due."""

GIVE_UP_S: Final = 60.0
"""Time after which a directory that cannot be made anew is given up, and the pool with it."""

_LOG: Final = logging.getLogger("atomr_mp.supervisor")


class RunFiles:
    """The files of a run directory, from the first socket to the last.

    Args:
        run_dir: The directory, held by this process.
        loop: The supervisor's loop.
        sessions: Take in the clients.
        devices: Have workers with sockets there.
        others: Makes further sockets anew, and returns their names.
        note: Writes an event.
        lost: Called with the reason if the directory belongs to somebody else now, or is gone for good: nobody can
            reach the pool any more.
    """

    def __init__(
        self,
        run_dir: HeldRunDirectory,
        loop: Loop,
        sessions: Sessions,
        devices: Sequence[SupervisedDevice],
        others: Callable[[], list[str]],
        note: Callable[[str, str], None],
        lost: Callable[[str], None],
    ) -> None:
        self._run_dir = run_dir
        self._loop = loop
        self._sessions = sessions
        self._devices = devices
        self._others = others
        self._note = note
        self._lost = lost
        self._listener = SessionListener(run_dir.session_socket)
        self._listens = False
        self._seen: dict[tuple[int, int], tuple[int, int]] = {}
        """Inodes of workers' sockets, by device and generation."""
        self._told: dict[tuple[int, int], tuple[float, float]] = {}
        """When a worker gets the order to bind its socket anew again, and how long after the time before that is."""
        self._soon = False
        self._tried_s = 0.0
        """When all could be written, or an event was last written to see whether it can be."""
        self._failing_since = 0.0
        """When something could not be made anew for the first time since all was well; 0 if all is."""

    def start(self) -> None:
        """Look regularly."""
        self._look()
        self._look_at_disk()
        self._loop.call_later(LOOK_S, self.start)

    def listen(self) -> None:
        """Let clients in from now on."""
        self._listens = True
        self._sessions.listen(self._listener)

    def look_soon(self) -> None:
        """Look in this round of the loop: a client misses something."""
        if not self._soon:
            self._soon = True
            self._loop.call_afterwards(self._look)

    def close(self) -> None:
        """Stop listening."""
        self._loop.forget(self._listener.fileno())
        self._listener.close()

    def _look(self) -> None:
        self._soon = False
        try:
            found = [*self._run_dir.restore(), *self._session_socket(), *self._data_sockets(), *self._others()]
        except (errors.PoolBusy, errors.ConfigurationError) as error:
            self._lost(f"its run directory was replaced: {error.message}")
        except OSError as error:  # a full disk, for one; calls go on meanwhile
            if not self._failing_since:
                self._failing_since = self._loop.own_s
                _LOG.warning("files of the run directory are missing and cannot be made anew yet: %s", error)
            elif self._loop.own_s - self._failing_since > GIVE_UP_S and inode(self._run_dir.path) is None:
                self._lost(f"its run directory is gone and cannot be made anew: {error}")
        else:
            self._failing_since = 0.0
            if found:
                self._note("files_removed", f"{counted(len(found), 'file')} removed and made anew: {', '.join(found)}")

    def _look_at_disk(self) -> None:
        """See whether files can be written; once they can be again, write down since when they could not."""
        disk.STATE.look(self._run_dir.path)
        trouble = disk.STATE.trouble
        if trouble is None:
            self._tried_s = self._loop.own_s
            over = disk.STATE.take_over()
            if over is not None:
                self._tell_disk(over)
        elif not trouble.is_full and self._loop.own_s - self._tried_s > TRY_S:
            self._tried_s = self._loop.own_s
            self._tell_disk(trouble)
            disk.STATE.take_over()  # it is told, if it could be written

    def _tell_disk(self, trouble: disk.DiskTrouble) -> None:
        self._note("disk_full", f"{trouble.past}: lines of logs and events are lost")

    def _session_socket(self) -> list[str]:
        if not self._listener.is_lost():
            return []
        self._run_dir.session_socket.unlink(missing_ok=True)
        made = SessionListener(self._run_dir.session_socket)
        self.close()
        self._listener = made
        if self._listens:
            self._sessions.listen(made)
        return [self._run_dir.session_socket.name]

    def _data_sockets(self) -> list[str]:
        """Tell workers whose socket has gone, or is another file, to bind it anew; return the sockets' names."""
        found = []
        workers = {(device.index, worker.generation): worker for device in self._devices for worker in _serving(device)}
        for gone in self._seen.keys() - workers.keys():
            del self._seen[gone]
            self._told.pop(gone, None)
        for key, worker in workers.items():
            path = self._run_dir.worker_socket(*key)
            now = inode(path)
            if now is not None and (key in self._told or self._seen.setdefault(key, now) == now):
                self._seen[key] = now
                self._told.pop(key, None)
                continue
            due, delay_s = self._told.get(key, (0.0, AGAIN_S))
            if self._loop.own_s >= due:
                self._told[key] = self._loop.own_s + delay_s, 2 * delay_s
                worker.tell(control.Rebind())
                found.append(path.name)
        return found


def _serving(device: SupervisedDevice) -> list[Incarnation]:
    """Return the processes of a device whose sockets clients may look for."""
    found = [device.roles.active] if device.life.state is State.READY else []
    found += [device.roles.standby] if device.roles.standby is not None and device.roles.standby.is_ready else []
    return [worker for worker in found if worker is not None and not worker.leaving]
