#!/usr/bin/env python3
"""Looks at the site in a headless Chromium: pictures.py SITE OUT. Opens each page on a wide and on a narrow screen, and fails where
one is wider than its screen or reports an error of its scripts, or where the search finds nothing. Writes pictures of PAGES."""

from __future__ import annotations

import functools
import http.server
import pathlib
import shutil
import sys
import threading

PAGES = (
    *("index", "contents", "install", "first_hour", "which_recipe", "serving", "troubleshooting", "comparison"),
    *("experts", "layers", "performance", "api/ingot", "api/ingot.nn", "source/src/nn/recipe/recipes.h", "cpp/classingot_1_1GatedMlp"),
)
SCREENS = {"wide": (1440, 1000), "narrow": (390, 844)}
HEIGHT = 3000  # pixels of a page that a picture shows


class Files(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def look(browser, site: pathlib.Path, address: str, screen: str, out: pathlib.Path) -> list[str]:
    """What is wrong with the pages on a screen, Doxygen's and those of sources aside, of which PAGES has one."""
    width, height = SCREENS[screen]
    wrong: list[str] = []
    tab = browser.new_page(viewport={"width": width, "height": height})
    tab.on("pageerror", lambda error: wrong.append(f"{tab.url}: {error}"))
    pages = [path.relative_to(site).with_suffix("").as_posix() for path in sorted(site.rglob("*.html"))]
    for page in [*(each for each in pages if not each.startswith(("cpp/", "source/")) and each not in PAGES), *PAGES]:
        tab.goto(f"{address}/{page}.html")
        needed = tab.evaluate("document.documentElement.scrollWidth")
        if needed > width:
            wrong.append(f"{page}: is {needed} pixels wide on a screen of {width}")
        if page not in PAGES:
            continue
        shown = min(HEIGHT, tab.evaluate("document.documentElement.scrollHeight"))
        name = f"{page.replace('/', '_')}_{screen}.png"
        tab.screenshot(path=out / name, full_page=True, clip={"x": 0, "y": 0, "width": width, "height": shown})
    return wrong


def search(browser, address: str, out: pathlib.Path) -> list[str]:
    tab = browser.new_page(viewport=dict(zip(("width", "height"), SCREENS["wide"], strict=True)))
    tab.goto(f"{address}/index.html")
    tab.fill("input.md-search__input", "recipe")
    try:
        tab.wait_for_selector("a.md-search-result__link", timeout=180000)  # the worker reads the index first
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
        wrong = [each for screen in SCREENS for each in look(browser, site, address, screen, out)] + search(browser, address, out)
        browser.close()
    server.shutdown()
    print(*wrong, f"{len(PAGES) * len(SCREENS)} pictures in {out}, {len(wrong)} faults", sep="\n")
    return 1 if wrong else 0


sys.exit(main())
