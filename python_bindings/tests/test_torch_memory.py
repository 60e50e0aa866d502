"""The memory that a block of examples/train_gpt keeps between forward and backward, against bf16's: counted, on the CPU.
test_torch_memory_cuda.py measures the peak of a step."""

import functools

import pytest

from conftest import in_ci

torch = pytest.importorskip("torch")
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch._dynamo.backends.common import aot_autograd

from train_gpt_block import RECIPES, Shape, model_of

WIDTH, TOKENS = 64, 4096
SHAPE = Shape(WIDTH, 1, 2, 64)


@functools.lru_cache(maxsize=None)
def kept(recipe, compiled):
    """The bytes that autograd keeps of one block's forward, without parameters and the block's input, each memory
    once."""
    torch._dynamo.reset()
    block = model_of(recipe, SHAPE).model.blocks[0]
    x = torch.randn(TOKENS // SHAPE.window, SHAPE.window, WIDTH, dtype=torch.bfloat16, requires_grad=True)
    alive = {each.untyped_storage().data_ptr() for each in (x, *block.parameters(), *block.buffers())}
    sizes = {}

    def note(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in alive:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    if compiled:
        as_it_is = lambda graph, inputs: make_boxed_func(graph.forward)
        backend = aot_autograd(
            fw_compiler=as_it_is,
            bw_compiler=as_it_is,
            partition_fn=min_cut_rematerialization_partition,  # which inductor uses
            keep_inference_input_mutations=True,
        )
        block = torch.compile(block, backend=backend, fullgraph=True)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        y = block(x)
    total = sum(sizes.values())
    y.sum().backward()  # what is kept is enough
    return total


@pytest.mark.parametrize(
    ("recipe", "how"),
    in_ci(
        lambda recipe, how: how == "eager" or recipe in ("rowwise", "delayed"),
        RECIPES,
        ["eager", "compiled"],
    ),
)
def test_a_block_keeps_no_more_than_bf16(recipe, how):
    """Inputs of qkv, up and down are kept in FP8, 1 + 1 + 4 bytes for each of bf16's 2 + 2 + 8 bytes of a token and a
    unit of width, while attention keeps its output and attention_out keeps the code of it: 5 bytes less in all.
    Nothing of the weights is kept. rowwise_with_gw_hp keeps the inputs as bf16 does, and not a byte more."""
    compiled = how == "compiled"
    of_bf16 = kept("bf16", compiled)
    if recipe in ("rowwise_with_gw_hp", "high_precision"):
        assert kept(recipe, compiled) == of_bf16
        return
    # scale_inv: one for each token of four layers (folded), or for 128 of them of each feature; and what is aligned.
    slack = {"rowwise_folded": 4 * 4 * TOKENS, "blockwise": 7 * WIDTH * TOKENS // 128 * 4}.get(recipe, 0) + 4096
    assert kept(recipe, compiled) <= of_bf16 - 5 * WIDTH * TOKENS + slack
