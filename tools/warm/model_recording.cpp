#include "warm/model_recording.h"

#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <system_error>
#include <utility>

#include "ingot/runtime/util/error.h"

extern char** environ;

namespace ingot::tools {
namespace {

std::string joined(const std::vector<std::string>& words) { return fmt::format("{}", fmt::join(words, ",")); }

std::vector<std::string> arguments_for(const std::string& python, const std::string& option, const std::string& model,
                                       const WarmRequest& request, const std::filesystem::path& output) {
  std::vector<std::string> words{python};
  // Of a config nothing of the current folder runs. (Its option is -P, from Python 3.11 on.)
  if (option == "--config") words.emplace_back("-P");
  for (const char* const word : {"-m", "ingot.record"}) words.emplace_back(word);
  const auto none = [](const std::string& counts) { return counts.empty() ? "none" : counts; };
  const std::string weights = request.weights.empty() ? "e4m3fn" : joined(request.weights);
  for (const auto& [name, value] :
       {std::pair{option, model}, std::pair{std::string("--gpu"), joined(request.gpus)},
        std::pair{std::string("--tokens"), none(request.training_tokens)},
        std::pair{std::string("--decode"), none(request.decoding_tokens)},
        std::pair{std::string("--weight-only"), weights}, std::pair{std::string("--dtype"), request.dtype},
        std::pair{std::string("--recipe"), joined(request.recipes)},
        std::pair{std::string("--output"), output.string()}}) {
    words.push_back(name + "=" + value);
  }
  return words;
}

// Returns the exit status as wait() has it.
int run(std::vector<std::string> words) {
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  pid_t process = 0;
  const int problem = posix_spawnp(&process, words[0].c_str(), nullptr, nullptr, arguments.data(), environ);
  if (problem != 0) {
    throw Error(ErrorCode::not_found, words[0],
                fmt::format("cannot be run ({}): name the Python that has Ingot's package with --python",
                            std::error_code(problem, std::generic_category()).message()));
  }
  int status = 0;
  while (waitpid(process, &status, 0) < 0) {
    if (errno != EINTR) {
      throw Error(ErrorCode::io_failed, words[0],
                  fmt::format("cannot be waited for: {}", std::error_code(errno, std::generic_category()).message()));
    }
  }
  return status;
}

void record(const std::vector<std::string>& words, const std::string& model) {
  const int status = run(words);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
  const std::string how = WIFEXITED(status) ? fmt::format("ended with exit code {}", WEXITSTATUS(status))
                                            : fmt::format("was ended by signal {}", WTERMSIG(status));
  throw Error(ErrorCode::invalid_argument, model,
              fmt::format("cannot be recorded: `{} -m ingot.record` {}; its message is above. It needs Ingot's Python "
                          "package and PyTorch, and for a config transformers; --python names another interpreter",
                          words[0], how));
}

}  // namespace

std::string default_python(std::filesystem::path folder) {
  std::error_code problem;
  if (folder.empty()) folder = std::filesystem::read_symlink("/proc/self/exe", problem).parent_path();
  for (const char* const name : {"python3", "python"}) {
    const std::filesystem::path program = folder / name;
    const bool is_file = !folder.empty() && std::filesystem::is_regular_file(program, problem);
    if (is_file && access(program.c_str(), X_OK) == 0) return program.string();
  }
  return "python3";
}

TemporaryFiles::TemporaryFiles() {
  std::error_code problem;
  std::string name = (std::filesystem::temp_directory_path(problem) / "ingot-warm-XXXXXX").string();
  if (problem || mkdtemp(name.data()) == nullptr) {
    throw Error(ErrorCode::io_failed, name,
                fmt::format("a folder for recordings cannot be made: {}",
                            problem ? problem.message() : std::error_code(errno, std::generic_category()).message()));
  }
  folder_ = name;
}

TemporaryFiles::~TemporaryFiles() {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

std::vector<std::filesystem::path> record_models(const RecordedModel& models, const WarmRequest& request,
                                                 const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  const std::string python = models.python.empty() ? default_python() : models.python;
  const auto add = [&](const std::string& option, const std::string& model) {
    files.push_back(folder / fmt::format("{}.ingot", files.size()));
    record(arguments_for(python, option, model, request, files.back()), model);
  };
  for (const std::filesystem::path& config : models.configs) add("--config", config.string());
  for (const std::string& module : models.modules) add("--module", module);
  return files;
}

}  // namespace ingot::tools
