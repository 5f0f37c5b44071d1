"""What the site does besides mkdocs: the pages of the API are in its navigation, and every page must
look as it does where Markdown is read as GitHub reads it. What differs is a warning, and so an error
of the build."""

import json
import logging
import pathlib
import re

from markdown_it import MarkdownIt

log = logging.getLogger("mkdocs.plugins.site")
TAGS = ("h1", "h2", "h3", "h4", "table", "tr", "td", "ul", "ol", "li", "pre", "img", "strong", "em", "del")
reader = MarkdownIt("commonmark").enable(["table", "strikethrough"])


def on_config(config):
    pages = pathlib.Path(config.docs_dir)
    for entry in config.nav:
        if "API" in entry:
            entry["API"] = json.loads((pages / "api" / "nav.json").read_text())
    named = set(re.findall(r"[\w/]+\.md", json.dumps(config.nav)))
    for path in sorted(pages.rglob("*.md")):
        page = str(path.relative_to(pages))
        # Pages of single models and of the oracle are reached by links.
        if page not in named and not page.startswith(("api/", "source/", "examples/models/", "tests/")):
            log.warning("%s is not in the navigation of docs/site/mkdocs.yml", page)
    return config


def on_files(files, config):
    files.remove(files.get_file_from_path("api/nav.json"))
    return files


def counts(html):
    return {tag: len(re.findall(rf"<{tag}[ />]", html)) for tag in TAGS}


def on_page_content(html, page, config, files):
    path = page.file.src_uri
    if path.startswith(("api/", "source/")):
        return html
    # Footnotes are no part of CommonMark: what they refer to is a paragraph there.
    text = re.sub(r"^\[\^[^\]]+\]: ?", "", page.markdown, flags=re.M)
    html_here = re.sub(r'<sup id="fnref.*?</sup>', "", html, flags=re.S)
    html_here = re.sub(r'<div class="footnote">.*?</div>', "", html_here, flags=re.S)
    here, there = counts(html_here), counts(reader.render(text))
    if "footnote" in html:
        for tag in ("em", "strong"):
            there.pop(tag)
    for tag, count in there.items():
        if here[tag] != count:
            log.warning("%s has %d <%s>, and %d as GitHub reads it", path, here[tag], tag, count)
    return html
