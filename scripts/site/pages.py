#!/usr/bin/env python3
"""Writes the pages that MkDocs makes the site of: pages.py FOLDER.

README.md is the start page, and docs/ and the other documents of the top level stay as they are. Their links are relative and
valid in the repository; here a link to another document becomes one to its page, by its title where the text was the file's
name, a link to a source file one to a page that shows the file, a link to a folder one to a page that lists it, and a link to a file of results or a picture one to a copy. So
no link leaves the site, and none needs a host of repositories. A page of the Python API has the public names of a module.
"""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import sys

from public_names import PACKAGES, ROOT, names_of

TOP = {"README.md": "index.md", "docs/README.md": "contents.md"}
COPIED = {".json", ".svg", ".png"}
LANGUAGES = {
    **{".h": "cpp", ".cpp": "cpp", ".cuh": "cpp", ".py": "python", ".pyi": "python", ".sh": "bash"},
    **{".cmake": "cmake", ".txt": "text", ".json": "json", ".toml": "toml"},
}
LINK = re.compile(r"(\[[^\[\]]*)?\]\(([^)#\s]*)(#[^)\s]*)?\)")
FENCE = re.compile(r"^\s*```")
HIDDEN = "---\nsearch:\n  exclude: true\n---\n"


def documents() -> dict[str, str]:
    """The page of each document, both as paths from the repository and from the site."""
    found = {}
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/notes/*.md")]:
        name = path.relative_to(ROOT).as_posix()
        found[name] = TOP.get(name, name.removeprefix("docs/"))
    return found


def title_of(document: str, anchor: str) -> str:
    """The text of a document's heading, of its first one without an anchor."""
    headings = re.findall(r"^#+ (.*)$", (ROOT / document).read_text(encoding="utf-8"), re.MULTILINE)
    slugs = {"#" + re.sub(r"[^a-z0-9_ -]", "", each.lower()).replace(" ", "-"): each for each in headings}
    return slugs.get(anchor, headings[0])


class Pages:
    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        self.documents = documents()
        self.sources: set[str] = set()  # files and folders that have a page, or a copy

    def write(self, page: str, text: str) -> None:
        path = self.folder / page
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def page_of(self, target: str) -> str:
        """The page of a path of the repository."""
        if target in self.documents:
            return self.documents[target]
        path = ROOT / target
        if not path.exists():
            raise SystemExit(f"pages: {target} is not there")
        if target.startswith("docs/") and path.suffix in COPIED:
            return target.removeprefix("docs/")
        self.sources.add(target)
        if path.suffix in COPIED:
            return f"source/{target}"
        return f"source/{target}/index.md" if path.is_dir() else f"source/{target}.md"

    def linked(self, text: str, document: str, page: str) -> str:
        """The text with links of the document changed to those of its page; code stays."""

        def change(match: re.Match[str]) -> str:
            text, path, anchor = match[1] or "", match[2], match[3] or ""
            if not path or path.startswith(("http:", "https:", "mailto:")):
                return match[0]
            target = os.path.normpath(os.path.join(os.path.dirname(document), path))
            if target in self.documents and text.removeprefix("[").removeprefix("docs/") in (path.removeprefix("docs/"), os.path.basename(path)):
                text = "[" + title_of(target, anchor)
            return f"{text}]({os.path.relpath(self.page_of(target), os.path.dirname(page) or '.')}{anchor})"

        lines, code = [], False
        for line in text.splitlines(keepends=True):
            code ^= bool(FENCE.match(line))
            lines.append(line if code else LINK.sub(change, line))
        return "".join(lines)

    def write_documents(self) -> None:
        for document, page in self.documents.items():
            text = self.linked((ROOT / document).read_text(encoding="utf-8"), document, page)
            self.write(page, text.replace("| API pages |", "| [Python](api/ingot.md), [C++](api/cpp.md) |"))
        for picture in ROOT.glob("docs/*.svg"):
            shutil.copy(picture, self.folder / picture.name)

    def write_sources(self) -> None:
        """Pages of what the documents link to. A folder's page lists its files, and links to those that have one."""
        for source in sorted(self.sources):
            path = ROOT / source
            page = self.page_of(source)
            (self.folder / page).parent.mkdir(parents=True, exist_ok=True)
            if path.suffix in COPIED:
                shutil.copy(path, self.folder / page)
            elif path.is_dir():
                self.write(page, HIDDEN + f"# {source}\n\n" + "".join(self.listed(path, page)))
            else:
                text = path.read_text(encoding="utf-8").rstrip("\n")
                fence = "`" * 4
                self.write(page, f"{HIDDEN}# {path.name}\n\n`{source}`\n\n{fence}{LANGUAGES.get(path.suffix, 'text')}\n{text}\n{fence}\n")

    def listed(self, path: pathlib.Path, page: str) -> list[str]:
        lines = []
        for each in sorted(path.iterdir()):
            name = each.relative_to(ROOT).as_posix()
            if each.name.startswith((".", "__")):
                continue
            shown = f"`{each.name}{'/' if each.is_dir() else ''}`"
            known = name in self.sources or name in self.documents
            lines.append(f"- [{shown}]({os.path.relpath(self.page_of(name), os.path.dirname(page))})\n" if known else f"- {shown}\n")
        return lines

    def write_api(self) -> None:
        """A page for each module: MkDocs fills each name in from the sources' docstrings. C++ has Doxygen's pages, in cpp."""
        links = (("Classes by name", "classes"), ("Everything in the namespace ingot", "namespaceingot"), ("Headers", "files"))
        text = "# C++\n\nWhat `#include <ingot/ingot.h>` gives, made by Doxygen from the headers' comments:\n\n"
        self.write("api/cpp.md", text + "".join(f"- [{name}](../cpp/{page}.html)\n" for name, page in links))
        for package in PACKAGES:
            options = "    options:\n      members: []\n      show_root_heading: false\n      show_root_toc_entry: false\n"
            parts = [f"# {package}\n\n::: {package}\n{options}"]
            parts += [f"::: {package}.{name}\n" for name in names_of(package)]
            self.write(f"api/{package}.md", "\n".join(parts))


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
    shutil.rmtree(folder, ignore_errors=True)
    pages = Pages(folder)
    pages.write_documents()
    pages.write_sources()
    pages.write_api()
    shutil.copy(ROOT / "scripts/site/site.css", folder)
    print(f"{len(pages.documents)} documents, {len(pages.sources)} sources, {len(PACKAGES)} pages of the Python API")


main()
