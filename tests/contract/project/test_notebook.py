"""The getting-started page, and what notebooks add to it, in a real kernel."""

from __future__ import annotations

import asyncio
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Self

import nbclient
import nbformat
import psutil
import pytest
from jupyter_client.manager import AsyncKernelManager
from nbclient.exceptions import CellExecutionError

from guards.pages import ROOT, blocks
from tests.support import DEADLINE_S, settled

IN_A_NOTEBOOK: Final = re.compile(r"^(?P<indent> *)\S.*  # in a notebook: (?P<code>.+)$", re.MULTILINE)
"""A line for which the page itself names another one for notebooks."""


class Notebook:
    """A notebook with a kernel, whose sockets and files are all in one directory."""

    def __init__(self, directory: Path) -> None:
        self._directory: Final = directory
        self.kernel: Final = AsyncKernelManager(
            transport="ipc", ip=str(directory / "kernel"), connection_file=str(directory / "kernel.json")
        )
        self._notebook: Final[Any] = nbformat.v4.new_notebook()  # type: ignore[no-untyped-call]
        self._client: Final[Any] = nbclient.NotebookClient(self._notebook, km=self.kernel, timeout=DEADLINE_S)

    async def __aenter__(self) -> Self:
        await self._client.async_start_new_kernel(cwd=str(self._directory))
        await self._client.async_start_new_kernel_client()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        self._client.kc.stop_channels()
        await self.kernel.shutdown_kernel(now=True)
        self.kernel.context.destroy(linger=0)

    async def run(self, code: str) -> str:
        """Run a cell; return the text that it has printed.

        Raises:
            CellExecutionError: It has ended with an exception.
        """
        cell: Any = nbformat.v4.new_code_cell(code)  # type: ignore[no-untyped-call]
        self._notebook.cells.append(cell)
        await self._client.async_execute_cell(cell, len(self._notebook.cells) - 1)
        return "".join(output.get("text", "") for output in cell.outputs)

    async def restart(self) -> None:
        """Restart the kernel, which is killed, as by a notebook's button when it does not answer."""
        await self.kernel.restart_kernel(now=True)
        await self._client.kc.wait_for_ready(timeout=DEADLINE_S)


@pytest.fixture
def directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home for a kernel and its pools, short enough for sockets; nothing of it runs afterwards."""
    path = Path(tempfile.mkdtemp(prefix="an-", dir="/tmp"))
    for variable in ("XDG_RUNTIME_DIR", "TMPDIR", "IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(variable, str(path))
    try:
        yield path
        assert settled(lambda: not running_in(path)), running_in(path)
    finally:
        for process in running_in(path):
            process.kill()
        shutil.rmtree(path)


def running_in(directory: Path) -> list[psutil.Process]:
    """Return the processes that have a directory as their home: kernels, supervisors, workers."""
    return [process for process in psutil.process_iter() if home_of(process) == str(directory)]


def home_of(process: psutil.Process) -> str | None:
    """Return the runtime directory of a process, None if it cannot be known, or is ours."""
    try:
        ended = process.status() == psutil.STATUS_ZOMBIE or process.pid == psutil.Process().pid
        return None if ended else process.environ().get("XDG_RUNTIME_DIR")
    except psutil.Error:
        return None


def cells_of(page: Path, directory: Path) -> list[str]:
    """Return the cells of a page, as its reader makes them; the page's files are written."""
    found = [block for block in blocks(page) if block.language == "python"]
    for block in found:
        if block.file:
            (directory / block.file).write_text(block.code, encoding="utf-8")
    cells = [block.code for block in found if not block.file and not block.beside]
    return [IN_A_NOTEBOOK.sub(r"\g<indent>\g<code>", cell) for cell in cells]


def test_the_page_for_beginners_runs_as_a_notebook(directory: Path) -> None:
    """Every block, one cell each, in order, in one kernel."""
    cells = cells_of(ROOT / "docs" / "getting-started.md", directory)
    assert sum("await main()" in cell for cell in cells) == 1

    async def use() -> None:
        async with Notebook(directory) as notebook:
            for cell in cells:
                await notebook.run(cell)

    asyncio.run(use())


PREPARED: Final = """
import asyncio, os, atomr_mp
from atomr_mp import errors
pool = atomr_mp.start(actors=["words.py:Words"], gpus=1, backend="host")
words = pool.actor("Words")
"""

FORMS: Final = {
    "a cell that waits": "assert words.length('three').result() == 5",
    "a cell that awaits": "assert await words.length('three') == 5",
    "a cell that does both": "assert await words.length('one') == words.length('six').result() == 3",
    "a reply of an earlier cell, awaited": "reply = words.length('three')\n\nassert await reply == 5",
    "a function that waits": "def ask():\n    return words.length('three').result()\n"
    "assert [ask() for _ in 'ab'] == [5, 5]",
    "a magic": "%%time\nassert words.length('three').result() == 5",
    "more calls than the window": "replies = [words.length('one') for _ in range(2000)]\n"
    "assert sum(reply.result() for reply in replies) == 6000",
    "all at once, awaited": "assert sum(await asyncio.gather(*(words.length('one') for _ in range(2000)))) == 6000",
    "a map": "assert list(pool.map('Words.length', ['one', 'three'])) == [3, 5]",
    "a map in a cell that awaits": "await asyncio.sleep(0)\nassert list(pool.map('Words.length', ['one'])) == [3]",
    "a map of a generator that calls": "assert list(pool.map('Words.length', "
    "('x' * words.length('six').result() for _ in 'ab'))) == [3, 3]",
    "amap": "assert [each async for each in pool.amap('Words.length', ['one', 'three'])] == [3, 5]",
    "a coroutine": "async def ask():\n    return await words.length('three')\nassert await ask() == 5",
    "a coroutine that would block": "async def ask():\n    return words.length('three').result()\n"
    "for asking in (ask(), asyncio.create_task(ask())):\n    try:\n        await asking\n"
    "    except errors.WouldBlock as error:\n        assert 'await reply' in str(error)\n"
    "    else:\n        raise AssertionError",
    "a coroutine that would block by a map": "async def ask():\n    return list(pool.map('Words.length', ['one']))\n"
    "try:\n    await ask()\nexcept errors.WouldBlock as error:\n    assert 'amap' in str(error)\n"
    "else:\n    raise AssertionError",
    "a callback that would block": "fails = asyncio.get_running_loop().create_future()\n"
    "def ask():\n    try:\n        words.length('one').result()\n    except errors.WouldBlock as error:\n"
    "        fails.set_result(error)\nasyncio.get_running_loop().call_soon(ask)\nassert await fails",
    "a thread": "assert await asyncio.to_thread(lambda: words.length('three').result()) == 5",
    "a stream": "with pool.stream('Words.parts', 3) as parts:\n    assert list(parts) == [0, 1, 2]",
    "a stream, awaited": "async with pool.stream('Words.parts', 3) as parts:\n"
    "    assert [part async for part in parts] == [0, 1, 2]",
    "a pool that is entered": "async with atomr_mp.connect(run_dir=pool.run_dir) as other:\n"
    "    assert other.call('Words.length', 'one').result() == 3",
    "a pool of one's own": "async with atomr_mp.start(actors=['words.py:Words'], gpus=1, backend='host') as own:\n"
    "    assert await own.call('Words.length', 'one') == 3\n"
    "    supervisor = own.supervisor_pid\n"
    "try:\n    os.kill(supervisor, 0)\nexcept ProcessLookupError:\n    pass\nelse:\n    raise AssertionError",
}

WORDS: Final = """
import time
from collections.abc import Iterator
from atomr_mp_workers import Actor, method

class Words(Actor):
    @method
    def length(self, word: str) -> int:
        return len(word)

    @method(thread=True)
    def parts(self, count: int) -> Iterator[int]:
        yield from range(count)

    @method(thread=True)
    def wait(self, path: str) -> None:
        open(path, "w").close()
        time.sleep(600)
"""


def test_cells_may_wait_and_await_and_coroutines_may_not_block(directory: Path) -> None:
    """Each form of asking, in a cell of its own."""
    (directory / "words.py").write_text(WORDS, encoding="utf-8")

    async def use() -> None:
        async with Notebook(directory) as notebook:
            await notebook.run(PREPARED)
            for form, code in FORMS.items():
                try:
                    await notebook.run(code)
                except CellExecutionError as error:
                    raise AssertionError(form) from error

    asyncio.run(use())


def test_an_interrupt_ends_a_cell_s_wait_and_a_restart_the_pool(directory: Path) -> None:
    """After an interrupt the pool is used on; nothing of a killed kernel's pool is left, and the next has its own."""
    (directory / "words.py").write_text(WORDS, encoding="utf-8")
    begun = directory / "begun"

    async def use() -> None:
        async with Notebook(directory) as notebook:
            await notebook.run(PREPARED)
            waiting = asyncio.create_task(notebook.run(f"pool.call('Words.wait', {str(begun)!r}).result()"))
            assert await asyncio.to_thread(settled, begun.exists)
            await notebook.kernel.interrupt_kernel()
            with pytest.raises(CellExecutionError, match="KeyboardInterrupt"):
                await waiting
            assert await notebook.run("print(words.length('three').result())") == "5\n"

            told = await notebook.run("print(pool.supervisor_pid, pool.devices[0].pid)")
            pids = list(map(int, told.split()))
            assert all(map(psutil.pid_exists, pids))
            await notebook.restart()
            assert await asyncio.to_thread(settled, lambda: not any(map(psutil.pid_exists, pids))), told
            await notebook.run(PREPARED)
            assert await notebook.run("print(words.length('three').result())") == "5\n"

    asyncio.run(use())
