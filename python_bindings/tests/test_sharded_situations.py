"""The table of docs/distributed.md, recipes by situations of several ranks: each cell is trained with FP8 gathers and without,
and has to be what the document says of it. `python test_sharded_situations.py [ranks]` prints the table as Markdown."""

import dataclasses
import pathlib
import re
import sys
import tempfile

import pytest

torch = pytest.importorskip("torch")
import sharded_checkpoints as checkpoints
import sharded_situations as situations
import two_processes
from sharded_situations import ROWS

# By name: the situation, and the recipe whose cell CI tries.
COLUMNS = {
    "f32 parameters": (situations.in_float32, "rowwise_with_gw_hp"),
    "bf16 parameters": (situations.in_bfloat16, "ingot.float8 tensorwise"),
    "mixed precision": (situations.resharded, "experts rowwise"),
    "kept after forward": (situations.kept, "experts tensorwise"),
    "HSDP": (situations.hsdp, "experts blockwise"),
    "CPU offload": (situations.offloaded, "rowwise_folded"),
    "tied weights": (situations.tied, "tensorwise"),
    "accumulation": (situations.reduced, "ingot.float8 tensorwise"),
    "accumulation, unreduced": (situations.unreduced, "ingot.float8 rowwise"),
    "clip_grad_norm_": (situations.clipped, "rowwise_folded"),
    "checkpoint_wrapper": (situations.wrapped, "rowwise"),
    "checkpoint_wrapper, selective": (situations.selective, "rowwise_with_gw_hp"),
    "checkpoint()": (situations.called, "delayed"),
    "checkpoint(), selective": (situations.selective_call, "rowwise"),
    "2-D: FSDP x TP": (situations.two_dimensions, "rowwise"),
    "3-D: HSDP x TP": (situations.three_dimensions, "ingot.float8 tensorwise"),
    "DCP, n to m ranks": (checkpoints.other_ranks, "ingot.float8 rowwise"),
    "to nn.Linear": (checkpoints.as_linear, "delayed"),
    "rank 0 loads": (checkpoints.from_first_rank, "ingot.float8 rowwise"),
    "SimpleFSDP": (checkpoints.simple_fsdp, "blockwise"),
}
DOCUMENT = pathlib.Path(__file__).parents[2] / "docs" / "distributed.md"
HEADER = f"| recipe | {' | '.join(COLUMNS)} |"
NUMBERS = "¹²³⁴⁵⁶⁷⁸⁹"


# ---- the table as text ----


def table_of(found):
    """Markdown of {(row, column): what was found}. What is more than "right" or "refused" is a numbered line below."""
    notes, lines = [], [HEADER, "|---" * (len(COLUMNS) + 1) + "|"]
    for row in ROWS:
        cells = []
        for column in COLUMNS:
            word, _, note = found[row, column].removeprefix("right, ").partition(": ")
            if note and note not in notes:
                notes.append(note)
            cells.append(word + (NUMBERS[notes.index(note)] if note else ""))
        lines.append(f"| {row} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", *(f"{NUMBERS[at]} {note}  " for at, note in enumerate(notes))])


def found_in(text):
    """The cells of a table as table_of() writes it, within a document."""
    lines = text[text.index(HEADER) :].splitlines()
    rows = [line for line in lines[2:] if line.startswith("|")][: len(ROWS)]
    notes = {line[0]: line[1:].strip() for line in lines[2 + len(rows) :] if line[:1] and line[0] in NUMBERS}
    found = {}
    for line in rows:
        row, *cells = (each.strip() for each in line.strip("|").split("|"))
        for column, each in zip(COLUMNS, cells, strict=True):
            word, note = (each[:-1], notes[each[-1]]) if each[-1] in NUMBERS else (each, "")
            found[row, column] = f"{'' if word in ('right', 'refused', 'WRONG') else 'right, '}{word}{': ' if note else ''}{note}"
    return found


def test_table_is_read_as_it_was_written():
    found = {(row, column): "right" for row in ROWS for column in COLUMNS}
    found["rowwise", "HSDP"], found["delayed", "HSDP"] = "right, 16 bits: it is said: so", "refused: it is said: so"
    found["rowwise", "to nn.Linear"] = "right, some 16 bits: another"
    text = table_of(found)
    assert found_in(f"# Title\n\n{text}\n\nMore.\n") == found
    assert text.count("it is said: so") == 1


def test_document_has_every_cell():
    assert list(found_in(DOCUMENT.read_text())) == [(each.row, each.column) for each in ALL]
    assert {each.row for each in IN_CI} == set(ROWS)


# ---- what is found ----


@dataclasses.dataclass(frozen=True)
class Cell:
    """A check of two_processes.py. With a folder it writes what it has found; without, it has to be what the document says."""

    row: str
    column: str
    folder: str = ""

    @property
    def __name__(self):
        return re.sub(r"\W+", "_", f"{self.row} {self.column}").strip("_")

    def __call__(self, rank):
        found = COLUMNS[self.column][0](ROWS[self.row], rank)
        if self.folder:
            pathlib.Path(self.folder, f"{self.__name__}.found.{rank}").write_text(found)
            return
        expected = found_in(DOCUMENT.read_text())[self.row, self.column]
        assert found == expected, f"found {found!r}, and docs/distributed.md has {expected!r}: is it to be changed?"


ALL = [Cell(row, column) for row in ROWS for column in COLUMNS]
IN_CI = [Cell(row, column) for column, (_, row) in COLUMNS.items()]
WORLDS = sorted({2, 3, 4, two_processes.WORLD})
folder = two_processes.fixture(IN_CI)
for count in WORLDS:
    globals()[f"folder_of_{count}"] = two_processes.fixture(ALL, count)


@pytest.mark.parametrize("check", IN_CI, ids=lambda check: check.__name__)
def test_two_processes(check, folder):
    two_processes.passed(check, folder)


@pytest.mark.nightly
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("check", ALL, ids=lambda check: check.__name__)
def test_all(world, check, request):
    two_processes.passed(check, request.getfixturevalue(f"folder_of_{world}"), world)


def main():
    ranks = int(sys.argv[1]) if len(sys.argv) > 1 else two_processes.WORLD
    found, problems = {}, []
    with tempfile.TemporaryDirectory() as name:
        cells = [Cell(row, column, name) for row in ROWS for column in COLUMNS]
        two_processes.run_all(cells, name, ranks)
        for each in cells:
            problem = two_processes.problem_of(each, name, ranks)
            if problem:
                found[each.row, each.column] = "WRONG"
                problems.append(f"{each.row}, {each.column}: {problem}")
                continue
            texts = {pathlib.Path(name, f"{each.__name__}.found.{rank}").read_text() for rank in range(ranks)}
            found[each.row, each.column] = "; ".join(sorted(texts))
    print(table_of(found), *problems, sep="\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
