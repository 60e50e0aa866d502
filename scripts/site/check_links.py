#!/usr/bin/env python3
"""Checks the links of a site of files: check_links.py FOLDER. Each leads to a file of it, and to an anchor of that file; none
loads anything from elsewhere. Each public name of the Python package has its place on an API page. Of Doxygen's pages, in cpp, only the files are checked: it links to a few anchors, of private
classes, that it does not write."""

from __future__ import annotations

import html.parser
import pathlib
import sys
import urllib.parse

from public_names import PACKAGES, names_of


class Page(html.parser.HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, path: pathlib.Path):
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors = {"", "__skip"}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        of = dict(attrs)
        self.anchors |= {of[name] or "" for name in ("id", "name") if name in of}
        href = of.get("href") if tag in ("a", "area") else None
        loaded = of.get("src") or (of.get("href") if tag == "link" and of.get("rel") != "canonical" else None)
        self.links += [href] if href else []
        self.loaded += [loaded] if loaded else []


def wrong_of(path: pathlib.Path, pages: dict[pathlib.Path, Page], by_doxygen: bool) -> list[str]:
    wrong = []
    for link in [*pages[path].links, *pages[path].loaded]:
        parts = urllib.parse.urlsplit(link)
        if parts.scheme in ("data", "javascript") or parts.scheme and link in pages[path].links:
            continue
        target = path if not parts.path else (path.parent / urllib.parse.unquote(parts.path)).resolve()
        target = target / "index.html" if target.is_dir() else target
        if parts.scheme or not target.is_file():
            wrong.append(f"{path}: {link} leads nowhere")
        elif not by_doxygen and target in pages and urllib.parse.unquote(parts.fragment) not in pages[target].anchors:
            wrong.append(f"{path}: {link} has no such anchor")
    return wrong


def main() -> None:
    folder = pathlib.Path(sys.argv[1]).resolve()
    pages = {path: Page(path) for path in sorted(folder.rglob("*.html")) if path.name != "404.html"}
    wrong = [
        f"api/{package}.html: has no {name}"
        for package in PACKAGES
        for name in names_of(package)
        if f"{package}.{name}" not in pages[folder / f"api/{package}.html"].anchors
    ]
    wrong += [each for path in pages for each in wrong_of(path, pages, folder / "cpp" in path.parents)]
    print(*wrong[:40], sep="\n", end="\n" if wrong else "")
    links = sum(len(page.links) for page in pages.values())
    print(f"{len(pages)} pages, {links} links, {len(wrong)} broken")
    sys.exit(1 if wrong or links < 1000 else 0)


main()
