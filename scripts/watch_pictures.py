"""Makes the pictures of the page that shows a pool, for docs/watching.md. Run by scripts/watch-pictures.

Serves `pictured.py` from two host devices with a standby each, calls it, kills a worker, reloads the pool, sends a
deadly request, and lets Chromium take pictures of the page: wide, as on a phone, and dark.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from PIL import Image
from selenium import webdriver

from atomr_mp.operator.session import OperatorSession

HERE: Final = Path(__file__).resolve().parent
PICTURES: Final = {
    "watch": (1280, 1640, "light"),
    "watch-dark": (1280, 1640, "dark"),
    "watch-phone": (390, 1900, "light"),
}
"""Width, greatest height and colours by name."""

MOST_BYTES: Final = 150_000
COLOURS: Final = 200
ANSWER_S: Final = 60.0
PAUSE_S: Final = 0.02


def main() -> int:
    """Make the pictures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--to", type=Path, default=HERE.parent / "docs", help="where the pictures go (default: docs)")
    parser.add_argument("--minutes", type=float, default=5.0, help="how long the pool serves (default: 5)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, _served(Path(folder)) as (port, token):
        stop = threading.Event()
        clients = [threading.Thread(target=_keep_calling, args=(port, token, stop, seed)) for seed in range(2)]
        for client in clients:
            client.start()
        try:
            _live(Path(folder) / "run", port, token, 60 * options.minutes)
            for name, (width, height, scheme) in PICTURES.items():
                _picture(port, token, options.to / f"{name}.png", width, height, scheme)
        finally:
            stop.set()
            for client in clients:
                client.join()
    return 0


@contextlib.contextmanager
def _served(folder: Path) -> Iterator[tuple[int, str]]:
    """Serve the pool; yield the port and the token."""
    command = [sys.executable, "-m", "atomr_mp.cli", "serve", "--port", "0", "--run-dir", f"{folder}/run"]
    pool = ["--actor", f"{HERE}/pictured.py:Vision", "--backend", "host", "--gpus", "2", "--standby", "hot"]
    with subprocess.Popen([*command, *pool], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None
            told = ""
            while "/call/" not in told:
                line = server.stdout.readline()
                if not line:
                    raise RuntimeError("the server has not started")
                told += line
            port, token = re.search(r"https?://[^/ ]*?:(\d+)", told), re.search(r"Bearer ([^']+)'", told)
            assert port is not None
            assert token is not None
            yield int(port[1]), token[1]
        finally:
            server.send_signal(signal.SIGTERM)


def _call(port: int, token: str, method: str, argument: object) -> int:
    """Call a method; return the status."""
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_S)) as connection:
        connection.request("POST", f"/call/Vision.{method}", json.dumps([argument]), headers)
        response = connection.getresponse()
        response.read()
        return response.status


def _keep_calling(port: int, token: str, stop: threading.Event, seed: int) -> None:
    choices = random.Random(seed)
    number = 0
    while not stop.wait(PAUSE_S * (1.5 + choices.random())):
        number += 1
        _call(port, token, choices.choices(["embed", "classify"], [3, 1])[0], number)


def _live(run_dir: Path, port: int, token: str, seconds: float) -> None:
    """Let a worker be killed, a deadly request come, and the pool be reloaded, in equal parts of the time."""
    part_s = seconds / 4
    time.sleep(part_s)
    with OperatorSession(run_dir / "session.sock") as session:
        os.kill(session.status().workers[0].device.pid, signal.SIGKILL)
        time.sleep(part_s)
        session.reload(ANSWER_S)
        time.sleep(part_s)
    _call(port, token, "render", "a garden")
    _call(port, token, "render", "broken")
    time.sleep(part_s)


def _picture(port: int, token: str, path: Path, width: int, height: int, scheme: str) -> None:
    """Take a picture of the page's beginning."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-proxy-server", "--hide-scrollbars"):
        options.add_argument(argument)
    browser: Any = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    try:
        feature = {"name": "prefers-color-scheme", "value": scheme}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
        _size(browser, width, height)
        browser.get(f"http://127.0.0.1:{port}/#token={token}")
        until_s = time.monotonic() + ANSWER_S
        while not browser.execute_script("return document.querySelectorAll('#methods svg, .charts svg').length > 3"):
            if time.monotonic() > until_s:
                raise RuntimeError("the page shows no charts")
            time.sleep(PAUSE_S)
        browser.save_screenshot(str(path))
    finally:
        browser.quit()
    Image.open(path).convert("RGB").quantize(COLOURS).save(path, optimize=True)
    if path.stat().st_size > MOST_BYTES:
        raise RuntimeError(f"{path} has {path.stat().st_size:,} bytes, at most {MOST_BYTES:,} belong into the docs")
    sys.stdout.write(f"{path}: {path.stat().st_size:,} bytes\n")


def _size(browser: Any, width: int, height: int) -> None:
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


if __name__ == "__main__":
    sys.exit(main())
