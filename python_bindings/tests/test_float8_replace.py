"""replace_torchao(): the import lines and calls that trainers make of torchao.float8, in separate processes, with
torchao installed and without."""

import importlib.util
import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("torch")

HAS_TORCHAO = importlib.util.find_spec("torchao") is not None

# Imports of torchao find nothing, wherever it is installed. replace_torchao() enters its own modules, which are found.
HIDE = """
import importlib.machinery, sys
class Hidden(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name == "torchao" else super().find_spec(name, path, target)
sys.meta_path[:] = [Hidden if finder is importlib.machinery.PathFinder else finder for finder in sys.meta_path]
"""

REPLACE = "import ingot.float8\ningot.float8.replace_torchao()\n"


def run(code, without=False):
    """Runs a program in a separate process and returns what it prints."""
    hide = HIDE if without else ""
    program = hide + REPLACE + textwrap.dedent(code)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


# What torchtitan does: converter, filter, tensor parallel styles, the step's hook.
TORCHTITAN = """
import torch
from functools import partial
from torch import nn
from torchao.float8 import Float8LinearConfig
assert hasattr(Float8LinearConfig, "from_recipe_name")
config = Float8LinearConfig.from_recipe_name("rowwise")
assert config.round_scales_to_power_of_2
from torchao.float8 import _auto_filter_for_recipe
keep = _auto_filter_for_recipe("rowwise", filter_fqns=["output"])
config = Float8LinearConfig(
    enable_fsdp_float8_all_gather=False, force_recompute_fp8_weight_in_bwd=True, emulate=True
)
from torchao.float8 import convert_to_float8_training
model = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 16))
convert_to_float8_training(model, config=config, module_filter_fn=lambda mod, fqn: fqn != "1")
from torchao.float8 import precompute_float8_dynamic_scale_for_fsdp
precompute_float8_dynamic_scale_for_fsdp(model)
from torchao.float8.float8_tensor_parallel import (
    Float8ColwiseParallel, Float8RowwiseParallel, PrepareFloat8ModuleInput,
)
from torchao.float8.config import CastConfig, ScalingType
from torchao.float8.float8_linear import Float8Linear
assert isinstance(model[0], Float8Linear) and type(model[1]) is nn.Linear

# Its own subclass, which is made from a config of the model and not from a layer.
import dataclasses
from torchao.float8.fsdp_utils import WeightWithDynamicFloat8CastTensor

class Protocol(nn.Module):
    def init_states(self):
        nn.init.trunc_normal_(self.weight, std=0.02)

class Titan(Float8Linear, Protocol):
    def __init__(self, sizes, float8_config):
        Float8Linear.__init__(self, *sizes, bias=False, config=float8_config)
        self.precompute = True

config = Float8LinearConfig.from_recipe_name("tensorwise")
config = dataclasses.replace(config, enable_fsdp_float8_all_gather=True)
with torch.device("meta"):
    layer = Titan((16, 8), config)
layer.to_empty(device="cpu")
layer.init_states()
assert isinstance(layer.weight, WeightWithDynamicFloat8CastTensor) and 0 < layer.weight.abs().max() < 1
assert layer(torch.randn(4, 16)).shape == (4, 8)
convert_to_float8_training(nn.Sequential(layer))
"""

# accelerate: the AO recipe's keyword arguments, the filter of first and last layer, what prepare() looks for.
ACCELERATE = """
import importlib.util
assert importlib.util.find_spec("torchao") is not None
from torchao.float8.float8_linear import Float8LinearConfig
from torchao.float8 import convert_to_float8_training
from functools import partial
from torch import nn
def filter_linear_layers(module, fqn, first_layer_name=None, last_layer_name=None):
    return fqn not in (first_layer_name, last_layer_name)
model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16))
config = Float8LinearConfig(pad_inner_dim=True)
filter_func = partial(filter_linear_layers, first_layer_name="0", last_layer_name="2")
convert_to_float8_training(model, module_filter_fn=filter_func, config=config)
assert [type(layer).__name__ for layer in model] == ["Linear", "Float8Linear", "Linear"]
from torchao.float8 import precompute_float8_dynamic_scale_for_fsdp
"""

# axolotl: accelerate's path with all-gather, and dataclasses.replace.
AXOLOTL = """
import dataclasses
from torchao.float8 import Float8LinearConfig
config = Float8LinearConfig(enable_fsdp_float8_all_gather=True, force_recompute_fp8_weight_in_bwd=False)
config = dataclasses.replace(config, pad_inner_dim=True)
assert config.enable_fsdp_float8_all_gather and config.pad_inner_dim
from torchao.float8 import convert_to_float8_training
from torch import nn
model = convert_to_float8_training(nn.Sequential(nn.Linear(16, 16)), config=config)
assert type(model[0].weight).__name__ == "WeightWithDynamicFloat8CastTensor"
"""

# transformers and others: imports that decide whether there is FP8, isinstance checks, the older names.
OTHERS = """
import torch
from torch import nn
from torchao.float8 import (
    CastConfig, Float8GemmConfig, Float8LinearConfig, Float8LinearRecipeName, ScalingGranularity, ScalingType,
    convert_to_float8_training,
)
import torchao.float8.config
from torchao.float8.config import Float8LinearConfig as Same, e4m3_dtype, e5m2_dtype
assert Same is Float8LinearConfig and e4m3_dtype is torch.float8_e4m3fn
from torchao.float8.float8_linear import Float8Linear, matmul_with_hp_or_float8_args
from torchao.float8.float8_linear_utils import (
    linear_requires_sync, swap_linear_layers, sync_float8_amax_and_scale_history,
)
from torchao.float8.float8_training_tensor import (
    Float8TrainingTensor, GemmInputRole, LinearMMConfig, ScaledMMConfig, hp_tensor_and_scale_to_float8,
)
from torchao.float8.float8_tensor import Float8Tensor
from torchao.float8.float8_scaling_utils import hp_tensor_to_float8_dynamic
from torchao.float8.float8_utils import compute_error, e4m3_dtype, tensor_to_amax, tensor_to_scale, to_fp8_saturated
from torchao.float8.float8_ops import addmm_float8_unwrapped
from torchao.float8.float8_python_api import addmm_float8_unwrapped as older
from torchao.float8.fsdp_utils import (
    WeightWithDelayedFloat8CastTensor, WeightWithDynamicFloat8CastTensor, WeightWithStaticFloat8CastTensor,
)
from torchao.float8.distributed_utils import tensor_already_casted_to_fp8
assert Float8Tensor is Float8TrainingTensor and older is addmm_float8_unwrapped
mm = LinearMMConfig(*(ScaledMMConfig(emulate=False, use_fast_accum=False, fp8_output=False, pad_inner_dim=False),) * 3)
x = torch.randn(4, 16, requires_grad=True)
y = matmul_with_hp_or_float8_args.apply(x, torch.randn(16, 8), mm, Float8LinearConfig())
y.sum().backward()
layer = Float8Linear.from_float(nn.Linear(16, 8), config=Float8LinearConfig())
assert layer(x).shape == (4, 8) and type(layer).__module__ == "ingot.float8.float8_linear"
original = Float8Linear.forward
torchao.float8.float8_linear.Float8Linear.forward = original
import torchao.float8.float8_linear as module
module.added = 1
import ingot.float8.float8_linear
assert ingot.float8.float8_linear.added == 1 and "Float8Linear" in dir(module)
try:
    from torchao.float8.config import Nothing
except ImportError as error:
    assert "Nothing" in str(error)
else:
    raise AssertionError
ingot.float8.replace_torchao()
"""

# torchtitan since it converts configs of layers, not layers: the auto filter sees no nn.Linear, the layer is built from
# a config that carries torchao's, on meta, and scales are computed after each step by a hook of the optimizer.
TORCHTITAN_CONFIGS = """
import torch
from dataclasses import dataclass, replace
from torch import nn
from torchao.float8.float8_linear import Float8Linear as Base

@dataclass(kw_only=True, slots=True)
class LinearConfig:
    in_features: int
    out_features: int
    bias: bool = False
    _torchao_config: object = None

class Float8Linear(Base):
    def __init__(self, config):
        Base.__init__(
            self, config.in_features, config.out_features, bias=config.bias, config=config._torchao_config
        )

from torchao.float8 import Float8LinearConfig, _auto_filter_for_recipe
for recipe in ("tensorwise", "rowwise", "rowwise_with_gw_hp"):
    config = Float8LinearConfig.from_recipe_name(recipe)
    assert config.cast_config_input.scaling_granularity.value in ("tensorwise", "axiswise")
    assert hasattr(config, "enable_fsdp_float8_all_gather")
config = replace(Float8LinearConfig(emulate=True), enable_fsdp_float8_all_gather=True)
wanted = _auto_filter_for_recipe("rowwise", filter_fqns=["out"])
large = nn.Linear(8192, 8192, device="meta")
assert wanted(LinearConfig(in_features=8192, out_features=8192), "wq") is False
assert wanted(large, "wq") is True and wanted(large, "out") is False
with torch.device("meta"):
    model = nn.Sequential(Float8Linear(LinearConfig(in_features=32, out_features=16, _torchao_config=config)))
model.to_empty(device="cpu")
nn.init.normal_(model[0].weight, std=0.1)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=True)
from torchao.float8 import precompute_float8_dynamic_scale_for_fsdp
optimizer.register_step_post_hook(lambda *_: precompute_float8_dynamic_scale_for_fsdp(model))
x = torch.randn(8, 32)
before = float(model(x).square().mean())
for _ in range(5):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
    optimizer.step()
assert float(model(x).square().mean()) < before
"""

# accelerate's helpers: the first and the last linear layer and sizes that 16 does not divide stay, and a model is asked
# whether it has FP8 layers; its recipe's default config; a step under autocast.
ACCELERATE_HELPERS = """
import torch
from functools import partial
from torch import nn
from torchao.float8 import Float8LinearConfig, convert_to_float8_training

def by_name(layer, name, first, last):
    if isinstance(layer, nn.Linear) and (layer.in_features % 16 or layer.out_features % 16):
        return False
    return name not in (first, last)

def has_float8_layers(model):
    from torchao.float8.float8_linear import Float8Linear
    return any(isinstance(layer, Float8Linear) for _, layer in model.named_modules())

sizes = ((32, 32), (32, 48), (48, 20), (20, 32), (32, 32), (32, 16))
model = nn.Sequential(*(nn.Linear(*size) for size in sizes))
assert not has_float8_layers(model)
linear = [name for name, layer in model.named_modules() if isinstance(layer, nn.Linear)]
wanted = partial(by_name, first=linear[0], last=linear[-1])
config = Float8LinearConfig(pad_inner_dim=True)
assert convert_to_float8_training(model, module_filter_fn=wanted, config=config) is model
assert has_float8_layers(model)
assert [number for number, layer in enumerate(model) if type(layer).__name__ == "Float8Linear"] == [1, 4]
convert_to_float8_training(nn.Sequential(nn.Linear(16, 16)), module_filter_fn=None, config=None)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with torch.autocast("cpu", torch.bfloat16):
    loss = model(torch.randn(3, 32)).float().square().mean()
loss.backward()
assert all(parameter.grad is not None for parameter in model.parameters())
optimizer.step()
"""

# axolotl by way of accelerate, with rowwise scales, for which FP8 gathering has to be off; and a filter by the weight.
AXOLOTL_RECIPES = """
from dataclasses import replace
from torch import nn
from torchao.float8 import Float8LinearConfig, convert_to_float8_training
tensorwise = replace(
    Float8LinearConfig.from_recipe_name("tensorwise"),
    enable_fsdp_float8_all_gather=True,
    force_recompute_fp8_weight_in_bwd=True,
)
rowwise = Float8LinearConfig.from_recipe_name("rowwise")
assert tensorwise.enable_fsdp_float8_all_gather and not rowwise.enable_fsdp_float8_all_gather

def even(layer, name):
    weight = getattr(layer, "weight", None)
    if weight is None or weight.dim() != 2 or "gate" in name:
        return False
    return all(size % 16 == 0 for size in weight.shape)

class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.gate, self.up = nn.Embedding(16, 32), nn.Linear(32, 4), nn.Linear(32, 64)

for config in (tensorwise, rowwise):
    model = convert_to_float8_training(Mlp(), config=config, module_filter_fn=even)
    assert [type(child).__name__ for child in model.children()] == ["Embedding", "Linear", "Float8Linear"]
"""

# transformers asks whether torchao is there, and quantizes weights by it.
TRANSFORMERS = """
import importlib.util
if all(importlib.util.find_spec(name) is not None for name in ("transformers", "torchao.quantization")):
    import torch, torchao
    from transformers.utils import is_torchao_available
    import transformers.quantizers.quantizer_torchao
    from torchao.quantization import Float8WeightOnlyConfig, quantize_
    from transformers import LlamaConfig, LlamaForCausalLM, TorchAoConfig
    assert is_torchao_available()
    wanted = TorchAoConfig(Float8WeightOnlyConfig())
    config = LlamaConfig(
        vocab_size=32, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2
    )
    model = torchao.float8.convert_to_float8_training(LlamaForCausalLM(config))
    tokens = torch.arange(8)[None]
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    assert torch.isfinite(loss) and model.model.layers[0].mlp.up_proj.weight.grad.norm() > 0
    with torch.no_grad():
        expected = model(input_ids=tokens).logits
        quantize_(model, wanted.get_apply_tensor_subclass())
        error = (model(input_ids=tokens).logits - expected).norm() / expected.norm()
    assert 0 < error < 0.1, error
"""

# torchtitan's mixtures of experts: the config for modules by their names, and what a module calls itself.
MOE = """
import importlib.util, sys, torch, torchao
from torch import nn
from torchao.prototype.moe_training.config import Float8TrainingOpConfig, Float8TrainingRecipe
from torchao.prototype.moe_training import _to_fp8_rowwise_then_scaled_grouped_mm
from torchao.prototype.moe_training.utils import _quantize_then_scaled_grouped_mm
assert Float8TrainingOpConfig.__module__ == "ingot.float8.moe_training"
try:
    from torchao.quantization import quantize_
except ImportError:
    from ingot.nn import quantize_

class GroupedExperts(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.w2, self.w3 = (nn.Parameter(torch.randn(3, *sizes) / 4) for sizes in ((32, 16), (16, 32), (32, 16)))
    def forward(self, x, num_tokens_per_expert):
        rows = zip(x.split(num_tokens_per_expert.tolist()), self.w1, self.w2, self.w3)
        return torch.cat([(nn.functional.silu(each @ w1.T) * (each @ w3.T)) @ w2.T for each, w1, w2, w3 in rows])

model = nn.ModuleDict({"experts": GroupedExperts(), "head": nn.Linear(16, 16)})
x, counts = torch.randn(24, 16), torch.tensor([5, 0, 19])
expected = model["experts"](x, counts)
config = Float8TrainingOpConfig.from_recipe(Float8TrainingRecipe.FP8_ROWWISE)
quantize_(model, config=config, filter_fn=lambda module, name: "experts" in name)
assert [type(each).__name__ for each in model.values()] == ["Float8GroupedExperts", "Linear"]
y = model["experts"](x, counts)
y.sum().backward()
assert 0 < (y - expected).norm() < 0.1 * expected.norm() and model["experts"].w3.grad.norm() > 0
assert "torchao.prototype.moe_training.kernels" not in sys.modules
"""

TRAINERS = {
    "mixtures of experts": MOE,
    "torchtitan": TORCHTITAN,
    "torchtitan's configs": TORCHTITAN_CONFIGS,
    "accelerate": ACCELERATE,
    "accelerate's helpers": ACCELERATE_HELPERS,
    "axolotl": AXOLOTL,
    "axolotl's recipes": AXOLOTL_RECIPES,
    "transformers": TRANSFORMERS,
    "others": OTHERS,
}


needs_torchao = pytest.mark.skipif(not HAS_TORCHAO, reason="torchao is not installed")


@pytest.mark.parametrize("without", [pytest.param(False, marks=[needs_torchao, pytest.mark.nightly]), True], ids=["with torchao", "without"])
def test_trainers(without):
    # A dataclass looks its module up by name.
    programs = "\n".join(f"exec({program!r}, {{'__name__': '__main__'}})" for program in TRAINERS.values())
    run(f"import torchao\nassert bool(list(torchao.__path__)) is {not without}\n{programs}", without)


@needs_torchao
@pytest.mark.nightly
def test_what_ingot_lacks_of_mixtures_of_experts_is_torchaos():
    run("""
        from torchao.prototype.moe_training.config import Float8TrainingOpConfig, MXFP8TrainingOpConfig
        from torchao.prototype.moe_training import _to_mxfp8_then_scaled_grouped_mm, config, utils
        assert MXFP8TrainingOpConfig.__module__ == "torchao.prototype.moe_training.config" == config.__name__
        assert config.Float8TrainingOpConfig.__module__ == utils._quantize_then_scaled_grouped_mm.__module__ == "ingot.float8.moe_training"
        assert utils.pad_token_groups.__module__ == "torchao.prototype.moe_training.utils"
        import torchao.prototype.moe_training.config as again
        assert again is config
    """)


@needs_torchao
def test_what_ingot_lacks_is_torchaos_and_checkpoints_with_its_classes_load():
    program = """
    import io, sys, torch
    from torchao.float8.float8_training_tensor import LinearMMConfig
    from torchao.float8.float8_scaling_utils import hp_tensor_to_float8_dynamic
    file = io.BytesIO()
    torch.save(hp_tensor_to_float8_dynamic(torch.arange(6.0), torch.float8_e4m3fn, LinearMMConfig()), file)
    import ingot.float8
    ingot.float8.replace_torchao()
    file.seek(0)
    x = torch.load(file, weights_only=True)
    assert type(x) is ingot.float8.Float8TrainingTensor, type(x)
    assert torch.equal(x.to_original_precision()[5:], torch.tensor([5.0]))

    import torchao
    from torch import nn
    import torchao.float8.inference as inference
    from torchao.float8 import FP8Granularity
    from torchao.float8.inference import Float8MMConfig
    assert inference.__name__ == "torchao.float8.inference" and Float8MMConfig.__module__ == inference.__name__
    from torchao.quantization import Float8WeightOnlyConfig, quantize_
    torch.manual_seed(0)
    model = torchao.float8.convert_to_float8_training(nn.Sequential(nn.Linear(32, 32)))
    assert type(model[0]).__module__.startswith("ingot")
    x = torch.randn(4, 32)
    expected = model(x)
    quantize_(model, Float8WeightOnlyConfig())
    assert model[0].weight.qdata.dtype == torch.float8_e4m3fn
    with torch.no_grad():
        error = (model(x) - expected).norm() / expected.norm()
    assert error < 0.1, error
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "hide, message",
    [
        ("sys.modules['torch'] = None", "ingot.float8 needs PyTorch 2.7 or newer, which cannot be imported"),
        ("import torch; torch.__version__ = '2.6.1+cpu'", "newer, and this is 2.6.1+cpu: upgrade it"),
    ],
    ids=["none", "old"],
)
def test_pytorch_missing_or_old(hide, message):
    program = f"import sys, ingot\n{hide}\nimport ingot.float8"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode != 0 and "ImportError" in done.stderr and message in done.stderr
