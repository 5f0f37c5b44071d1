"""Copies headers for Doxygen: comments.py INCLUDE_FOLDER COPY

In the copy each line is where it was, but a header's first comment is the file's, and what is meant as
text is not read as HTML, a quotation or a command.
"""

import pathlib
import re
import sys


def as_text(line):
    """A line of a comment, outside of code. What is between backticks stays as it is."""
    parts = re.split(r"(`[^`]*`)", line)
    for i in range(0, len(parts), 2):
        parts[i] = parts[i].replace("\\", "\\\\")
        parts[i] = re.sub(r"<(?=[A-Za-z/>])|#(?=[A-Za-z])", r"\\\g<0>", parts[i])
    return re.sub(r"^( ?)>", r"\1\\>", "".join(parts))


def prepared(text, first):
    out, in_code = [], False
    for line in text.split("\n"):
        if line == first:
            out.append(r"/// \file")
            continue
        found = re.match(r"(.*?///<?)(.*)$", line)
        if found and not re.search(r'"[^"]*///', line):
            before, comment = found.groups()
            if comment.strip().startswith("```"):
                in_code = not in_code
            # Four blanks more than the one after the slashes: a drawing.
            elif not in_code and not comment.startswith("     "):
                line = before + as_text(comment)
        out.append(line)
    return "\n".join(out)


def main(include, copy):
    for path in sorted(include.rglob("*")):
        if path.suffix not in (".hpp", ".cuh", ".h"):
            continue
        target = copy / path.relative_to(include)
        target.parent.mkdir(parents=True, exist_ok=True)
        guard = "#define " + re.sub(r"\W", "_", str(path.relative_to(include))).upper()
        target.write_text(prepared(path.read_text(), guard if path.suffix == ".h" else "#pragma once"))


if __name__ == "__main__":
    main(*map(pathlib.Path, sys.argv[1:3]))
