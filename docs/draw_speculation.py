#!/usr/bin/env python3
"""Draws the pictures of speculation.md into images/: python3 docs/draw_speculation.py

All points come from benchmarks/results/cuda_speculation.json.
"""

import json

from draw_decode import BLUE, GREEN, ORANGE, ROOT, Chart

RUN = json.loads((ROOT / "benchmarks/results/cuda_speculation.json").read_text())["rows"]
NAMES = {"bf16": "bfloat16", "fp8": "8-bit floats"}


def rows_of(format, sequences, rate):
    """Steps without drafts, and with a fixed number that are right at `rate`."""
    return [row for row in RUN if row["format"] == format and row["sequences"] == sequences and
            (row["drafts"] == "none" or (row["drafts"] == "fixed" and row["rate"] == rate))]


def draw_step():
    chart = Chart("A step that checks drafts: Qwen3-8B, one H200, context 512",
                  "milliseconds, the drafter's time included", [0, 2, 4, 6, 8], False,
                  [1, 2, 4, 8, 16], x_label="rows of a sequence: its last token and the drafts")
    for format, sequences, colour in (("fp8", 1, BLUE), ("fp8", 8, GREEN), ("bf16", 1, ORANGE)):
        chart.series({1 + row["length"]: row["step_ms"] for row in rows_of(format, sequences, 1)},
                     colour, f"{NAMES[format]}, batch {sequences}")
    chart.write("speculation_step")


def draw_speed():
    chart = Chart("One sequence's speed by the tokens that a step gives",
                  "tokens a second; circles alone: drafts that are right 7 times of 10",
                  [200, 400, 800, 1600, 3200, 6400], True, [1, 2, 4, 8, 16],
                  x_label="tokens a step: the drafts that were right, and one more")
    for format, colour in (("fp8", BLUE), ("bf16", ORANGE)):
        for rate, line in ((1.0, True), (0.7, False)):
            points = {row["tokens_per_step"]: row["tokens_per_second"]
                      for row in rows_of(format, 1, rate) if line or row["length"] > 0}
            chart.series(points, colour, NAMES[format], line=line)
            if not line:
                chart.labels.pop()
    chart.write("speculation_speed")


if __name__ == "__main__":
    draw_step()
    draw_speed()
