#!/usr/bin/env python3
"""Draws the pictures of prefix_caching.md into images/: python3 docs/draw_prefix_caching.py

Boxes have fills of their own with dark text; what stands outside them is a grey that is readable on
white and on black, for pages in light and dark.
"""

import pathlib
from html import escape

OUTSIDE, INK, EDGE = "#768390", "#1f2328", "#57606a"
BLUE, GREEN, ORANGE, GREY = "#a8d1ff", "#a6e3b0", "#ffcf8f", "#d5dae0"
TOKEN, HEIGHT, GAP = 62, 30, 14


class Picture:
    def __init__(self, width, height, title):
        self.size = width, height
        self.title = title
        self.parts = []

    def box(self, x, y, width, fill, height=HEIGHT, dashed=False):
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        self.parts.append(f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="4" '
                          f'fill="{fill}" stroke="{EDGE}"{dash}/>')

    def text(self, x, y, text, colour=OUTSIDE, anchor="start", size=13):
        self.parts.append(f'<text x="{x}" y="{y}" fill="{colour}" text-anchor="{anchor}" '
                          f'font-size="{size}">{escape(text)}</text>')

    def line(self, *points, arrow=False, dashed=False):
        path = "M" + " L".join(f"{x} {y}" for x, y in points)
        more = (' marker-end="url(#arrow)"' if arrow else "") + (
            ' stroke-dasharray="4 3"' if dashed else "")
        self.parts.append(f'<path d="{path}" fill="none" stroke="{OUTSIDE}" '
                          f'stroke-width="1.5"{more}/>')

    def block(self, x, y, tokens, fills, capacity=4):
        """A block of `capacity` tokens, of which it has some. `fills` is one colour, or one each."""
        if isinstance(fills, str):
            fills = [fills] * len(tokens)
        self.box(x, y, capacity * TOKEN, "none", dashed=len(tokens) < capacity)
        for i, (token, fill) in enumerate(zip(tokens, fills)):
            self.box(x + i * TOKEN, y, TOKEN, fill)
            self.text(x + (i + 0.5) * TOKEN, y + 20, token, INK, "middle")

    def write(self, path):
        width, height = self.size
        path.write_text("\n".join([
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" font-family="Helvetica, Arial, sans-serif" '
            f'role="img">',
            f"<title>{escape(self.title)}</title>",
            '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
            'markerHeight="7" orient="auto">'
            f'<path d="M0 0 L8 4 L0 8 z" fill="{OUTSIDE}"/></marker></defs>',
            *self.parts, "</svg>", ""]))


def draw_match():
    """What each cache finds of a prompt."""
    left = 160
    picture = Picture(left + 3 * (4 * TOKEN + GAP), 280, "What a cache finds of a new prompt")
    first, second = ["You", "are", "a", "guide"], [".", "Answer", "in", "French"]
    cached, new = [".", "What", "is", "a"], [".", "What", "was", "the"]

    def row(y, label, note, blocks):
        picture.text(10, y + 14, label)
        picture.text(10, y + 31, note, size=11)
        for i, (tokens, fills) in enumerate(blocks):
            picture.block(left + i * (4 * TOKEN + GAP), y, tokens, fills)

    row(10, "in the cache", "blocks of 4 tokens", [(first, BLUE), (second, BLUE), (cached, BLUE)])
    row(76, "a new prompt", "12 tokens", [(first, GREY), (second, GREY), (new, GREY)])
    row(142, "hash", "8 found, 4 computed", [(first, GREEN), (second, GREEN), (new, GREY)])
    row(208, "radix", "10 found, 2 computed",
        [(first, GREEN), (second, GREEN), (new, [ORANGE, ORANGE, GREY, GREY])])
    x = left
    for fill, label, width in [(BLUE, "cached", 90), (GREEN, "shared as it is", 145),
                               (ORANGE, "copied into a block of its own", 235),
                               (GREY, "to be computed", 120)]:
        picture.box(x, 256, 14, fill, 14)
        picture.text(x + 20, 268, label, size=12)
        x += width
    return picture


def draw_tree():
    """The tree of blocks."""
    width = 4 * TOKEN
    picture = Picture(940, 270, "A tree of blocks")
    picture.text(20, 30, "root")
    picture.line((52, 26), (96, 26), arrow=True)
    picture.block(100, 10, ["You", "are", "a", "guide"], BLUE)
    picture.line((100 + width, 25), (420, 25), arrow=True)
    picture.block(430, 16, [".", "Answer", "in", "French"], BLUE)  # the duplicate, behind
    picture.block(424, 10, [".", "Answer", "in", "French"], BLUE)
    picture.text(690, 30, "two duplicates, one node")
    children = [(84, [".", "What", "is", "a"], "full: may have children"),
                (134, [".", "What", "was"], "3 of 4 tokens: a leaf, can be copied"),
                (184, ["?", "Say", "it", "again"], "")]
    picture.line((400, 60), (400, 200))
    picture.line((548, 46), (548, 60), (400, 60))
    for y, tokens, note in children:
        picture.line((400, y + 15), (420, y + 15), arrow=True)
        picture.block(424, y, tokens, BLUE)
        picture.text(690, y + 19, note, size=12)
    picture.text(100, 104, "Siblings are sorted by their tokens:")
    picture.text(100, 122, "a search tree finds the one that has")
    picture.text(100, 140, "most in common with the prompt.")
    picture.text(100, 250, "A lookup goes from a node to a child while whole blocks agree; the "
                           "block after that may agree in part.")
    return picture


def draw_eviction():
    """In which order blocks are evicted."""
    picture = Picture(760, 240, "The order in which free blocks are evicted")
    boxes = {"a": (110, 60, BLUE, "5"), "b": (280, 20, GREEN, "2"), "c": (450, 20, GREEN, "1"),
             "d": (280, 100, ORANGE, "4"), "e": (450, 100, ORANGE, "3")}
    for name, (x, y, fill, order) in boxes.items():
        picture.box(x, y, 110, fill, 40)
        picture.text(x + 12, y + 25, f"block {name}", INK)
        picture.text(x + 98, y + 26, order, INK, "end", 17)
    for begin, end in [("a", "b"), ("a", "d"), ("b", "c"), ("d", "e")]:
        (x0, y0, *_), (x1, y1, *_) = boxes[begin], boxes[end]
        picture.line((x0 + 110, y0 + 20), (x1 - 4, y1 + 20), arrow=True)
    picture.text(20, 85, "root")
    picture.line((54, 80), (106, 80), arrow=True)
    picture.text(576, 45, "X: a b c, ended first")
    picture.text(576, 125, "Y: a d e, ended later")
    picture.text(20, 205, "evicted first")
    for i, name in enumerate("cbeda"):
        x = 130 + i * 82
        picture.box(x, 185, 50, boxes[name][2])
        picture.text(x + 25, 205, name, INK, "middle")
        if i > 0:
            picture.line((x - 32, 200), (x - 4, 200), arrow=True)
    picture.text(130 + 5 * 82 - 18, 205, "evicted last")
    return picture


def main():
    folder = pathlib.Path(__file__).resolve().parent / "images"
    folder.mkdir(exist_ok=True)
    for name, draw in [("match", draw_match), ("tree", draw_tree), ("eviction", draw_eviction)]:
        draw().write(folder / f"prefix_caching_{name}.svg")


if __name__ == "__main__":
    main()
