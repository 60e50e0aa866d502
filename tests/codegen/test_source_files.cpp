// Which files a source asks for, in every spelling that the preprocessor takes, and in none that it does not.
#include "ingot/codegen/source_files.h"

#include <boost/test/unit_test.hpp>
#include <string>

BOOST_AUTO_TEST_SUITE(test_source_files)

using namespace ingot;

namespace {

// `words@line` of each use.
std::string uses(const std::string& text) {
  std::string list;
  for (const FileUse& use : file_uses(text).uses) {
    list += (list.empty() ? "" : "; ") + use.words + '@' + std::to_string(use.line);
  }
  return list;
}

const std::string kUse = "#include \"a.h\"";

}  // namespace

BOOST_AUTO_TEST_CASE(every_spelling_of_an_include) {
  BOOST_TEST(uses("#include \"a.h\"") == "#include \"a.h\"@1");
  BOOST_TEST(uses("\n#include <a/b.h>\n") == "#include <a/b.h>@2");
  BOOST_TEST(uses(" \t\v\f# \t include\"a.h\"") == "#include \"a.h\"@1");
  BOOST_TEST(uses("%:include \"a.h\"") == "#include \"a.h\"@1");
  BOOST_TEST(uses("/* */ # /*\n*/ include /**/ \"a.h\"") == "#include \"a.h\"@1");
  BOOST_TEST(uses("int a;\r\n#include \"a.h\"\r\n") == "#include \"a.h\"@2");
  BOOST_TEST(uses("#include <a//b.h>") == "#include <a//b.h>@1");
  BOOST_TEST(uses("#include \"a\\\"") == "#include \"a\\\"@1");
  BOOST_TEST(uses("#include_next <a.h>") == "#include_next <a.h>@1");
  BOOST_TEST(uses("#import \"a.h\"") == "#import \"a.h\"@1");
  BOOST_TEST(uses("int a[] = {\n#embed \"a.bin\"\n};") == "#embed \"a.bin\"@2");
  BOOST_TEST(uses("#if 0\n#include \"a.h\"\n#endif\n#include \"b.h\"") == "#include \"a.h\"@2; #include \"b.h\"@4");
}

BOOST_AUTO_TEST_CASE(spliced_lines_are_one_line) {
  BOOST_TEST(uses("#inc\\\nlude \"a\\\n.h\"") == "#include \"a.h\"@1");
  BOOST_TEST(uses("\\\n#\\\r\ninclude \\\n\"a.h\"") == "#include \"a.h\"@2");
  BOOST_TEST(uses("// comment \\\n#include \"a.h\"") == "");
  BOOST_TEST(uses("/\\\n/ comment\n#include \"a.h\"") == "#include \"a.h\"@3");
  BOOST_TEST(uses("/\\\n* #include \"a.h\" *\\\n/") == "");
  BOOST_TEST(uses("int a; \\\n#include \"a.h\"") == "");
  BOOST_TEST(uses("//\\ \n#include \"a.h\"") == "#include \"a.h\"@2");  // no splice: a space follows
}

BOOST_AUTO_TEST_CASE(comments_and_literals_ask_for_nothing) {
  BOOST_TEST(uses("// #include \"a.h\"\n/*\n#include \"b.h\"\n*/ int a;") == "");
  BOOST_TEST(uses("const char* a = \"\\\"\\\n#include \\\"a.h\\\"\";") == "");
  BOOST_TEST(uses("/* // */\n" + kUse) == kUse + "@2");
  BOOST_TEST(uses("// /*\n" + kUse) == kUse + "@2");
  BOOST_TEST(uses("const char* a = \"/*\";\n" + kUse) == kUse + "@2");
  BOOST_TEST(uses("char a = '\"';\n" + kUse) == kUse + "@2");
  BOOST_TEST(uses("int a = 1'000; // '\n" + kUse) == kUse + "@2");
  BOOST_TEST(uses("int a = 1'0; char b = '\"'; /*'\"*/\n" + kUse) == kUse + "@2");
}

// What one compiler takes for a raw string, another may take for code.
BOOST_AUTO_TEST_CASE(what_a_raw_string_holds_counts) {
  BOOST_TEST(uses("const char* a = R\"(\n#include \"a.h\"\n)\";") == kUse + "@2");
  BOOST_TEST(uses("const char* a = u8R\"x(\n)\"\n#include \"a.h\"\n)x\";") == kUse + "@3");
  BOOST_TEST(uses("const char* a = R\"(\n\\)\";\n" + kUse) == kUse + "@3");
  BOOST_TEST(uses("const char* a = R\"(/*)\";\n" + kUse) == kUse + "@2");
  BOOST_TEST(uses("const char* a = R\"(\n/* )\";\n" + kUse) == kUse + "@3");
  BOOST_TEST(uses("const char* a = R\"(no file)\";") == "");
}

// Found by comparing random texts with what NVRTC opened.
BOOST_AUTO_TEST_CASE(suffixes_and_ends_that_are_missing) {
  BOOST_TEST(uses("\"a\"u8R\"(\n/*\n" + kUse + "\n*/ FOOR\"()\"") == kUse + "@3");
  BOOST_TEST(uses("\"a\"u8R\"(\n" + kUse + "\n)\"") == kUse + "@2");
  BOOST_TEST(uses("'\\''u8R\"(\"\n" + kUse) == kUse + "@2");
  BOOST_TEST(uses("R\"()\")\"\nR\"(\n" + kUse) == kUse + "@3");
  BOOST_TEST(uses("R\\\n\"(\n/* )\"\n" + kUse) == kUse + "@4");
  BOOST_TEST(uses("/*\n" + kUse) == kUse + "@2");
}

BOOST_AUTO_TEST_CASE(what_only_looks_like_a_literal_hides_nothing) {
  BOOST_TEST(uses("FOOR\"(\n" + kUse + "\n)\"") == kUse + "@2");
  BOOST_TEST(uses("R \"(\n" + kUse + "\n)\"") == kUse + "@2");
  BOOST_TEST(uses("R\"a b(\n" + kUse + "\n)a b\"") == kUse + "@2");
  BOOST_TEST(uses("#if 0\nit's\n#endif\n" + kUse) == kUse + "@4");
  BOOST_TEST(uses("int a; \"unclosed\n" + kUse) == kUse + "@2");
  BOOST_TEST(uses("?\?/\n" + kUse) == kUse + "@2");  // no trigraphs in C++20
  BOOST_TEST(uses("x #include \"a.h\"") == "");
  BOOST_TEST(uses("#define F #include \"a.h\"\n#includes \"a.h\"\n#pragma include \"a.h\"") == "");
}

BOOST_AUTO_TEST_CASE(a_name_that_a_macro_gives_has_no_name) {
  const FileUses found = file_uses("#define A \"a.h\"\n#include A");
  BOOST_REQUIRE(found.uses.size() == 1);
  BOOST_TEST(found.uses[0].words == "#include A");
  BOOST_TEST(found.uses[0].name == "");
  BOOST_TEST(uses("#include") == "#include @1");
  BOOST_TEST(uses("#if __has_include(A)") == "__has_include(A)@1");
}

BOOST_AUTO_TEST_CASE(questions) {
  BOOST_TEST(uses("#if __has_include(\"a.h\") || __has_include_next( <b.h> )") ==
             "__has_include(\"a.h\")@1; __has_include_next(<b.h>)@1");
  BOOST_TEST(uses("#if __has_embed(\"a\")") == "__has_embed(\"a\")@1");
  BOOST_TEST(uses("#define HAS __has_include\n#if HAS(\"a.h\")") == "__has_include@1");
  BOOST_TEST(uses("#define undefined __has_include\n#if undefined(\"a.h\")") == "__has_include@1");
  BOOST_TEST(uses("#if defined(__has_include) && defined __has_include\n#ifdef __has_include\n#endif") == "");
}

BOOST_AUTO_TEST_CASE(files_outside_the_templates) {
  const TemplateFiles templates{{"a.cuh", "#include \"b/c.cuh\"\n"},
                                {"b/c.cuh", "#include \"a.cuh\"\n"},
                                {"bad.cuh", "\n#include </etc/passwd>"},
                                {"join.cuh", "#define JOIN(a, b) a##b\n"}};
  const ForeignFiles foreign(templates);
  BOOST_TEST(!foreign.first("#include \"a.cuh\"\n#include <b/c.cuh>\nint x;\n"));
  BOOST_TEST(!foreign.first("int include, next, __has;"));
  BOOST_TEST(!foreign.first("#include \"join.cuh\"\nint JOIN(a, b);"));
  for (const std::string name : {"b/../a.cuh", "./a.cuh", "c.cuh", "", "/a.cuh", "a.cuh "}) {
    BOOST_TEST(bool(foreign.first("#include \"" + name + "\"")), name);
  }
  const auto found = foreign.first("int x;\n#include \"bad.cuh\"");
  BOOST_REQUIRE(bool(found));
  BOOST_TEST(found->file == "bad.cuh");
  BOOST_TEST(found->line == 2);
  BOOST_TEST(found->words == "#include </etc/passwd>");
  BOOST_TEST(bool(foreign.first("#include \"join.cuh\"\n#if JOIN(__has, _include)(\"/etc/passwd\")")));
}

BOOST_AUTO_TEST_CASE(the_embedded_templates_read_nothing_else) {
  const TemplateFiles templates = embedded_templates();
  const ForeignFiles foreign(templates);
  for (const auto& [name, text] : templates) BOOST_TEST(!foreign.first("#include \"" + name + "\""), name);
}

BOOST_AUTO_TEST_SUITE_END()
