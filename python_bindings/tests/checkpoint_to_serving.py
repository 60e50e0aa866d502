"""From a checkpoint of transformers to serving, over several ranks: what test_checkpoint_to_serving.py runs.

A journey has three parts, each a check of two_processes.py, which hand files on. `train` loads a safetensors checkpoint on n
ranks, converts, shards and trains it, saves by torch.distributed.checkpoint on the way, and at the end writes a plain folder
of transformers and one in FP8. `resume` continues from the saved state on n ranks or another number. `serve` loads both
folders in one process and decodes.

What n ranks train, m ranks have to continue:
- The losses of the first step, each of one micro-batch, are the same to the bit: the state is, weights are cast with the scales
  of the whole weight, whatever the ranks, and a micro-batch is on one rank.
- The losses after it have the same bits where gradients are sums in the same order: on as many ranks, or where one and two
  ranks add two micro-batches, and no gradient is clipped, whose norm is a sum over the shards. Otherwise sums differ in their
  last bits, what is cast of them by a step of FP8, and losses by LOSSES. So do those of layers that tensor parallelism divides,
  which add in another order, from the first step on.
`train` does between its steps what the others leave out (it evaluates, generates and saves), so equal bits say too that none of
this changes a training."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
from typing import Tuple

import safetensors.torch
import sharded_situations
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import transformers
import two_processes
from sharded_checkpoints import FROM_FIRST, FULL
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_state_dict, set_model_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import parallelize_module
from transformers import DynamicCache, StaticCache
from two_processes import DEVICE

import ingot.float8 as float8
from ingot import nn as ingot_nn
from ingot.float8 import float8_tensor_parallel as float8_styles
from ingot.integrations.experts import convert_experts_, quantize_experts_
from ingot.nn import (
    convert, float8_all_gather, load_float8_checkpoint, precompute_float8_all_gather, save_float8_checkpoint, sync_amax_history
)

two_processes.IMPORTED += [
    "torch.distributed.algorithms._checkpoint.checkpoint_wrapper", "transformers.models.llama.modeling_llama",
    "transformers.models.qwen3_moe.modeling_qwen3_moe", "ingot.integrations.experts",
]  # fmt: skip

SAVED, STEPS = 2, 4  # the step before which the state is saved, and how many there are
VOCABULARY, TOKENS, SEQUENCES = 32, 12, 2  # of a micro-batch
PROMPT, NEW = 4, 12  # tokens
MOST = 0.01  # of the gradients' norm: every step exceeds it
LOSSES = 0.02  # relative: FP8 of gradients that differ in their last bits
# Relative to the norm. Plain and weight-only layers do not round activations to FP8, which keeps three bits; layers that
# tensor parallelism divides add in another order, in bfloat16.
LOGITS, ORDER = 0.1, 0.03


# ---- what is trained ----


@dataclasses.dataclass(frozen=True)
class Journey:
    """How a model is trained, and how it is resumed.

    package: whose conversion; "mixed" is a mixed-precision policy with bfloat16. loads: who reads the checkpoint, "all" ranks or
    the "first", which sends it to others. unreduced: gradients are reduced after the last micro-batch only. frozen: the
    embedding, the first block and the head are. inference: it is evaluated in inference_mode(). micro_batches: of a step, over
    all ranks. tensor: how many of the ranks divide each layer; replicas: how many have the same shards. resumes: (ranks,
    tensor)."""

    recipe: str
    package: str = "nn"
    model: str = "llama"
    dtype: torch.dtype = torch.float32
    mixed: bool = False
    tied: bool = False
    compiled: bool = False
    checkpointed: str = ""
    loads: str = "all"
    unreduced: bool = False
    offloaded: bool = False
    inference: bool = False
    fused: bool = False
    frozen: bool = False
    asynchronous: bool = False
    ranks: int = 2
    tensor: int = 1
    replicas: int = 1
    micro_batches: int = 4
    clips: bool = True
    resumes: Tuple[Tuple[int, int], ...] = ((2, 1), (1, 1))
    thin: bool = False  # layers of four rows

    @property
    def computes_in(self) -> torch.dtype:
        return torch.bfloat16 if self.mixed else self.dtype

    @property
    def sends_float8(self) -> bool:
        """Are some weights gathered in FP8? docs/distributed.md says which are not."""
        alternates = self.recipe in ("rowwise", "rowwise_with_gw_hp")
        return not (self.checkpointed and alternates)

    def config(self) -> transformers.PretrainedConfig:
        sizes = {"hidden_size": 64, "intermediate_size": 80, "num_attention_heads": 4, "num_key_value_heads": 2}
        if self.recipe == "blockwise":
            sizes.update(hidden_size=256, intermediate_size=256, num_key_value_heads=4)
        if self.thin:
            sizes = {"hidden_size": 24, "intermediate_size": 40, "num_attention_heads": 6, "num_key_value_heads": 1}
        common = {
            "vocab_size": VOCABULARY, "num_hidden_layers": 2, "max_position_embeddings": 64, "tie_word_embeddings": self.tied,
            "eos_token_id": None, "bos_token_id": None, "pad_token_id": None, **sizes,
        }  # fmt: skip
        if self.model == "llama":
            return transformers.LlamaConfig(**common)
        of_experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "head_dim": 16}
        return transformers.Qwen3MoeConfig(**common, **of_experts, norm_topk_prob=True)

    @property
    def kind(self) -> type:
        return transformers.LlamaForCausalLM if self.model == "llama" else transformers.Qwen3MoeForCausalLM

    def loaded(self, folder: pathlib.Path, dtype: torch.dtype) -> torch.nn.Module:
        return self.kind.from_pretrained(folder, dtype=dtype).to(DEVICE)

    def converted(self, model: torch.nn.Module) -> torch.nn.Module:
        if self.model == "experts":
            assert convert_experts_(model, self.recipe)
        if self.package == "nn":
            assert convert(model, self.recipe).converted
            return model
        config = float8.Float8LinearConfig.from_recipe_name(self.recipe)
        object.__setattr__(config, "enable_fsdp_float8_all_gather", True)
        return float8.convert_to_float8_training(model, config=config, module_filter_fn=lambda layer, name: name != "lm_head")


def sequences(count, seed):
    """They count upwards from anywhere: (count, TOKENS)."""
    starts = torch.randint(0, VOCABULARY, (count, 1), generator=torch.Generator("cpu").manual_seed(seed), device="cpu")
    return ((starts + torch.arange(TOKENS, device="cpu")) % VOCABULARY).to(DEVICE)


def make_checkpoint(journey, folder):
    """A folder of transformers with a model that has learnt to count."""
    torch.manual_seed(0)
    model = journey.kind(journey.config()).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    step, loss = 0, 1.0
    while loss > 0.1:
        tokens = sequences(16, 1000 + step)
        output = model(input_ids=tokens, labels=tokens)
        output.loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        step, loss = step + 1, output.loss.item()
    model.save_pretrained(folder)


# ---- on several ranks ----


class Training:
    """A model that has been loaded, converted and sharded, and its optimizer."""

    def __init__(self, journey: Journey, source: pathlib.Path, tensor: int = 1) -> None:
        self.journey = journey
        world = dist.get_world_size()
        replicas = journey.replicas if world // tensor % journey.replicas == 0 else 1
        sizes = (replicas, world // tensor // replicas, tensor)
        mesh = init_device_mesh(DEVICE, sizes, mesh_dim_names=("replicate", "shard", "tp"))
        self.part, self.parts = dist.get_rank() // tensor, world // tensor
        self.model = self._sharded(source, mesh, tensor)
        trained = [each for each in self.model.parameters() if each.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=2e-3, fused=journey.fused or None)
        self.saving = None

    def _sharded(self, source, mesh, tensor):
        journey = self.journey
        whole = None
        if journey.loads == "first":
            if dist.get_rank() == 0:
                whole = journey.loaded(source, journey.dtype).state_dict()
            with torch.device("meta"):
                model = journey.kind(journey.config()).to(journey.dtype)
        else:
            model = journey.loaded(source, journey.dtype)
        journey.converted(model)
        layers = model.model.layers
        if journey.frozen:
            model.model.embed_tokens.requires_grad_(False)
            layers[0].requires_grad_(False)
            model.lm_head.requires_grad_(False)
        if journey.checkpointed == "gradient_checkpointing":
            model.gradient_checkpointing_enable({"use_reentrant": False})
        if tensor > 1:
            for layer in layers:
                divide(layer, mesh["tp"], journey.package)
        float8_all_gather(model)
        options = {"mesh": mesh["replicate", "shard"] if mesh.size(0) > 1 else mesh["shard"]}
        if journey.mixed:
            options["mp_policy"] = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
        if journey.offloaded:
            options["offload_policy"] = CPUOffloadPolicy(pin_memory=DEVICE == "cuda")
        for at, layer in enumerate(layers):
            if journey.checkpointed == "checkpoint_wrapper":
                layers[at] = layer = checkpoint_wrapper(layer)
            if journey.compiled:
                layer.compile(backend="aot_eager" if DEVICE == "cpu" else "inductor")
            fully_shard(layer, **options)
        fully_shard(model, **options)
        if journey.loads == "first":
            model.to_empty(device=DEVICE)
            model.model.rotary_emb = type(model.model.rotary_emb)(config=journey.config()).to(DEVICE)
            set_model_state_dict(model, whole or {}, options=dataclasses.replace(FROM_FIRST, strict=False))
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)  # losses are divided already
                module.set_force_sum_reduction_for_comms(True)  # gloo has no other
        return model.train()

    def step(self, step, *, precomputes=True, between=lambda: None):
        """The losses of all micro-batches. between: is called after the first of this rank's."""
        journey, losses = self.journey, {}
        count = journey.micro_batches // self.parts
        mine = range(self.part * count, (self.part + 1) * count)
        for at in mine:
            self.model.set_requires_gradient_sync(at == mine[-1] or not journey.unreduced)
            tokens = sequences(SEQUENCES, 100 * step + at)
            loss = self.model(input_ids=tokens, labels=tokens, use_cache=False).loss
            (loss / journey.micro_batches).backward()
            losses[at] = loss.item()
            if at == mine[0]:
                between()
        sync_amax_history(self.model)
        if not (journey.offloaded and DEVICE == "cuda"):  # NCCL does not add up norms of gradients on the host
            norm = clipped(self.model.parameters(), MOST if journey.clips else 1e6)
            assert norm > MOST, (step, norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if precomputes:
            precompute_float8_all_gather(self.model)
        found = [None] * dist.get_world_size()
        dist.all_gather_object(found, losses)
        joined = {at: value for each in found for at, value in each.items()}
        return [joined[at] for at in range(journey.micro_batches)]

    def state(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def save(self, folder):
        if self.journey.asynchronous:
            apart = dist.new_group(backend="gloo")  # a thread saves by its collectives
            self.saving = dcp.async_save(self.state(), checkpoint_id=folder, process_group=apart)
        else:
            dcp.save(self.state(), checkpoint_id=folder)

    def wait(self):
        """Until what was saved is on disk."""
        if self.saving is not None:
            self.saving.result()
            self.saving = None

    def load(self, folder):
        into = self.state()
        dcp.load(into, checkpoint_id=folder)
        set_state_dict(self.model, self.optimizer, model_state_dict=into["model"], optim_state_dict=into["optimizer"])

    def whole(self):
        """All tensors of the model, on rank 0."""
        return get_model_state_dict(self.model, options=FULL)

    @contextlib.contextmanager
    def evaluating(self, inference=False):
        self.model.eval()
        with torch.inference_mode() if inference else torch.no_grad():
            yield self.model
        self.model.train()


def clipped(parameters, most):
    """torch.nn.utils.clip_grad_norm_(), which takes gradients of one mesh: those of layers that tensor parallelism divides have
    another than all others."""
    by_mesh = {}
    for parameter in parameters:
        if parameter.grad is not None:
            by_mesh.setdefault(parameter.grad.device_mesh, []).append(parameter)
    norms = [torch.nn.utils.get_total_norm([each.grad for each in group]).full_tensor() for group in by_mesh.values()]
    norm = torch.nn.utils.get_total_norm(norms)
    for group in by_mesh.values():
        torch.nn.utils.clip_grads_with_norm_(group, most, norm)
    return float(norm)


def divide(layer, mesh, package):
    styles = ingot_nn if package == "nn" else float8_styles
    plan = {f"self_attn.{name}_proj": styles.Float8ColwiseParallel() for name in "qkv"}
    plan |= {f"mlp.{name}_proj": styles.Float8ColwiseParallel() for name in ("gate", "up")}
    plan |= {"self_attn.o_proj": styles.Float8RowwiseParallel(), "mlp.down_proj": styles.Float8RowwiseParallel()}
    parallelize_module(layer, mesh, plan)


def probe():
    return sequences(3, 7)


def logits_of(model):
    return model(input_ids=probe(), use_cache=False).logits.float().cpu()


def decoded(model, tokens, count):
    """Greedy, with a cache that grows."""
    cache, given = DynamicCache(config=model.config), tokens
    for _ in range(count):
        given = model(input_ids=given, past_key_values=cache, use_cache=True).logits[:, -1:].argmax(-1)
        tokens = torch.cat((tokens, given), 1)
    return tokens


def decoded_in_a_graph(model, tokens, count):
    """Greedy, token by token, with a cache that stays where it is; on a GPU each step is the replay of one graph."""
    length = tokens.shape[1] + count
    cache = StaticCache(config=model.config, max_cache_len=length)
    given, position = tokens[:, :1].clone(), torch.zeros(1, 1, dtype=torch.long, device=tokens.device)

    def step():
        mask = (torch.arange(length, device=tokens.device) <= position).view(1, 1, 1, length)
        output = model(input_ids=given, position_ids=position, attention_mask=mask, past_key_values=cache, use_cache=True)
        return output.logits[:, -1:].argmax(-1)

    replay, result = step, None
    if tokens.is_cuda:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = step()
        cache.reset()
        replay = graph.replay
    for at in range(length - 1):
        following = replay() if result is None else (replay(), result)[1]
        if at + 1 == tokens.shape[1]:
            tokens = torch.cat((tokens, following), 1)
        given.copy_(tokens[:, at + 1 : at + 2])
        position += 1
    return tokens


def counted(tokens, count):
    """What follows, if it is known that they count upwards."""
    steps = torch.arange(1, count + 1, device=tokens.device)
    return torch.cat((tokens, (tokens[:, -1:] + steps) % VOCABULARY), 1)


# ---- the parts of a journey ----


def train(journey: Journey, place: pathlib.Path) -> None:
    if dist.get_rank() == 0:
        make_checkpoint(journey, place / "source")
    dist.barrier()
    training = Training(journey, place / "source", journey.tensor)
    kept, prompt = {"losses": []}, probe()[:, :PROMPT]

    def looks():
        """What must not change a training, between its steps."""
        with training.evaluating(journey.inference and step > 0) as model:  # FSDP cannot begin in inference_mode()
            logits_of(model)
            decoded(model, prompt, 2)

    def saves():
        """... and between micro-batches."""
        training.save(place / "scratch")
        save_float8_checkpoint(training.model, place / "scratch_fp8")
        training.whole()

    for step in range(STEPS):
        if step == SAVED:
            training.save(place / "saved")
        if step in (0, SAVED + 1):
            looks()
        kept["losses"].append(training.step(step, precomputes=step > 0, between=saves if step == 1 else lambda: None))
        training.wait()
    with training.evaluating() as model:
        kept["logits"], kept["tokens"] = logits_of(model), decoded(model, prompt, NEW).cpu()
    assert any(sharded_situations.weights_of(training.model)) == journey.sends_float8
    kept["state"] = training.whole()
    save_float8_checkpoint(training.model, place / "fp8")
    if dist.get_rank() == 0:
        training.model.save_pretrained(place / "plain", state_dict=dict(kept["state"]))  # which it empties
        torch.save(kept, place / "trained.pt")


def resume(journey: Journey, place: pathlib.Path, tensor: int) -> None:
    expected, ranks = torch.load(place / "trained.pt", weights_only=True), dist.get_world_size()
    training = Training(journey, place / "source", tensor)
    training.load(place / "saved")
    divided = max(tensor, journey.tensor) > 1
    is_exact = (ranks, tensor) == (journey.ranks, journey.tensor)
    is_exact = is_exact or (not divided and not journey.clips and journey.micro_batches == 2 and max(ranks, journey.ranks) == 2)
    is_exact = is_exact and DEVICE == "cpu"  # where a reduction has one order
    for step in range(SAVED, STEPS):
        losses, theirs = training.step(step, precomputes=step > SAVED), expected["losses"][step]
        if is_exact or (step == SAVED and not divided and not (journey.compiled and DEVICE == "cuda")):
            assert losses == theirs, (step, losses, theirs)
        assert all(abs(one - other) <= LOSSES * other for one, other in zip(losses, theirs, strict=True)), (step, losses, theirs)
    state = training.whole()
    assert all(type(value) is torch.Tensor for value in state.values())  # any program reads them, also what one rank has written
    if is_exact and dist.get_rank() == 0:
        assert state.keys() == expected["state"].keys()
        for name, value in state.items():
            assert torch.equal(value, expected["state"][name]), name


@torch.no_grad()
def serve(journey: Journey, place: pathlib.Path) -> None:
    expected = torch.load(place / "trained.pt", weights_only=True)
    prompt = probe()[:, :PROMPT]
    right = counted(prompt, NEW)
    assert torch.equal(expected["tokens"].to(DEVICE), right), (expected["tokens"], right)

    again = journey.converted(journey.loaded(place / "plain", journey.computes_in)).eval()
    again.load_state_dict(expected["state"])  # with delayed scales
    reorders = journey.tensor > 1 or (journey.compiled and DEVICE == "cuda")
    near(logits_of(again), expected["logits"], ORDER if reorders else 0)
    save_float8_checkpoint(again, place / "again")
    same_files(place / "again", place / "fp8")

    def serves(model, in_a_graph=True):
        near(logits_of(model), expected["logits"], LOGITS)
        assert torch.equal(decoded(model, prompt, NEW), right)
        if in_a_graph:
            assert torch.equal(decoded_in_a_graph(model, prompt[:1], NEW), right[:1])

    fresh = lambda: journey.loaded(place / "plain", torch.bfloat16).eval()
    served, layers = fresh(), 14 if journey.model == "llama" else 8
    serves(served, journey.model == "llama" or DEVICE == "cpu")  # PyTorch's own experts cannot be captured
    assert len(load_float8_checkpoint(served, place / "fp8").layers) == layers
    if journey.model == "experts":  # which the file has as they were trained, in high precision
        experts = quantize_experts_(served)
        save_float8_checkpoint(served, place / "fp8_experts")
        served = fresh()
        assert quantize_experts_(served) == experts
        assert list(load_float8_checkpoint(served, place / "fp8_experts").experts) == experts
    serves(served)


def near(ours: torch.Tensor, theirs: torch.Tensor, bound: float) -> None:
    apart = float((ours.double() - theirs.double()).norm() / theirs.double().norm())
    assert apart <= bound, apart  # not of NaN


def same_files(one: pathlib.Path, other: pathlib.Path) -> None:
    """The second may have what is not FP8 in more precision: as the optimizer has it."""
    ours, theirs = (safetensors.torch.load_file(folder / "model.safetensors") for folder in (one, other))
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert torch.equal(value.view(torch.uint8), theirs[name].to(value.dtype).view(torch.uint8)), name
