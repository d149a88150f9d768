"""A batch job that loses a worker in the middle, and nothing else. Run by scripts/demo.

Starts a pool, has examples/digits.py read 1,797 images of handwritten digits many times over, kills a worker process
with SIGKILL meanwhile, or on a GPU poisons its CUDA context with a kernel that writes to an invalid address, and checks
every promise. Everything is real: processes, the signal, the fault, the weights, the labels. The last line says what
was proven; the exit status is 1 if a check fails.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import threading
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import psutil
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

import atomr_mp
from atomr_mp import errors
from atomr_mp.protocol.messages.devices import DeviceState
from atomr_mp.protocol.messages.session import DeviceChanged, IncarnationEnded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from atomr_mp.mapping.run import Progress as MapProgress

EXAMPLES: Final = Path(__file__).resolve().parent.parent / "examples"
ACTOR: Final = EXAMPLES / "digits.py"
SABOTEUR: Final = Path(__file__).with_name("demo_fault.py")

KILL_AT: Final = 0.4
"""The fraction of the job after which the worker is killed."""

READY_S: Final = 60.0
"""How long the killed worker's device may take to be back."""


def main() -> int:
    """Run the demonstration; return the exit status."""
    parser = argparse.ArgumentParser(
        description="Reads digits, kills a worker, and shows what goes on.", allow_abbrev=False
    )
    parser.add_argument("--repeat", type=int, default=100, metavar="N", help="times the 1,797 images are read")
    parser.add_argument("--backend", choices=("auto", "cuda", "host"), default="auto")
    options = parser.parse_args()
    console = Console(highlight=False)
    try:
        wrong = Demonstration(console, options.repeat).run(options.backend)
    except (errors.AtomrError, TimeoutError) as error:
        wrong = [str(error)]
    for each in wrong:
        console.print(f"[red]wrong:[/] {each}", soft_wrap=True)
    return 1 if wrong else 0


class Demonstration:
    """One run.

    Args:
        console: Where it is shown.
        repeat: How often the images are read.
    """

    def __init__(self, console: Console, repeat: int) -> None:
        self._console = console
        self._repeat = max(1, repeat)
        self._images: NDArray[np.uint8] = np.load(EXAMPLES / "data/digits_all.npy")
        self._labels: NDArray[np.uint8] = np.load(EXAMPLES / "data/digits_all_labels.npy")
        self._total = self._repeat * len(self._images)
        self._begun = time.monotonic()
        self._processes: dict[int, psutil.Process] = {}
        """Every process that the pool has ever had."""
        self._victim = -1
        self._killed_s = 0.0
        self._back_s: float | None = None
        """From the kill until the device could be called again."""
        self._end: MapProgress | None = None
        self._took_s = 0.0

    def run(self, backend: Any) -> list[str]:
        """Run the job; return the failed checks."""
        self._console.print(
            f"[bold]{len(self._images):,} images of handwritten digits, read {self._repeat:,} times: {self._total:,} "
            "requests[/], one for each reading. There is a worker process for each device; one of them will be lost.",
            soft_wrap=True,
        )
        with atomr_mp.start(actors=[f"{ACTOR}:Digits", f"{SABOTEUR}:Saboteur"], backend=backend) as pool:
            status = pool.status()
            pids = [device.pid for device in pool.devices]
            self._note_processes([pool.supervisor_pid, *pids])
            self._tell(
                f"{status.backend} backend ready: supervisor {pool.supervisor_pid}, workers {', '.join(map(str, pids))}"
            )
            pool.on_event(self._on_event)
            predicted = self._job(pool)
            pool.wait_ready(READY_S)
        _, left = psutil.wait_procs(list(self._processes.values()), timeout=2)
        self._report(predicted, len(left))
        shutil.rmtree(pool.run_dir, ignore_errors=True)
        wrong = list(self._wrong(predicted, left))
        if not wrong:
            self._console.print(f"[bold green]{self._proven(str(status.backend))}[/]", soft_wrap=True)
        return wrong

    def _job(self, pool: atomr_mp.Pool) -> NDArray[np.int64]:
        """Read all images; kill a worker on the way."""
        predicted: list[int] = []
        kill_at = int(KILL_AT * self._total)
        items = (image for _ in range(self._repeat) for image in self._images)
        bar = _bar(self._console)
        task = bar.add_task("", total=self._total, rate=0.0)
        begun = time.monotonic()

        def show(progress: MapProgress) -> None:
            self._end = progress
            bar.update(task, completed=progress.done, rate=progress.done / (time.monotonic() - begun))

        # Where there is no terminal, the events alone tell the story.
        live: AbstractContextManager[Any] = bar if self._console.is_terminal else nullcontext()
        # From another thread, so that the job does not wait for it.
        killer = threading.Thread(target=self._kill, args=(pool,))
        with live:
            for digit in pool.map("Digits.predict", items, on_progress=show):
                predicted.append(digit)
                if len(predicted) == kill_at:
                    killer.start()
        killer.join()
        self._took_s = time.monotonic() - begun
        return np.array(predicted)

    def _kill(self, pool: atomr_mp.Pool) -> None:
        """Kill the worker that has most to do."""
        status = pool.status()
        victim = pool.devices[max(status.devices, key=lambda device: device.queue_depth).index]
        self._victim = victim.index
        if status.backend == "cuda":
            self._tell(f"[red]a kernel writes to address 0x10 on device {victim.index}, in the middle of its work[/]")
            self._killed_s = time.monotonic()
            lost = pool.call("Saboteur.poison", device=victim.index).exception()
            told_s = time.monotonic() - self._killed_s
            self._tell(f"[yellow]{type(lost).__name__} after {told_s * 1000:.0f} ms, the driver's time: {lost}[/]")
        else:
            self._tell(f"[red]kill -9 {victim.pid}, the worker of device {victim.index}, in the middle of its work[/]")
            self._killed_s = time.monotonic()
            os.kill(victim.pid, signal.SIGKILL)

    def _on_event(self, event: Any) -> None:
        match event:
            case IncarnationEnded():
                self._tell(f"[yellow]{event.error.message}[/]")
            case DeviceChanged(device):
                pid = device.worker_pid
                if device.state is DeviceState.STARTING and pid is not None and pid not in self._processes:
                    self._note_processes([pid])
                    self._tell(f"[yellow]device {device.index}: a new worker starts, pid {pid}[/]")
                elif device.admitted and device.index == self._victim and self._back_s is None:
                    self._back_s = time.monotonic() - self._killed_s
                    self._tell(
                        f"[green]device {device.index}: ready again, generation {device.generation}, "
                        f"{self._back_s * 1000:.0f} ms after that[/]"
                    )

    def _note_processes(self, pids: list[int]) -> None:
        for pid in pids:
            try:
                self._processes.setdefault(pid, psutil.Process(pid))
            except psutil.NoSuchProcess:  # it has gone already
                continue

    def _report(self, predicted: NDArray[np.int64], left: int) -> None:
        end = self._end
        assert end is not None
        table = Table(box=box.SIMPLE, show_header=False, pad_edge=False)
        table.add_row("images read", f"{len(predicted):,} of {self._total:,}, in order")
        table.add_row("rate", f"{len(predicted) / self._took_s:,.0f} images/s, over {self._took_s:.1f} s with the loss")
        correct, stated = self._accuracy(predicted)
        table.add_row("accuracy, held-out images", f"{correct:.2%} (the weights' file states {stated:.2%})")
        table.add_row("workers restarted", str(end.restarts))
        table.add_row("images sent again", str(end.resubmitted))
        table.add_row("failed", str(end.failed))
        table.add_row("loss to ready again", "never" if self._back_s is None else f"{self._back_s * 1000:.0f} ms")
        table.add_row("processes left", f"{left} of {len(self._processes)}")
        self._console.print(table)

    def _wrong(self, predicted: NDArray[np.int64], left: list[psutil.Process]) -> Iterator[str]:
        end = self._end
        assert end is not None
        if len(predicted) != self._total:
            yield f"{self._total - len(predicted)} images were lost"
        elif (predicted.reshape(self._repeat, -1) != predicted[: len(self._images)]).any():
            yield "the same image was not always read the same"
        correct, stated = self._accuracy(predicted)
        if correct < stated:
            yield f"an accuracy of {correct:.4f} is less than the stated {stated:.4f}"
        if end.restarts != 1:
            yield f"one worker was lost, but {end.restarts} were restarted"
        if self._back_s is None:
            yield "the lost worker's device did not come back"
        if left:
            yield f"processes are left: {', '.join(str(process.pid) for process in left)}"

    def _proven(self, backend: str) -> str:
        """Say what a run has proven in which nothing was wrong."""
        end = self._end
        assert end is not None
        loss = "had its CUDA context poisoned" if backend == "cuda" else "was killed"
        return (
            f"Proven: a worker {loss} in the middle of {self._total:,} requests. Each was answered, in order; the same "
            f"image was read the same every time; {end.resubmitted} lost requests were sent again by themselves; no "
            "process is left."
        )

    def _accuracy(self, predicted: NDArray[np.int64]) -> tuple[float, float]:
        """Return the accuracy on images outside the training set, and the accuracy that the weights' file states."""
        with np.load(EXAMPLES / "digits_weights.npz", allow_pickle=False) as weights:
            held_out, stated = weights["held_out_indices"], float(weights["held_out_accuracy"])
        once = predicted[: len(self._images)]
        return float(np.mean(once[held_out] == self._labels[held_out])), stated

    def _tell(self, text: str) -> None:
        self._console.print(f"[dim]{time.monotonic() - self._begun:6.2f} s[/]  {text}", soft_wrap=True)


def _bar(console: Console) -> Progress:
    return Progress(BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]:,.0f}/s"), console=console)


if __name__ == "__main__":
    sys.exit(main())
