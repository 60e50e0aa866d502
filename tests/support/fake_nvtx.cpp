// A libnvtx3interop.so that logs its calls: fake_nvtx_log() returns the log and clears it.
#include <string>

namespace {

std::string& log() {
  static std::string text;
  return text;
}

}  // namespace

extern "C" {

int nvtxRangePushA(const char* text) {
  log() += std::string("+") + text + ";";
  return 0;
}

int nvtxRangePop() {
  log() += "-;";
  return 0;
}

const char* fake_nvtx_log() {
  static std::string given;
  given.swap(log());
  log().clear();
  return given.c_str();
}

}  // extern "C"
