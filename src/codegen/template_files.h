// The files of templates/: embedded at build time (cmake/embed_templates.cmake), or read from a folder for development.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "ingot/api.h"

namespace ingot {

// Name relative to templates/ ("cast/cast_tiles.cuh", "ptx/cvt.cuh") -> content.
using TemplateFiles = std::map<std::string, std::string>;

INGOT_API TemplateFiles embedded_templates();
// Throws Error{not_found} if the folder holds no .cuh file.
INGOT_API TemplateFiles read_templates(const std::filesystem::path& folder);

}  // namespace ingot
