// The template arguments of casts in tiles, and when a tile has 64 rows: what the kernel is generated with and what the
// host launches it with come from the same functions.
#include <boost/test/unit_test.hpp>
#include <string>
#include <tuple>

#include "ingot/codegen/cast/cast_tiles_config.h"
#include "ingot/codegen/generate.h"
#include "ingot/codegen/kernel_spec.h"

BOOST_AUTO_TEST_SUITE(test_cast_tiles_config)

using namespace ingot;

namespace {

CastSpec cast(const std::string& words) { return std::get<CastSpec>(parse("cast bf16->e4m3fn " + words)); }

constexpr CastOutputConfig kTensor{true, {0, 0}};
constexpr CastOutputConfig kRow{true, {1, 0}};
constexpr CastOutputConfig kColumn{true, {0, 1}};

struct Rows {
  std::string words;
  Pass pass;
  std::int64_t rows, cols;
  unsigned with_clusters, without;  // expected, of an H200's 132 multiprocessors
};

}  // namespace

BOOST_AUTO_TEST_CASE(configurations) {
  const CastConfig given = cast_tiles_config(cast("scale=tensor out=codes,transposed given"), Pass::main);
  BOOST_TEST((given.codes == kTensor && given.transposed == kTensor && given.given_scales && !given.unaligned));

  const CastSpec two = cast("of=silu(x) scale=row+col out=codes,transposed,result,sum:f32");
  const CastConfig unaligned = cast_tiles_config(two, Pass::unaligned);
  BOOST_TEST((unaligned.codes == kRow && unaligned.transposed == kColumn));
  BOOST_TEST((!unaligned.given_scales && unaligned.result && unaligned.sum && unaligned.unaligned && !unaligned.kept));
  BOOST_TEST((cast_tiles_config(two, Pass::kept).kept && cast_tiles_config(two, Pass::kept).unaligned));

  // After the pass for rows only the transposed codes are left; in one launch it is the whole cast.
  const CastSpec rows = cast("of=silu(x) scale=row out=codes,transposed,result");
  const CastConfig rest = cast_tiles_config(rows, Pass::main);
  BOOST_TEST((!rest.codes.written && rest.transposed == kRow && !rest.result));
  const CastConfig whole = cast_tiles_config(rows, Pass::whole);
  BOOST_TEST((whole.codes == kRow && whole.transposed == kRow && whole.result && whole.unaligned));
}

// The generated text has the same arguments.
BOOST_AUTO_TEST_CASE(text) {
  const KernelSpec rows = cast("of=silu(x) scale=row out=codes,transposed,result");
  const std::string rest =
      "CastConfig{.codes = {}, .transposed = {.written = true, .scale = {.rows = 1, .cols = 0}}, .given_scales = "
      "false, "
      ".result = false, .sum = false";
  const std::string whole =
      "CastConfig{.codes = {.written = true, .scale = {.rows = 1, .cols = 0}}, .transposed = {.written = true, .scale "
      "= "
      "{.rows = 1, .cols = 0}}, .given_scales = false, .result = true, .sum = false, .unaligned = true}";
  const auto has = [&](Pass pass, const std::string& words) {
    return generate(rows, pass).text.find(words) != std::string::npos;
  };
  BOOST_TEST(has(Pass::main, rest + "}"));
  BOOST_TEST(has(Pass::unaligned, rest + ", .unaligned = true}"));
  BOOST_TEST(has(Pass::whole, whole));
}

BOOST_AUTO_TEST_CASE(rows_of_a_tile) {
  const std::string both = " out=codes,transposed";
  const std::string silu = "of=silu(x) ";
  const std::vector<Rows> cases{
      // In one launch: but for clusters, of up to eight tiles of 128 rows.
      {"scale=tensor" + both, Pass::whole, 1024, 1024, 6, 6},
      {"scale=row+col" + both, Pass::whole, 333, 1111, 6, 6},
      {"scale=tensor" + both, Pass::whole, 256, 512, 7, 6},
      {"scale=tensor" + both, Pass::whole, 256, 640, 6, 6},
      {"scale=tensor" + both, Pass::whole, 2048, 1024, 7, 7},  // 256 tiles of 64 rows
      {"scale=tensor out=codes,transposed,sum:f32", Pass::whole, 1024, 1024, 7, 7},
      {"scale=1x128+tensor" + both, Pass::whole, 1024, 1024, 7, 7},
      // With a given scale; aligned and without an expression from 33 tiles of 128 rows on.
      {"scale=tensor" + both + " given", Pass::main, 512, 1024, 7, 7},
      {"scale=tensor" + both + " given", Pass::main, 512, 1152, 6, 6},
      {"scale=row" + both + " given", Pass::main, 1024, 1024, 6, 6},
      {"scale=tensor" + both + " given", Pass::unaligned, 128, 128, 6, 6},
      {silu + "scale=tensor" + both + " given", Pass::main, 128, 128, 6, 6},
      {"scale=row+col" + both + " given", Pass::main, 1024, 1024, 7, 7},
      {"scale=128x128" + both + " given", Pass::main, 1024, 1024, 7, 7},
      // After a pass for the maxima: never.
      {"scale=tensor" + both, Pass::main, 1024, 1024, 7, 7},
      {"scale=row" + both, Pass::main, 1024, 1024, 7, 7},
      {"scale=row+col" + both, Pass::unaligned, 1024, 1024, 7, 7},
  };
  for (const Rows& each : cases) {
    BOOST_TEST_CONTEXT(each.words << ", " << each.rows << " x " << each.cols) {
      const CastSpec spec = cast(each.words);
      BOOST_TEST(cast_tile_rows_log2(spec, each.pass, each.rows, each.cols, {132, true}) == each.with_clusters);
      BOOST_TEST(cast_tile_rows_log2(spec, each.pass, each.rows, each.cols, {132, false}) == each.without);
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
