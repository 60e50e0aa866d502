#!/usr/bin/env python3
"""Looks at pages of the site in a headless Chromium: pictures.py SITE OUT. Writes a picture of each of PAGES on a wide and on a
narrow screen, and fails where a page is wider than its screen or reports an error of its scripts, or where the search finds
nothing."""

from __future__ import annotations

import functools
import http.server
import pathlib
import shutil
import sys
import threading

PAGES = (
    *("index", "contents", "install", "pytorch", "layers", "performance", "numerics", "distributed"),
    *("api/ingot.nn", "api/ingot.torch", "source/src/nn/recipe/recipes.h", "cpp/index"),
)
SCREENS = {"wide": (1440, 1000), "narrow": (390, 844)}
HEIGHT = 3000  # pixels of a page that a picture shows


class Files(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def look(browser, address: str, screen: str, out: pathlib.Path) -> list[str]:
    """Pictures of all pages on a screen, and what is wrong with them."""
    width, height = SCREENS[screen]
    wrong: list[str] = []
    tab = browser.new_page(viewport={"width": width, "height": height})
    tab.on("pageerror", lambda error: wrong.append(f"{tab.url}: {error}"))
    for page in PAGES:
        tab.goto(f"{address}/{page}.html")
        needed = tab.evaluate("document.documentElement.scrollWidth")
        if needed > width and not page.startswith("cpp/"):
            wrong.append(f"{page}: is {needed} pixels wide on a screen of {width}")
        shown = min(HEIGHT, tab.evaluate("document.documentElement.scrollHeight"))
        name = f"{page.replace('/', '_')}_{screen}.png"
        tab.screenshot(path=out / name, full_page=True, clip={"x": 0, "y": 0, "width": width, "height": shown})
    return wrong


def search(browser, address: str, out: pathlib.Path) -> list[str]:
    tab = browser.new_page(viewport=dict(zip(("width", "height"), SCREENS["wide"], strict=True)))
    tab.goto(f"{address}/index.html")
    tab.fill("input.md-search__input", "recipe")
    try:
        tab.wait_for_selector("a.md-search-result__link", timeout=20000)
    except Exception as error:  # noqa: BLE001
        return [f"search: {error}"]
    tab.screenshot(path=out / "search_wide.png")
    return []


def main() -> int:
    chromium = shutil.which("chromium")
    if chromium is None:
        print("skipped: no Chromium: apt-get install chromium", file=sys.stderr)
        return 77
    from playwright.sync_api import sync_playwright

    site, out = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2])
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Files, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        wrong = [each for screen in SCREENS for each in look(browser, address, screen, out)] + search(browser, address, out)
        browser.close()
    server.shutdown()
    print(*wrong, f"{len(PAGES) * len(SCREENS)} pictures in {out}, {len(wrong)} faults", sep="\n")
    return 1 if wrong else 0


sys.exit(main())
