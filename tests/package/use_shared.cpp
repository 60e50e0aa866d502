// A program that links libingot.so: exceptions are caught by their type, virtual classes of the library are derived
// from and recognised, and every inline function of the public headers finds what it calls.
#include <ingot/ingot.h>

#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>

namespace {

class Stopped final : public ingot::Error {
 public:
  Stopped() : Error(ingot::ErrorCode::io_failed, "mine", "was stopped") {}
};

int failures = 0;
void expect(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "use_shared: %s\n", what);
  ++failures;
}

}  // namespace

int main() {
  expect(ingot::version_number() == INGOT_VERSION, "the library has another version than its headers");
  expect(std::strcmp(ingot::version_string(), INGOT_VERSION_STRING) == 0, "the library has another version's text");

  bool caught = false;
  try {
    ingot::parse("nonsense");
  } catch (const ingot::Error& error) {
    caught = error.code() == ingot::ErrorCode::invalid_spec;
  } catch (const std::exception&) {
    caught = false;
  }
  expect(caught, "an error of the library is not caught as ingot::Error");

  ingot::Context context({.where = ingot::ContextOptions::Where::cpu, .store_root = std::filesystem::path()});
  ingot::Stream stream(context.backend());
  std::string refusal;
  try {
    const ingot::Graph graph(stream, [] {});
  } catch (const ingot::Error& error) {
    refusal = error.what();
  }
  expect(refusal.starts_with("graph: the CPU backend runs work at once"), "the CPU's stream is captured");

  ingot::DryRun dry(ingot::gpu_named("h200"));
  ingot::Stream of_dry(dry.backend());
  bool came_back = false;
  try {  // through the library and back
    const ingot::Graph graph(of_dry, [] { throw Stopped(); });
  } catch (const Stopped& stopped) {
    came_back = stopped.subject() == "mine";
  }
  expect(came_back, "an exception does not come back through the library");

  const std::unique_ptr<ingot::LayerObserver> observer =
      std::make_unique<ingot::LayerObservers>(std::vector<ingot::LayerObserver*>{});
  expect(dynamic_cast<ingot::LayerObservers*>(observer.get()) != nullptr, "a class of the library is not recognised");
  return failures;
}
