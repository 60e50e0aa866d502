#!/usr/bin/env bash
# scripts/strict_bundle.sh <build folder> <output folder>
# Makes strict.bundle and what scripts/strict_check.sh needs besides, on a machine without a GPU: the kernels of the
# examples and benchmarks, for Hopper.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1
out=$2
mkdir -p "$out"
export INGOT_CACHE_DIR=$out/store INGOT_DEVICE=cpu
unset INGOT_CACHE_TIERS INGOT_CACHE_MODE
ingot=$build/bin/ingot
start=$SECONDS
# A text for train_lm, the same here and there.
[ -f "$out/text" ] || python3 -c "
import random
random.seed(1)
words = [''.join(random.choices('abcdefghijklmnopqrstuvwxyz', k=random.randint(2, 9))) for _ in range(2000)]
print(' '.join(random.choices(words, k=200000)))" > "$out/text"
# What the examples ask for, and their own kernels: on the CPU they are compiled for sm_90a.
for r in high_precision tensorwise delayed rowwise rowwise_folded rowwise_with_gw_hp blockwise; do
  INGOT_RECORD=$out/train.ingot "$build/examples/train_lm" --device cpu --size small --text "$out/text" --steps 2 \
    --recipe $r --out "$out/run" > "$out/train_$r.log" 2>&1 || { cat "$out/train_$r.log"; exit 1; }
  rm -rf "$out/run"
done
# The large model, which a CPU cannot train: the same layers with small sizes, and then the sizes that it has.
for r in high_precision tensorwise delayed rowwise rowwise_folded rowwise_with_gw_hp blockwise; do
  INGOT_RECORD=$out/shapes.ingot "$build/examples/train_lm" --device cpu --context 12 --embedding 16 --hidden 320 \
    --batch 448 --text "$out/text" --steps 2 --recipe $r --out "$out/run" > "$out/shapes_$r.log" 2>&1 ||
    { cat "$out/shapes_$r.log"; exit 1; }
  rm -rf "$out/run"
done
sed -E '/ [0-9]+ [0-9]+ [0-9]+$/{s/ 192\b/ 4096/g;s/ 320\b/ 8192/g;s/ 448\b/ 8192/g}' \
  "$out/shapes.ingot" > "$out/large.ingot"
for b in 1 16 64; do
  INGOT_RECORD=$out/generate.ingot "$build/examples/generate" --device cpu --preset tiny --batch $b --tokens 4 \
    --rounds 1 > "$out/generate_$b.log" 2>&1 || { cat "$out/generate_$b.log"; exit 1; }
done
# bench_linear: the probe of its roofline, the layer of its host line, its layers of Llama-2-70B.
cat > "$out/probe.ingot" <<'R'
cast bf16->e4m3fn scale=row out=codes
gemm bf16*bf16->bf16 nt 8192 8192 8192
gemm e4m3fn*e4m3fn->bf16 nt scale=row,row fast 8192 8192 8192
R
echo '{"training": [{"name": "host", "in_features": 256, "out_features": 256}], "decoding": []}' > "$out/host.json"
cat > "$out/llama2_70b.json" <<'R'
{"training": [{"name": "wqkv", "in_features": 8192, "out_features": 1280},
              {"name": "wo", "in_features": 1024, "out_features": 8192},
              {"name": "w13", "in_features": 8192, "out_features": 7168},
              {"name": "w2", "in_features": 3584, "out_features": 8192}], "decoding": []}
R
"$ingot" warm --set llama3-8b,llama2-7b --recording "$out/train.ingot" \
  --recording "$out/large.ingot" --recording "$out/generate.ingot" --recording "$out/probe.ingot"
"$ingot" warm --layers "$out/host.json" --tokens 256 --decode none
"$ingot" warm --layers "$out/llama2_70b.json" --tokens 16384 --decode none
rm -f "$out/strict.bundle"
"$ingot" cache export "$out/strict.bundle"
"$ingot" cache stat
echo "bundle made in $((SECONDS - start)) s"
