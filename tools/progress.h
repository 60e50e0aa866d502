// Shows on stderr how far a command is: on a terminal as a bar with the time left, elsewhere as a line for each step.
#pragma once

#include <chrono>
#include <string>

namespace ingot::tools {

class Progress {
 public:
  // `weight` is the sum of all steps' weights, in any unit.
  Progress(int steps, double weight);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void begin(const std::string& step);
  void end(double weight, const std::string& outcome);
  // Prints a line that stays.
  void note(const std::string& line) const;

 private:
  std::string left() const;
  void draw(const std::string& text);

  int steps_;
  double weight_;
  int done_ = 0;
  double done_weight_ = 0;
  bool terminal_;
  std::string step_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace ingot::tools
