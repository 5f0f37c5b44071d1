#!/usr/bin/env python3
"""Writes a text for the tokeniser benchmark from the manual pages of this machine.

    make_text.py prose.txt                      # English, 10 MB
    make_text.py mixed.txt --language all       # every translation that is installed
    make_text.py code.txt --python              # Python's own library

The pages are read in the order of their names, stripped of roff markup, and each distinct
paragraph is kept once, so that generated pages do not flatter a word cache. The result is the same
on every run on one machine; it differs between machines, hence so do the speeds.
"""

import argparse
import gzip
import pathlib
import re
import sysconfig

ESCAPES = {r"\-": "-", r"\(aq": "'", r"\(cq": "’", r"\(dq": '"', r"\(bu": "•", r"\(em": "—",
           r"\(en": "–", r"\(co": "©", r"\e": "\\", r"\&": "", r"\ ": " ", r"\~": " ", r"\|": ""}


def strip_roff(source):
    """The readable text of one manual page."""
    lines = []
    for line in source[max(source.find("\n.SH"), 0) :].splitlines():
        if line[:1] in (".", "'"):
            macro = re.match(r"[.'](SH|SS|BR?|IR?|RB|RI|BI|IB)\b\s*(.*)", line)
            if not macro:
                continue
            line = macro[2].replace('"', "")
        line = re.sub(r"\\f(\[[^]]*\]|\(..|.)|\\s[-+]?\d|\\m\[[^]]*\]", "", line)
        for escape, text in ESCAPES.items():
            line = line.replace(escape, text)
        lines.append(line)
    return "\n".join(lines)


def sources(arguments):
    if arguments.python:
        return sorted(pathlib.Path(sysconfig.get_paths()["stdlib"]).rglob("*.py"))
    root = pathlib.Path(arguments.manuals)
    if arguments.language == "en":
        order = "15782346"
        return [page for section in order for page in sorted(root.glob(f"man{section}/*"))]
    pattern = "*/man?/*" if arguments.language == "all" else f"{arguments.language}/man?/*"
    return sorted(root.glob(pattern), key=lambda page: (page.name, str(page)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("output")
    parser.add_argument("--bytes", type=int, default=10_000_000)
    parser.add_argument("--language", default="en", help="en, all, or a folder such as ja")
    parser.add_argument("--manuals", default="/usr/share/man")
    parser.add_argument("--python", action="store_true", help="Python's library instead")
    arguments = parser.parse_args()

    seen, out, size = set(), [], 0
    for path in sources(arguments):
        data = path.read_bytes()
        try:
            text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
        except (UnicodeDecodeError, OSError):
            continue
        if not arguments.python:
            text = strip_roff(text)
        for paragraph in text.split("\n\n"):
            if paragraph.strip() and paragraph not in seen:
                seen.add(paragraph)
                out.append(paragraph)
                size += len(paragraph.encode()) + 2
        if size >= arguments.bytes:
            break
    data = "\n\n".join(out).encode()[: arguments.bytes]
    pathlib.Path(arguments.output).write_bytes(data.decode("utf-8", "ignore").encode())
    print(f"{arguments.output}: {len(data):,} bytes")


if __name__ == "__main__":
    main()
