from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from importlib import resources, util
from typing import Any, Final

import pytest

from atomr_mp.operator.session import OperatorSession
from tests.serving import Server
from tests.support import DEADLINE_S, Ledger, settled

pytest.importorskip("httptools")
pytest.importorskip("uvloop")
webdriver: Any = pytest.importorskip("selenium.webdriver")

from selenium.webdriver.common.by import By  # noqa: E402 - after the look whether it is there
from selenium.webdriver.common.keys import Keys  # noqa: E402

CHROMIUM: Final = shutil.which("chromium")
DRIVER: Final = shutil.which("chromedriver")

SCREENSHOTS: Final = os.environ.get("ATOMR_MP_SCREENSHOTS", "")
"""A directory in which the pages are kept as they looked, for a person to look at; empty for none."""

pytestmark = pytest.mark.skipif(
    CHROMIUM is None or DRIVER is None,
    reason="needs a browser: apt-get install chromium chromium-driver",
)

STATE: Final = "return document.querySelector('#devices tr:nth-child(1) .state')?.textContent ?? ''"
TOLD: Final = "return document.getElementById('told').textContent"
NEWS: Final = "return document.getElementById('events').textContent"


@pytest.fixture(scope="module")
def ledger() -> Iterator[Ledger]:
    """Of all tests here."""
    with Ledger() as counting:
        yield counting


@pytest.fixture(scope="module")
def server(ledger: Ledger) -> Iterator[Server]:
    """A server that the tests share."""
    with Server(ledger, "--standby", "hot") as own:
        yield own


@pytest.fixture(scope="module")
def chromium(ledger: Ledger) -> Iterator[Any]:
    """A browser that the tests share; it downloads nothing."""
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    profile = ledger.path / "profile"
    for argument in (
        *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={profile}"),
        *("--disable-background-networking", "--disable-component-update", "--no-first-run", "--no-proxy-server"),
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    own = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    own.set_script_timeout(DEADLINE_S)
    try:
        yield own
    finally:
        own.quit()


@pytest.fixture
def browser(chromium: Any) -> Iterator[Any]:
    """The browser, wide and light; afterwards its console is to be clean, and it has forgotten the token."""
    look(chromium, 1280, "light")
    yield chromium
    messages = chromium.get_log("browser")
    chromium.execute_script("sessionStorage.clear()")
    chromium.get("about:blank")
    assert not [each for each in messages if "401 (Unauthorized)" not in each["message"]]


def look(browser: Any, width: int, scheme: str) -> None:
    """Have the browser show pages so."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    feature = {"name": "prefers-color-scheme", "value": scheme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})


def shows(browser: Any, script: str, expected: Callable[[Any], bool]) -> bool:
    """Wait until the page shows something."""
    return settled(lambda: expected(browser.execute_script(script)))


def watch(browser: Any, server: Server) -> None:
    """Open the page with the token, as the command shows it."""
    browser.get(f"http://127.0.0.1:{server.port}/#token={server.token}")
    assert shows(browser, STATE, lambda state: state == "ready")


def test_the_page_shows_devices_and_forgets_where_the_token_came_from(browser: Any, server: Server) -> None:
    """The token is in no address that a history keeps."""
    watch(browser, server)
    assert browser.current_url == f"http://127.0.0.1:{server.port}/"
    assert browser.execute_script(TOLD) == "Live"
    main = "return document.querySelector('main').innerText"
    assert shows(browser, main, lambda text: all(each in text for each in ("1 of 1", "Requests/s", "hot, ready")))
    assert "1 of 1 ready" in browser.title


def test_a_kill_is_seen_and_a_lost_connection_made_again(browser: Any, server: Server, ledger: Ledger) -> None:
    """The worker's end with its cause, then the next generation; after the front end's death the page goes on."""
    watch(browser, server)
    with OperatorSession(ledger.run_dir() / "session.sock") as session:
        assert settled(lambda: standby_is_ready(session))
        os.kill(session.status().workers[0].device.pid, signal.SIGKILL)
    assert shows(browser, NEWS, lambda news: "SIGKILL" in news and "generation" in news)
    (front_end,) = server.front_ends()
    os.kill(front_end, signal.SIGKILL)
    assert shows(browser, TOLD, lambda told: told.startswith("Not connected"))
    assert shows(browser, TOLD, lambda told: told == "Live")
    browser.get_log("browser")  # the broken connection, which is meant


def test_after_a_reload_of_the_page_nothing_is_missing(browser: Any, server: Server, ledger: Ledger) -> None:
    """The end that came before, the takeover, the chart of its method and the timeline with its break."""
    watch(browser, server)
    server.call("Served.length", ["word"])
    with OperatorSession(ledger.run_dir() / "session.sock") as session:
        assert settled(lambda: standby_is_ready(session))
        os.kill(session.status().workers[0].device.pid, signal.SIGKILL)
    news = "return [...document.querySelectorAll('#events li')].map((line) => line.textContent)"
    assert shows(browser, news, lambda lines: any("has taken over" in line for line in lines))
    before = browser.execute_script(news)
    watch(browser, server)
    assert shows(browser, news, lambda lines: set(before) <= set(lines))
    assert shows(browser, "return document.querySelectorAll('#lives .break.fault').length", lambda found: found > 0)
    assert shows(browser, "return document.getElementById('lives').textContent", lambda text: "SIGKILL" in text)
    assert shows(browser, "return document.querySelectorAll('#methods svg').length", lambda found: found >= 3)


def test_a_refused_request_is_shown_with_the_command_that_admits_it(browser: Any, server: Server) -> None:
    """The page itself admits nothing."""
    watch(browser, server)
    assert settled(lambda: server.call("Served.die").status == 422)
    deadly = "return document.getElementById('deadly').textContent"
    assert shows(browser, deadly, lambda text: "Served.die" in text and "atomr-mp admit " in text)
    assert shows(browser, STATE, lambda state: state == "ready")
    lines = "return document.querySelector('#events li').className"
    assert shows(browser, lines, lambda kind: kind.startswith("ready"))


def test_a_page_without_a_token_asks_for_it(browser: Any, server: Server) -> None:
    """The keyboard alone is enough; a wrong token is reported."""
    browser.get(f"http://127.0.0.1:{server.port}/")
    assert shows(browser, TOLD, lambda told: told == "A token is needed")
    browser.switch_to.active_element.send_keys("no-token-of-this-server", Keys.ENTER)
    assert shows(browser, TOLD, lambda told: told == "This token is not known here")
    field = browser.switch_to.active_element
    field.clear()
    field.send_keys(server.token, Keys.ENTER)
    assert shows(browser, STATE, lambda state: state == "ready")


def test_the_keyboard_reaches_everything_and_shows_where_it_is(browser: Any, server: Server) -> None:
    """Pausing, and the way to the methods; what has the focus is outlined."""
    watch(browser, server)
    keys = webdriver.ActionChains(browser)
    keys.send_keys(Keys.TAB).perform()
    pause = browser.switch_to.active_element
    assert pause.text == "Pause"
    assert pause.value_of_css_property("outline-style") == "solid"
    pause.send_keys(Keys.ENTER)
    assert pause.get_attribute("aria-pressed") == "true"
    assert browser.execute_script(TOLD) == "Paused"
    pause.send_keys(Keys.SPACE)
    assert pause.get_attribute("aria-pressed") == "false"
    keys = webdriver.ActionChains(browser)
    keys.send_keys(Keys.TAB, Keys.ENTER).perform()
    assert shows(browser, "return document.title + location.pathname", lambda found: found == "Methods/docs")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("path", ["", "docs"])
def test_a_page_fits_and_has_no_barriers(browser: Any, server: Server, path: str, width: int, scheme: str) -> None:
    """Nothing is cut off at 360 pixels, in either scheme; axe finds nothing, contrast among it."""
    look(browser, width, scheme)
    watch(browser, server)
    if path:
        browser.get(f"http://127.0.0.1:{server.port}/{path}")
        assert shows(browser, TOLD, lambda told: told.endswith("methods"))
    if SCREENSHOTS:
        browser.save_screenshot(f"{SCREENSHOTS}/{path or 'watch'}-{width}-{scheme}.png")
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    background = browser.find_element(By.TAG_NAME, "body").value_of_css_property("background-color")
    assert background.startswith("rgba(255, 255, 255" if scheme == "light" else "rgba(15, 19, 24")
    if util.find_spec("axe_playwright_python") is None:
        pytest.skip("needs axe-core: pip install --no-deps axe-playwright-python")
    axe = resources.files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")
    # Past the page's policy, which would refuse it: the browser's own debugger runs it.
    browser.execute_cdp_cmd("Runtime.evaluate", {"expression": axe})
    found = browser.execute_async_script("axe.run().then(arguments[0])")
    assert [(each["id"], [node["html"] for node in each["nodes"]]) for each in found["violations"]] == []


def test_what_actors_say_is_text_and_methods_can_be_tried(browser: Any, server: Server) -> None:
    """Markup in an actor's words is shown as it is; a call's result is shown, and an error too."""
    watch(browser, server)
    browser.get(f"http://127.0.0.1:{server.port}/docs")
    assert shows(browser, TOLD, lambda told: told.endswith("methods"))
    card = browser.find_element(By.CSS_SELECTOR, "[aria-labelledby='m-Served.markup']")
    assert "<img src=x onerror=alert(1)>" in card.text
    assert not browser.find_elements(By.TAG_NAME, "img")
    card.find_element(By.TAG_NAME, "button").send_keys(Keys.ENTER)
    result = "return document.querySelector(\"[aria-labelledby='m-Served.markup'] pre\").textContent"
    assert shows(browser, result, lambda text: text.startswith("200") and "<b>bold</b>" in text)
    chat = browser.find_element(By.CSS_SELECTOR, "[aria-labelledby='m-v1.chat.completions']")
    chat.find_element(By.TAG_NAME, "button").send_keys(Keys.ENTER)
    result = "return document.querySelector(\"[aria-labelledby='m-v1.chat.completions'] pre\").textContent"
    assert shows(browser, result, lambda text: text.startswith("200") and "Hello (1, 1.0, 100)" in text)


def test_there_is_one_observer_however_many_look_on(server: Server) -> None:
    """It comes with the first, and goes with the last."""
    assert settled(lambda: not server.watching())  # that of the tests before has gone
    request = f"GET /watch/events HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {server.token}\r\n\r\n".encode()
    with contextlib.ExitStack() as looking:
        viewers = [looking.enter_context(server.connect()) for _ in range(5)]
        for viewer in viewers:
            viewer.sendall(request)
        for viewer in viewers:
            seen = b""
            while b"data: {" not in seen or not seen.endswith(b"\n\n\r\n"):
                seen += viewer.recv(65536)
            assert b"text/event-stream" in seen
            assert json.loads(seen.partition(b"data: ")[2].partition(b"\n")[0])["devices"]
        assert settled(lambda: len(server.watching()) == 1)
    assert settled(lambda: not server.watching())


def standby_is_ready(session: OperatorSession) -> bool:
    """Whether a second process waits."""
    found = session.status().workers[0].standby
    return found is not None and found.state == "ready"
