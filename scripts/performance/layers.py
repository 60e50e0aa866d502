"""Tables of layers and whole models: steps, gradients, decoding, training, what calls cost the host."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable

from performance.kernels import split
from performance.results import LAYER, RECIPES, Json, Results, by_card, joined, median, plot, table, times


def gradients(results: Results) -> list[str]:
    """Ways in the order of bench_gradients: two launches, then one, if there can be one."""
    lines = []
    for _, file, found in results.of("gradients"):
        rows: dict[str, dict[str, str]] = {}
        for case in found["cases"]:
            size, kind = split(case["case"])
            apart = median(case["ways"][0])
            one = median(case["ways"][1]) if len(case["ways"]) > 1 else None
            if apart is None:
                continue
            cell = f"{apart:.1f}" if one is None else f"{apart:.1f} / {one:.1f} ({times(apart / one)})"
            chosen = next((at for at, way in enumerate(case["ways"]) if way["chosen"]), 0)
            rows.setdefault(size, {})[kind] = cell + (" *" if chosen else "")
        kinds = list(dict.fromkeys(kind for row in rows.values() for kind in row))
        cells = ([size, *(row.get(kind, "-") for kind in kinds)] for size, row in rows.items())
        lines += [results.source(file, found) + ":", "", *table(("tokens x in x out", *kinds), cells)]
    return lines


def square(case: Json) -> bool:
    return case["tokens"] == case["in_features"] == case["out_features"]


def layers(results: Results) -> list[str]:
    of, lines = results.of("linear"), []
    for work in dict.fromkeys(case["work"] for _, _, found in of for case in found["cases"]):
        timed = [each for each in of if any(case["work"] == work for case in each[2]["cases"])]
        by_name = [
            {name: cells for case in found["cases"] if case["work"] == work for name, *cells in layer_rows(case)} for _, _, found in timed
        ]
        rows = []
        for name in dict.fromkeys(name for of_card in by_name for name in of_card):
            cells = (of_card.get(name, ["-"] * (1 + len(RECIPES))) for of_card in by_name)
            rows.append([name, *(joined(each) for each in zip(*cells, strict=True))])
        lines += table((by_card(work, timed), "bf16, us", *RECIPES), rows) + results.sources(timed, noted=True)
    pictures = (plot(results, f"linear_{device}.svg", "speed over Ingot's bf16 by recipe and size") for device, _, _ in of)
    return lines + [line for picture in pictures for line in picture]


def layer_rows(case: Json) -> list[list[str]]:
    """A case on one stream and, where it was measured, with a second one."""
    name = str(case["tokens"]) if square(case) else case["case"].removesuffix(" " + case["work"])
    rows = []
    for side in (False, True):
        of = {r["recipe"].removesuffix(" +side"): r for r in case["recipes"] if bool(r.get("side_stream")) == side}
        own = median(of.get("high_precision", {}))
        if own is not None:
            speeds = (times(of[recipe].get("over_bf16")) if recipe in of else "-" for recipe in RECIPES)
            rows.append([name + (", side stream" if side else ""), f"{own:.1f}", *speeds])
    return rows


def kept(results: Results) -> list[str]:
    """What a recipe keeps for backward and how accurate it is, of the largest square Linear and the largest other."""
    lines = []
    for _, file, found in results.of("linear"):
        alone = [case for case in found["cases"] if case["work"] == "linear"]
        for shape in (True, False):
            of_shape = [case for case in alone if square(case) == shape and case["tokens"] == 8192]
            if not of_shape:
                continue
            case = max(of_shape, key=lambda case: case["out_features"])
            bytes_of_bf16 = 2 * case["tokens"] * case["in_features"]
            rows = [
                (
                    r["recipe"],
                    f"{r['saved_bytes'] / 1e6:.2f} = {r['saved_bytes'] / bytes_of_bf16:.4f}",
                    times(r.get("over_bf16")),
                    *(decibels(r["db_beside_bf16"][part]) for part in ("output", "grad_input", "grad_weight")),
                )
                for r in case["recipes"]
                if "db_beside_bf16" in r and not r.get("side_stream")
            ]
            lines += [f"{case['case']}, {results.noted(file, found)}:", ""]
            head = ("recipe", "MB kept, of bf16's input", "over bf16", "output, dB", "grad_input, dB", "grad_weight, dB")
            lines += table(head, rows)
    return lines


def decibels(value: float) -> str:
    return "the same bits" if value >= 200 else f"{value:.1f}"


def decoding(results: Results) -> list[str]:
    lines = []
    for path in sorted(results.folder.glob("generate_*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        plain = next((run["tokens_per_second"] for run in found["runs"] if run["weights"] == "bf16"), None)
        rows = [
            (
                run["weights"],
                f"{run['tokens_per_second']:.0f}",
                times(run["tokens_per_second"] / plain if plain else None),
                f"{run['gigabytes_per_second'] / 1000:.2f}",
            )
            for run in found["runs"]
        ]
        model = f"{found['layers']} layers of {found['hidden']} and {found['intermediate']}, batch {found['batch']}"
        lines += [results.source(path.name, found) + f", {model}:", ""]
        lines += table(("weights", "tokens/s", "over bf16", "TB/s of weights"), rows)
    return lines


def decoding_in_pytorch(results: Results) -> list[str]:
    lines = []
    for _, file, found in results.of("decode_torch"):
        rows = [(one["weights"], f"{one['tokens_per_second']:.0f}", times(one["of_bf16"])) for one in found["results"]]
        model = f"{found['model']['layers']} layers of {found['model']['hidden']} and {found['model']['intermediate']}"
        lines += [results.source(file, found) + f", {model}, batch 1:", ""]
        lines += table(("weights", "tokens/s", "of bf16"), rows)
    return lines


def host(results: Results) -> list[str]:
    """By recipe; files before the captured step was timed have a dash there."""
    of = [each for each in results.of("linear") if isinstance(each[2].get("host_us_of_a_256_step"), dict)]
    columns = [
        (found.get("launches_of_a_256_step", {}), found["host_us_of_a_256_step"], found.get("host_us_of_a_256_step_captured", {}))
        for _, _, found in of
    ]

    def cells(of_column: int, recipe: str, digits: int) -> str:
        return joined(f"{each[of_column][recipe]:.{digits}f}" if recipe in each[of_column] else "-" for each in columns)

    names = dict.fromkeys(recipe for _, us, _ in columns for recipe in us)
    rows = [(recipe, cells(0, recipe, 0), cells(1, recipe, 1), cells(2, recipe, 1)) for recipe in names]
    return table((by_card("recipe", of), "launches", "us", "captured, us"), rows) + results.sources(of, noted=True) if of else []


def sweeps(results: Results) -> list[tuple[str, str, Json]]:
    """As Results.of(), of the newer card first the shortest runs first."""
    paths = sorted(results.folder.glob("train_sweep_*.json"))
    found = [(path.stem.rsplit("_", 1)[1], path.name, json.loads(path.read_text(encoding="utf-8"))) for path in paths]
    return sorted(found, key=lambda each: each[0], reverse=True)


def training(results: Results) -> list[str]:
    """Speeds in one table and losses in another. The rows of a card's longer runs say how long they are."""
    of = sweeps(results)
    steps = {file: re.sub(r".*_([0-9]+)_steps_.*", r"\1", file) for _, file, _ in of}
    cards: dict[str, tuple[str, str, Json]] = {}
    for each in of:
        cards.setdefault(each[0], each)
    rows: dict[str, dict[str, Json]] = {}
    for device, file, found in of:
        longer = f", {steps[file]} steps" if cards[device][1] != file else ""
        for case in (case for case in found["compared"] if case["recipes"]):
            rows.setdefault(f"{case['text']}, {case['blocks']} blocks{longer}", {})[device] = case
    recipes = [r for r in RECIPES if any(r in case["recipes"] for row in rows.values() for case in row.values())]

    def cells(what: str, text: Callable[[float | None], str]) -> list[list[str]]:
        found = []
        for name, row in rows.items():
            written = [
                joined(text(row[card]["recipes"].get(recipe, {}).get(what)) if card in row else "-" for card in cards) for recipe in recipes
            ]
            if any(cell != "-" for cell in written):  # --shared-gpu notes no speed
                found.append([name, *written])
        return found

    if not rows:
        return []
    head = by_card("text, size", cards.values())
    spread = {name: joined(hundredths(row[card]["bf16_spread"], "") if card in row else "-" for card in cards) for name, row in rows.items()}
    lines = table((head, *recipes), cells("speed", times))
    lengths = " · ".join(steps[file] for _, file, _ in cards.values())
    lines += [f"How far the validation loss is from bf16's, per cent, after {lengths} steps:", ""]
    lines += table((head, "bf16's seeds differ by", *recipes), ([name, spread[name], *gaps] for name, *gaps in cells("gap", hundredths)))
    return lines + results.sources(of)


def hundredths(share: float | None, sign: str = "+") -> str:
    return "-" if share is None else f"{100 * share:{sign}.2f}"


def losses_of_gpt(results: Results) -> list[str]:
    lines = []
    for device, file, found in results.of("train_gpt_losses"):
        by_variant: dict[str, list[Json]] = {}
        for run in found["runs"]:
            by_variant.setdefault(run["variant"], []).append(run)
        rows = []
        for variant, runs in by_variant.items():
            values = ", ".join(f"{run['validation_loss']:.4f}" for run in runs)
            rows.append((variant, values, f"{max(run['peak_bytes'] or 0 for run in runs) / 2**20:.0f}"))
        shape = found["settings"]["shape"]
        model = f"{shape['blocks']} blocks of {shape['width']}, {found['settings']['tokens_per_step']} tokens a step"
        lines += [results.source(file, {**found["machine"], **found}) + f"; {model}, losses by seed:", ""]
        lines += table(("variant", "validation loss", "peak MiB"), rows)
        lines += [f"- {'holds' if one['holds'] else 'FAILS'}: {one['line']}" for one in found["verdicts"]] + [""]
        lines += plot(results, f"train_gpt_losses_{device}.svg", "losses of a GPT in bf16 and with every recipe")
    return lines


def speeds_of_gpt(results: Results) -> list[str]:
    """One table for each device; a file has one width or more."""
    lines = []
    devices: dict[str, list[tuple[str, Json]]] = {}
    for path in sorted(results.folder.glob("train_gpt_speed_*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        devices.setdefault(found["machine"]["device"], []).append((path.name, found))
    for files in devices.values():
        rows: dict[str, dict[int, str]] = {}
        for _, found in files:
            rates = {c["variant"]: c for c in found["cases"] if "tokens_per_second" in c}
            compiled = rates.get("torch:bf16+compile")
            for variant, case in rates.items():  # a ratio is one of the same run
                rate = case["tokens_per_second"]["median"]
                ratio = rate / compiled["tokens_per_second"]["median"] if compiled else None
                rows.setdefault(variant, {}).setdefault(case["width"], f"{rate:.0f} ({times(ratio)})")
        widths = sorted({width for row in rows.values() for width in row}, reverse=True)
        lines += [f"{files[0][1]['settings']['tokens']} tokens a step:", ""]
        lines += [f"- {results.source(name, {**found['machine'], **found})}" for name, found in files] + [""]
        cells = ([variant, *(row.get(width, "-") for width in widths)] for variant, row in rows.items())
        lines += table(("variant", *(f"width {width}" for width in widths)), cells)
    return lines


def from_pytorch(results: Results) -> list[str]:
    lines = []
    for _, file, found in results.of("eager"):
        us: dict[str, dict[int, float]] = {}
        for case in found["cases"]:
            if case["work"] == LAYER and "gpu_us" in case:
                us.setdefault(case["layer"], {})[case["size"]] = case["gpu_us"]["median"]
        sizes = sorted({size for row in us.values() for size in row})
        compiled = us.get("torch bf16, compiled", {})
        rows = []
        for layer, row in us.items():
            cells = (f"{row[n]:.0f} ({times(compiled.get(n, 0) / row[n])})" if n in row else "-" for n in sizes)
            rows.append([layer, *cells])
        lines += [results.source(file, found) + ":", "", *table(("layer", *(f"n = {n}" for n in sizes)), rows)]
    return lines


def linear_from_pytorch(results: Results) -> list[str]:
    lines = []
    for _, file, found in results.of("eager_up"):
        us = {case["layer"]: case["gpu_us"]["median"] for case in found["cases"] if "gpu_us" in case}
        rows = [(layer, f"{time:.0f}", times(us["torch bf16, compiled"] / time)) for layer, time in us.items()]
        shape = found["cases"][0]["case"].split()[0]
        lines += [f"{shape}, {results.source(file, found)}:", "", *table(("layer", "us", "over bf16 compiled"), rows)]
    return lines


MODELS = ("llama_nn_one", "llama_one", "fsdp_two", "fsdp_units_two", "fsdp_tokens_two", "tensor_parallel_two", "tensor_parallel_nn_two")


def models(results: Results) -> list[str]:
    """What compare_fsdp.py and compare_tensor_parallel.py have measured."""
    lines = []
    for _, file, found in (each for name in MODELS for each in results.of(name)):
        sizes = found["model"]["text"] if "model" in found else (
            f"gated MLP of {found['hidden']} and {found['intermediate']}, {found['tokens']} tokens, tensor and sequence parallel"
        )
        turns = "one turn of each" if all(case["ms"]["min"] == case["ms"]["max"] for case in found["cases"]) else "medians"
        lines += [f"{sizes}, {found['gpus']} x {results.source(file, found)}, {turns}:", ""]
        base = next((case["ms"]["median"] for case in found["cases"] if case["contender"] == "bf16, compiled"), math.nan)
        rows = [
            (
                case["contender"],
                f"{case['ms']['median']:.1f}",
                times(base / case["ms"]["median"]),
                f"{case['memory']['peak'] / 1e9:.1f}" if case["memory"].get("held_before", 0) < 1e9 else "-",
                f"{case['wire']['sent_bytes'] / 1e6:.0f}" if found["gpus"] > 1 else "-",
            )
            for case in found["cases"]
        ]
        lines += table(("contender", "ms", "over bf16 compiled", "peak GB", "sent MB"), rows)
        lines += losses_that_fail(found)
    return lines


def losses_that_fail(found: Json) -> list[str]:
    told = [each for each in found.get("verdicts", ()) if each["verdict"] != "holds"]
    if not told:
        return []
    lines = [f"- {each['contender']}: {each['verdict']}, {each['text']}" for each in told]
    return ["What the benchmark says of losses that are not as they have to be:", "", *lines, ""]


def trainers(results: Results) -> list[str]:
    """What compare_trainers.py has measured, and losses of its runs with --deterministic."""
    lines = []
    for _, file, found in results.of("trainers"):
        timed = {(case["trainer"], case["contender"]): case for case in found["cases"] if "tokens_per_s" in case}
        contenders = [each for each in dict.fromkeys(contender for _, contender in timed) if each != "bf16"]
        rows = []
        for trainer in dict.fromkeys(trainer for trainer, _ in timed):
            bf16 = timed.get((trainer, "bf16"))
            cases = [timed.get((trainer, contender)) for contender in contenders]
            cells = [f"{case['tokens_per_s']:.0f} ({times(case.get('over_bf16'))})" if case else "-" for case in cases]
            layers_of = ", ".join(dict.fromkeys(str(case["float8_layers"]) for case in cases if case))
            rows.append([trainer, layers_of, f"{bf16['tokens_per_s']:.0f}" if bf16 else "-", *cells])
        lines += [f"{found['model']['text']}, {results.source(file, found)}:", ""]
        lines += [*table(("trainer", "FP8 layers", "bf16", *contenders), rows), *losses_that_fail(found)]
    for _, file, found in results.of("trainers_losses"):
        contenders = {each["contender"] for each in found["verdicts"]}
        equal = sum(each["text"].startswith("all ") for each in found["verdicts"])
        sentence = (
            "With PyTorch's deterministic algorithms, all losses under a trainer equal those of a plain loop that converts the "
            f"model itself, bit for bit, for {equal} Ingot contenders of {len(contenders)} "
        )
        failed = losses_that_fail(found)
        lines += [f"{sentence}({results.source(file, found)}){':' if failed else '.'}", "", *failed[2:]]
    return lines


def experts(results: Results) -> list[str]:
    """What compare_experts.py, compare_expert_ranks.py and train_experts.py have measured."""
    return [
        *experts_alone(results),
        *experts_on_ranks(results),
        *steps_of_experts(results),
        *losses_of_experts(results),
    ]


def experts_alone(results: Results) -> list[str]:
    lines = []
    for _, file, found in [each for name in ("experts", "experts_small", "experts_torchao") for each in results.of(name)]:
        timed = {(case["case"], case["contender"]): case for case in found["cases"] if "ms" in case}
        contenders = list(dict.fromkeys(contender for _, contender in timed))
        rows = []
        for name in dict.fromkeys(name for name, _ in timed):
            first = timed[name, contenders[0]]
            sizes = f"{first['experts']} x {first['hidden']} x {first['intermediate']}, {first['chosen']} of each of {first['tokens']}"
            cells = []
            for contender in contenders:
                case = timed.get((name, contender))
                text = f"{case['ms']:.2f} ({times(case['over_bf16_compiled'])}), {case['peak_bytes'] / 1e9:.1f} GB" if case else "-"
                cells.append(text)
            rows.append([f"{name}: {sizes}", *cells])
        lines += [results.source(file, found) + ":", "", *table(("experts", *contenders), rows)]
    return lines


def experts_on_ranks(results: Results) -> list[str]:
    lines = []
    for _, file, found in [each for name in ("expert_ranks_two", "expert_ranks_fsdp_two", "expert_ranks_idle_two") for each in results.of(name)]:
        idle = ", the last GPU without tokens" if found["idle_rank"] else ""
        layers = f", {found['layers']} layers" if any("FSDP2" in case["contender"] for case in found["cases"]) else ""
        rows = [
            (
                case["contender"],
                f"{case['ms']['median']:.1f}",
                times(case["over_bf16_compiled"]),
                f"{case['memory']['peak'] / 1e9:.1f}",
                f"{case['wire']['sent_bytes'] / 1e6:.0f}",
            )
            for case in found["cases"]
        ]
        lines += [
            f"{found['case']}, {found['gpus']} GPUs, {found['tokens']:.0f} tokens each{idle}, forward and backward{layers} "
            f"(bench/compare_expert_ranks.py, {results.noted(file, found)}):",
            "",
            *table(("contender", "ms", "over bf16", "peak GB", "sent MB"), rows),
        ]
    return lines


def steps_of_experts(results: Results) -> list[str]:
    lines = []
    for _, file, found in results.of("train_experts"):
        first = found["cases"][0]
        rows = [
            (
                str(each["experts"]),
                each["contender"],
                f"{each['tokens_per_s']}",
                times(each.get("over_bf16_compiled")),
                f"{each['peak_bytes'] / 1e9:.1f}",
            )
            for each in found["cases"]
        ]
        lines += [
            f"Whole steps of a language model of {first['layers']} layers with experts of {first['hidden']} x {first['intermediate']}, "
            f"{first['batch']} x {first['tokens']} tokens, AdamW in bf16; one contender after another (bench/train_experts.py, "
            f"{results.noted(file, found)}):",
            "",
            *table(("experts", "contender", "tokens/s", "over bf16 compiled", "peak GB"), rows),
        ]
    return lines


def losses_of_experts(results: Results) -> list[str]:
    lines = []
    for _, file, found in results.of("train_experts_losses"):
        first = found["cases"][0]
        rows = [
            (
                str(each["experts"]),
                each["contender"],
                ", ".join(f"{loss:.4f}" for loss in each["losses"]),
                f"{each['from_bf16']:.4f}",
                f"{each['allowed']:.4f}",
            )
            for each in found["cases"]
        ]
        lines += [
            f"Losses of a small language model with experts of {first['hidden']} x {first['intermediate']} in each of "
            f"{first['layers']} layers (bench/train_experts.py), one for each seed; the most that one is from bf16's of its seed, and "
            f"what is allowed: twice the spread of bf16's seeds, or 0.5 % ({results.noted(file, found)}):",
            "",
            *table(("experts", "contender", "losses", "from bf16's", "allowed"), rows),
        ]
    return lines


def host_from_pytorch(results: Results) -> list[str]:
    lines = []
    for _, file, found in results.of("torch_host"):
        rows = [
            (
                one["recipe"],
                f"{one['rank']}-D",
                "yes" if one["bias"] else "no",
                *(f"{one['parts'][part]:.0f}" for part in ("core", "operator", "autograd", "module")),
                f"{one['us']['ingot module']:.0f}",
                f"{one['us']['nn.Linear bf16']:.0f}",
                f"{one['us']['ingot module'] / one['us']['nn.Linear bf16']:.2f}",
            )
            for one in found["results"]
            if "us" in one
        ]
        head = ("recipe", "input", "bias", "core", "operator", "autograd", "module", "us", "bf16, us", "of bf16's time")
        lines += [results.source(file, found) + ":", "", *table(head, rows)]
    return lines
