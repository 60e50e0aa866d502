"""Calls on CUDA tensors, through DLPack, against the CPU. Skipped without a GPU."""

import pytest

import ingot

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)


@pytest.mark.parametrize("scale", ["tensor", "row"])
@pytest.mark.parametrize("dtype", ["e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz"])
@pytest.mark.parametrize("shape", [(1, 1), (17, 33), (120, 2080), (1024, 512)])
def test_casts_equal_the_cpus(shape, dtype, scale):
    x = torch.randn(shape, dtype=torch.bfloat16)
    cpu = ingot.cast(x, dtype, scale=scale, transposed=True)
    gpu = ingot.cast(x.cuda(), dtype, scale=scale, transposed=True)
    for name in ("codes", "transposed", "scale_inv"):
        assert torch.equal(getattr(cpu, name).view(torch.uint8), getattr(gpu, name).cpu().view(torch.uint8)), name


def test_fused_casts_equal_the_cpus():
    x, gate, bias = torch.randn(130, 264).bfloat16(), torch.randn(130, 264).bfloat16(), torch.randn(264).bfloat16()
    of = ingot.derivative("silu(x + bias[col]) * gate * rms[row]")
    inputs = {"gate": gate, "bias": bias, "rms": torch.rand(130)}
    options = {"of": of, "scale": "row", "transposed_scale": "col", "transposed": True, "result": True, "sum": "f32"}
    cpu = ingot.cast(x, "e5m2", inputs=inputs, **options)
    gpu = ingot.cast(x.cuda(), "e5m2", inputs={name: array.cuda() for name, array in inputs.items()}, **options)
    for name in ("codes", "transposed", "scale_inv", "transposed_scale_inv", "result", "sum"):
        assert torch.equal(getattr(cpu, name).view(torch.uint8), getattr(gpu, name).cpu().view(torch.uint8)), name


def test_gemm_runs_on_the_current_stream():
    a, b = (torch.randint(-4, 5, shape, dtype=torch.int8).to(torch.bfloat16).cuda() for shape in ((64, 256), (128, 256)))
    want = a.double() @ b.double().t()
    with torch.cuda.stream(torch.cuda.Stream()):
        got = ingot.gemm(a, b, out_dtype="f32")
        torch.cuda.current_stream().synchronize()
    assert torch.equal(got.double(), want)
