"""ingot.integrations, and python3 -m ingot.run: each library's own trainer takes two steps or more with Ingot's layers."""

import importlib.util
import json
import pathlib
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
from torch import nn

import ingot

RECIPES = ("rowwise", "delayed")


# ---- transformers ----


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=64,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("llama")
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def trained(model, folder, callbacks=()):
    """The loss of a few steps of transformers' Trainer with accumulation and checkpointing."""
    from transformers import Trainer, TrainingArguments

    generator = torch.Generator().manual_seed(0)
    rows = [torch.randint(0, 64, (32,), generator=generator) for _ in range(16)]
    arguments = TrainingArguments(
        output_dir=str(folder), max_steps=4, per_device_train_batch_size=2, gradient_accumulation_steps=2, learning_rate=3e-3,
        report_to=[], use_cpu=True, disable_tqdm=True, save_strategy="no", seed=1, bf16=True, gradient_checkpointing=True,
    )  # fmt: skip
    data = [{"input_ids": row, "labels": row} for row in rows]
    return Trainer(model, arguments, train_dataset=data, callbacks=list(callbacks)).train().training_loss


def test_transformers(checkpoint, tmp_path):
    transformers = pytest.importorskip("transformers")
    from ingot.integrations.transformers import DelayedScales, IngotConfig
    from ingot.nn import convert

    load = transformers.AutoModelForCausalLM.from_pretrained
    plain = trained(load(checkpoint), tmp_path)
    for recipe in RECIPES:
        callbacks = [DelayedScales()] if recipe == "delayed" else []
        model = load(checkpoint, quantization_config=IngotConfig(recipe, modules_to_not_convert=["layers.1.mlp"]))
        assert len(model.ingot_report.converted) == 11 and "filter_fn leaves it out" in str(model.ingot_report)
        loss = trained(model, tmp_path, callbacks)
        direct = load(checkpoint)
        convert(direct, recipe, filter_fn=lambda layer, name: "layers.1.mlp" not in name)
        assert loss == trained(direct, tmp_path, callbacks)  # as without the plugin
        assert abs(loss - plain) < 0.02 * plain
        if recipe == "delayed":
            assert model.model.layers[0].mlp.fp8_amax_history.count_nonzero() > 0
        model.save_pretrained(tmp_path / recipe)  # for everyone: nothing says that Ingot trained it
        again = load(tmp_path / recipe)
        assert not hasattr(again.config, "quantization_config")
        assert all(torch.equal(one, other) for one, other in zip(model.parameters(), again.parameters()))
    with pytest.raises(ingot.Error, match="IngotConfig recipe: 'fp8' is not one of"):
        IngotConfig("fp8")
    with pytest.raises(ingot.Error, match="IngotConfig bits: is no argument of ingot.nn.convert"):
        IngotConfig(bits=8)
    for names in ("lm_head", [1], 5, {"lm_head": True}):  # each letter of a text would be a part of nearly every name
        with pytest.raises(ingot.Error, match="IngotConfig modules_to_not_convert: is .*, expected a list of names, such as"):
            IngotConfig(modules_to_not_convert=names)


def test_what_a_checkpoint_lacks(checkpoint):
    """transformers initialises it by its class, as without Ingot."""
    transformers = pytest.importorskip("transformers")
    from ingot.integrations.transformers import IngotConfig

    config = transformers.AutoConfig.from_pretrained(checkpoint)
    config.num_hidden_layers = 3
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, config=config, quantization_config=IngotConfig("rowwise"))
    assert len(model.ingot_report.converted) == 21
    for name, parameter in model.model.layers[2].named_parameters():
        assert (parameter == 1).all() if "norm" in name else 0.015 < parameter.std() < 0.025, name


# ---- lightning ----


def test_lightning():
    lightning = pytest.importorskip("lightning.pytorch" if importlib.util.find_spec("lightning") else "pytorch_lightning")
    from ingot.integrations.lightning import IngotPrecision
    from ingot.nn import Float8Linear

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))

        def training_step(self, batch, _):
            (x,) = batch
            self.seen = self.net(x)
            return (self.seen.float() - x).square().mean()

        def validation_step(self, batch, _):
            self.net(batch[0])

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(64, 32)), batch_size=8)
    for recipe in RECIPES:
        module, plugin = Module(), IngotPrecision(recipe)
        options = {"accelerator": "cpu", "max_steps": 3, "logger": False, "enable_checkpointing": False}
        trainer = lightning.Trainer(
            plugins=plugin, enable_progress_bar=False, enable_model_summary=False, accumulate_grad_batches=2, **options
        )
        trainer.fit(module, data)
        assert isinstance(module.net[0], Float8Linear) and len(plugin.report.converted) == 2
        assert module.seen.dtype == torch.bfloat16 and trainer.global_step == 3
        report = plugin.report
        trainer.validate(module, data, verbose=False)
        assert plugin.report is report  # not of another conversion, which would find nothing to do
        if recipe == "delayed":
            assert module.net[0].fp8_amax_history[:, :3].count_nonzero() == 3 * 3
    with pytest.raises(ingot.Error, match="IngotPrecision recipe: 'fp8' is not one of"):
        IngotPrecision("fp8")


def test_lightning_example():
    """A norm is computed within a layer's cast where that is asked for and the module has example inputs: a training_step()
    that reads the norm's output itself would find its input there."""
    lightning = pytest.importorskip("lightning.pytorch" if importlib.util.find_spec("lightning") else "pytorch_lightning")
    from ingot.integrations.lightning import IngotPrecision

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 64))

        def forward(self, x):
            return self.net(x)

    plugin, with_example = IngotPrecision("rowwise"), Module()
    plugin.convert_module(Module())
    assert "there are no example inputs" in plugin.report.norms["net.0"]
    with_example.example_input_array = torch.zeros(16, 32)
    plugin.convert_module(with_example)
    assert "there are no example inputs" in plugin.report.norms["net.0"]
    x = torch.randn(16, 32)
    assert torch.equal(with_example.net[0](x), Module().net[0](x))
    with_example = Module()
    with_example.example_input_array = torch.zeros(16, 32)
    asked = IngotPrecision("rowwise", example=True)
    with pytest.raises(ingot.Error, match="example: is True, but Module has no example_input_array: set it, or leave example out"):
        asked.convert_module(Module())
    asked.convert_module(with_example)
    assert asked.report.norms["net.0"] == "is computed within net.1"


# ---- torchtitan ----


@pytest.mark.nightly
def test_torchtitan():
    """Its override, applied to a model built from its config: its trainer needs a GPU."""
    llama3 = pytest.importorskip("torchtitan.models.llama3")
    from torchtitan.config.override import OverrideConfig, apply_overrides

    from ingot.nn import Float8Linear

    models = {}
    for recipe in ("", "rowwise"):
        config = llama3.model_registry("debugmodel").model
        if recipe:
            lines = apply_overrides(
                OverrideConfig(imports=[("ingot.integrations.torchtitan.float8", {"recipe": recipe})]), config
            )
            assert len(lines) == 30 and all("Float8Linear.Config with recipe='rowwise'" in line for line in lines)
        models[recipe] = config.build()
    plain, float8 = models.values()
    assert [name for name, each in float8.named_modules() if type(each).__name__ == "Linear"] == ["lm_head"]
    assert sum(isinstance(each, Float8Linear) for each in float8.modules()) == 30
    float8.init_states()
    float8.load_state_dict(plain.state_dict())
    parts = [next(model.layers.children()).feed_forward for model in (plain, float8)]
    x = torch.randn(2, 32, parts[0].w1.in_features)
    with torch.no_grad():
        for parameter in parts[0].parameters():
            parameter.normal_(std=0.1)
        parts[1].load_state_dict(parts[0].state_dict())
    expected, found = (part(x) for part in parts)
    assert ((found - expected).norm() < 0.1 * expected.norm()).item()
    found.sum().backward()
    assert all(parameter.grad is not None for parameter in parts[1].parameters())


# ---- axolotl ----

AXOLOTL = """
base_model: {model}
plugins: [ingot.integrations.axolotl.IngotPlugin]
ingot: {{recipe: {recipe}, modules_to_not_convert: [layers.1.mlp]}}
datasets: [{{path: {data}, type: completion}}]
dataset_prepared_path: {folder}/prepared
output_dir: {folder}/{recipe}
sequence_len: 32
micro_batch_size: 2
gradient_accumulation_steps: 2
max_steps: 2
learning_rate: 0.001
optimizer: adamw_torch
lr_scheduler: constant
bf16: false
val_set_size: 0
"""


@pytest.fixture
def axolotl(checkpoint, tmp_path, monkeypatch):
    """Its own command, in this process, with a config of two steps."""
    pytest.importorskip("axolotl")
    import tokenizers
    import transformers
    from axolotl.cli.train import do_cli
    from axolotl.integrations.base import PluginManager

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("AXOLOTL_DO_NOT_TRACK", "1")
    words = {word: index for index, word in enumerate(["<s>", "</s>", "<unk>", *(f"w{n}" for n in range(61))])}
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    model.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "</s>"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=model, **special).save_pretrained(checkpoint)
    texts = (" ".join(f"w{(7 * row + 3 * column) % 61}" for column in range(24)) for row in range(32))
    (tmp_path / "data.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))

    def train(recipe, **more):
        PluginManager.get_instance().plugins.clear()
        text = AXOLOTL.format(model=checkpoint, data=tmp_path / "data.jsonl", folder=tmp_path, recipe=recipe)
        (tmp_path / "config.yml").write_text(text + "".join(f"{key}: {value}\n" for key, value in more.items()))
        do_cli(config=str(tmp_path / "config.yml"))

    return train


@pytest.mark.nightly
def test_axolotl(axolotl, checkpoint, tmp_path, monkeypatch):
    import transformers
    from ingot.integrations.axolotl import IngotPlugin

    reports, load = [], IngotPlugin.post_model_load

    def noted(self, cfg, model):
        load(self, cfg, model)
        reports.append((model, model.ingot_report))

    monkeypatch.setattr(IngotPlugin, "post_model_load", noted)
    before = transformers.AutoModelForCausalLM.from_pretrained(checkpoint)
    for recipe in RECIPES:
        axolotl(recipe)
        model, report = reports.pop()
        assert len(report.converted) == 11 and report.recipe == recipe
        if recipe == "delayed":
            assert model.model.layers[0].mlp.fp8_amax_history.count_nonzero() > 0
        after = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / recipe)  # under the model's own names
        moved = [(one - other).abs().max() for one, other in zip(after.parameters(), before.parameters())]
        assert all(0 < each < 0.01 for each in moved)
    lora = {"adapter": "lora", "lora_r": 4, "lora_alpha": 8, "lora_target_modules": "[q_proj, down_proj]"}
    axolotl("rowwise", **lora, **dict.fromkeys(("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel"), "false"))
    model, report = reports.pop()
    assert len(report.converted) == 11 and {name for name in report.converted if "base_layer" in name}
    for name, value, said in (
        ("fp8", "true", "IngotPlugin fp8: quantizes the model by itself"),
        ("load_in_8bit", "true", "IngotPlugin load_in_8bit: quantizes"),
    ):
        with pytest.raises(ingot.Error, match=said):
            axolotl("rowwise", **{name: value})
    with pytest.raises(ingot.Error, match="IngotConfig recipe: 'fp8' is not one of"):
        axolotl("fp8")
    with pytest.raises(ingot.Error, match="IngotPlugin ingot: is 'rowwise', expected options such as recipe: rowwise"):
        IngotPlugin().register({"ingot": "rowwise"})
    # axolotl turns its kernels on by itself, and changes classes of transformers for them: so this comes last.
    with pytest.raises(ingot.Error, match="IngotPlugin lora_mlp_kernel: computes .*: set it to false, or leave the plugin out"):
        axolotl("rowwise", **lora)
    assert not reports


# ---- vLLM ----


@pytest.fixture
def vllm(tmp_path, monkeypatch):
    """Its registry with the package's entry point, on the CPU, of which its wheel has the layers and not the engine."""
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vllm is not installed")
    import tomllib

    entries = tomllib.loads((pathlib.Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["entry-points"]
    installed = tmp_path / "ingot-0.2.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: ingot\nVersion: 0.2.0\n")
    lines = (f"[{group}]\n{name} = {value}\n" for group, each in entries.items() for name, value in each.items())
    (installed / "entry_points.txt").write_text("".join(lines))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("VLLM_TARGET_DEVICE", "cpu")
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.distributed import ensure_model_parallel_initialized, init_distributed_environment
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    with set_current_vllm_config(VllmConfig()):
        init_distributed_environment(1, 0, f"file://{tmp_path}/ranks", 0, "gloo")
        ensure_model_parallel_initialized(1, 1)
        yield


@pytest.mark.nightly
def test_vllm(vllm):
    from vllm.model_executor.layers.fused_moe import RoutedExperts
    from vllm.model_executor.layers.linear import QKVParallelLinear, RowParallelLinear, UnquantizedLinearMethod
    from vllm.model_executor.layers.quantization import get_quantization_config
    from vllm.model_executor.models.utils import WeightsMapper

    from ingot.nn import WeightOnlyLinear

    kind = get_quantization_config("ingot")
    of_rows = {"weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}
    stored = {"quant_method": "compressed-tensors", "config_groups": {"group_0": of_rows}, "ignore": ["lm_head", "re:layers[.]1[.]"]}
    x = torch.randn(5, 64).bfloat16()
    parts = {"q": torch.randn(64, 64), "k": torch.randn(32, 64), "v": torch.randn(32, 64)}
    parts = {name: part.bfloat16() for name, part in parts.items()}
    linear = nn.Linear(64, 128, bias=False, dtype=torch.bfloat16)
    linear.weight.data = torch.cat([*parts.values()])
    expected = WeightOnlyLinear.from_float(linear, scale="row")
    assert (expected(x) - linear(x)).norm() < 0.05 * linear(x).norm()
    for config in (kind(), kind.from_config(stored)):
        layer = QKVParallelLinear(
            64, 16, 4, 2, bias=True, params_dtype=torch.bfloat16, quant_config=config, prefix="layers.0.qkv_proj"
        )
        for name, part in parts.items():
            if config.stored:
                row = nn.Linear(64, part.shape[0], bias=False, dtype=torch.bfloat16)
                row.weight.data = part
                row = WeightOnlyLinear.from_float(row, scale="row")
                layer.weight_scale.weight_loader(layer.weight_scale, row.weight_scale.view(-1, 1), name)
                part = row.codes().view(torch.float8_e4m3fn)
            layer.weight.weight_loader(layer.weight, part, name)
        layer.bias.data.normal_()
        layer.quant_method.process_weights_after_loading(layer)
        assert torch.equal(layer(x)[0], expected(x) + layer.bias)
        assert [name for name, _ in layer.named_parameters()] == ["bias"]
    config.packed_modules_mapping = {"qkv_proj": ["q_proj", "k_proj", "v_proj"]}
    layer_of = lambda name: RowParallelLinear(64, 32, params_dtype=torch.bfloat16, quant_config=config, prefix=name)
    made = [layer_of(name).quant_method for name in ("layers.1.qkv_proj", "layers.11.o_proj")]
    assert isinstance(made[0], UnquantizedLinearMethod) and not isinstance(made[1], UnquantizedLinearMethod)
    with pytest.raises(ingot.Error, match="layers.11.o_proj: the checkpoint has no weight_scale for 32 of 32 rows: .* must name it"):
        made[1].process_weights_after_loading(layer_of("layers.11.o_proj"))
    config.ignored = ["layers.2.q_proj", "re:.*k_proj"]
    with pytest.raises(ingot.Error, match="has layers.2.q_proj, layers.2.k_proj of its parts .*: it must have all of them, or none"):
        layer_of("layers.2.qkv_proj")
    config.ignored = ["model.layers.2.q_proj", "re:.*[kv]_proj", "head"]
    config.apply_vllm_mapper(WeightsMapper(orig_to_new_prefix={"": "language.", "model.": ""}))
    assert config.ignored == ["language.model.layers.2.q_proj", "re:.*[kv]_proj", "head"]
    assert isinstance(layer_of("language.model.layers.2.qkv_proj").quant_method, UnquantizedLinearMethod)
    assert kind.override_quantization_method(stored, "ingot", hf_config=None) == "ingot"
    assert kind.override_quantization_method(stored, None, hf_config=None) is None
    experts = RoutedExperts.__new__(RoutedExperts)
    with pytest.raises(ingot.Error, match="layers.3.mlp.experts: experts in FP8 are not computed: leave out quantization="):
        config.get_quant_method(experts, "layers.3.mlp.experts")
    for ignored in ("re:.*experts.*", "re:layers.3.*_proj"):
        config.ignored = [ignored]
        assert config.get_quant_method(experts, "layers.3.mlp.experts") is None
    with pytest.raises(ingot.Error, match="has quant_method 'fp8', expected none, or compressed-tensors with weights of .*: leave out"):
        kind.from_config({"quant_method": "fp8"})
    of_rows["weights"]["strategy"] = "tensor"
    with pytest.raises(ingot.Error, match="'compressed-tensors' and weights of .*'strategy': 'tensor'}, expected none, or"):
        kind.from_config(stored)


# ---- ingot.run ----

PROGRAM = """
import importlib.metadata, sys
import torch, torch.nn as nn
from accelerate import Accelerator
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16))
accelerator = Accelerator(mixed_precision="fp8", cpu=True)
net, optimizer = accelerator.prepare(net, torch.optim.AdamW(net.parameters(), lr=1e-2))
x = torch.randn(64, 32)
losses = []
for _ in range(2):
    loss = net(x).float().square().mean()
    accelerator.backward(loss)
    optimizer.step()
    losses.append(loss.item())
assert losses[1] < losses[0]
print(type(net[2]).__module__, importlib.metadata.version("torchao"), __name__, sys.argv[1:])
"""
# A process in which torchao is not installed, though it is.
WITHOUT = """
import importlib.abc, importlib.metadata, sys
class Without(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torchao":
            raise ModuleNotFoundError(name)
def without(finder):
    found = finder.find_distributions
    def find_distributions(context=importlib.metadata.DistributionFinder.Context()):
        return (each for each in found(context) if each.metadata["Name"] != "torchao")
    finder.find_distributions = find_distributions
for finder in list(sys.meta_path):
    if hasattr(finder, "find_distributions"):
        without(finder)
sys.meta_path.insert(0, Without())
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "torchao" and name not in sys.modules else find(name, package)
"""


def run(*arguments, code=""):
    command = [sys.executable, "-m", "ingot.run", *arguments]
    if code:
        start = f"import sys; sys.argv = {['ingot.run', *arguments]!r}; from ingot.run import main; main(sys.argv[1:])"
        command = [sys.executable, "-c", code + start]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize(
    "installed", [pytest.param(True, marks=pytest.mark.nightly), False], ids=["with torchao", "without"]
)
def test_accelerate_without_a_change(installed, tmp_path):
    pytest.importorskip("accelerate")
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    done = run(str(program), "--steps", "2", code="" if installed else WITHOUT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "ingot.float8.float8_linear 0.18.0 __main__ ['--steps', '2']"


@pytest.mark.nightly
def test_compare_trainers(tmp_path):
    """bench/compare_trainers.py starts each by its own command; Ingot's losses are those of a plain loop, bit for bit."""
    pytest.importorskip("accelerate")
    if not importlib.util.find_spec("lightning"):
        pytest.importorskip("pytorch_lightning")
    program, results = pathlib.Path(__file__).parents[2] / "bench" / "compare_trainers.py", tmp_path / "results.json"
    command = [sys.executable, str(program), "--device", "cpu", "--try", "--trainers", "accelerate,Trainer,Lightning"]
    command += ["--contenders", "bf16,ingot tensorwise", "--seconds-limit", "900", "--json", str(results)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1000, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(results.read_text())
    layers = {(case["trainer"], case["contender"]): case["float8_layers"] for case in found["cases"]}
    for trainer, count in (("accelerate", 13), ("Trainer", 14), ("Lightning", 14)):
        for contender, expected in (("bf16", 0), ("ingot tensorwise", count), ("ingot tensorwise, direct", count)):
            assert layers.pop((trainer, contender)) == expected
    assert not layers and len(found["verdicts"]) == 3
    assert all("all 2 losses are those of the direct way" in each["text"] for each in found["verdicts"])


@pytest.mark.nightly
def test_usage(tmp_path, monkeypatch):
    for arguments, code in (((), 2), (("-x",), 2), (("--help",), 0)):
        done = run(*arguments)
        assert done.returncode == code and "usage: python3 -m ingot.run [-m] PROGRAM [ARGUMENT...]" in done.stderr
    (tmp_path / "program_of_a_test.py").write_text("import sys; print(__name__, sys.argv[1:])")
    monkeypatch.chdir(tmp_path)
    assert run("-m", "program_of_a_test", "a").stdout.splitlines()[-1] == "__main__ ['a']"
    assert run("program_of_a_test.py", "b").stdout.splitlines()[-1] == "__main__ ['b']"
    assert "No such file" in run("none.py").stderr
