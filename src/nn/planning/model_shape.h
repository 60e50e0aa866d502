// The sizes of a decoder-only transformer that decide what a training step computes and sends, read from the
// config.json that transformers writes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ingot/api.h"

namespace ingot {

struct ModelShape {
  std::int64_t hidden = 0;
  std::int64_t intermediate = 0;
  std::int64_t layers = 0;
  std::int64_t heads = 0;            // 0: no attention
  std::int64_t key_value_heads = 0;  // divides `heads`
  std::int64_t head_size = 0;
  std::int64_t vocabulary = 0;  // 0: neither an embedding nor a head
  bool tied = false;            // the head's weight is the embedding's
  bool gated = true;            // does the MLP have a gate?
};

// A linear layer of a block. Tensor parallelism divides its rows (outputs) or its columns (inputs).
struct BlockLinear {
  const char* name = "";  // "q", "k", "v", "o", "gate", "up", "down"
  std::int64_t in_features = 0;
  std::int64_t out_features = 0;
  bool splits_rows = false;
};

// Reads "model_type" llama, mistral, qwen2 or qwen3. Names that the estimate does not need are ignored; experts are
// refused, as nothing here counts them. Throws Error{invalid_argument} about `subject`, which is the file's name, for
// text that is no such config and for sizes that cannot be.
INGOT_API ModelShape read_model_shape(std::string_view json, const std::string& subject);

// The linear layers of one block, apart as transformers has them: q, k and v, gate and up.
INGOT_API std::vector<BlockLinear> block_linears(const ModelShape& model);

// Parameters of one block, without biases; of the embedding, the last norm and the head; and of the whole model.
INGOT_API double block_parameters(const ModelShape& model);
INGOT_API double outer_parameters(const ModelShape& model);
INGOT_API double parameters_of(const ModelShape& model);

}  // namespace ingot
