// One launch: tensor maps are encoded, into the kernel's own parameters (0.1 us each, so that none is kept), and blocks
// stay on their multiprocessors.
#include "ingot/codegen/sm90_tiling.h"
#include "ingot/runtime/check.h"
#include "ingot/runtime/cuda/driver_api.h"
#include "ingot/runtime/cuda/gemm_params.h"
#include "ingot/runtime/cuda/operations.h"

#include "gemm_sm90.cuh"

namespace ingot::cuda {
namespace {

static_assert(sizeof(TensorMap) == sizeof(CUtensorMap) && alignof(TensorMap) >= alignof(CUtensorMap));

struct Box {
  CUtensorMapDataType type;
  u32 cols, rows;
};

// Boxes of rows of 128 bytes in the 128-byte swizzle. What lies outside of the matrix is zeros, and is not written.
void encode(TensorMap& map, const Tensor& tensor, const Box& box, const Driver& driver) {
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(tensor.cols), static_cast<cuuint64_t>(tensor.rows)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(tensor.row_stride * size_of(tensor.dtype))};
  const cuuint32_t extents[] = {box.cols, box.rows};
  const cuuint32_t steps[] = {1, 1};
  driver.check(driver.api().cuTensorMapEncodeTiled(reinterpret_cast<CUtensorMap*>(&map), box.type, 2, tensor.data,
                                                   sizes, strides, extents, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                                   CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                                                   CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
               "cuTensorMapEncodeTiled");
}

void encode_codes(TensorMap& map, const Tensor& codes, u32 rows, const Driver& driver) {
  encode(map, codes, {.type = CU_TENSOR_MAP_DATA_TYPE_UINT8, .cols = kSm90Depth, .rows = rows}, driver);
}

// A warp's 16 rows.
void encode_out(TensorMap& map, const Tensor& out, const Driver& driver) {
  const bool wide = out.dtype == Dtype::f32;
  encode(map, out,
         {.type = wide ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32 : CU_TENSOR_MAP_DATA_TYPE_UINT16,
          .cols = wide ? 32U : 64U,
          .rows = 16},
         driver);
}

bool whole_vectors(const Tensor& out) { return aligned(out.data, 16) && out.row_stride * size_of(out.dtype) % 16 == 0; }

}  // namespace

void gemm_sm90(const GemmSpec& spec, const GemmTensors& tensors, const GemmShape& shape, const Stream& stream,
               Launcher& launcher) {
  const Sm90Tiling tiling = sm90_tiling(*spec.tiling);
  Sm90GemmParams params{.a = {},
                        .b = {},
                        .out_map = {},
                        .factor_a = static_cast<const float*>(tensors.factor_a.data),
                        .factor_b = static_cast<const float*>(tensors.factor_b.data),
                        .bias = tensors.bias.data,
                        .out = tensors.out.data,
                        .out_stride = tensors.out.row_stride,
                        .m = static_cast<u32>(shape.m),
                        .n = static_cast<u32>(shape.n),
                        .k = static_cast<u32>(shape.k),
                        .factor_a_stride = spec.scale_a == kRowwise ? 1U : 0U,
                        .whole_vectors = whole_vectors(tensors.out) ? 1U : 0U,
                        .epilogue = epilogue_params(tensors)};
  encode_codes(params.a, tensors.a, sm90_box_a(tiling), launcher.driver());
  encode_codes(params.b, tensors.b, sm90_box_b(tiling), launcher.driver());
  if (params.whole_vectors != 0 && !is_fp8(spec.out)) encode_out(params.out_map, tensors.out, launcher.driver());
  launcher.launch(spec, Pass::main,
                  {.grid_x = sm90_blocks(tiling, params.m, params.n, static_cast<u32>(launcher.multiprocessors())),
                   .block = kSm90Threads,
                   .cluster = sm90_cluster_size(tiling),
                   .shared_bytes = sm90_shared_bytes(tiling)},
                  params, stream);
}

}  // namespace ingot::cuda
