// What a PyTorch model asks for, recorded by Ingot's Python package (python3 -m ingot.record): `ingot warm --config`
// and
// `--module`.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "warm/warm_plan.h"

namespace ingot::tools {

struct RecordedModel {
  std::vector<std::filesystem::path> configs{};  // config.json of transformers
  std::vector<std::string> modules{};            // "package:function", whose code runs
  std::string python{};                          // the interpreter that has the package; empty: default_python()
};

// The interpreter of a virtual environment in whose folder of programs this one is: python3 or python there, else
// python3 of PATH. folder: empty for that of the running program.
std::string default_python(std::filesystem::path folder = {});

// Files that are removed at the end.
class TemporaryFiles {
 public:
  TemporaryFiles();  // throws Error{io_failed} where no folder can be made
  TemporaryFiles(const TemporaryFiles&) = delete;
  TemporaryFiles& operator=(const TemporaryFiles&) = delete;
  ~TemporaryFiles();

  const std::filesystem::path& folder() const { return folder_; }

 private:
  std::filesystem::path folder_;
};

// Records each model for the request's GPUs, recipes, formats and tokens into a file of `folder`, and returns the
// files. The interpreter writes its own messages to stderr. Throws Error{not_found} if there is no such interpreter,
// and Error{invalid_argument} if it ends with an error.
std::vector<std::filesystem::path> record_models(const RecordedModel& models, const WarmRequest& request,
                                                 const std::filesystem::path& folder);

}  // namespace ingot::tools
