"""A hook of mkdocs: takes pages that lie outside of docs/ into the site, and bends links to them.

Called by mkdocs, one page at a time; stateless.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
# Where they lie in the repository -> where in the site.
OUTER_PAGES: Final = {"CHANGELOG.md": "changelog.md", "bench/README.md": "measurements.md"}
_LINK: Final = re.compile(r"(?<=\]\()(?P<target>[^()\s#:]+)(?P<anchor>#[^()\s]*)?(?=\))")


def on_files(files: Any, config: Any) -> Any:
    """Adds the outer pages to what mkdocs found in docs/."""
    from mkdocs.structure.files import File

    for source, target in OUTER_PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, target, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Returns the page with its links to outer pages bent to where those are in the site."""
    return bend_links(markdown, page.file.src_uri)


def bend_links(markdown: str, source: str) -> str:
    """Returns `markdown`, the page `source` of the site, with links that hold there.

    A link to an outer page leads to its copy; all others stay as they are.
    """
    inner = {target: outer for outer, target in OUTER_PAGES.items()}
    # An outer page's links start where it lies in the repository.
    place = inner.get(source) or f"docs/{source}"

    def bent(match: re.Match[str]) -> str:
        anchor = match["anchor"] or ""
        wanted = posixpath.normpath(posixpath.join(posixpath.dirname(place), match["target"]))
        in_site = OUTER_PAGES.get(wanted) or wanted.removeprefix("docs/")
        if wanted not in OUTER_PAGES and source not in inner:
            return match[0]
        return posixpath.relpath(in_site, posixpath.dirname(source) or ".") + anchor

    return _LINK.sub(bent, markdown)
