// Ends a test that hangs. A host thread that waits for a GPU cannot be interrupted, so another thread watches it: the
// test reports progress from time to time; if it has not done so for too long, the process ends and says what the test
// did last.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

namespace ingot::test {

class Watchdog {
 public:
  using Clock = std::chrono::steady_clock;
  using Bark = std::function<void(const std::string& message)>;

  // The watching thread calls `bark` once.
  Watchdog(std::string who, Clock::duration patience, Bark bark = end_process);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // Reports progress: what the test does now.
  void alive(std::string doing);

  // Runs no destructors: those would wait for the GPU.
  static void end_process(const std::string& message);
  static constexpr int kHung = 9;

 private:
  void watch();

  std::string who_;
  Clock::duration patience_;
  Bark bark_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  std::string doing_ = "the beginning";
  Clock::time_point deadline_;
  std::thread thread_;
};

}  // namespace ingot::test
