"""_core.TorchShardCasts: the codes, scales and scale_inv of shards whose maxima are reduced over the ranks are those of
the whole weight."""

import functools

import pytest

torch = pytest.importorskip("torch")

from ingot import Error, _core  # noqa: E402
from ingot.torch._gathered_weight import Casts  # noqa: E402
from ingot.torch._shard_casts import ShardCast, rows_of  # noqa: E402
from ingot.torch._shard_plan import Asks, CodesPlan, Part, ShardPlan  # noqa: E402

FORMATS = {"e4m3fn": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def amax_of(values, granularity):
    """max |x| of each extent, in order, as a vector; of no elements 0."""
    rows, columns = values.shape
    down, across = -(-rows // 128), -(-columns // 128)
    if values.numel() == 0:
        return values.new_zeros({"tensor": 1, "row": rows, "col": columns, "128x128": down * across}[granularity])
    if granularity == "128x128":
        padded = torch.nn.functional.pad(values, (0, -columns % 128, 0, -rows % 128))
        return padded.view(down, 128, across, 128).abs().amax((1, 3)).flatten()
    return values.abs().amax({"tensor": (0, 1), "row": 1, "col": 0}[granularity]).view(-1)


def spread(vector, granularity, shape):
    """The element of each extent's vector for each element of the matrix."""
    rows, columns = shape
    if granularity == "tensor":
        return vector.expand(rows, columns)
    if granularity == "row":
        return vector[:, None].expand(rows, columns)
    if granularity == "col":
        return vector[None, :].expand(rows, columns)
    blocks = vector.view(-(-rows // 128), -(-columns // 128))
    return blocks.repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1)[:, :columns]


def whole_cast(weight, rounded, granularity, format, pow2):
    """In plain PyTorch: the scales, scale_inv and codes (as bytes) of a whole weight."""
    values = (weight.to(DTYPES[rounded]) if rounded else weight).float()
    amax = amax_of(values, granularity)
    scale = (torch.finfo(FORMATS[format]).max / amax.double().clamp(min=1e-12)).float()
    if pow2:
        scale = torch.where(scale.isfinite() & (scale > 0), torch.exp2(scale.double().log2().floor()).float(), scale)
    limit = torch.finfo(FORMATS[format]).max
    codes = (values * spread(scale, granularity, values.shape)).clamp(-limit, limit).to(FORMATS[format])
    return scale, 1 / scale, codes.view(torch.uint8)


class Ranks:
    """Shards of weights on some ranks, each rank with its TorchShardCasts. A kind of weight: (the whole, rounded,
    format, pow2, granularities of the sets, first row of each rank's shard)."""

    def __init__(self, kinds, count, device="cpu"):
        self.kinds = kinds
        self.shards = [[self.shard(kind, rank).to(device) for kind in kinds] for rank in range(count)]
        # Of each rank amax, scale and scale_inv of all sets, one after the other; parts[rank][weight][set] of these.
        self.vectors, self.parts, self.codes, self.casts = [], [], [], []
        for shards in self.shards:
            sizes = [[len(amax_of(w.float(), name)) for name in kind[4]] for w, kind in zip(shards, kinds)]
            vectors = [torch.full((sum(map(sum, sizes)),), 7.0, device=device) for _ in range(3)]
            flat = zip(*(vector.split([n for of in sizes for n in of]) for vector in vectors))
            self.vectors.append(vectors)
            self.parts.append([[next(flat) for _ in of] for of in sizes])
            codes = [[torch.full_like(w, 0x55, dtype=torch.uint8) for _ in of] for w, of in zip(shards, sizes)]
            self.codes.append(codes)
            self.casts.append(_core.TorchShardCasts(device, [self.listed(i) for i in range(len(kinds))]))

    @staticmethod
    def shard(kind, rank):
        weight, starts = kind[0], (*kind[5], len(kind[0]))
        return weight[starts[rank] : starts[rank + 1]].clone()

    def listed(self, index):
        """Weight `index` of the last rank that has memory."""
        _, rounded, format, pow2, sets, _ = self.kinds[index]
        weight = self.shards[len(self.codes) - 1][index]
        codes = [
            _core.TorchShardCodes(name, to.data_ptr(), *(part.data_ptr() for part in parts))
            for name, to, parts in zip(sets, self.codes[-1][index], self.parts[-1][index])
        ]
        dtype = next(name for name, each in DTYPES.items() if each == weight.dtype)
        return _core.TorchShard(weight.data_ptr(), dtype, *weight.shape, rounded, format, pow2, codes)

    def amax(self):
        for casts in self.casts:
            casts.amax()

    def cast(self):
        for casts in self.casts:
            casts.scales()
            casts.cast()

    def reduce(self):
        """An all-reduce of the maxima that ranks share: those of tensors and of columns."""
        for index, kind in enumerate(self.kinds):
            for at, name in enumerate(kind[4]):
                if name in ("tensor", "col"):
                    maxima = [rank[index][at][0] for rank in self.parts]
                    most = functools.reduce(torch.maximum, maxima).clone()
                    for each in maxima:
                        each.copy_(most)

    def step(self):
        """Changes the weights in place, as an optimizer does, to smaller ones."""
        for shards in self.shards:
            for shard in shards:
                shard.mul_(0.37)
        wholes = [torch.cat(shards).cpu() for shards in zip(*self.shards)]
        self.kinds = [(whole, *kind[1:]) for whole, kind in zip(wholes, self.kinds)]

    def check(self):
        for index, (weight, rounded, format, pow2, sets, _) in enumerate(self.kinds):
            for at, name in enumerate(sets):
                scale, scale_inv, codes = whole_cast(weight, rounded, name, format, pow2)
                assert torch.equal(torch.cat([rank[index][at].cpu() for rank in self.codes]), codes)
                for place, expected in ((1, scale), (2, scale_inv)):
                    found = [rank[index][at][place].cpu() for rank in self.parts]
                    if name in ("tensor", "col"):
                        assert all(torch.equal(part, expected) for part in found), (name, place)
                    else:
                        assert torch.equal(torch.cat(found), expected), (name, place)


def weight_of(rows, columns, dtype, seed=0):
    weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed + rows * columns)) * 3
    if rows > 2:
        weight[1] = 0
    return weight.to(DTYPES[dtype])


# Where the shards of 300 rows, or of 512 where blocks have to be whole, begin on each of the ranks.
STARTS = {
    1: ((0,), (0,)),
    2: ((0, 150), (0, 256)),
    3: ((0, 100, 300), (0, 512, 512)),  # the last one has none
    4: ((0, 0, 297, 299), (0, 128, 384, 384)),
}


def kinds_of(count, dtype, rounded):
    starts, of_blocks = STARTS[count]
    return [
        (weight_of(300, 77, dtype), rounded, "e4m3fn", False, ["tensor"], starts),
        (weight_of(300, 136, dtype), rounded, "e4m3fn", False, ["row", "col"], starts),
        (weight_of(300, 256, dtype, 1), rounded, "e5m2", True, ["row", "tensor"], starts),
        (weight_of(512, 200, dtype), rounded, "e4m3fn", True, ["128x128"], of_blocks),
        (weight_of(300, 64, dtype, 2), rounded, "e4m3fn", False, ["col", "row"], starts),
    ]


WEIGHTS = pytest.mark.parametrize(
    "dtype, rounded", [("f32", "bf16"), ("f32", "f16"), ("f32", ""), ("bf16", ""), ("f16", "f16")]
)


@pytest.mark.parametrize("count", STARTS)
@WEIGHTS
def test_shards_have_the_bits_of_the_whole(count, dtype, rounded):
    ranks = Ranks(kinds_of(count, dtype, rounded), count)
    for _ in range(2):
        ranks.amax()
        ranks.reduce()
        ranks.cast()
        ranks.check()
        ranks.step()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@WEIGHTS
def test_shards_on_a_gpu_captured_too(dtype, rounded):
    ranks = Ranks(kinds_of(3, dtype, rounded), 3, "cuda:0")
    ranks.amax()
    ranks.reduce()
    ranks.cast()
    ranks.check()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ranks.amax()
        ranks.reduce()
        ranks.cast()
    for _ in range(2):
        ranks.step()
        graph.replay()
        ranks.check()


def test_a_block_of_two_ranks_is_two_parts():
    """Rows 0-199 and 200-299: the caller lists the rows of the block that both have as a shard of its own."""
    weight = weight_of(300, 130, "f32")
    scale, _, codes = whole_cast(weight, "bf16", "128x128", "e4m3fn", False)
    rows = [(0, 128), (128, 200), (200, 256), (256, 300)]
    shards, memory = zip(*(single(weight[begin:end], ["128x128"], "bf16") for begin, end in rows))
    casts = _core.TorchShardCasts("cpu", shards)
    casts.amax()
    before, after = memory[1][0][0], memory[2][0][0]
    before.copy_(torch.maximum(before, after))
    after.copy_(before)
    casts.scales()
    casts.cast()
    _, scales, inverses, made = (torch.cat(each) for each in zip(*(vectors for (vectors,) in memory)))
    assert torch.equal(scales, scale.view(3, 2)[[0, 1, 1, 2]].flatten()) and torch.equal(inverses, 1 / scales)
    assert torch.equal(made, codes)


def single(weight, granularities=("row",), rounded="", format="e4m3fn", name=None):
    """A shard with all its memory."""
    vectors, sets = [], []
    for each in granularities:
        of = [torch.zeros(max(1, len(amax_of(weight.float(), each)))) for _ in range(3)]
        codes = torch.zeros(weight.shape, dtype=torch.uint8)
        vectors.append((*of, codes))
        sets.append(_core.TorchShardCodes(each, codes.data_ptr(), *(vector.data_ptr() for vector in of)))
    dtype = name or next(n for n, each in DTYPES.items() if each == weight.dtype)
    return _core.TorchShard(weight.data_ptr(), dtype, *weight.shape, rounded, format, False, sets), vectors


def test_overflow_and_nan_are_those_of_the_rounded_weight():
    """70000 is Inf in f16: its row's scale is 0, its scale_inv Inf, and its own code NaN, as of a cast of f16."""
    weight = torch.tensor([[70000.0, 1.0], [float("nan"), 1.0], [65504.0, 0.0]])
    shard, (vectors,) = single(weight, rounded="f16")
    casts = _core.TorchShardCasts("cpu", [shard])
    casts.amax()
    assert vectors[0].tolist()[0] == float("inf") and vectors[0][1].isnan() and vectors[0][2] == 65504
    casts.scales()
    casts.cast()
    amax, scale, scale_inv, codes = vectors
    assert scale[0] == 0 and scale[1].isnan() and scale_inv[0] == float("inf") and scale_inv[1].isnan()
    values = codes.view(torch.float8_e4m3fn).float()
    assert values[:2].isnan().tolist() == [[True, False], [True, True]]
    assert values[2].tolist() == [448.0, 0.0]


def test_maxima_and_codes_wait_for_their_calls():
    weight = weight_of(4, 32, "bf16")
    shard, (vectors,) = single(weight, ["tensor"])
    casts = _core.TorchShardCasts("cpu", [shard])
    assert all(not vector.any() for vector in vectors)
    casts.amax()
    assert vectors[0] == weight.float().abs().max() and not vectors[3].any()
    vectors[0][0] *= 4  # another rank's
    casts.scales()
    casts.cast()
    assert vectors[1] == (448 / vectors[0].double()).float()
    before = [vector.clone() for vector in vectors]
    casts.scales()
    casts.cast()  # again, of the same maxima
    assert all(torch.equal(*pair) for pair in zip(before, vectors))


def test_nothing_at_all():
    empty = _core.TorchShardCasts("cpu", [])
    empty.amax()
    empty.scales()
    empty.cast()
    shard, (of_tensor, of_columns) = single(torch.empty(0, 5, dtype=torch.bfloat16), ["tensor", "col"])
    casts = _core.TorchShardCasts("cpu", [shard])
    casts.amax()
    assert not of_tensor[0].any() and not of_columns[0].any()
    of_columns[0].fill_(1.75)  # other ranks'
    casts.scales()
    casts.cast()
    assert of_columns[2].tolist() == [1 / 256] * 5
    assert of_tensor[1] == torch.tensor(448 / 1e-12)
    no_columns, (of_rows,) = single(torch.empty(3, 0))
    casts = _core.TorchShardCasts("cpu", [no_columns])
    casts.amax()
    casts.scales()
    casts.cast()
    assert of_rows[1].tolist() == [torch.tensor(448 / 1e-12).item()] * 3


def message(make):
    with pytest.raises(Error) as caught:
        make()
    return str(caught.value)


def test_what_is_refused():
    weight = weight_of(4, 32, "f32")

    def refusal(*arguments, **named):
        shard, _ = single(weight, *arguments, **named)
        return message(lambda: _core.TorchShardCasts("cpu", [shard]))

    assert message(lambda: _core.TorchShardCodes("column", 0, 0, 0, 0)).startswith(
        'shard granularity: unknown scale granularity "column"; expected "tensor", "row", "col"'
    )
    assert message(lambda: single(weight, [])) == "shard: has 0 sets of codes; expected one or two"
    assert message(lambda: single(weight, ["row"] * 3)) == "shard: has 3 sets of codes; expected one or two"
    assert message(lambda: single(weight, ["row", "row"])) == (
        'shard: has two sets of codes with scale "row": leave one of them out'
    )
    assert message(lambda: single(weight, name="f64")).startswith('shard dtype: unknown dtype "f64"')
    assert "out is bf16, but must be one of e4m3fn" in refusal(format="bf16")
    assert "in is bf16: only values in f32 are rounded first" in refusal(name="bf16", rounded="f16")
    assert "rounded is e5m2, but must be one of bf16, f16" in refusal(rounded="e5m2")
    shard, _ = single(weight)
    assert "its memory overlaps" in message(lambda: _core.TorchShardCasts("cpu", [shard, shard]))
    assert message(lambda: _core.TorchShardCasts("tpu", [])).startswith("device: expected")
    codes = _core.TorchShardCodes("row", weight.data_ptr(), 0, 0, 0)

    def shard_of(rows):
        return _core.TorchShard(weight.data_ptr(), "f32", rows, 32, "", "e4m3fn", False, [codes])

    assert "amax amax" in message(lambda: _core.TorchShardCasts("cpu", [shard_of(4)]))
    assert message(lambda: shard_of(-1)) == "shard: has a size below 0"


def test_a_dry_run_casts_no_shards():
    shard, _ = single(weight_of(4, 32, "bf16"))
    casts = _core.TorchShardCasts("cpu", [shard])
    dry = _core.TorchDryRun("h100")
    dry.enter()
    try:
        assert "this thread is in a dry run" in message(casts.amax)
    finally:
        dry.leave()


@pytest.mark.parametrize("kinds", [("tensor", "tensor"), ("row", "col"), ("128x128", "128x128")])
@pytest.mark.parametrize("experts", [0, 3])
def test_stacks_of_experts_have_the_bits_of_each(experts, kinds):
    """With scales of their own, of which no maxima are reduced, in a plan that has a matrix besides."""
    torch.manual_seed(0)
    stack = torch.randn(experts, 40, 200) * torch.tensor([1.0, 30.0, 0.01])[:experts, None, None]
    stack, weight = stack.view(experts, 40, 200), torch.randn(8, 16)
    casts, of_weight = Casts(torch.float8_e4m3fn, *kinds, True), Casts(torch.float8_e4m3fn, "tensor", "tensor", False)
    sides = (0, 1) if casts.alternates else (0,)
    parts = [Part(stack, casts, side, torch.bfloat16, 4, 8) for side in sides] + [Part(weight, of_weight, 0, None, 8, 16)]
    made, other = ShardCast(torch.bfloat16, rows_of(stack)), ShardCast(None, rows_of(weight))
    of_parts = [made] * len(sides) + [other]
    plan, reduced = ShardPlan(parts, of_parts, 2), []
    plan.run(Asks(lambda maxima, _: reduced.append(maxima.numel()) or maxima, lambda scale_inv: torch.cat((scale_inv, scale_inv + 1))))
    assert reduced == [1]  # that of the matrix
    codes = CodesPlan(parts, of_parts, torch.empty(CodesPlan.size(parts), dtype=torch.uint8))
    codes.run()
    for side in sides:
        expected = [whole_cast(each, "bf16", kinds[side], "e4m3fn", True) for each in stack]
        assert codes.codes[side].shape == (4, 40, 200)
        for at, (scale, scale_inv, of_expert) in enumerate(expected):
            count = len(scale)
            mine = slice(at * count, (at + 1) * count)
            assert torch.equal(codes.codes[side][at], of_expert), (side, at)
            assert torch.equal(made.scales[side][mine], scale), (side, at)
            assert torch.equal(made.scale_inv[side][mine], scale_inv), (side, at)  # of the first of two ranks
