"""Runs the demo in a terminal of its own and draws its screen as an animated SVG, for `scripts/record-demo`.

A frame is a state of the screen. Lines that several frames share are drawn once.
"""

from __future__ import annotations

import os
import pty
import struct
import sys
import termios
import time
from fcntl import ioctl
from pathlib import Path
from typing import Final, NamedTuple
from xml.sax.saxutils import escape

import pyte

COLUMNS, ROWS = 108, 21
EVERY_S: Final = 0.4
"""Shortest time that a frame is shown for."""
AT_END_S: Final = 8.0
"""How long the last frame stays before the animation starts again."""
CHARACTER, LINE = 8.4, 18.0
"""Width and height of a character's cell, in pixels."""
COLOURS: Final = {
    "default": "#d8dee9",
    "red": "#ff6b6b",
    "green": "#8fd694",
    "brown": "#f2c66d",  # what pyte calls yellow
    "yellow": "#f2c66d",
    "blue": "#7aa2f7",
    "magenta": "#c792ea",
    "cyan": "#7fdbca",
    "white": "#eceff4",
    "brightred": "#ff6b6b",
    "brightgreen": "#8fd694",
    "brightblack": "#5c6370",
}


class Frame(NamedTuple):
    """A state of the screen."""

    since_s: float
    lines: tuple[str, ...]
    """As SVG, without their places."""


def main() -> int:
    """Record the demo, write the picture, and return the demo's status."""
    frames, status = _recorded([sys.executable, str(Path(__file__).with_name("demo.py"))])
    if status == 0:
        Path(sys.argv[1]).write_text(_drawn(frames), encoding="utf-8")
    return status


def _recorded(command: list[str]) -> tuple[list[Frame], int]:
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(screen)
    child, terminal = pty.fork()
    if child == 0:
        os.environ |= {"TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(ROWS)}
        os.execv(command[0], command)
    ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    began, frames = time.monotonic(), list[Frame]()
    while True:
        try:
            read = os.read(terminal, 1 << 16)
        except OSError:  # the demo has closed the terminal
            break
        stream.feed(read)
        now = time.monotonic() - began
        if not frames or now - frames[-1].since_s >= EVERY_S:
            frames.append(Frame(now, _lines(screen)))
    frames.append(Frame(time.monotonic() - began, _lines(screen)))
    _, status = os.waitpid(child, 0)
    return frames, os.waitstatus_to_exitcode(status)


def _lines(screen: pyte.Screen) -> tuple[str, ...]:
    return tuple(_line(screen, row) for row in range(ROWS))


def _line(screen: pyte.Screen, row: int) -> str:
    """Return a line as spans of one look each."""
    spans: list[tuple[tuple[str, bool], str]] = []
    for column in range(COLUMNS):
        cell = screen.buffer[row][column]
        look = (cell.fg, cell.bold)
        if spans and (spans[-1][0] == look or cell.data == " "):
            spans[-1] = (spans[-1][0], spans[-1][1] + cell.data)
        else:
            spans.append((look, cell.data))
    drawn, column = "", 0
    for (colour, bold), text in spans:
        if text.strip():
            fill = COLOURS.get(colour, f"#{colour}" if len(colour) == 6 else COLOURS["default"])
            weight = ' font-weight="bold"' if bold else ""
            drawn += f'<tspan x="{column * CHARACTER:.1f}" fill="{fill}"{weight}>{escape(text.rstrip())}</tspan>'
        column += len(text)
    return drawn


def _drawn(frames: list[Frame]) -> str:
    """Return the SVG: each frame is visible for its share of the time."""
    total = frames[-1].since_s + AT_END_S
    width, height = COLUMNS * CHARACTER + 32, ROWS * LINE + 32
    known: dict[str, int] = {}
    groups, style = [], []
    for at, frame in enumerate(frames):
        until = frames[at + 1].since_s if at + 1 < len(frames) else total
        begin, end = (100 * moment / total for moment in (frame.since_s if at else 0.0, until))
        uses = "".join(
            f'<use href="#l{known.setdefault(line, len(known))}" y="{row * LINE:.0f}"/>'
            for row, line in enumerate(frame.lines)
            if line
        )
        groups.append(f'<g class="f" style="animation-name:f{at}">{uses}</g>')
        before = f"0%,{begin:.3f}%{{visibility:hidden}}" if begin else ""
        after = f"{end:.3f}%,100%{{visibility:hidden}}" if end < 100 else "100%{visibility:visible}"
        style.append(f"@keyframes f{at}{{{before}{begin + 0.001:.3f}%{{visibility:visible}}{after}}}")
    defined = "".join(f'<text id="l{number}">{line}</text>' for line, number in known.items())
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img" '
        'aria-label="A recording of the demo: a worker is killed in the middle of 179,700 requests; all are answered.">'
        f"<style>text{{font:14px ui-monospace,Menlo,Consolas,monospace;white-space:pre}}"
        f".f{{visibility:hidden;animation:{total:.2f}s step-end infinite}}{''.join(style)}"
        "@media (prefers-reduced-motion:reduce){.f{animation:none}.f:last-child{visibility:visible}}</style>"
        f'<rect width="100%" height="100%" rx="8" fill="#1b1f27"/><defs>{defined}</defs>'
        f'<g transform="translate(16,28)">{"".join(groups)}</g></svg>\n'
    )


if __name__ == "__main__":
    raise SystemExit(main())
