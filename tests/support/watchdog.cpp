#include "support/watchdog.h"

namespace ingot::test {

Watchdog::Watchdog(std::string who, Clock::duration patience, Bark bark)
    : who_(std::move(who)), patience_(patience), bark_(std::move(bark)), deadline_(Clock::now() + patience) {
  thread_ = std::thread([this] { watch(); });
}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void Watchdog::alive(std::string doing) {
  const std::lock_guard lock(mutex_);
  doing_ = std::move(doing);
  deadline_ = Clock::now() + patience_;
}

void Watchdog::end_process(const std::string& message) {
  std::cout << message << std::endl;
  std::_Exit(kHung);
}

void Watchdog::watch() {
  std::unique_lock lock(mutex_);
  while (!over_) {
    if (Clock::now() < deadline_) {
      changed_.wait_until(lock, deadline_);
      continue;
    }
    const auto seconds = std::chrono::duration<double>(patience_).count();
    bark_(who_ + " has not got on for " + std::to_string(seconds) + " s, at: " + doing_);
    return;
  }
}

}  // namespace ingot::test
