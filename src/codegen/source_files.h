// Which files a CUDA source makes the preprocessor read or look for. A kernel's key covers its source and the
// templates; a source that reads anything else would be compiled once and served unchanged after that file has changed.
//
// NVRTC cannot be told to stay out of the file system: with no search path it still opens absolute paths, in #include
// and in __has_include. So texts are scanned before they are compiled. The scan does not expand macros or evaluate
// conditions: what it cannot read off the text is refused, and so is an #include that a condition leaves out or that
// stands in a raw string.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ingot/codegen/template_files.h"

namespace ingot {

// One #include, or one question like __has_include.
struct FileUse {
  std::string words;  // how the text puts it: `#include "platform.cuh"`, `#include HEADER`
  std::string name;   // platform.cuh; empty if it is not written out
  int line = 0;       // from 1
  bool operator==(const FileUse&) const = default;
};

struct FileUses {
  std::vector<FileUse> uses;
  // Macros that join tokens can make a __has_include that no text shows: is there a `##`, and are there words with
  // which one could begin and end?
  bool joins = false;
  bool has_beginning = false;
  bool has_end = false;
};

FileUses file_uses(std::string_view text);

// The first use, by a source or by the templates that it includes, of a file that is not one of the templates.
struct ForeignFile {
  std::string file;  // the template in which it stands; empty for the source itself
  std::string words;
  int line = 0;
};

// Remembers what the templates use, not the templates.
class ForeignFiles {
 public:
  explicit ForeignFiles(const TemplateFiles& templates);
  std::optional<ForeignFile> first(std::string_view source) const;

 private:
  std::map<std::string, FileUses, std::less<>> templates_;
};

}  // namespace ingot
