"""python3 -m ingot.record: recordings of models that have no memory, and what is said of wrong ones."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
from conftest import in_ci

import ingot
from ingot import record

_SMALL = {
    "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "vocab_size": 512,
}  # fmt: skip
FAMILIES = {
    "llama": _SMALL,
    "mistral": _SMALL,
    "qwen3": {**_SMALL, "head_dim": 64},
    "gemma2": {**_SMALL, "head_dim": 64},
    "phi3": {**_SMALL, "pad_token_id": 0},
    "gpt2": {"n_embd": 256, "n_layer": 2, "n_head": 4, "vocab_size": 512},
    "qwen3_moe": {**_SMALL, "head_dim": 64, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 128},
}


def recorded(capsys, *arguments):
    """(exit code, what it prints, what it says)"""
    code = record.main(arguments)
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def config(folder, **content):
    file = folder / "config.json"
    file.write_text(json.dumps(content))
    return str(file)


@pytest.mark.parametrize("family", in_ci(lambda family: family in ("llama", "gpt2"), FAMILIES))
def test_families(family, tmp_path, capsys):
    pytest.importorskip("transformers")
    file = config(tmp_path, model_type=family, quantization_config={"quant_method": "fp8"}, **FAMILIES[family])
    code, text, _ = recorded(capsys, "--config", file, "--recipe", "rowwise", "--tokens", "512", "--decode", "1,8")
    assert code == 0 and text.startswith("# Ingot recording\n")
    lines = text.splitlines()
    assert len(lines) == len(set(lines))
    kind = "layer" if family == "gpt2" else "rms"
    for part in (f"norm_backward {kind} bf16", "gemm e4m3fn*e4m3fn->bf16 nt scale=row,row", "dequant_matmul bf16*e4m3fn"):
        assert any(line.startswith(part) for line in lines), part
    assert {"cast bf16->e4m3fn scale=row out=codes", "pack_weight e4m3fn"} <= set(lines)  # what quantize_() runs


def ingot_program():
    built = pathlib.Path(ingot.__file__).parents[2] / "bin" / "ingot"
    return os.environ.get("INGOT_PROGRAM") or (str(built) if built.exists() else shutil.which("ingot"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("family", FAMILIES)
def test_a_strict_first_step(family, tmp_path):
    """What `ingot warm --config` makes is all that a first step and decoding need, with NVRTC hidden."""
    pytest.importorskip("transformers")
    program = ingot_program()
    if program is None:
        pytest.skip("the program ingot is not in PATH nor in the package's build folder, and INGOT_PROGRAM does not name it")
    file = config(tmp_path, model_type=family, **FAMILIES[family])
    gpu = "h100" if "H100" in torch.cuda.get_device_name() else "h200"
    environment = {**os.environ, "INGOT_CACHE_DIR": str(tmp_path / "store")}
    warm = [program, "warm", "--config", file, "--python", sys.executable, "--gpu", gpu, "--tokens", "512", "--decode", "1,8"]
    done = subprocess.run([*warm, "--recipe", "rowwise"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    environment |= {"INGOT_CACHE_MODE": "strict", "INGOT_CUDA_ROOT": "none", "INGOT_STATS": "1"}
    step = [sys.executable, str(pathlib.Path(__file__).with_name("strict_first_step.py")), file, "rowwise", "512", "1,8"]
    done = subprocess.run(step, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "ingot: 0 kernels compiled" in done.stderr, done.stderr[-3000:]


@pytest.mark.nightly
def test_a_first_step_of_experts_is_recorded(tmp_path, capsys):
    """What test_a_strict_first_step runs on a GPU asks for nothing that a config's recording lacks."""
    pytest.importorskip("transformers.integrations.moe")
    import strict_first_step
    from ingot.torch._prepare import recording_of_call

    file = config(tmp_path, model_type="qwen3_moe", **FAMILIES["qwen3_moe"])
    text = recorded(capsys, "--config", file, "--recipe", "rowwise", "--tokens", "512", "--decode", "1,8")[1]
    steps = (lambda: strict_first_step.train(file, "rowwise", 512, "cpu"), lambda: strict_first_step.decode(file, (1, 8), "cpu"))
    for step, least in zip(steps, (20, 8)):
        asked = set(recording_of_call(step, "h200").splitlines())
        assert len(asked) >= least and any("grouped_gemm" in line for line in asked)
        assert asked - set(text.splitlines()) == set()


def test_experts(tmp_path, capsys):
    """The products of a model's experts, by what they are in training and in decoding; none for other recipes."""
    pytest.importorskip("transformers.integrations.moe")
    file = config(tmp_path, model_type="qwen3_moe", **{**FAMILIES["qwen3_moe"], "moe_intermediate_size": 96})
    code, text, _ = recorded(capsys, "--config", file, "--recipe", "rowwise,rowwise_folded", "--tokens", "512", "--decode", "1,8")
    assert code == 0
    lines = text.splitlines()
    grouped = {line.partition(" kernel=")[0].removeprefix("kernel ") for line in lines if "grouped_gemm" in line}
    assert any(" along=k" in line for line in lines if "grouped_gemm" in line) and any("stacked" in line for line in lines)
    assert any("of=x*sigmoid(x)*up" in line and "scale=row+col" in line for line in lines)
    assert all("scale=row,row" in line for line in grouped) and not any("128x128" in line for line in grouped)
    text = recorded(capsys, "--config", file, "--recipe", "blockwise", "--tokens", "512", "--decode", "none")[1]
    grouped = [line for line in text.splitlines() if "grouped_gemm" in line]
    assert all("scale=1x128,1x128" in line if " along=k" in line else "scale=1x128,128x128" in line for line in grouped)
    assert "gathered experts" in text and any(" along=k" in line for line in grouped) and " fast" not in "".join(grouped)
    text = recorded(capsys, "--config", file, "--recipe", "rowwise_folded", "--tokens", "512", "--decode", "none")[1]
    assert "grouped_gemm" not in text and "scale=row" in text
    wanted = "--tokens", "none", "--decode", "1,8", "--weight-only", "e4m3fn,e2m1fn:mx"
    lines = recorded(capsys, "--config", file, *wanted)[1].splitlines()
    of_experts = [line for line in lines if line.startswith("dequant_matmul") and " experts" in line]
    assert any("bf16*e2m1fn->bf16 packed scale=1x32 factors=e8m0fnu experts" in line for line in of_experts)
    assert all("e2m1fn" in line for line in of_experts)


def _run_experts(layer, tokens, options, fast_math, dtype, main_grad):
    """Inference and a step of experts whose sizes a file for `ingot warm --layers` has, as a program runs them."""
    from ingot.torch import experts_mlp, grouped_linear

    experts, chosen, features, hidden = (layer[name] for name in ("experts", "chosen", "in_features", "out_features"))
    up, down = (
        torch.nn.Parameter(torch.empty(experts, *sizes, dtype=dtype)) for sizes in ((2 * hidden, features), (features, hidden))
    )
    if main_grad:
        up.main_grad, down.main_grad = (torch.empty(each.shape, dtype=torch.float32) for each in (up, down))
    if layer.get("bias"):
        ends = torch.zeros(experts, dtype=torch.int32)
        calls = [
            lambda x=torch.empty(tokens * chosen, weight.shape[2], dtype=dtype, requires_grad=True), weight=weight: grouped_linear(
                x, weight, ends=ends, options=options
            )
            for weight in (up, down)
        ]
    else:
        x = torch.empty(tokens, features, dtype=dtype, requires_grad=True)
        index, scores = torch.zeros(tokens, chosen, dtype=torch.int64), torch.empty(tokens, chosen, requires_grad=True)
        calls = [lambda: experts_mlp(x, index, scores, up, down, options, fast_math)]
    for call in calls:
        with torch.no_grad():
            call()
        call().sum().backward()


@pytest.mark.parametrize("bias, dtype", ((False, "bf16"), (True, "f16")))
def test_warm_makes_all_that_experts_ask_for(bias, dtype, tmp_path):
    """`ingot warm --layers` has every kernel of PyTorch's operators: their recording adds none."""
    from ingot.torch import LinearOptions, grouped_linear
    from ingot.torch._prepare import recording_of_call

    program = ingot_program()
    if program is None:
        pytest.skip("the program ingot is not in PATH nor in the package's build folder, and INGOT_PROGRAM does not name it")
    layer = {"kind": "experts", "experts": 16, "chosen": 4, "in_features": 512, "out_features": 96, "bias": bias}
    torch_dtype = {"bf16": torch.bfloat16, "f16": torch.float16}[dtype]
    tokens, decoded = (64, 1024), (1, 7, 200)

    def train():
        for recipe in ("tensorwise", "rowwise"):
            for keep in (True, False):
                for fast in (False, True):
                    options = LinearOptions(recipe, "experts", keep_weight_codes=keep, fast_gradients=fast)
                    for count in tokens:
                        for main_grad in (False, True):
                            _run_experts(layer, count, options, fast, torch_dtype, main_grad)

    def decode():
        with torch.no_grad():
            for n, k in ((2 * layer["out_features"], layer["in_features"]), (layer["in_features"], layer["out_features"])):
                values = torch.empty(layer["experts"] * n, k, dtype=torch_dtype)
                codes, scale_inv = torch.ops.ingot.quantize_rows(values, 0, 0)  # e4m3fn, scales that are no powers of two
                codes, scale_inv = codes.view(-1, n, k), scale_inv.view(-1, n)
                for count in decoded:
                    x = torch.empty(count * layer["chosen"], k, dtype=torch_dtype)
                    grouped_linear(x, codes, scale_inv, torch.zeros(layer["experts"], dtype=torch.int32))

    file, recording = tmp_path / "layers.json", tmp_path / "run.ingot"
    file.write_text(json.dumps({"training": [layer]}))
    recording.write_text(recording_of_call(lambda: (train(), decode()), "h200"))
    counts = [",".join(map(str, each)) for each in (tokens, decoded)]

    def listed(*more):
        command = [program, "warm", "--layers", str(file), "--dtype", dtype, "--tokens", counts[0], "--decode", counts[1]]
        environment = {**os.environ, "INGOT_CACHE_DIR": str(tmp_path / "store")}
        done = subprocess.run([*command, "--list", *more], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    made, with_recording = listed(), listed("--recording", str(recording))
    assert sum("grouped_gemm" in line for line in recording.read_text().splitlines()) > 8
    assert set(with_recording) - set(made) == set() and len(with_recording) == len(made)


def test_options(tmp_path, capsys):
    pytest.importorskip("transformers")
    file = config(tmp_path, model_type="llama", **_SMALL)
    output = tmp_path / "model.ingot"
    few = ("--config", file, "--tokens", "none", "--decode", "4", "--dtype", "f16", "--weight-only", "e2m1fn:mx,e5m2")
    assert recorded(capsys, *few, "--gpu", "h200,h20", "--output", str(output))[:2] == (0, "")
    text = output.read_text()
    assert "dequant_matmul f16*e2m1fn->f16" in text and "dequant_matmul f16*e5m2->f16" in text and "norm" not in text
    # All recipes.
    text = recorded(capsys, "--config", file, "--tokens", "256", "--decode", "none")[1]
    assert "scale=128x128" in text and "amax_history" in text and "gemm e4m3fn*e4m3fn->bf16 nt scale=tensor,tensor" in text


def test_a_function(tmp_path, capsys, monkeypatch):
    (tmp_path / "models_of_a_test.py").write_text(
        "import torch\n"
        "def make(): return torch.nn.Sequential(torch.nn.Linear(256, 512))\n"
        "def wrong(): return 5\n"
        "def fails(): raise KeyError('x')\n"
        "def empty(): return torch.nn.Sequential(torch.nn.ReLU())\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    code, text, _ = recorded(capsys, "--module", "models_of_a_test:make", "--recipe", "tensorwise", "--tokens", "64", "--decode", "1")
    assert code == 0 and "scale=tensor,tensor bias" in text
    for name, said in {
        "models_of_a_test:wrong": "models_of_a_test:wrong: gives a int, expected a torch.nn.Module",
        "models_of_a_test:fails": "models_of_a_test:fails: the model cannot be made: KeyError: 'x'",
        "models_of_a_test:empty": "models_of_a_test:empty: has no layer to convert",
        "models_of_a_test:none": "--module models_of_a_test:none: module 'models_of_a_test' has no attribute 'none'",
        "no_such_package:make": "--module no_such_package:make: No module named 'no_such_package'",
        "make": "--module: is 'make', expected package:function",
    }.items():
        code, _, found = recorded(capsys, "--module", name)
        assert code == 2 and found.startswith(f"ingot.record: error: {said}"), found


def test_wrong_configs(tmp_path, capsys):
    transformers = pytest.importorskip("transformers")
    file = config(tmp_path, model_type="llama")
    # transformers 4 finds it when it makes the model.
    refused = "the model cannot be made: " if transformers.__version__ < "5" else "size (-4) is not a multiple of the number of attention heads"
    wrong = {
        "llama": "is no JSON",
        '{"model_type": 5}': 'is no config of transformers, which has a "model_type"',
        "[]": 'is no config of transformers, which has a "model_type"',
        "[" * 100000: "is no JSON",
        '{"model_type": "of_tomorrow"}': f"transformers {transformers.__version__} cannot read it: Unrecognized model identifier",
        '{"model_type": "llama", "num_hidden_layers": 0}': "num_hidden_layers: is 0, expected 1 to 4096",
        '{"model_type": "llama", "num_hidden_layers": 1000000}': "num_hidden_layers: is 1000000, expected 1 to 4096",
        '{"model_type": "llama", "num_hidden_layers": "two"}': "num_hidden_layers: is 'two', expected 1 to 4096",
        '{"model_type": "llama", "hidden_size": -4}': refused,
        '{"model_type": "llava", "vision_config": {"num_hidden_layers": 100000}}': "vision_config num_hidden_layers: is 100000, expected",
        '{"model_type": "mixtral", "num_local_experts": 2000000000}': "num_local_experts: is 2000000000, expected at most 4096",
        '{"model_type": "mixtral", "num_hidden_layers": 64, "num_local_experts": 4000}': "has 4000 experts in each of 64 layers",
    }
    for content, said in wrong.items():
        with open(file, "w") as stream:
            stream.write(content)
        code, _, found = recorded(capsys, "--config", file)
        assert code == 2 and found.startswith("ingot.record: error: ") and said in found, (content[:60], found)
        assert found.count("\n") == 1, found
    with open(file, "w") as stream:
        json.dump({"model_type": "llama", "rope_scaling": {"factor": 2**60}}, stream)
    assert "rope_scaling factor: is 1152921504606846976, expected at most 2147483647" in recorded(capsys, "--config", file)[2]
    assert "No such file or directory" in recorded(capsys, "--config", str(tmp_path / "none.json"))[2]
    assert recorded(capsys, "--config", str(tmp_path))[0] == 2


def test_without_pytorch(tmp_path, capsys, monkeypatch):
    """As of a system's python3 next to the virtual environment that has it: a line, no traceback."""
    monkeypatch.setitem(sys.modules, "torch", None)
    code, printed, found = recorded(capsys, "--config", config(tmp_path, model_type="llama", **_SMALL))
    assert code == 2 and printed == "" and found.count("\n") == 1
    assert found.startswith(f"ingot.record: error: {sys.executable} has no PyTorch, which models are made with: use a Python that has it (")


def test_wrong_options(tmp_path, capsys):
    pytest.importorskip("transformers")
    file = config(tmp_path, model_type="llama", **_SMALL)
    for arguments, said in {
        ("--tokens", "0"): "--tokens: '0' is no number of tokens above 0",
        ("--decode", "8-1"): "--decode: '8-1' is no number of tokens above 0, and no range such as 1-256",
        ("--decode", "1-99999"): "--decode: '1-99999' is more than 16384 numbers",
        ("--gpu", "h300"): "h300",
        ("--recipe", "fp8"): "recipe: 'fp8' is not one of",
        ("--weight-only", "int8", "--tokens", "none"): "int8",
        ("--output", str(tmp_path / "none" / "file"), "--tokens", "1", "--recipe", "rowwise", "--decode", "none"): "No such file",
    }.items():
        code, _, found = recorded(capsys, "--config", file, *arguments)
        assert code in (1, 2) and found.startswith("ingot.record: error: ") and said in found, (arguments, found)
    with pytest.raises(SystemExit):
        record.main(["--tokens", "1"])
    assert "one of the arguments --config --module is required" in capsys.readouterr().err
