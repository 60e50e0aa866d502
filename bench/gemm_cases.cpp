#include "gemm_cases.h"

#include <fmt/format.h>

#include <utility>

#include "ingot/codegen/kernel_spec.h"

namespace ingot::bench {
namespace {

struct NamedSize {
  const char* label;
  std::int64_t m, k, n;
};

// Squares; Llama's layers at 16384 tokens; few tokens; one with a short K, where the time for writing tiles shows;
// tokens that fill no tile; few columns; layers of other models; and sizes that no choice was fitted to.
constexpr NamedSize kGemmSizes[] = {{"", 256, 256, 256},
                                    {"", 512, 512, 512},
                                    {"", 1024, 1024, 1024},
                                    {"", 2048, 2048, 2048},
                                    {"", 4096, 4096, 4096},
                                    {"", 8192, 8192, 8192},
                                    {"", 16384, 16384, 16384},
                                    {"wqkv ", 16384, 8192, 1280},
                                    {"w0 ", 16384, 1024, 8192},
                                    {"w13 ", 16384, 8192, 7168},
                                    {"w2 ", 16384, 3584, 8192},
                                    {"few tokens ", 64, 4096, 11008},
                                    {"few tokens ", 128, 8192, 28672},
                                    {"short K ", 16384, 1280, 8192},
                                    {"", 3000, 4096, 4096},
                                    {"", 3000, 4096, 14336},
                                    {"", 6144, 3584, 512},
                                    {"", 6144, 5120, 13824},
                                    {"", 6144, 18944, 3584},
                                    {"unlisted ", 1777, 2560, 6912},
                                    {"unlisted ", 1777, 6912, 2560},
                                    {"unlisted ", 5000, 1360, 3072},
                                    {"unlisted ", 2500, 4096, 640},
                                    {"unlisted ", 1001, 5120, 17920}};

// In addition to kGemmSizes, for bf16: the layer's other two GEMMs, grad_input and grad_weight, with operands across K.
constexpr NamedSize kGradientSizes[] = {{"", 1024, 1024, 1024}, {"", 2048, 2048, 2048}, {"", 4096, 4096, 4096},
                                        {"", 8192, 8192, 8192}, {"", 3000, 4096, 4096}, {"", 3000, 4096, 14336},
                                        {"", 6144, 3584, 512}};
constexpr std::pair<const char*, Layout> kBf16Layouts[] = {{" grad_input", Layout::k_major},
                                                           {" grad_weight", Layout::mn_major}};

// Epilogues that layers use, at sizes where the multiplication of one tile should hide the epilogue of another.
constexpr std::int64_t kEpilogueSizes[] = {4096, 8192};
constexpr std::pair<const char*, const char*> kEpilogues[] = {
    {"bias", "bias"},
    {"relu", "epilogue=relu(x)"},
    {"gelu", "epilogue=gelu_tanh(x)"},
    {"silu", "epilogue=silu(x)"},
    {"sigmoid", "epilogue=sigmoid(x)"},
    {"residual", "epilogue=x+residual"},
    {"amax", "also=amax"},
    {"bias, silu, preactivation", "bias epilogue=silu(x) also=preactivation"},
    {"accumulation", "c=bf16"}};

}  // namespace

GemmSpec without_epilogue(GemmSpec spec) {
  spec.bias = false;
  spec.epilogue = {};
  return spec;
}

std::string name(const GemmCase& c) { return c.shape + ", " + c.mode; }

double operations(const GemmCase& c) { return 2 * products_of(c.size); }

std::vector<GemmCase> gemm_cases() {
  std::vector<GemmCase> cases;
  for (const NamedSize& s : kGemmSizes) {
    cases.push_back({.shape = fmt::format("{}{}x{}x{}", s.label, s.m, s.k, s.n),
                     .mode = kBf16,
                     .spec = {.a = Dtype::bf16, .b = Dtype::bf16},
                     .size = {.m = s.m, .n = s.n, .k = s.k}});
    for (const bool rowwise : {false, true}) {
      for (const bool fast : {true, false}) {
        const ScaleGranularity scale = rowwise ? kRowwise : kTensorwise;
        cases.push_back({.shape = fmt::format("{}{}x{}x{}", s.label, s.m, s.k, s.n),
                         .mode = fmt::format("{} {}", rowwise ? "row" : "tensor", fast ? "fast" : "accurate"),
                         .spec = {.scale_a = scale, .scale_b = scale, .fast_accumulation = fast},
                         .size = {.m = s.m, .n = s.n, .k = s.k}});
      }
    }
    for (const bool blocks : {true, false}) {
      for (const bool order : {false, true}) {
        cases.push_back({.shape = fmt::format("{}{}x{}x{}", s.label, s.m, s.k, s.n),
                         .mode = fmt::format("{}{}", blocks ? "blocks" : "groups", order ? " read" : ""),
                         .spec = {.scale_a = kRowGroups, .scale_b = blocks ? kBlocks : kRowGroups},
                         .size = {.m = s.m, .n = s.n, .k = s.k},
                         .cublaslts_order = order});
      }
    }
  }
  for (const NamedSize& s : kGradientSizes) {
    for (const auto& [label, layout_a] : kBf16Layouts) {
      cases.push_back({.shape = fmt::format("{}{}x{}x{}", s.label, s.m, s.k, s.n),
                       .mode = fmt::format("{}{}", kBf16, label),
                       .spec = {.a = Dtype::bf16, .b = Dtype::bf16, .layout_a = layout_a, .layout_b = Layout::mn_major},
                       .size = {.m = s.m, .n = s.n, .k = s.k}});
    }
  }
  for (const std::int64_t n : kEpilogueSizes) {
    for (const bool fast : {true, false}) {
      for (const auto& [label, words] : kEpilogues) {
        const std::string line = fmt::format("gemm e4m3fn*e4m3fn->bf16 scale=row,row {}{}", words, fast ? " fast" : "");
        cases.push_back({.shape = fmt::format("{0}x{0}x{0}", n),
                         .mode = fmt::format("row {}, {}", fast ? "fast" : "accurate", label),
                         .spec = std::get<GemmSpec>(parse(line)),
                         .size = {.m = n, .n = n, .k = n}});
      }
    }
  }
  return cases;
}

}  // namespace ingot::bench
