"""The plot of sweep.py as an SVG file: for each text, the gap of each recipe over the number of blocks, with a point
for each seed, and how far apart bf16's seeds are, in grey."""

from __future__ import annotations

import math
import pathlib
from typing import Any
from xml.sax.saxutils import escape

COLOURS = ("#1c7ed6", "#e8590c", "#2f9e44", "#ae3ec9", "#f59f00", "#0c8599", "#c2255c")
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 430, 340, 60, 60, 15, 50


def text_at(x: float, y: float, words: str, size: int = 11, anchor: str = "middle", more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}"{more}>{escape(words)}</text>'


def tick_step(span: float) -> float:
    """1, 2 or 5 times a power of ten, for about six ticks."""
    rough = 10 ** math.floor(math.log10(span / 6))
    return next((step * rough for step in (1, 2, 5) if span / (step * rough) <= 7), 10 * rough)


def gaps_of(compared: list[dict[str, Any]]) -> list[float]:
    found = [case["bf16_spread"] for case in compared]
    found += [gap for case in compared for one in case["recipes"].values() for gap in (one["gap"], *one["gaps"])]
    return [100 * gap for gap in found if math.isfinite(gap)]


class Panel:
    """The axes of one text, `left` from the picture's edge."""

    def __init__(self, left: float, blocks: list[int], limit: float):
        self.left, self.blocks, self.limit = left + LEFT, blocks, limit

    def x(self, blocks: int) -> float:
        first, last = self.blocks[0], self.blocks[-1]
        share = 0.5 if first == last else (blocks - first) / (last - first)
        return self.left + 15 + share * (WIDTH - LEFT - RIGHT - 30)

    def y(self, percent: float) -> float:
        return TOP + (1 - percent / self.limit) / 2 * (HEIGHT - TOP - BOTTOM)

    def axes(self, title: str) -> list[str]:
        right, low, high = self.left + WIDTH - LEFT - RIGHT, self.y(-self.limit), self.y(self.limit)
        parts = [text_at((self.left + right) / 2, TOP - 10, title, 12)]
        parts.append(text_at((self.left + right) / 2, HEIGHT - 12, "blocks"))
        step = tick_step(2 * self.limit)
        count = math.floor(self.limit / step)
        for value in (step * i for i in range(-count, count + 1)):
            y, grey = self.y(value), "#343a40" if value == 0 else "#dee2e6"
            parts.append(f'<line x1="{self.left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="{grey}"/>')
            parts.append(text_at(self.left - 6, y + 4, f"{value:g}", anchor="end"))
        parts += [text_at(self.x(blocks), low + 16, str(blocks)) for blocks in self.blocks]
        box = f'<rect x="{self.left}" y="{high:.1f}" width="{right - self.left}" height="{low - high:.1f}"'
        return [*parts, f'{box} fill="none" stroke="#868e96"/>']

    def spread(self, cases: list[dict[str, Any]]) -> str:
        over = [(self.x(case["blocks"]), 100 * case["bf16_spread"]) for case in cases]
        points = [(x, self.y(value)) for x, value in over] + [(x, self.y(-value)) for x, value in reversed(over)]
        if len(cases) == 1:  # an area needs a width
            (x, value), width = over[0], 12
            points = [(x + dx * width, self.y(sign * value)) for sign, dx in ((1, -1), (1, 1), (-1, 1), (-1, -1))]
        joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        return f'<polygon points="{joined}" fill="#adb5bd" fill-opacity="0.4"/>'

    def recipe(self, cases: list[dict[str, Any]], model: str, colour: str) -> list[str]:
        points = [(self.x(case["blocks"]), case["recipes"][model]) for case in cases if model in case["recipes"]]
        points = [(x, one) for x, one in points if math.isfinite(one["gap"])]
        path = " ".join(f"{x:.1f},{self.y(100 * one['gap']):.1f}" for x, one in points)
        parts = [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>']
        for x, one in points:
            parts.append(f'<circle cx="{x:.1f}" cy="{self.y(100 * one["gap"]):.1f}" r="3.5" fill="{colour}"/>')
            for gap in filter(math.isfinite, one["gaps"]):
                y = self.y(100 * gap)
                parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2" fill="{colour}" fill-opacity="0.45"/>')
        return parts


def legend(models: list[str], x: float) -> list[str]:
    entries = [("bf16's seeds", "#adb5bd"), *((model, COLOURS[i % len(COLOURS)]) for i, model in enumerate(models))]
    parts = []
    for i, (name, colour) in enumerate(entries):
        y = TOP + 8 + 17 * i
        parts.append(f'<rect x="{x}" y="{y - 8}" width="14" height="8" fill="{colour}"/>')
        parts.append(text_at(x + 20, y, name, anchor="start"))
    return parts


def plot(compared: list[dict[str, Any]], title: str, path: pathlib.Path) -> None:
    texts = list(dict.fromkeys(case["text"] for case in compared))
    models = list(dict.fromkeys(model for case in compared for model in case["recipes"]))
    limit = 1.15 * max([abs(gap) for gap in gaps_of(compared)] + [0.5])
    width = WIDTH * len(texts) + 160
    parts = [text_at(LEFT, 20, title, 12, "start")]
    middle = (TOP + HEIGHT - BOTTOM) / 2
    turned = f' transform="rotate(-90 16 {middle})"'
    parts.append(text_at(16, middle, "validation loss against bf16, %", more=turned))
    for i, name in enumerate(texts):
        cases = sorted((case for case in compared if case["text"] == name), key=lambda case: case["blocks"])
        panel = Panel(WIDTH * i, [case["blocks"] for case in cases], limit)
        parts += [*panel.axes(name), panel.spread(cases)]
        for model in models:
            parts += panel.recipe(cases, model, COLOURS[models.index(model) % len(COLOURS)])
    parts += legend(models, WIDTH * len(texts) + 10)
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{HEIGHT}" font-family="sans-serif">'
    paper = '<rect width="100%" height="100%" fill="white"/>'
    path.write_text("\n".join([opening, paper, *parts, "</svg>"]) + "\n", encoding="utf-8")
