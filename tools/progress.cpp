#include "progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace ingot::tools {
namespace {

constexpr int kBar = 24;
constexpr const char* kClearLine = "\r\x1b[K";

std::size_t terminal_width() {
  constexpr std::size_t kUsual = 80;
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kUsual;
}

}  // namespace

Progress::Progress(int steps, double weight) : steps_(steps), weight_(weight), terminal_(isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() {
  if (terminal_) std::fputs(kClearLine, stderr);
}

void Progress::begin(const std::string& step) {
  step_ = step;
  if (terminal_) draw(step);
}

void Progress::end(double weight, const std::string& outcome) {
  ++done_;
  done_weight_ += weight;
  const std::string line = fmt::format("{}: {}", step_, outcome);
  if (terminal_) {
    draw(line);
  } else {
    fmt::print(stderr, "[{}/{}] {}{}\n", done_, steps_, line, left());
  }
}

void Progress::note(const std::string& line) const { fmt::print(stderr, "{}{}\n", terminal_ ? kClearLine : "", line); }

std::string Progress::left() const {
  if (done_weight_ <= 0 || done_ == steps_) return {};
  const double elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  const auto seconds = static_cast<int>(elapsed * (weight_ - done_weight_) / done_weight_ + 0.5);
  return fmt::format(", {}:{:02} left", seconds / 60, seconds % 60);
}

void Progress::draw(const std::string& text) {
  const int full = weight_ > 0 ? std::clamp(static_cast<int>(kBar * done_weight_ / weight_), 0, kBar) : 0;
  const std::string bar =
      fmt::format("[{:#<{}}{:.<{}}] {}/{}{}  {}", "", full, "", kBar - full, done_, steps_, left(), text);
  fmt::print(stderr, "{}{}", kClearLine, bar.substr(0, terminal_width() - 1));  // a full line would wrap
  std::fflush(stderr);
}

}  // namespace ingot::tools
