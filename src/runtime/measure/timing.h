// The arithmetic of measurements, without a device: medians, copies of buffers, calls per graph.
#pragma once

#include <cstddef>
#include <vector>

namespace ingot {

struct Timing {
  double median_us = 0;
  double min_us = 0;
  double max_us = 0;
  int rounds = 0;
  int calls = 0;   // in one replay
  int copies = 0;  // of the buffers, used in turn by the calls
};

// Requires at least one value.
double median(std::vector<double> values);
// Microseconds per call, one sample a round.
Timing summarise(const std::vector<double>& samples_us);

// How many copies of a call's buffers it takes so that none is still in a cache when it is used again: several times
// the largest L2 (60 MB) in total, and at least two.
int copies_for(std::size_t working_set);

// Calls in one graph: a multiple of the copies that takes about `graph_us`, limited to as many nodes as a graph
// launches well.
int calls_for(double call_us, int copies, double graph_us);

}  // namespace ingot
