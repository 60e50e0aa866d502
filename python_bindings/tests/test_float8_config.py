"""ingot.float8.config: defaults, recipes, and what is refused."""

import dataclasses
import logging

import pytest

torch = pytest.importorskip("torch")

import ingot
import ingot.float8 as float8
from ingot.float8 import CastConfig, Float8LinearConfig, Float8LinearRecipeName, ScalingGranularity, ScalingType

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
TENSORWISE, AXISWISE = ScalingGranularity.TENSORWISE, ScalingGranularity.AXISWISE


def test_defaults():
    config = Float8LinearConfig()
    assert [cast.target_dtype for cast in (config.cast_config_input, config.cast_config_weight)] == [E4M3, E4M3]
    assert config.cast_config_grad_output.target_dtype == E5M2
    assert config.cast_config_input_for_grad_weight == config.cast_config_input
    assert config.cast_config_weight_for_grad_input == config.cast_config_weight
    assert config.cast_config_grad_output_for_grad_weight == config.cast_config_grad_output
    fast = [config.gemm_config_output, config.gemm_config_grad_input, config.gemm_config_grad_weight]
    assert [gemm.use_fast_accum for gemm in fast] == [True, False, False]
    for off in ("enable_fsdp_float8_all_gather", "pad_inner_dim", "emulate", "round_scales_to_power_of_2"):
        assert getattr(config, off) is False
    assert config.delayed_scaling_config == float8.DelayedScalingConfig(16, "max")


# input, weight, grad_output, weight for grad_input, input and grad_output for grad_weight; powers of two
RECIPES = {
    "tensorwise": [
        "dyn_ten_e4m3",
        "dyn_ten_e4m3",
        "dyn_ten_e5m2",
        "dyn_ten_e4m3",
        "dyn_ten_e4m3",
        "dyn_ten_e5m2",
        False,
    ],
    "rowwise": ["dyn_axs_e4m3"] * 6 + [True],
    "rowwise_with_gw_hp": ["dyn_axs_e4m3"] * 3 + ["dyn_ten_e4m3", "dis_ten_e4m3", "dis_ten_e4m3", True],
}


@pytest.mark.parametrize("name", RECIPES)
def test_recipes(name):
    for recipe in (name, Float8LinearRecipeName(name)):
        config = Float8LinearConfig.from_recipe_name(recipe)
        casts = (
            config.cast_config_input,
            config.cast_config_weight,
            config.cast_config_grad_output,
            config.cast_config_weight_for_grad_input,
            config.cast_config_input_for_grad_weight,
            config.cast_config_grad_output_for_grad_weight,
        )
        assert [cast.short_str() for cast in casts] + [config.round_scales_to_power_of_2] == RECIPES[name]
        assert float8.recipe_name_to_linear_config(recipe) == config


def test_older_names_of_recipes_and_casts():
    old = {
        "ALL_TENSORWISE": "tensorwise",
        "ALL_AXISWISE": "rowwise",
        "LW_AXISWISE_WITH_GW_HP": "rowwise_with_gw_hp",
    }
    for name, now in old.items():
        assert Float8LinearRecipeName[name] is Float8LinearRecipeName(now) is Float8LinearRecipeName(name.lower())
    assert [member.value for member in Float8LinearRecipeName] == list(old.values())
    assert CastConfig(keep_original_precision=True) == CastConfig(scaling_type=ScalingType.DISABLED)


def test_short_names():
    assert [each.short_str() for each in ScalingType] == ["dyn", "del", "sta", "dis"]
    assert [each.short_str() for each in ScalingGranularity] == ["ten", "axs"]
    assert CastConfig(target_dtype=torch.float8_e4m3fnuz).short_str() == "dyn_ten_e4m3"


def test_a_cast_that_is_given_twice_is_not_changed():
    cast = CastConfig()
    config = Float8LinearConfig(cast_config_input=cast, cast_config_weight=cast, cast_config_grad_output=cast)
    assert cast.target_dtype is None
    assert config.cast_config_input.target_dtype == E4M3 and config.cast_config_grad_output.target_dtype == E5M2


def test_configs_are_frozen_values():
    config = Float8LinearConfig()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.emulate = True
    assert dataclasses.replace(config, emulate=True).emulate
    object.__setattr__(config, "emulate", True)
    assert float8.Float8Linear(16, 16, config=config).linear_mm_config.output.emulate
    assert hash(Float8LinearConfig()) == hash(Float8LinearConfig())


DISABLED = CastConfig(scaling_type=ScalingType.DISABLED)
ROWS = CastConfig(scaling_granularity=AXISWISE)
OFF = CastConfig(scaling_type=ScalingType.DISABLED)
DELAYED = CastConfig(scaling_type=ScalingType.DELAYED)

REFUSED = {
    "only dynamic scaling type is supported for axiswise scaling granularity": lambda: CastConfig(
        scaling_type=ScalingType.DELAYED, scaling_granularity=AXISWISE
    ),
    "must specify a 8-bit floating-point dtype as target_dtype, got torch.int8": lambda: CastConfig(
        target_dtype=torch.int8
    ),
    "static_scale must be a positive, finite number, got 0.0": lambda: CastConfig(
        scaling_type=ScalingType.STATIC, static_scale=torch.tensor(0.0)
    ),
    "static_scale must be a positive, finite number, got -2.0": lambda: CastConfig(
        scaling_type=ScalingType.STATIC, static_scale=torch.tensor(-2.0)
    ),
    "static_scale must be specified for static scaling": lambda: CastConfig(scaling_type=ScalingType.STATIC),
    r"static_scale must be a tensor with one element, got shape \(2,\)": lambda: CastConfig(
        scaling_type=ScalingType.STATIC, static_scale=torch.ones(2)
    ),
    "static_scale must be a tensor with one element, got float": lambda: CastConfig(
        scaling_type=ScalingType.STATIC, static_scale=1.0
    ),
    "mean is not implemented yet. Only max is supported for now": lambda: float8.DelayedScalingConfig(
        scale_fn_name="mean"
    ),
    "history_len must be at least 1, got 0": lambda: float8.DelayedScalingConfig(history_len=0),
    "incompatible operand precision for output": lambda: Float8LinearConfig(cast_config_input=DISABLED),
    "incompatible operand precision for grad_input": lambda: Float8LinearConfig(
        cast_config_weight_for_grad_input=DISABLED
    ),
    "incompatible operand precision for grad_weight": lambda: Float8LinearConfig(
        cast_config_input_for_grad_weight=DISABLED
    ),
    "input must be cast to the same dtype in both matmuls it's used in": lambda: Float8LinearConfig(
        cast_config_input_for_grad_weight=CastConfig(target_dtype=E5M2)
    ),
    "dynamic or delayed in both of their GEMMs, got ScalingType.DISABLED for the weight": lambda: Float8LinearConfig(
        cast_config_weight_for_grad_input=OFF,
        cast_config_grad_output=OFF,
        cast_config_input_for_grad_weight=OFF,
        enable_fsdp_float8_all_gather=True,
    ),
    "enable_fsdp_float8_all_gather gathers weights whose scale is dynamic or delayed": lambda: Float8LinearConfig(
        cast_config_weight=CastConfig(scaling_type=ScalingType.STATIC, static_scale=torch.ones(1)),
        enable_fsdp_float8_all_gather=True,
    ),
    "input has two cast configs": lambda: Float8LinearConfig(
        cast_config_input=DELAYED, cast_config_input_for_grad_weight=CastConfig()
    ),
    "weight is cast as dyn_axs_e4m3, and a config with delayed or static scaling": lambda: Float8LinearConfig(
        cast_config_input=DELAYED, cast_config_weight=ROWS
    ),
    r"recipe_name delayed not in valid names \[.*\]; ingot.nn.Float8Linear\(recipe='delayed'\) has it": lambda: (
        Float8LinearConfig.from_recipe_name("delayed")
    ),
    r"recipe_name fast not in valid names \['tensorwise', 'rowwise', 'rowwise_with_gw_hp'\]$": lambda: (
        Float8LinearConfig.from_recipe_name("fast")
    ),
    "unknown recipe_name 3": lambda: Float8LinearConfig.from_recipe_name(3),
}


@pytest.mark.parametrize("message", REFUSED)
def test_refused(message):
    with pytest.raises(AssertionError, match=message) as caught:
        REFUSED[message]()
    assert isinstance(caught.value, ingot.Error)


def test_an_old_field_warns(caplog):
    with caplog.at_level(logging.WARNING):
        Float8LinearConfig(force_recompute_fp8_weight_in_bwd=True)
    assert "force_recompute_fp8_weight_in_bwd" in caplog.text


def test_delayed_and_static():
    assert float8.linear_requires_sync(Float8LinearConfig(cast_config_weight=DELAYED))
    assert not float8.linear_requires_sync(Float8LinearConfig())
    static = CastConfig(scaling_type=ScalingType.STATIC, static_scale=torch.tensor(2.0))
    config = Float8LinearConfig(cast_config_input=static)
    assert float8.config.config_has_stateful_scaling(config) and not float8.linear_requires_sync(config)
