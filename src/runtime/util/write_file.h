// Writes files so that at any moment the old content or the new one is there, whole: into a temporary file next to the
// target, which is then renamed. What is no regular file (a device, a FIFO, the program's own standard output) is
// written into instead, and never replaced. A link stays a link: the file that it leads to gets the content.
#pragma once

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "ingot/api.h"
#include "ingot/runtime/util/file_descriptor.h"

struct stat;  // of <sys/stat.h>

namespace ingot {

class INGOT_API FileWriter {
 public:
  // All functions throw Error{io_failed} with the file as subject; a regular file is then as it was.
  explicit FileWriter(std::filesystem::path file);
  ~FileWriter();
  FileWriter(FileWriter&&) = delete;
  FileWriter& operator=(FileWriter&&) = delete;

  void write(std::string_view bytes);
  // Waits until the disk has what was written, for content that must outlive a power failure.
  void sync();
  // Puts the new content in the place of the old. Without this call nothing of a regular file changes.
  void publish();

 private:
  enum class Found : std::uint8_t { to_replace, to_write_into, replaced_meanwhile };

  // False if there is nothing to replace: `file` is written into.
  bool find_target();
  Found look_for_target();
  Found open_in_place(const struct stat& seen);
  void make_temporary();
  [[noreturn]] void fail(const std::string& why) const;
  [[noreturn]] void fail(int error) const;

  std::filesystem::path file_;
  FileDescriptor directory_{};      // where the target is; none if the file is written in place
  std::string target_{};            // its name there
  std::string temporary_{};         // next to it; empty once published
  std::optional<unsigned> mode_{};  // permissions of the old file, if there is one
  bool made_target_ = false;        // an empty file, made through a link that led to none
  FileDescriptor descriptor_{};
};

// Writes these parts, one after the other, as the file's new content. Throws Error{io_failed}.
INGOT_API void write_file(const std::filesystem::path& file, std::initializer_list<std::string_view> parts);

}  // namespace ingot
