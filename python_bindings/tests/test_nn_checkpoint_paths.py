"""Where load_float8_checkpoint() finds a checkpoint: the hub's cache by an id, without the network; and Git LFS's pointers."""

import json
import os

import pytest

torch = pytest.importorskip("torch")

import ingot
from ingot.nn import FrozenFloat8Config, load_float8_checkpoint, quantize_, save_float8_checkpoint

K, N = 32, 48
COMMIT = "0123456789abcdef0123456789abcdef01234567"
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"


def model():
    return torch.nn.Sequential(torch.nn.Linear(K, N, bias=False, dtype=torch.bfloat16))


def saved(folder):
    made = model()
    quantize_(made, FrozenFloat8Config())
    save_float8_checkpoint(made, folder)
    return made[0].dequantize()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home" / "hub"


def downloaded(cache, commit=COMMIT, ref=COMMIT):
    """As huggingface_hub stores a model: blobs, and a snapshot of links to them."""
    folder = cache / "models--some-org--Small.Model-FP8"
    values = saved(folder / "made")
    snapshot = folder / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (folder / "blobs").mkdir(exist_ok=True)
    for at, file in enumerate(sorted((folder / "made").iterdir())):
        os.replace(file, folder / "blobs" / f"{commit}{at}")
        (snapshot / file.name).symlink_to(f"../../blobs/{commit}{at}")
    (folder / "made").rmdir()
    if ref:
        (folder / "refs").mkdir(exist_ok=True)
        (folder / "refs" / "main").write_text(ref)
    return values


@pytest.mark.parametrize("name", ["HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME"])
def test_an_id_of_the_hub(cache, monkeypatch, name):
    """By each variable that huggingface_hub reads."""
    values = downloaded(cache)
    if name == "XDG_CACHE_HOME":
        monkeypatch.delenv("HF_HOME")
        os.rename(cache.parent, cache.parent.parent / "huggingface")
        monkeypatch.setenv(name, str(cache.parent.parent))
    elif name != "HF_HOME":
        monkeypatch.setenv("HF_HOME", "/nowhere")
        monkeypatch.setenv(name, str(cache))
    loaded = model()
    load_float8_checkpoint(loaded, "some-org/Small.Model-FP8")
    assert torch.equal(loaded[0].dequantize(), values)


def test_the_snapshot_of_main(cache):
    downloaded(cache, "a" * 40, None)
    loaded = model()
    load_float8_checkpoint(loaded, "some-org/Small.Model-FP8")  # the only one
    main = cache / "models--some-org--Small.Model-FP8" / "refs" / "main"
    main.parent.mkdir()
    main.write_text("c" * 40)
    with pytest.raises(ingot.Error, match="cache has no snapshot of its main branch, but a{40}: give the path of one in "):
        load_float8_checkpoint(loaded, "some-org/Small.Model-FP8")
    values = downloaded(cache, "b" * 40, "b" * 40)
    load_float8_checkpoint(loaded, "some-org/Small.Model-FP8")
    assert torch.equal(loaded[0].dequantize(), values)
    main.write_text("c" * 40)
    with pytest.raises(ingot.Error, match="cache has no snapshot of its main branch, but aaaa.*, bbbb.*: give the path of one in "):
        load_float8_checkpoint(loaded, "some-org/Small.Model-FP8")
    assert torch.equal(loaded[0].dequantize(), values)


def test_what_is_nowhere(cache):
    with pytest.raises(ingot.Error, match=r"some-org/other: is neither a file nor a folder, and the hub's cache \(.*/home/hub\) has no") as found:
        load_float8_checkpoint(model(), "some-org/other")
    assert str(found.value).endswith("download it first, with hf download some-org/other, or give its folder")
    for path in ("some-org/other/part", "some-org/m.safetensors", "../other", "only-a-name", "gone/m.index.json"):
        with pytest.raises(ingot.Error, match="(cannot be opened: No|there is no) such file"):
            load_float8_checkpoint(model(), path)


def test_a_folder_goes_before_an_id(cache, tmp_path):
    downloaded(cache)
    values = saved(tmp_path / "some-org" / "Small.Model-FP8")
    loaded = model()
    load_float8_checkpoint(loaded, "some-org/Small.Model-FP8")
    assert torch.equal(loaded[0].dequantize(), values)


def test_the_files_of_diffusers(tmp_path):
    """Their name, in a folder that has no model.safetensors: one file, or an index."""
    values = saved(tmp_path)
    file = tmp_path / "diffusion_pytorch_model.safetensors"
    os.rename(tmp_path / "model.safetensors", file)
    for _ in range(2):
        loaded = model()
        load_float8_checkpoint(loaded, tmp_path)
        assert torch.equal(loaded[0].dequantize(), values)
        if file.exists():
            names = {name: "part.safetensors" for name in ("0.weight", "0.weight_scale")}
            os.rename(file, tmp_path / "part.safetensors")
            (tmp_path / f"{file.name}.index.json").write_text(json.dumps({"weight_map": names}))
    (tmp_path / "part.safetensors").write_text(POINTER)
    with pytest.raises(ingot.Error, match="part.safetensors: is a pointer of Git LFS"):
        load_float8_checkpoint(model(), tmp_path)
    os.unlink(tmp_path / f"{file.name}.index.json")
    os.unlink(tmp_path / "part.safetensors")
    with pytest.raises(ingot.Error, match="has neither model.safetensors nor model.safetensors.index.json"):
        load_float8_checkpoint(model(), tmp_path)


def test_pointers_of_git_lfs(tmp_path):
    """Each file that may be one: the weights, a shard, the index, and config.json."""
    values = saved(tmp_path)
    weights, index = tmp_path / "model.safetensors", tmp_path / "model.safetensors.index.json"
    whole = weights.read_bytes()
    remedy = r"is a pointer of Git LFS, not the file: fetch it with git lfs pull, or download the checkpoint again"
    weights.write_text(POINTER)
    for path in (tmp_path, weights):
        with pytest.raises(ingot.Error, match=rf"{weights}: {remedy}"):
            load_float8_checkpoint(model(), path)
    os.rename(weights, tmp_path / "model-00001-of-00002.safetensors")
    (tmp_path / "model-00002-of-00002.safetensors").write_text(POINTER)
    index.write_text(json.dumps({"weight_map": {"0.weight": "model-00001-of-00002.safetensors"}}))
    for path in (tmp_path, index):
        with pytest.raises(ingot.Error, match=rf"model-00001-of-00002.safetensors \(and 1 more in this folder\): {remedy}"):
            load_float8_checkpoint(model(), path)
    (tmp_path / "model-00001-of-00002.safetensors").write_bytes(whole)
    os.unlink(tmp_path / "model-00002-of-00002.safetensors")
    index.write_text(POINTER)
    with pytest.raises(ingot.Error, match=rf"{index}: {remedy}"):
        load_float8_checkpoint(model(), tmp_path)
    os.unlink(index)
    weights.write_bytes(whole)
    (tmp_path / "config.json").write_text(POINTER)
    with pytest.raises(ingot.Error, match=rf"config.json: {remedy}"):
        load_float8_checkpoint(model(), tmp_path)
    os.unlink(tmp_path / "config.json")
    loaded = model()
    load_float8_checkpoint(loaded, tmp_path)
    assert torch.equal(loaded[0].dequantize(), values)
