#!/usr/bin/env python3
"""Draws the pictures of performance.md into images/: python3 docs/draw_decode.py

All points come from the JSON files of benchmarks/results. Lines and text are of middle tones,
readable on white and on black.
"""

import json
import math
import pathlib
from html import escape

ROOT = pathlib.Path(__file__).resolve().parent.parent
GREY, BLUE, GREEN, ORANGE, RED = "#768390", "#3b82d6", "#2f9e5b", "#d9822b", "#cf4c5c"

PEERS = {"vLLM 0.24": ("vllm", ORANGE), "nano-vllm": ("nano_vllm", RED)}


def steps_of_peer(name):
    """{(batch, context): milliseconds} of another engine, from peers_h200.json."""
    peers = json.loads((ROOT / "benchmarks/results/peers_h200.json").read_text())
    return {(row["batch"], row["context"]): row["ms"]
            for row in peers[name]["qwen3_0_6b"]["decode_step_ms"]}


def steps(name):
    """{(batch, context): (milliseconds, floor in milliseconds)} of one run of engine_bench."""
    run = json.loads((ROOT / "benchmarks/results" / f"{name}.json").read_text())
    return {(row["batch"], row["context"]): (1e3 * row["step_seconds"]["median"],
                                             1e3 * row["floor_seconds"])
            for row in run["results"]["decode"]}


class Chart:
    """A plot with a logarithmic axis of `batches`, and a vertical one that is linear or
    logarithmic."""

    LEFT, RIGHT, TOP, BOTTOM = 64, 150, 58, 46

    def __init__(self, title, y_label, y_ticks, logarithmic, batches, width=720, height=360,
                 x_label="sequences in the batch"):
        self.title, self.size = title, (width, height)
        self.scale = math.log if logarithmic else float
        self.low, self.high = self.scale(y_ticks[0]), self.scale(y_ticks[-1])
        self.batches = batches
        self.labels = []
        self.parts = []
        right = width - self.RIGHT
        for tick in y_ticks:
            y = self.y(tick)
            self.parts.append(f'<path d="M{self.LEFT} {y:.1f} H{right}" stroke="{GREY}" '
                              f'stroke-opacity="0.3"/>')
            self.text(self.LEFT - 8, y + 4, f"{tick:g}", anchor="end")
        for batch in batches:
            self.text(self.x(batch), height - self.BOTTOM + 20, str(batch), anchor="middle")
        self.text((self.LEFT + right) / 2, height - 8, x_label, anchor="middle")
        self.text(12, 22, title, size=15)
        self.text(12, 38, y_label, size=11)

    def x(self, batch):
        share = math.log(batch / self.batches[0]) / math.log(self.batches[-1] / self.batches[0])
        return self.LEFT + 14 + share * (self.size[0] - self.LEFT - self.RIGHT - 28)

    def y(self, value):
        share = (self.scale(value) - self.low) / (self.high - self.low)
        return self.size[1] - self.BOTTOM - share * (self.size[1] - self.TOP - self.BOTTOM)

    def text(self, x, y, text, colour=GREY, anchor="start", size=12):
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{anchor}" '
                          f'font-size="{size}">{escape(text)}</text>')

    def series(self, points, colour, label, dashed=False, line=True):
        """Points of a series, joined by a line; its label stands beside the last one."""
        places = [(self.x(batch), self.y(value)) for batch, value in sorted(points.items())]
        if line:
            dash = ' stroke-dasharray="5 4"' if dashed else ""
            path = " L".join(f"{x:.1f} {y:.1f}" for x, y in places)
            self.parts.append(f'<path d="M{path}" fill="none" stroke="{colour}" '
                              f'stroke-width="2"{dash}/>')
        for x, y in places:
            self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>')
        self.labels.append((places[-1][1] + 4, colour, label))

    def write(self, name):
        # Labels that would lie upon each other move apart.
        at = -math.inf
        for y, colour, label in sorted(self.labels):
            at = max(y, at + 15)
            self.text(self.size[0] - self.RIGHT + 2, at, label, colour)
        width, height = self.size
        (ROOT / "docs/images" / f"{name}.svg").write_text("\n".join([
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" font-family="Helvetica, Arial, sans-serif" '
            f'role="img">', f"<title>{escape(self.title)}</title>", *self.parts, "</svg>", ""]))


def of_context(run, context, part=0):
    return {batch: values[part] for (batch, at), values in run.items() if at == context}


def share_of_floor(run, context):
    return {batch: 100 * floor / step
            for (batch, at), (step, floor) in run.items() if at == context}


def draw_bandwidth(small, large):
    chart = Chart("Share of the floor: bytes of weights and KV over the probed bandwidth",
                  "percent", [0, 20, 40, 60, 80, 100, 120], False, [1, 8, 16, 64, 256])
    chart.series(share_of_floor(small, 128), BLUE, "0.6B, context 128", dashed=True)
    chart.series(share_of_floor(small, 512), BLUE, "0.6B, context 512")
    chart.series(share_of_floor(large, 128), ORANGE, "8B, context 128", dashed=True)
    chart.series(share_of_floor(large, 512), ORANGE, "8B, context 512")
    chart.write("decode_bandwidth")


def draw_others(now):
    chart = Chart("A decode step beside other engines: Qwen3-0.6B, bfloat16, one H200",
                  "milliseconds, less is better; context 128 for 1 and 8 sequences, else 512",
                  [0.25, 0.5, 1, 2, 4, 8, 16], True, [1, 8, 64, 256])
    cases = []
    for label, (name, colour) in PEERS.items():
        points = steps_of_peer(name)
        cases = list(points)
        chart.series({batch: points[batch, context] for batch, context in points}, colour, label)
    chart.series({batch: now[batch, context][0] for batch, context in cases}, BLUE, "nanovllm")
    chart.series({batch: now[batch, context][1] for batch, context in cases}, GREEN,
                 "floor: the bytes", dashed=True)
    chart.write("decode_others")


if __name__ == "__main__":
    small, large = steps("cuda_engine_0_6b"), steps("cuda_engine_8b")
    draw_bandwidth(small, large)
    draw_others(small)
