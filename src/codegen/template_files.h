// The files of templates/: embedded at build time (cmake/embed_templates.cmake), or read from a folder for development.
#pragma once

#include <filesystem>
#include <map>
#include <string>

namespace ingot {

// Name relative to templates/ ("cast/cast_tiles.cuh", "ptx/cvt.cuh") -> content.
using TemplateFiles = std::map<std::string, std::string>;

TemplateFiles embedded_templates();
// Throws Error{not_found} if the folder holds no .cuh file.
TemplateFiles read_templates(const std::filesystem::path& folder);

}  // namespace ingot
