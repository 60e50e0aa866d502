#include "cases.h"

namespace ingot::test {

std::string_view name(Input input) {
  constexpr std::array<std::string_view, 8> kNames{"normal", "nan",    "inf",       "zeros",
                                                   "equal",  "spread", "subnormal", "integers"};
  return kNames[static_cast<std::size_t>(input)];
}

std::string name(const Case& c) {
  std::string line = print(c.spec) + " " + std::to_string(c.shape.rows) + "x" + std::to_string(c.shape.cols);
  if (std::holds_alternative<GemmSpec>(c.spec)) line += "x" + std::to_string(c.shape.inner);
  line += " " + std::string(name(c.input));
  if (c.placement.padding != 0) line += " padding=" + std::to_string(c.placement.padding);
  if (c.placement.offset != 0) line += " offset=" + std::to_string(c.placement.offset);
  if (const auto* const gemm = std::get_if<GemmSpec>(&c.spec); gemm != nullptr && gemm->epilogue.c && c.beta == 0) {
    line += " beta=0";
  }
  if (c.a_by_group) line += " scale_inv_a by group";
  if (c.b_by_group) line += " scale_inv_b by group";
  if (c.scale_inv_by_group) line += " scale_inv by group";
  return line;
}

std::vector<KernelSpec> fused_specs() {
  constexpr std::array kLines{
      "cast bf16->e4m3fn of=silu(x)*gate scale=row out=codes,result",
      "cast bf16->e4m3fn of=x*sigmoid(1.702*x) scale=tensor out=codes,transposed",
      "cast bf16->e4m3fn of=gelu(x+bias[col]) scale=1x128+128x1 out=codes,transposed",
      "cast bf16->e4m3fn of=(x-mean[row])*rstd[row]*gamma[col]+beta[col] scale=row+col out=codes,transposed",
      "cast bf16->e5m2 of=relu(x) scale=128x128 out=codes,result,sum:f32 given",
      "cast f32->e4m3fn of=softplus(x)-gate/(1+abs(gate)) scale=col out=transposed unrounded",
      "cast bf16->e4m3fnuz of=silu(x)*gate scale=row out=codes,result unrounded",
      "cast bf16->e4m3fn of=a*b-min(a,c[row]) scale=tensor out=codes,transposed pow2",  // without x
      "cast f16->e5m2fnuz of=erf(x)*tanh(gate) scale=row out=transposed",
      "cast f32->e5m2 of=expm1(min(x,1))*rsqrt(1+y^2)+log1p(abs(z)) scale=col out=codes,result",
      "cast bf16->e4m3fn scale=tensor out=codes,transposed,sum:f32", "cast f32->e4m3fn scale=row out=codes,sum:f16",
      "cast bf16->e4m3fn of=silu(x)*gate scale=1x128 out=codes,result",
      "cast bf16->e4m3fn of=silu(x)*gate scale=row out=codes,transposed,result,sum:f32",
      "cast bf16->e4m3fn of=silu(x)*gate+residual scale=row+col out=codes,transposed",
      "cast bf16->e4m3fn of=x*a[col]+b[col] scale=tensor out=codes,transposed",
      "cast bf16->e4m3fn of=x*y*z[col]+b[col] scale=1x128 out=codes,result",
      "cast bf16->e4m3fn of=silu(x)*gate+residual scale=tensor out=codes,transposed",
      "cast f16->e5m2 of=x*a+b*c-d scale=row out=codes,transposed",
      "cast f32->e5m2 of=x*gate scale=row+col out=codes,transposed,result,sum:bf16 unrounded",
      "cast f16->e4m3fn of=x+y scale=row out=codes,transposed",
      "cast bf16->e5m2 of=x*factor[col:f32] scale=row out=codes,transposed,sum:f32",
      "cast bf16->e4m3fn of=silu(x)*gate scale=tensor out=codes,transposed given",
      "cast bf16->e4m3fn of=silu(x)*f[col:f32]+b[col] scale=1x128+col out=codes,transposed",
      "cast f16->e4m3fn of=(x-m[row])*f[col:f32]*g[col:f32] scale=1x128 out=codes,result unrounded",
      "cast f32->e5m2 of=gate*f[col:f32]-x scale=tensor out=codes,transposed,result",
      "cast bf16->e4m3fn of=silu(x)*gate scale=row out=codes,result fast",
      // The first pass keeps the values of these.
      "cast bf16->e5m2 of=grad*(sigmoid(x)+x*(sigmoid(x)*(1-sigmoid(x)))) scale=tensor out=codes,transposed,sum:f32",
      "cast f16->e4m3fnuz of=grad*sigmoid(x) scale=row+col out=codes,transposed,result,sum:f16",
      "cast f32->e4m3fn of=grad*tanh(x) scale=tensor+col out=codes,transposed"};
  std::vector<KernelSpec> specs;
  for (const char* const line : kLines) specs.push_back(parse(line));
  CastSpec backwards{.out = Dtype::e5m2,
                     .transposed = true,
                     .source = ScaleSource::given,
                     .pointwise = backward(parse_pointwise("x * sigmoid(1.702 * x)"), "x"),
                     .sum = Dtype::bf16};
  specs.emplace_back(backwards);
  backwards.source = ScaleSource::dynamic;
  backwards.fast_math = true;
  specs.emplace_back(backwards);
  return specs;
}

std::vector<GemmSpec> epilogue_specs() {
  constexpr std::array kLines{
      "gemm e4m3fn*e4m3fn->bf16 scale=row,row bias epilogue=silu(x)*gate also=preactivation,amax fast",
      "gemm e4m3fn*e5m2->f32 scale=tensor,tensor c=f32",
      "gemm e5m2*e4m3fn->f32 scale=row,row c=f32 fast",
      "gemm e4m3fn*e4m3fn->bf16 scale=tensor,row c=bf16 epilogue=x+residual",
      "gemm e4m3fn*e4m3fn->e4m3fn scale=row,row bias epilogue=gelu(x) also=preactivation,amax fast",
      "gemm e4m3fn*e4m3fn->e5m2 scale=tensor,tensor c=f16",
      "gemm e5m2*e5m2->f16 scale=row,tensor epilogue=relu(x)*w[col]+r[row] also=amax",
      "gemm e4m3fn*e4m3fn->bf16 scale=1x128,128x128 epilogue=sigmoid(x) also=preactivation",
      "gemm e4m3fn*e4m3fn->f32 scale=1x128,1x128 bias c=bf16 also=amax",
      "gemm e4m3fn*e4m3fn->bf16 scale=row,row epilogue=a*b-min(a,w[col])",  // without x
      "gemm e4m3fn*e4m3fn->f32 scale=row,row bias c=f32 epilogue=tanh(x)*a+b-d also=preactivation,amax",
      "gemm e4m3fn*e4m3fn->bf16 scale=tensor,tensor also=amax",
      "gemm e4m3fnuz*e5m2fnuz->e4m3fnuz scale=row,row bias epilogue=silu(x)*gate also=amax",
      "gemm bf16*bf16->bf16 nt bias epilogue=silu(x) also=preactivation",
      "gemm bf16*bf16->f32 tn c=f32",
      "gemm f32*f32->f32 nn c=f16 epilogue=tanh(x)*a+b also=preactivation,amax"};
  std::vector<GemmSpec> specs;
  for (const char* const line : kLines) specs.push_back(std::get<GemmSpec>(parse(line)));
  return specs;
}

std::vector<KernelSpec> elementwise_specs() {
  constexpr std::array kLines{"elementwise bf16 of=silu(x)*gate",
                              "elementwise bf16 of=x*r[row]",  // the huge one
                              "elementwise f16 of=(x-mean[row])*rstd[row]*gamma[col]+beta[col]",
                              "elementwise f32 of=x*a+b*c-d",
                              "elementwise f16 of=x*a+b*c-d",
                              "elementwise bf16 of=a*b-min(a,c[row])",
                              "elementwise f32 of=gelu(x+bias[col])",
                              "elementwise f32 of=w[col]*r[row]",
                              "elementwise bf16 of=x*factor[col:f32]",
                              "elementwise f16 of=x*f[col:f32]+g[col:f32]*gate",
                              "elementwise f32 of=gelu(x)*f[col:f32]+b[col]",
                              "elementwise bf16 of=silu(x)*gate fast",
                              "elementwise f16 of=a*b second=x*c[row]-b",  // x for the second alone
                              "elementwise f32 of=x*a+w[col] second=b*min(a,x)-d",
                              "elementwise bf16 of=x*a+b*c-d second=d*c-b*a",  // in another order
                              "elementwise bf16 of=a*f[col:f32] second=r[row]*max(a,0.1)",
                              "elementwise bf16 of=x*b[col]-gate amax",
                              "elementwise f32 of=x*r[row] amax",
                              "elementwise f16 of=x*a second=b-a*c[row] amax",
                              "elementwise f32 of=x*a second=x*a+w[col] amax fast",
                              "elementwise f32 of=x*r[row] row_sum=x*a+b[col]",
                              "elementwise f16 of=a second=a*r[row] row_sum=x*f[col:f32]",  // x for the sum alone
                              "elementwise f32 of=x*r[row] row_sum=x*a+b[col] maxima",
                              "elementwise f16 of=a second=x*f[col:f32] maxima"};
  std::vector<KernelSpec> specs;
  for (const char* const line : kLines) specs.push_back(parse(line));
  specs.emplace_back(ElementwiseSpec{.pointwise = backward(parse_pointwise("gelu(x) * up"), "x")});
  const auto add_gradients = [&](const char* activation, bool fast, bool amax) {
    const Pointwise of = parse_pointwise(activation);
    specs.emplace_back(
        ElementwiseSpec{.pointwise = backward(of, "x"), .second = backward(of, "up"), .amax = amax, .fast_math = fast});
  };
  add_gradients("silu(x) * up", false, false);
  add_gradients("silu(x) * up", true, false);
  add_gradients("gelu(x) * up", false, false);
  add_gradients("silu(x) * up", false, true);
  const Pointwise weighted = parse_pointwise("silu(x) * up * weight[row]");
  for (const bool maxima : {false, true}) {
    specs.emplace_back(ElementwiseSpec{.pointwise = backward(weighted, "x"),
                                       .second = backward(weighted, "up"),
                                       .row_sum = backward(weighted, "weight"),
                                       .maxima = maxima});
  }
  return specs;
}

bool is_fused(const KernelSpec& spec) {
  const auto* const cast = std::get_if<CastSpec>(&spec);
  return cast != nullptr && (cast->pointwise || cast->sum);
}

std::vector<KernelSpec> all_specs() {
  std::vector<KernelSpec> specs = all_valid_specs();
  for (const auto& more : {fused_specs(), elementwise_specs()}) specs.insert(specs.end(), more.begin(), more.end());
  return specs;
}

bool typical(const GemmSpec& spec) {
  const bool pair = spec.a == spec.b || (spec.a == Dtype::e5m2 && spec.b == Dtype::e4m3fn);
  return pair && spec.scale_a == spec.scale_b && spec.out != Dtype::f16;
}

std::vector<Case> gemm_cases(const GemmSpec& spec) {
  std::vector<Case> cases;
  for (const Shape& shape : kGemmShapes) {
    cases.push_back({.spec = spec, .shape = shape});
    cases.push_back({.spec = spec, .shape = shape, .input = Input::integers});
  }
  if (!typical(spec)) return cases;
  for (const auto& [shape, size] : kMoreGemmShapes) cases.push_back({.spec = spec, .shape = shape, .size = size});
  for (const Input input : {Input::zeros, Input::nan}) {
    cases.push_back({.spec = spec, .shape = {48, 32, 64}, .input = input});
    cases.push_back({.spec = spec, .shape = {33, 17, 65}, .input = input});
  }
  for (const Placement placement : kPlacements) {
    cases.push_back({.spec = spec, .shape = {48, 32, 64}, .placement = placement});
  }
  return cases;
}

bool runs_huge(const KernelSpec& spec) {
  if (is_fused(spec)) return false;
  if (const auto* const cast = std::get_if<CastSpec>(&spec)) {
    if (cast->in != Dtype::bf16 || cast->out != Dtype::e4m3fn || cast->pow2) return false;
    if (cast->transposed_scale) return cast->scale == kRowwise && *cast->transposed_scale == kColumnwise;
    const bool given = cast->source == ScaleSource::given;
    return given ? cast->codes && cast->transposed && cast->scale == kTensorwise
                 : cast->codes && (cast->transposed || cast->scale == kRowwise || cast->scale == kRowGroups);
  }
  if (const auto* const amax = std::get_if<AmaxSpec>(&spec)) return amax->in == Dtype::bf16;
  if (std::holds_alternative<ElementwiseSpec>(spec)) return spec == parse("elementwise bf16 of=x*r[row]");
  if (const auto* const norm = std::get_if<NormSpec>(&spec)) {
    return *norm == NormSpec{.kind = NormKind::rms, .in = Dtype::bf16, .out = Dtype::e4m3fn, .affine = true};
  }
  const auto* const sum = std::get_if<ColumnSumSpec>(&spec);
  return sum != nullptr && sum->in == Dtype::bf16 && sum->out == Dtype::f32;
}

bool thorough(const KernelSpec& spec) {
  if (const auto* const norm = std::get_if<NormSpec>(&spec)) {
    if (norm->in != Dtype::bf16 || norm->pow2) return false;
    return !norm->out || (norm->out == Dtype::e4m3fn && norm->result == norm->stats);
  }
  if (const auto* const stats = std::get_if<CastStatsSpec>(&spec)) {
    return !stats->out || (stats->in == Dtype::bf16 && stats->out == Dtype::e4m3fn);
  }
  const auto* const cast = std::get_if<CastSpec>(&spec);
  if (cast == nullptr || is_fused(spec)) return true;
  if (cast->in == Dtype::bf16 && cast->out == Dtype::e4m3fn) return true;
  return !cast->transposed_scale && cast->source == ScaleSource::dynamic &&
         (cast->scale == kTensorwise || cast->scale == kRowwise);
}

bool runs_large(const KernelSpec& spec) {
  if (const auto* const stats = std::get_if<CastStatsSpec>(&spec)) {
    return stats->in == Dtype::bf16 && stats->out == Dtype::e4m3fn &&
           (stats->scale == kRowwise || stats->scale == kColumnGroups);
  }
  const auto* const cast = std::get_if<CastSpec>(&spec);
  if (cast == nullptr || is_fused(spec)) return thorough(spec);
  return thorough(spec) && !cast->pow2 && (cast->out == Dtype::e4m3fn || cast->out == Dtype::e5m2fnuz);
}

std::vector<Case> matrix_cases(const KernelSpec& spec) {
  std::vector<Case> cases;
  const SizeClass small = thorough(spec) ? SizeClass::ci : SizeClass::gpu;
  for (const auto& [shape, size] : kMatrixShapes) {
    if (size == SizeClass::gpu && !runs_large(spec)) continue;
    if (size == SizeClass::huge && !runs_huge(spec)) continue;
    if (shape.cols == 0 && std::holds_alternative<AmaxHistorySpec>(spec)) continue;  // a history has at least one entry
    cases.push_back({.spec = spec, .shape = shape, .size = size == SizeClass::ci ? small : size});
  }
  for (const Input input : kInputs) {
    if (input == Input::normal) continue;
    cases.push_back({.spec = spec, .shape = {37, 131}, .input = input, .size = small});
    cases.push_back({.spec = spec, .shape = {96, 256}, .input = input, .size = small});
  }
  for (const Placement placement : kPlacements) {
    cases.push_back({.spec = spec, .shape = {70, 256}, .placement = placement, .size = small});
  }
  if (std::holds_alternative<NormSpec>(spec) || std::holds_alternative<NormBackwardSpec>(spec)) {
    for (const Shape& shape : kNormShapes) cases.push_back({.spec = spec, .shape = shape, .size = small});
    // A single row can be read in vectors, however odd the pitch.
    cases.push_back({.spec = spec, .shape = {1, 1024}, .placement = {.padding = 3}, .size = small});
  }
  if (small == SizeClass::ci) return cases;
  cases.push_back({.spec = spec, .shape = {131, 264}});
  cases.push_back({.spec = spec, .shape = {37, 131}, .input = Input::spread, .placement = {3, 0}});
  return cases;
}

std::vector<Case> cases_of(const KernelSpec& spec) {
  const auto* const gemm = std::get_if<GemmSpec>(&spec);
  return gemm != nullptr ? gemm_cases(*gemm) : matrix_cases(spec);
}

std::vector<Case> cases(SizeClass size) {
  std::vector<Case> chosen;
  for (const KernelSpec& spec : all_specs()) {
    for (const Case& c : cases_of(spec)) {
      if (c.size == size) chosen.push_back(c);
    }
  }
  return chosen;
}

}  // namespace ingot::test
