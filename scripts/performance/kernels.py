"""Tables of kernels: casts, GEMMs, weight-only matmuls, compiles."""

from __future__ import annotations

import math

from performance.results import Json, Results, by_card, geometric, joined, median, percent, table, times

MODES = (
    *("tensor fast", "row fast", "tensor accurate", "row accurate"),
    *("blocks", "blocks read", "groups", "groups read"),
)

CASTS = ("cast", "cast_again", "cast_renewed")  # files of the same cases, later ones of fewer
MOST_FIGURES = 20  # in a row of a table of casts


# ---- casts -----------------------------------------------------------------------------------------------------------


def cast_cases(results: Results) -> dict[tuple[str, str, int, int], tuple[str, Json]]:
    """(file, case) of each (device, work, rows, columns) that was timed, of the last file that has it."""
    found = {}
    for name in CASTS:
        for device, file, content in results.of(name):
            cases = ((case, (device, case["case"], case["rows"], case["cols"])) for case in content["cases"] if "us" in case)
            found |= {key: (file, case) for case, key in cases}
    return found


def casts(results: Results) -> list[str]:
    of, cases = results.of("cast"), cast_cases(results)
    if not of:
        return []
    peers = {device: results.of_device("cast_torch", device) for device, _, _ in of}
    compiled = {(device, case["case"], case["rows"]): median(case) for device, found in peers.items() if found for case in found["cases"]}
    rows = []
    for work in dict.fromkeys(work for _, work, rows, cols in cases if (rows, cols) == (8192, 8192)):
        each = [cases.get((device, work, 8192, 8192), ("", {}))[1] for device, _, _ in of]
        ratios = [(compiled.get((device, work, 8192)), median(case)) for (device, _, _), case in zip(of, each, strict=True)]
        target = next((case["target"] for case in each if case.get("target") is not None), None)
        rows.append(
            (
                work,
                joined(f"{case['us']['median']:.1f}" if case else "-" for case in each),
                joined(times(case["of_copy_ceiling"], 3) if case else "-" for case in each),
                "-" if target is None else f"{target:.2f}",
                joined(times(theirs / ours if theirs and ours else None) for theirs, ours in ratios),
            )
        )
    lines = ["8192 x 8192, bf16 to e4m3fn:", ""]
    lines += table((by_card("work", of), "us", "of a copy's speed", "target", "times as fast as torch.compile"), rows)
    lines += cast_sources(results, of)
    lines += ["All sizes, per cent of a copy's speed; transposed codes of 2998, 3000 and 3001 rows start at any address:", ""]
    lines += casts_by_size(of, cases, {file: mark for device, _, _ in of for mark, file, _ in marked(results, device)})
    for device, file, found in results.of("cast_gathered"):
        lines += ["Rows that an index names, next to plain casts of the same run, per cent of a copy's speed:", ""]
        named = {(device, case["case"], case["rows"], case["cols"]): (file, case) for case in found["cases"] if "us" in case}
        lines += casts_by_size([(device, file, found)], named, {}) + results.sources([(device, file, found)])
    return lines


def marked(results: Results, device: str) -> list[tuple[str, str, Json]]:
    """(mark, file, content) of a card's casts, the newest first, whose figures have no mark; the others' have stars."""
    files = [(file, content) for name in reversed(CASTS) for other, file, content in results.of(name) if other == device]
    return [("*" * stars, file, content) for stars, (file, content) in enumerate(files)]


def cast_sources(results: Results, of: list[tuple[str, str, Json]]) -> list[str]:
    told = []
    for device, _, _ in of:
        for mark, file, content in marked(results, device):
            told.append((f"with {mark}, " if mark else "") + results.source(file, content))
        told += [f"torch.compile: {results.source(name, content)}" for other, name, content in results.of("cast_torch") if other == device]
    return ["; ".join(told) + ".", ""]


def casts_by_size(of: list[tuple[str, str, Json]], cases: dict, marks: dict[str, str]) -> list[str]:
    """A column for each size, by columns; and the same compared with copies of the same size, where they were measured."""
    lines = by_size(of, cases, "of_copy_ceiling", marks)
    if any("of_same_size_copy" in case for _, case in cases.values()):
        lines += ["The same, of the speed of a copy of as many bytes, timed alternately with each:", ""]
        lines += by_size(of, cases, "of_same_size_copy", marks)
    return lines


def by_size(of: list[tuple[str, str, Json]], cases: dict, ratio: str, marks: dict[str, str]) -> list[str]:
    """In two tables or more where one would be too wide, the sizes of all cards first. Figures have the marks of their files."""
    cards: dict[tuple[int, int], set[str]] = {}
    for (device, _, *size), (_, case) in cases.items():
        if ratio in case:
            cards.setdefault((size[0], size[1]), set()).add(device)
    sizes = sorted(cards, key=lambda size: (-len(cards[size]), size[1], size[0]))
    works = list(dict.fromkeys(work for _, work, _, _ in cases))

    def figure(device: str, work: str, size: tuple[int, int]) -> str:
        file, case = cases.get((device, work, *size), ("", {}))
        return f"{times(100 * case[ratio], 0)}{marks.get(file, '')}" if ratio in case else "-"

    lines = []
    wide = math.ceil(len(sizes) / math.ceil(len(sizes) * len(of) / MOST_FIGURES)) if sizes else 1
    for part in (sizes[at : at + wide] for at in range(0, len(sizes), wide)):
        there = [each for each in of if any(each[0] in cards[size] for size in part)]
        rows = [[work, *(joined(figure(device, work, size) for device, _, _ in there) for size in part)] for work in works]
        rows = [row for row in rows if any(cell != "-" for cell in row[1:])]
        lines += table((by_card("work", there), *(f"{m}x{n}" for m, n in part)), rows)
    return lines


# ---- GEMMs -----------------------------------------------------------------------------------------------------------


def split(case: str) -> tuple[str, str]:
    shape, _, mode = case.partition(", ")
    return shape, mode


def gemm_times(case: Json) -> tuple[float | None, float | None]:
    """Ingot's time and that of cuBLASLt's best algorithm."""
    ours = [final["us"]["median"] for final in case["finals"] if final["kernel"].startswith("sm90") and "us" in final]
    theirs = [f["us"]["median"] for f in case["finals"] if f["kernel"].startswith("cublaslt") and "us" in f]
    return min(ours, default=None), min(theirs, default=None)


def gemm_files(results: Results) -> list[tuple[str, str, Json]]:
    """Of single GEMMs, those of unlisted sizes too."""
    return results.of("gemm") + results.of("gemm_unlisted")


def gemms(results: Results) -> list[str]:
    lines = []
    for device, file, found in results.of("gemm"):
        lines += gemm_table(results.source(file, found), found)
        for other, unlisted, content in results.of("gemm_unlisted"):
            if other == device:
                lines += gemm_table("Sizes that nothing was fitted to, " + results.source(unlisted, content), content)
        lines += deep_gemm(results, device)
    return lines


def gemm_table(source: str, found: Json) -> list[str]:
    shapes: dict[str, dict[str, str]] = {}
    over_bf16: dict[str, list[float]] = {}
    for case in found["cases"]:
        shape, mode = split(case["case"].removeprefix("unlisted "))
        ours, theirs = gemm_times(case)
        if mode not in MODES or ours is None:
            continue
        fast = case["bf16_us"] / ours if "bf16_us" in case else None
        if fast is not None:
            over_bf16.setdefault(mode, []).append(fast)
        over = f" ({times(theirs / ours)})" if theirs is not None else ""
        shapes.setdefault(shape, {})[mode] = f"{tflops(case, ours)}{times(fast)}{over}"
    modes = [mode for mode in MODES if any(mode in row for row in shapes.values())]
    rows = [[shape, *(row.get(mode, "-") for mode in modes)] for shape, row in shapes.items()]
    rows.append(["geometric mean", *(times(geometric(over_bf16.get(mode, []))) for mode in modes)])
    return [source + ":", "", *table(("M x K x N", *modes), rows)]


def grouped_gemms(results: Results) -> list[str]:
    lines = []
    for _, file, found in [each for name in ("grouped_gemm", "grouped_gemm_decode", "grouped_gemm_gradients") for each in results.of(name)]:
        kinds: list[str] = []
        rows: dict[str, dict[str, str]] = {}
        for case in found["cases"]:
            experts, kind = case["case"].rsplit(", ", 1)
            ways = case["ways"]
            apart = next((way for way in ways if way["way"] == "apart"), None)
            ours = next((way for way in ways if way["way"].endswith("*")), None)
            if apart is None or ours is None:
                continue
            kinds += [kind] if kind not in kinds else []
            us = ours["us"]["median"]
            ratio = times(apart["us"]["median"] / us)
            read = f", {times(case['read_us'] / us)} of reading" if "read_us" in case else ""
            rows.setdefault(experts, {})[kind] = f"{times(ours['tflops'], 0)}, {ratio}{read}"
        lines += [f"{results.noted(file, found)}:", ""]
        lines += table(("experts", *kinds), [[name, *(row.get(kind, "-") for kind in kinds)] for name, row in rows.items()])
    return lines


def grouped_gemms_in_torch(results: Results) -> list[str]:
    """compare_grouped.py's: Ingot's speed over PyTorch's, and what ragged ends cost."""
    lines = []
    for _, file, found in results.of("grouped_torch"):
        speeds: dict[str, dict[str, str]] = {}
        padding: dict[str, dict[str, str]] = {}
        for case in found["cases"]:
            name, kind, ways = case["case"].rsplit(", ", 1)[0], case["kind"], case["ways"]
            ours = ways["ingot"]
            if "us" not in ours:
                continue
            theirs = f" ({ways['torch']['tflops']:.0f})" if "us" in ways["torch"] else ""
            speeds.setdefault(name, {})[kind] = f"{times(ours['tflops'], 0)}, {times(ours.get('over_torch'))}{theirs}"
            padded = [way for way in ways.values() if "ragged_takes" in way]
            if padded:
                padding.setdefault(name, {})[kind] = " / ".join(times(way["ragged_takes"]) for way in padded)
        kinds = list(dict.fromkeys(case["kind"] for case in found["cases"]))
        by_kind = lambda rows: table(("experts", *kinds), [[name, *(row.get(kind, "-") for kind in kinds)] for name, row in rows.items()])
        lines += [f"{results.noted(file, found)}; TFLOPS, times as fast as PyTorch's, and in brackets PyTorch's TFLOPS:", "", *by_kind(speeds)]
        if padding:
            multiples = " / ".join(str(multiple) for multiple in found["padded_to"])
            lines += [f"The time of Ingot's with ragged ends, of its time with experts padded to multiples of {multiples}:", "", *by_kind(padding)]
    return lines


def weight_only_experts(results: Results) -> list[str]:
    """Rows of many experts by their weights, in one launch."""
    lines = []
    for _, file, found in results.of("weight_only_experts"):
        kinds: list[str] = []
        rows: dict[str, dict[str, str]] = {}
        for case in found["cases"]:
            experts, kind = case["case"].rsplit(", ", 1)
            apart, ours = (way["us"]["median"] for way in case["ways"][:2])
            kinds += [kind] if kind not in kinds else []
            rows.setdefault(experts, {})[kind] = f"{ours:.1f}, {times(apart / ours)} ({times(case['read_us'] / ours)})"
        lines += [
            f"{results.noted(file, found)}; rows of many experts in one launch: us, times as fast as a launch for each "
            "expert, and in brackets the share of the speed at which the weights of experts that have rows can be read:",
            "",
        ]
        lines += table(("experts", *kinds), [[name, *(row.get(kind, "-") for kind in kinds)] for name, row in rows.items()])
    return lines


def tflops(case: Json, us: float) -> str:
    return f"{times(2e-6 * case['m'] * case['n'] * case['k'] / us, 0)}, " if "m" in case else ""


def deep_gemm(results: Results, device: str) -> list[str]:
    theirs, ours = results.of_device("deepgemm", device), results.of_device("gemm_blocks", device)
    if theirs is None or ours is None:
        return []
    peers = {case["case"]: median(case) for case in theirs["cases"]}
    ratios = []
    for case in ours["cases"]:
        us, peer = gemm_times(case)[0], peers.get(case["case"])
        if us is not None and peer is not None:
            ratios.append(peer / us)
    if not ratios:
        return []
    return [
        f"Blocks compared with DeepGEMM {theirs['deep_gemm']}, one after the other in a session: {times(geometric(ratios))} "
        f"of its speed on the geometric mean of {len(ratios)} shapes, {times(min(ratios))} at worst, "
        f"{times(max(ratios))} at best ({results.source(f'gemm_blocks_{device}.json', ours)}).",
        "",
    ]


def epilogues(results: Results) -> list[str]:
    lines = []
    for _, file, found in results.of("gemm"):
        rows: dict[str, dict[str, str]] = {}
        for case in found["cases"]:
            shape, mode = split(case["case"])
            sums, comma, epilogue = mode.partition(", ")
            plain = next((median(f) for f in case["finals"] if f["kernel"] == "without epilogue"), None)
            ours = gemm_times(case)[0]
            if comma and plain is not None and ours is not None:
                rows.setdefault(epilogue, {})[f"{shape}, {sums}"] = times(plain / ours, 3)
        columns = list(dict.fromkeys(column for row in rows.values() for column in row))
        if rows:
            lines += [results.source(file, found) + ":", ""]
            cells = ([epilogue, *(row.get(column, "-") for column in columns)] for epilogue, row in rows.items())
            lines += table(("epilogue", *columns), cells)
    return lines


def choices(results: Results) -> list[str]:
    lines = []
    newest = {}  # of each device's lists
    for name in ("choice", "gemm_untuned", "gemm_untuned_2", "gemm_untuned_3"):
        newest |= {device: (file, found) for device, file, found in results.of(name)}
    for file, found in newest.values():
        summary = found["summary"]
        lines += [
            f"Without tuning, {summary['near']} of {summary['measured']} GEMMs that nothing was fitted on run within "
            f"{percent(1 - summary['limit'], digits=0)} of the best that tuning finds; "
            f"{times(summary['geometric'])} of it on the geometric mean, {times(summary['worst'])} at worst. "
            f"{results.source(file, found)}.",
            "",
        ]
    return lines


# ---- weight-only -----------------------------------------------------------------------------------------------------


def weight_only(results: Results) -> list[str]:
    lines = []
    for device, file, found in results.of("weight_only"):
        shapes: dict[str, dict[int, str]] = {}
        for case in found["cases"]:
            us = median(case.get("ours", {}))
            if us is None or "e4m3fn" not in case["spec"] or "scale=row" not in case["spec"]:
                continue
            shapes.setdefault(split(case["case"])[0], {})[case["m"]] = (
                f"{us:.1f}, {times(case['bf16_us'] / us)} ({times(case['read_us'] / us)})"
            )
        tokens = sorted({m for row in shapes.values() for m in row})
        rows = [[shape, *(row.get(m, "-") for m in tokens)] for shape, row in shapes.items()]
        lines += [results.source(file, found) + ", e4m3fn with a scale for each row:", ""]
        lines += table(("weight", *(f"M = {m}" for m in tokens)), rows)
        lines += weight_only_peers(results, device, found) + weight_only_formats(results, device)
    return lines + weight_only_experts(results)


def weight_only_formats(results: Results, device: str) -> list[str]:
    found = results.of_device("weight_only_formats", device)
    if found is None:
        return []
    rows: dict[str, dict[int, str]] = {}
    for case in found["cases"]:
        us = median(case.get("ours", {}))
        if us is not None:
            rows.setdefault(case["spec"].removeprefix("dequant_matmul "), {})[case["m"]] = f"{us:.1f}"
    tokens = sorted({m for row in rows.values() for m in row})
    shape = f"{found['cases'][0]['n']} x {found['cases'][0]['k']}"
    lines = [results.source(f"weight_only_formats_{device}.json", found) + f", {shape}, us:", ""]
    cells = ([f"`{spec}`", *(row.get(m, "-") for m in tokens)] for spec, row in rows.items())
    return lines + table(("other formats", *(f"M = {m}" for m in tokens)), cells)


def weight_only_peers(results: Results, device: str, ours: Json) -> list[str]:
    lines = []
    for of, file, found in results.of("weight_only_torch"):
        if of != device:
            continue
        rows = []
        for case in found["cases"]:
            same = (c for c in ours["cases"] if all(c[extent] == case[extent] for extent in ("m", "n", "k")))
            us = next((median(c["ours"]) for c in same if "e4m3fn" in c["spec"] and "scale=row" in c["spec"]), None)
            theirs = median(case)
            if theirs is not None and us is not None:
                rows.append((f"{case['n']}x{case['k']}, M = {case['m']}", case["mode"], f"{theirs:.1f}", f"{us:.1f}"))
        lines += [results.source(file, found) + ", in another session:", ""]
        lines += table(("weight", "peer", "us", "Ingot, us"), rows)
    return lines


# ---- compiling and calling -------------------------------------------------------------------------------------------


def compiles(results: Results) -> list[str]:
    lines = []
    for _, file, found in results.of("compile"):
        processor = {kernel["kernel"]: kernel["processor_ms"]["median"] for kernel in found["kernels"]}
        empty = processor.get("an empty kernel")
        rows = [
            (name, f"{ms:.0f}", f"{ms / empty:.1f}" if empty else "-")
            for name, ms in processor.items()
            if name != "an empty kernel"
        ]
        lines += [results.source(file, found) + f"; an empty kernel takes {empty:.0f} ms:" if empty else "", ""]
        lines += table(("kernel", "ms of a processor", "empty kernels"), rows)
    return lines
