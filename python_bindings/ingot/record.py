"""python3 -m ingot.record: which kernels a model will ask for, as a recording, without a GPU and without the model's memory.

    python3 -m ingot.record --config config.json --recipe rowwise --tokens 8192 --gpu h200 --output model.ingot
    python3 -m ingot.record --module models:make --tokens 8192        # runs that code, which returns a torch.nn.Module

The model is made on meta, converted (ingot.nn.convert) for each recipe, and its layers run dry, for training and with
weights in 8 or 4 bits for decoding. So do the products of stacked experts of transformers 5, for convert_experts_() and for
quantize_experts_() of ingot.integrations.experts. `ingot warm --config` and `ingot warm --module` call this.
"""

from __future__ import annotations

import argparse
import importlib
import json
import pathlib
import re
import sys
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

_MOST_LAYERS = 4096
_MOST_EXPERTS = 2**17  # in all layers
_MOST = 2**31 - 1  # of any number in a config
_MOST_TOKENS = 16384  # numbers of tokens: the layers run once with each


class _Wrong(Exception):
    """What is wrong with the command line or with what it names, in one sentence."""


# ---- arguments ----


def _counts(option: str, text: str) -> List[int]:
    """"1,16-18" is 1, 16, 17, 18; "none" is nothing."""
    found: List[int] = []
    for part in [] if text == "none" else text.split(","):
        first, _, last = part.partition("-")
        if not first.isdecimal() or not (last or first).isdecimal() or int(first) < 1 or int(last or first) < int(first):
            raise _Wrong(f"{option}: {part!r} is no number of tokens above 0, and no range such as 1-256")
        if int(last or first) - int(first) >= _MOST_TOKENS:
            raise _Wrong(f"{option}: {part!r} is more than {_MOST_TOKENS} numbers, with each of which the layers run once")
        found += range(int(first), int(last or first) + 1)
    return sorted(set(found))


def _arguments(given: Optional[Sequence[str]]) -> argparse.Namespace:
    head = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser("python3 -m ingot.record", description=head[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--config", metavar="FILE", help="a model's config.json, as transformers writes it")
    what.add_argument("--module", metavar="PACKAGE:FUNCTION", help="a function that returns the model; its code runs")
    parser.add_argument("--recipe", metavar="RECIPES", default="", help="for training, such as rowwise,delayed (default: all)")
    parser.add_argument("--tokens", metavar="COUNTS", default="8192", help="in a training step, such as 4096,8192, or none")
    parser.add_argument("--decode", metavar="COUNTS", default="1-256", help="decoded at once, such as 1-256, or none")
    parser.add_argument("--weight-only", metavar="FORMATS", default="e4m3fn", help="of weights that decode: e4m3fn, e2m1fn:mx ...")
    parser.add_argument("--gpu", metavar="NAMES", default="h200", help="such as h200,h100 (default: h200)")
    parser.add_argument("--dtype", choices=("bf16", "f16"), default="bf16", help="of weights and activations")
    parser.add_argument("--output", metavar="FILE", help="default: standard output")
    return parser.parse_args(given)


# ---- the model ----


def _check_numbers(where: str, value: Any) -> None:
    """Sizes that cannot be: before anything is made of them."""
    if isinstance(value, dict):
        for key, each in value.items():
            name = f"{where} {key}" if where else str(key)
            _check_numbers(name, each)
            _check_count(name, str(key), each)
    elif isinstance(value, list):
        if len(value) > _MOST_LAYERS * 16:
            raise _Wrong(f"{where}: is a list of {len(value)} elements")
        for each in value:
            _check_numbers(where, each)
    elif isinstance(value, int) and not isinstance(value, bool) and abs(value) > _MOST:
        raise _Wrong(f"{where}: is {value}, expected at most {_MOST}")


def _check_count(where: str, key: str, value: Any) -> None:
    """Of layers or experts, each of which is made."""
    if isinstance(value, int) and re.search(r"^(num|n)_.*layer$|layers$|experts$|^depth$", key):
        if value > _MOST_LAYERS:
            raise _Wrong(f"{where}: is {value}, expected at most {_MOST_LAYERS}")


def _counts_of(config: Any, pattern: str) -> Iterator[int]:
    for key, value in config.items() if isinstance(config, dict) else ():
        yield from _counts_of(value, pattern)
        if isinstance(value, int) and re.search(pattern, str(key)):
            yield value


def _read_config(path: str) -> Dict[str, Any]:
    file = pathlib.Path(path)
    try:
        with file.open("rb") as stream:
            content = stream.read(2**24 + 1) if file.is_file() else None
        if content is None or len(content) > 2**24:
            raise _Wrong(f"{path}: is no file of a config, of at most 16 MiB")
        config = json.loads(content)
    except OSError as error:
        raise _Wrong(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise _Wrong(f"{path}: is no JSON ({str(error)[:100]})") from None
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise _Wrong(f"{path}: is no config of transformers, which has a \"model_type\"")
    for key in ("num_hidden_layers", "n_layer", "n_layers", "num_layers"):
        layers = config.get(key, 1)
        if not isinstance(layers, int) or isinstance(layers, bool) or not 0 < layers <= _MOST_LAYERS:
            raise _Wrong(f"{path}: {key}: is {layers!r}, expected 1 to {_MOST_LAYERS}")
    _check_numbers("", config)
    layers, experts = (max(_counts_of(config, pattern), default=1) for pattern in (r"layers?$", r"experts$"))
    if layers * experts > _MOST_EXPERTS:
        raise _Wrong(f"{path}: has {experts} experts in each of {layers} layers, expected at most {_MOST_EXPERTS} together")
    return config


def _of_config(path: str, dtype: Any) -> Callable[[], Any]:
    config = _read_config(path)
    try:
        import transformers
    except ImportError as error:
        raise _Wrong(f"--config needs transformers: pip install transformers ({error})") from None
    config.pop("quantization_config", None)
    config.pop("auto_map", None)  # code of the model's own does not run
    kind = config.pop("model_type")
    try:
        made = transformers.AutoConfig.for_model(kind, **config)
    except Exception as error:  # of the config's own checks
        said = " ".join(str(error).split())[:300]
        raise _Wrong(f"{path}: transformers {transformers.__version__} cannot read it: {said}") from None

    def make() -> Any:
        try:
            return transformers.AutoModelForCausalLM.from_config(made, dtype=dtype)
        except ValueError:  # it has no such head
            return transformers.AutoModel.from_config(made, dtype=dtype)

    return make


def _of_module(name: str) -> Callable[[], Any]:
    package, _, function = name.partition(":")
    if not package or not function:
        raise _Wrong(f"--module: is {name!r}, expected package:function")
    sys.path.insert(0, "")
    try:
        found = getattr(importlib.import_module(package), function)
    except (ImportError, AttributeError) as error:
        raise _Wrong(f"--module {name}: {error}") from None
    return found


def _made(make: Callable[[], Any], where: str) -> Any:
    import torch

    try:
        with torch.device("meta"):
            model = make()
    except _Wrong:
        raise
    except Exception as error:  # of the model's own code
        raise _Wrong(f"{where}: the model cannot be made: {type(error).__name__}: {str(error)[:300]}") from None
    if not isinstance(model, torch.nn.Module):
        raise _Wrong(f"{where}: gives a {type(model).__name__}, expected a torch.nn.Module")
    return model


# ---- what it asks for ----


def _decoding(model: Any, formats: List[str], dtype: Any, gpu: str) -> Tuple[Any, str]:
    """A module with each kind of weight-only layer that quantize_() would make, and the recording of what makes them: casts and
    packing."""
    import torch

    from .nn import WeightOnlyLinear
    from .nn._parts import linear_with
    from .torch._prepare import recording_of_call

    sizes = {
        (layer.in_features, layer.out_features, layer.bias is not None)
        for layer in model.modules()
        if isinstance(layer, torch.nn.Linear)
    }
    layers = torch.nn.ModuleList()
    made_of: List[Tuple[int, int, Dict[str, str]]] = []
    for text in formats:
        weight_dtype, _, scale = text.partition(":")
        scale = scale or ("row" if weight_dtype.startswith(("e4m3", "e5m2")) else "mx")
        for in_features, out_features, bias in sorted(sizes):
            options = {"weight_dtype": weight_dtype, "scale": scale}
            layers.append(WeightOnlyLinear(in_features, out_features, bias, "meta", dtype, **options))
            made_of.append((out_features, in_features, options))

    def make() -> None:
        for rows, columns, options in made_of:
            weight = torch.nn.Parameter(torch.empty(rows, columns, dtype=dtype))
            WeightOnlyLinear.from_float(linear_with(weight, None), **options)

    return layers, recording_of_call(make, gpu)


def _experts(model: Any, counts: List[int], dtype: Any, recipe: Optional[str], gpu: str) -> Iterator[str]:
    """What the products of transformers' stacked experts ask for, by a recipe that grouped GEMMs take, or (None) with FP8
    weights. transformers 4 has none."""
    try:
        from .integrations import experts
    except ImportError:
        return
    from .torch._checks import RECIPES_OF_EXPERTS
    from .torch._prepare import recording_of_call

    if recipe is None or recipe in RECIPES_OF_EXPERTS:
        yield recording_of_call(lambda: experts.run_products(model, counts, dtype, recipe), gpu)


def _weight_only_experts(make: Callable, where: Any, counts: List[int], dtype: Any, formats: List[str], gpu: str) -> Iterator[str]:
    """The same with weights in these formats by activations in 16 bits, each with the scales that quantize_experts_() gives it. Those
    in e4m3fn decode with activations in FP8."""
    try:
        from .integrations import experts
    except ImportError:
        return
    from ._arrays import PACKED_BITS
    from .torch._model_weights import is_stack
    from .torch._prepare import recording_of_call

    for text in formats:
        weight_dtype, _, scale = text.partition(":")
        own = "mx" if weight_dtype in PACKED_BITS else "row"
        model = _made(make, where).to(dtype)
        if weight_dtype == "e4m3fn" or scale not in ("", own) or not any(map(is_stack, model.modules())):
            continue
        experts.quantize_experts_(model, weight_dtype)
        yield recording_of_call(lambda: experts.run_products(model, counts, dtype, None), gpu)


def _recordings(arguments: argparse.Namespace) -> Iterator[str]:
    try:
        import torch
    except ImportError as error:
        raise _Wrong(f"{sys.executable} has no PyTorch, which models are made with: use a Python that has it ({error})") from None

    from .nn import convert
    from .torch import RECIPES
    from .torch._prepare import recording_of

    dtype = torch.bfloat16 if arguments.dtype == "bf16" else torch.float16
    where = arguments.config or arguments.module
    make = _of_config(arguments.config, dtype) if arguments.config else _of_module(arguments.module)
    tokens, decoded = _counts("--tokens", arguments.tokens), _counts("--decode", arguments.decode)
    recipes = [each for each in arguments.recipe.split(",") if each] or [*RECIPES, "delayed"]
    for gpu in arguments.gpu.split(","):
        if tokens:
            for recipe in recipes:
                model = _made(make, where).to(dtype)
                report = convert(model, recipe)
                if not report.converted:
                    raise _Wrong(f"{where}: has no layer to convert: {str(report)[:300]}")
                yield recording_of(model, tokens, gpu, dtype)[0]
                yield from _experts(model, tokens, dtype, recipe, gpu)
        if decoded:
            with torch.no_grad():
                model = _made(make, where)
                layers, making = _decoding(model, arguments.weight_only.split(","), dtype, gpu)
                yield making
                yield from _experts(model, decoded, dtype, None, gpu)
                yield from _weight_only_experts(make, where, decoded, dtype, arguments.weight_only.split(","), gpu)
                yield recording_of(layers, decoded, gpu, dtype)[0]


def _joined(recordings: Iterator[str]) -> str:
    """Recordings are a head and a line for each thing that was asked for."""
    lines: Dict[str, None] = {}
    for recording in recordings:
        lines.update(dict.fromkeys(recording.splitlines()))
    return "".join(f"{line}\n" for line in lines)


def main(given: Optional[Sequence[str]] = None) -> int:
    arguments = _arguments(given)
    from ._core import Error

    try:
        text = _joined(_recordings(arguments))
        if arguments.output:
            pathlib.Path(arguments.output).write_text(text, encoding="utf-8")
        else:
            sys.stdout.write(text)
    except (_Wrong, Error, OSError) as error:
        print(f"ingot.record: error: {error}", file=sys.stderr)
        return 2 if isinstance(error, _Wrong) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
