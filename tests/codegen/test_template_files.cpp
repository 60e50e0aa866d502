// The embedded template files: they match the tree, their includes resolve, every kernel waits for the one before it,
// and a folder can replace them.
#include <sys/stat.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "ingot/codegen/generate.h"
#include "ingot/codegen/kernel_spec.h"
#include "ingot/codegen/template_files.h"
#include "ingot/runtime/util/error.h"

BOOST_AUTO_TEST_SUITE(test_template_files)

using namespace ingot;
namespace fs = std::filesystem;

namespace {

// A folder of this test's own, removed with it.
struct TemporaryFolder {
  TemporaryFolder() {
    std::string pattern = (fs::temp_directory_path() / "ingot-test-XXXXXX").string();
    BOOST_REQUIRE(::mkdtemp(pattern.data()) != nullptr);
    path = pattern;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  void write(const std::string& name, const std::string& content) const {
    fs::create_directories((path / name).parent_path());
    std::ofstream(path / name, std::ios::binary) << content;
  }

  fs::path path;
};

std::string message_of_reading(const fs::path& folder) {
  try {
    read_templates(folder);
  } catch (const Error& error) {
    BOOST_TEST((error.code() == ErrorCode::not_found));
    return error.what();
  }
  return "no error";
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

BOOST_AUTO_TEST_CASE(embedded_files_are_those_of_the_tree) {
  const TemplateFiles embedded = embedded_templates();
  const TemplateFiles tree = read_templates(fs::path(INGOT_SOURCE_DIR) / "templates");
  BOOST_TEST(embedded.size() == tree.size());
  for (const auto& [name, content] : tree) {
    const auto found = embedded.find(name);
    BOOST_REQUIRE_MESSAGE(found != embedded.end(), name << " is not embedded");
    BOOST_TEST(found->second == content, name << " is embedded with another content");
  }
  BOOST_TEST(embedded.count("ptx/cvt.cuh") == 1U);
}

// Kernels may begin before the previous one in the stream has ended (templates/memory.cuh): a kernel that forgets to
// wait would now and then read data that is not written yet.
BOOST_AUTO_TEST_CASE(every_kernel_starts_in_turn) {
  int kernels = 0;
  for (const auto& [name, content] : embedded_templates()) {
    // gemm_sm90's kernels are a call of sm90_run(), those of lists of casts one of cast_listed_tile().
    for (const std::string mark :
         {"\nINGOT_KERNEL ", "\nINGOT_DEVICE void sm90_run(", "\nINGOT_DEVICE void cast_listed_tile("}) {
      for (auto at = content.find(mark); at != std::string::npos; at = content.find(mark, at + 1)) {
        const auto open = content.find(") {\n", at);
        const std::string body = content.substr(open, content.find("\n}\n", at) - open);
        // cast_tile() waits by itself: its elements may be read before.
        const auto start = std::min({body.find("  start_in_turn();"), body.find("  cast_tile<"),
                                     body.find("  cast_listed_tile<"), body.find("  sm90_run<")});
        BOOST_TEST(start != std::string::npos,
                   name << ": a kernel does not start in turn: " << content.substr(at, 200));
        for (const char* const access : {"load", "element(", "atomic", ".run"}) {
          BOOST_TEST(body.find(access) >= start, name << ": " << access << " before the start: " << body);
        }
        ++kernels;
      }
    }
  }
  BOOST_TEST(kernels >= 10);
}

BOOST_AUTO_TEST_CASE(every_include_is_there) {
  const TemplateFiles files = embedded_templates();
  std::set<std::string> texts;
  for (const auto& [name, content] : files) texts.insert(content);
  for (const KernelSpec& spec : all_valid_specs()) {
    for (const Pass pass : passes(spec)) texts.insert(generate(spec, pass).text);
  }
  const std::string directive = "#include \"";
  for (const std::string& text : texts) {
    for (auto at = text.find(directive); at != std::string::npos; at = text.find(directive, at + 1)) {
      const auto begin = at + directive.size();
      const std::string name = text.substr(begin, text.find('"', begin) - begin);
      BOOST_TEST(files.count(name) == 1U, "#include \"" << name << "\" names no template");
    }
    BOOST_TEST(!contains(text, "#include <"), "templates are freestanding, but one includes a system header:\n"
                                                  << text);
  }
}

BOOST_AUTO_TEST_CASE(a_folder_is_read_with_its_subfolders) {
  const TemporaryFolder folder;
  folder.write("one.cuh", "// one\n");
  folder.write("ptx/two.cuh", std::string("\xff\0two", 5));
  folder.write("ptx/deeper/empty.cuh", "");
  folder.write("notes.txt", "not a template");
  folder.write("directory.cuh/three.cuh", "three");
  const TemplateFiles expected{{"one.cuh", "// one\n"},
                               {"ptx/two.cuh", std::string("\xff\0two", 5)},
                               {"ptx/deeper/empty.cuh", ""},
                               {"directory.cuh/three.cuh", "three"}};
  BOOST_TEST((read_templates(folder.path) == expected));
  BOOST_TEST((read_templates(folder.path.string() + "/") == expected));
}

BOOST_AUTO_TEST_CASE(a_folder_without_templates_is_an_error_that_says_so) {
  const TemporaryFolder folder;
  folder.write("notes.txt", "not a template");
  const std::string message = message_of_reading(folder.path);
  BOOST_TEST(contains(message, folder.path.string()), message);
  BOOST_TEST(contains(message, "holds no .cuh file"), message);
  BOOST_TEST(contains(message, "INGOT_TEMPLATES"), message);
}

BOOST_AUTO_TEST_CASE(a_missing_folder_is_an_error_that_says_so) {
  const TemporaryFolder folder;
  const std::string message = message_of_reading(folder.path / "missing");
  BOOST_TEST(contains(message, "missing: the folder of templates cannot be read (No such file or directory)"), message);
  const std::string file_message = [&] {
    folder.write("file", "");
    return message_of_reading(folder.path / "file");
  }();
  BOOST_TEST(contains(file_message, "Not a directory"), file_message);
}

// A FIFO that nobody writes to, a device without an end, a file as large as a disk: none is waited for.
BOOST_AUTO_TEST_CASE(a_template_that_is_no_file_is_refused) {
  const auto refusal = [](const auto& make) {
    const TemporaryFolder folder;
    make(folder.path / "odd.cuh");
    try {
      read_templates(folder.path);
    } catch (const Error& error) {
      BOOST_TEST((error.code() == ErrorCode::io_failed));
      return std::string(error.what());
    }
    return std::string("no error");
  };
  const std::string fifo = refusal([](const fs::path& file) { BOOST_REQUIRE(::mkfifo(file.c_str(), 0600) == 0); });
  BOOST_TEST(contains(fifo, "odd.cuh: this template is not a regular file; remove it"), fifo);
  const std::string device = refusal([](const fs::path& file) { fs::create_symlink("/dev/zero", file); });
  BOOST_TEST(contains(device, "odd.cuh: this template is not a regular file"), device);
  const std::string huge = refusal([](const fs::path& file) {
    std::ofstream(file) << "x";
    fs::resize_file(file, std::uintmax_t{1} << 40);
  });
  BOOST_TEST(contains(huge, "odd.cuh: this template has more than 16 MiB"), huge);
}

BOOST_AUTO_TEST_CASE(an_unreadable_template_is_an_error_that_names_it) {
  const TemporaryFolder folder;
  folder.write("good.cuh", "");
  fs::create_symlink("nowhere", folder.path / "broken.cuh");  // cannot be opened, not even by root
  try {
    read_templates(folder.path);
    BOOST_ERROR("no error");
  } catch (const Error& error) {
    const std::string message = error.what();
    BOOST_TEST((error.code() == ErrorCode::io_failed));
    BOOST_TEST(contains(message, "broken.cuh: this template cannot be read"), message);
  }
}

BOOST_AUTO_TEST_SUITE_END()
