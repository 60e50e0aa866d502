#!/usr/bin/env bash
# scripts/strict_check.sh <build folder> <folder> [train|large|generate|linear|first|tuned ...]     (default: all)
# Runs the examples and bench_linear on a GPU as a user who may write nothing, without NVRTC and cuBLASLt, and with
# nothing but the bundle that scripts/strict_bundle.sh made in <folder>: no kernel may be missing. Start it as root.
# `first` and `tuned` need NVRTC and cuBLASLt besides. Prints a line for each program; ends with 1 if one missed a
# kernel.
set -u
build=$(readlink -f "$1")
kit=$2
shift 2
[ $# -gt 0 ] || set -- train large generate linear first tuned
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$kit/strict.bundle" "$kit/text" "$kit/train.ingot" "$work"
mkdir "$work/bin" "$work/out"
cp "$build"/examples/{train_lm,generate} "$build"/bench/bench_linear "$build"/bin/ingot "$work/bin"
chown root:root "$work"/* && chmod -R a+rX "$work" && chown 65534:65534 "$work/out"
cd "$work" || exit 1
recipes="high_precision tensorwise delayed rowwise rowwise_folded rowwise_with_gw_hp blockwise"
bundle=$work/strict.bundle
bad=0

seconds_since() {
  local ms=$((($(date +%s%N) - $1) / 1000000))
  printf '%d.%02d' $((ms / 1000)) $((ms % 1000 / 10))
}

# strict <tiers> <name> <program...>
strict() {
  local tiers=$1 name=$2 begin rc
  shift 2
  begin=$(date +%s%N)
  setpriv --reuid=65534 --regid=65534 --clear-groups env -i PATH="$PATH" LD_LIBRARY_PATH="${LD_LIBRARY_PATH:-}" \
    HOME=/nonexistent INGOT_DEVICE=cuda INGOT_CACHE_DIR=/nonexistent/store INGOT_CACHE_TIERS="$tiers" \
    INGOT_CACHE_MODE=strict INGOT_CUDA_ROOT=none INGOT_STATS=1 ${RECORD:+INGOT_RECORD="$RECORD"} "$@" > log 2>&1
  rc=$?
  printf '%-46s rc %d  %6s s  %s\n' "$name" $rc "$(seconds_since "$begin")" \
    "$(grep -E 'kernels compiled in' log | head -1)"
  if [ $rc -ne 0 ] || ! grep -q '^ingot: 0 kernels compiled' log || grep -q WRONG log; then
    bad=1
    grep -E 'error|strict|WRONG' log | head -5
    tail -3 log
  fi
}

# train_lm <tiers> <name> <options...>
train_lm() {
  local tiers=$1 name=$2
  shift 2
  strict "$tiers" "$name" bin/train_lm --text text --out out/run "$@"
  rm -rf out/run
}

# The casts and reductions that a GPU asked for are those that the CPU's recording has; of matmuls the list has more.
casts_of() { grep -vE '^(#|gemm|relayout|dequant)' "$1" | sort -u; }

train() {
  for recipe in $recipes; do
    for graph in on off; do
      RECORD=$work/out/gpu.ingot train_lm "$bundle" "train_lm small $recipe graph $graph" --size small --steps 20 \
        --recipe "$recipe" --graph $graph
    done
  done
  diff <(casts_of out/gpu.ingot) <(casts_of train.ingot) || bad=1
  echo "matmul kernels: asked for $(grep -cE '^gemm .*kernel=' out/gpu.ingot), listed" \
    "$(bin/ingot warm --recording train.ingot --list | grep -c ' gemm ')"
}

large() {
  for recipe in $recipes; do train_lm "$bundle" "train_lm large $recipe" --size large --steps 4 --recipe "$recipe"; done
}

generate() {
  for batch in 1 16 64; do
    strict "$bundle" "generate tiny, $batch" bin/generate --preset tiny --batch $batch --tokens 8 --rounds 1
    strict "$bundle" "generate 2 layers of llama2-7b, $batch" bin/generate --preset llama2-7b --layers 2 \
      --batch $batch --tokens 8 --rounds 1
  done
}

linear() {
  for recipe in $recipes; do
    for model in llama3-8b llama2-70b; do
      strict "$bundle" "bench_linear $model $recipe" bin/bench_linear --quick --filter $model --recipe "$recipe"
    done
  done
}

# One step, the whole process, from an empty store (with NVRTC) and from the bundle.
first() {
  local one=(--size small --steps 1 --only fp8 --recipe rowwise) begin
  for i in 1 2 3; do
    begin=$(date +%s%N)
    INGOT_CACHE_DIR=$work/empty$i bin/train_lm "${one[@]}" --text text --out run > log 2>&1 || bad=1
    echo "first step, empty store: $(seconds_since "$begin") s"
    rm -rf run
    train_lm "$bundle" "first step, bundle" "${one[@]}"
  done
}

tuned() {
  export INGOT_CACHE_DIR=$work/tuned
  for recipe in tensorwise rowwise blockwise; do
    INGOT_RECORD=$work/tune.ingot bin/train_lm --size small --steps 4 --recipe $recipe --text text --out run \
      > log 2>&1 || bad=1
    rm -rf run
  done
  bin/ingot tune --recording tune.ingot > log 2>&1 || bad=1
  bin/ingot tune --export records.json || bad=1
  bin/ingot warm --recording tune.ingot --tuning records.json --bundle tuned.bundle | tail -2
  chmod a+r tuned.bundle
  for recipe in tensorwise rowwise blockwise; do
    train_lm "$work/tuned.bundle:$bundle" "train_lm small $recipe, tuned" --size small --steps 20 --recipe $recipe
  done
}

for what; do
  case $what in
    train | large | generate | linear | first | tuned) "$what" ;;
    *) echo "strict_check: $what is none of train, large, generate, linear, first, tuned" >&2; exit 2 ;;
  esac
done
[ $bad = 0 ] && echo "strict: nothing was missed" || echo "strict: SOMETHING FAILED"
exit $bad
