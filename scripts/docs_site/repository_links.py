"""mkdocs hook: a link of a page to a file of the repository outside docs/ works in the site, too.

Each such file becomes a page at its own path below ``repository/``: Markdown as it is, other text as a block of code, a
folder as its README or the list of its files. README.md of the repository is the first page.
"""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
HOME = "README.md"
LINK = re.compile(r"(?<=\]\()([^)\s#]+)")
FENCED = re.compile(r"^ *(```+).*?^ *\1`* *$", flags=re.MULTILINE | re.DOTALL)
NOT_SEARCHED = "---\nsearch: {exclude: true}\n---\n"


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add a page for every file outside docs/ that a page links, and for those that the added pages link."""
    left = [HOME, *(f"docs/{file.src_uri}" for file in files.documentation_pages())]
    present = set(left) - {HOME}
    while left:
        place = left.pop()
        if place not in present:
            present.add(place)
            files.append(File.generated(config, uri(place), content=content(place)))
        if place.endswith(".md"):
            left += {target for target in targets(place) if target not in present}
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links at the pages of :func:`on_files`."""
    here = page.file.src_uri
    place = next(
        (place for place in (f"docs/{here}", here.removeprefix("repository/")) if (ROOT / place).is_file()), HOME
    )
    return relinked(markdown, place, here)


def relinked(markdown: str, place: str, here: str) -> str:
    """Links of the file ``place``, written as links of the page ``here``; what names no file stays as it is."""

    def replace(match: re.Match[str]) -> str:
        target = resolve(place, match[1])
        return os.path.relpath(uri(target), PurePosixPath(here).parent) if target else match[1]

    return outside_code(markdown, lambda text: LINK.sub(replace, text))


def outside_code(markdown: str, change: Callable[[str], str]) -> str:
    """``markdown`` with all but its blocks of code changed."""
    parts, end = [], 0
    for block in FENCED.finditer(markdown):
        parts += [change(markdown[end : block.start()]), block[0]]
        end = block.end()
    return "".join([*parts, change(markdown[end:])])


def targets(place: str) -> Iterator[str]:
    """Pages of the repository that the Markdown file ``place`` links; pictures are files of docs/ already."""
    for link in LINK.findall(FENCED.sub("", (ROOT / place).read_text())):
        target = resolve(place, link)
        if target and PurePosixPath(target).suffix not in (".png", ".json"):
            yield target


def resolve(place: str, link: str) -> str | None:
    """The file that ``link`` in the file ``place`` names, from the repository's root; None: no file of it."""
    if "://" in link:
        return None
    path = Path(os.path.normpath((ROOT / place).parent / link))
    if not path.exists() or not path.is_relative_to(ROOT):
        return None
    readme = path / "README.md"
    return (readme if readme.is_file() else path).relative_to(ROOT).as_posix()


def uri(place: str) -> str:
    """The page of a file of the repository, from docs/."""
    if place == HOME:
        return "index.md"
    if place.startswith("docs/"):
        return place.removeprefix("docs/")
    return f"repository/{place}" if place.endswith(".md") else f"repository/{place}.md"


def content(place: str) -> str:
    """The Markdown of the page of a file outside docs/."""
    path = ROOT / place
    if place.endswith(".md"):
        return path.read_text()
    text = "\n".join(sorted(each.name for each in path.iterdir())) if path.is_dir() else path.read_text()
    fence = "`" * max(3, *(len(run) + 1 for run in re.findall(r"`+", text) or [""]))
    language = {".py": "python", ".yaml": "yaml", ".sh": "bash"}.get(path.suffix, "text")
    return f"{NOT_SEARCHED}\n# {place}\n\n{fence}{language}\n{text}\n{fence}\n"
