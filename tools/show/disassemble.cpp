#include "show/disassemble.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string_view>
#include <system_error>

#include "ingot/runtime/util/error.h"
#include "ingot/runtime/util/file_descriptor.h"
#include "ingot/runtime/util/library.h"
#include "ingot/runtime/util/write_file.h"

namespace ingot::tools {
namespace {

constexpr const char* kProgram = "nvdisasm";

[[noreturn]] void fail(const std::string& what, int error) {
  throw Error(ErrorCode::io_failed, kProgram, fmt::format("{}: {}", what, std::system_category().message(error)));
}

// A file of this process's own in the folder for temporary files, removed at the end.
class TemporaryFile {
 public:
  explicit TemporaryFile(std::span<const std::byte> content) {
    std::error_code error;
    const std::filesystem::path folder = std::filesystem::temp_directory_path(error);
    if (error) fail("the folder for temporary files (TMPDIR) cannot be used", error.value());
    path_ = (folder / "ingot-XXXXXX").string();
    const FileDescriptor made(mkostemp(path_.data(), O_CLOEXEC));
    if (!made) fail(path_ + " cannot be made", errno);
    write_file(path_, {{reinterpret_cast<const char*>(content.data()), content.size()}});
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() { ::unlink(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::string read_all(const FileDescriptor& from) {
  std::string text;
  std::array<char, 1 << 16> buffer{};
  for (;;) {
    const ssize_t got = uninterrupted([&] { return ::read(from.get(), buffer.data(), buffer.size()); });
    if (got < 0) fail("its output cannot be read", errno);
    if (got == 0) return text;
    text.append(buffer.data(), static_cast<std::size_t>(got));
  }
}

// What the program prints on stdout and stderr, and its exit status.
std::pair<std::string, int> run(const std::string& program, const std::string& argument) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) fail("no pipe can be made", errno);
  const FileDescriptor reader(ends[0]);
  FileDescriptor writer(ends[1]);
  posix_spawn_file_actions_t actions{};
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, writer.get(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, writer.get(), STDERR_FILENO);
  std::string name = program;
  std::string first = argument;
  std::array<char*, 3> arguments{name.data(), first.data(), nullptr};
  pid_t child = 0;
  const int error = posix_spawn(&child, program.c_str(), &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) fail(program + " cannot be run", error);
  writer = FileDescriptor();
  std::string text = read_all(reader);
  int status = 0;
  uninterrupted([&] { return ::waitpid(child, &status, 0); });
  return {std::move(text), status};
}

}  // namespace

std::string disassemble(std::span<const std::byte> cubin, const std::filesystem::path& cuda_root) {
  std::string problem;
  const std::string program = find_cuda_program(kProgram, cuda_root.string(), problem);
  if (program.empty()) throw Error(ErrorCode::not_found, kProgram, problem);
  const TemporaryFile file(cubin);
  auto [text, status] = run(program, file.path());
  if (status == 0) return std::move(text);
  const std::string_view first = std::string_view(text).substr(0, text.find('\n'));
  throw Error(ErrorCode::io_failed, kProgram, fmt::format("{} cannot read the machine code: {}", program, first));
}

}  // namespace ingot::tools
