"""Puts the site's pages together: stage.py ROOT PAGES

Pages of docs/ keep their places; those from elsewhere get one, see PAGES_FROM. A link to a file of the
repository that is no page, or its path in backticks, leads to a page that shows the file.
"""

import os
import pathlib
import re
import shutil
import sys
from html import escape

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_for_filename
from pygments.util import ClassNotFound

PAGES_FROM = {"README.md": "overview.md", "CHANGELOG.md": "changelog.md",
              "examples/README.md": "examples/README.md",
              "tests/oracle/README.md": "tests/oracle/README.md"}
ENDINGS = "hpp|cuh|inc|cpp|cu|h|c|py|sh|json|service|yaml"


class Site:
    def __init__(self, root, pages):
        self.root, self.pages = root, pages
        self.place = {}  # path in the repository to that of its page
        for path in sorted((root / "docs").rglob("*.md")):
            relative = path.relative_to(root / "docs")
            self.place[f"docs/{relative}"] = str(relative)
        self.place.update(PAGES_FROM)
        for path in sorted((root / "examples" / "models").glob("*/README.md")):
            relative = str(path.relative_to(root))
            self.place[relative] = relative
        self.sources = {}  # path in the repository to that of the page that shows it

    def target(self, path):
        """Where the site has what is at `path` of the repository, or None."""
        path = os.path.normpath(path)
        if path in self.place:
            return self.place[path]
        if f"{path}/README.md" in self.place:
            return self.place[f"{path}/README.md"]
        if path.startswith("docs/images/"):
            return path.removeprefix("docs/")
        if not (self.root / path).exists() or path == "." or path.startswith(".."):
            return None
        # mkdocs leaves out what begins with a dot.
        self.sources[path] = "source/" + re.sub(r"(^|/)\.", r"\1dot-", path) + ".md"
        return self.sources[path]

    def link(self, page, repository_page, target):
        if re.match(r"[a-z]+:|#", target):
            return target
        file, _, anchor = target.partition("#")
        found = self.target(os.path.join(os.path.dirname(repository_page), file))
        if found is None:
            return target  # mkdocs says that it is not there
        return os.path.relpath(found, os.path.dirname(page) or ".") + (f"#{anchor}" if anchor else "")

    def path_in_backticks(self, page, path):
        for place in (path, f"include/nanovllm/{path}"):
            if (self.root / place).is_file():
                found = self.target(place)
                return f"[`{path}`]({os.path.relpath(found, os.path.dirname(page) or '.')})"
        return f"`{path}`"

    def rewrite(self, repository_page, page, text):
        out, in_code = [], False
        for line in text.split("\n"):
            if re.match(r" *```", line):
                in_code = not in_code
            elif not in_code:
                # Links first; the paths of what is left are outside of links.
                parts = re.split(r"(!?\[(?:[^\[\]]|\[[^\]]*\])*\]\([^)\s]+\))", line)
                for i, part in enumerate(parts):
                    if i % 2:
                        parts[i] = re.sub(r"\]\(([^)\s]+)\)$",
                                          lambda m: f"]({self.link(page, repository_page, m[1])})", part)
                    elif not line.startswith(("#", "[^")):  # notes name other projects' files
                        parts[i] = re.sub(rf"(?<!`)`([A-Za-z0-9_./-]+\.(?:{ENDINGS}))`(?!`)",
                                          lambda m: self.path_in_backticks(page, m[1]), part)
                line = "".join(parts)
            out.append(line)
        return "\n".join(out)

    def write_source(self, path, page):
        file = self.root / path
        title = path.removeprefix("include/nanovllm/")
        head = f"---\ntitle: {title}\nhide: [toc]\nsearch:\n  exclude: true\n---\n\n# {title}\n\n"
        if file.is_dir():
            names = sorted(f.name + ("/" if f.is_dir() else "") for f in file.iterdir())
            body = "<ul>" + "".join(f"<li><code>{escape(n)}</code></li>" for n in names) + "</ul>\n"
        else:
            text = file.read_text(errors="replace")
            if len(text) > 200_000:
                text = text[:200_000] + "\n…\n"
            try:
                lexer = get_lexer_for_filename(path.replace(".cuh", ".hpp").replace(".inc", ".hpp"))
            except ClassNotFound:
                lexer = TextLexer()
            inner = highlight(text, lexer, HtmlFormatter(nowrap=True))
            body = f'<div class="highlight source"><pre><code>{inner}</code></pre></div>\n'
        (self.pages / page).parent.mkdir(parents=True, exist_ok=True)
        (self.pages / page).write_text(head + body)


def main(root, pages):
    site = Site(root, pages)
    shutil.copytree(root / "docs" / "images", pages / "images")
    shutil.copy(root / "docs" / "site" / "site.css", pages / "site.css")
    for repository_page, page in site.place.items():
        text = (root / repository_page).read_text()
        (pages / page).parent.mkdir(parents=True, exist_ok=True)
        (pages / page).write_text(site.rewrite(repository_page, page, text))
    for path, page in site.sources.items():
        site.write_source(path, page)
    print(f"Pages: {len(site.place)}, and {len(site.sources)} that show sources")


if __name__ == "__main__":
    main(*(pathlib.Path(a).resolve() for a in sys.argv[1:3]))
