// The arithmetic of a measurement, apart from the device.
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
  int copies = 0;  // of the buffers, which the calls take turns with
};

// Of at least one value.
double median(std::vector<double> values);
// Microseconds per call, one sample a round.
Timing summarise(const std::vector<double>& samples_us);

// How many copies of a call's buffers are needed so that none of them is still in a cache when its turn comes again:
// together several times the largest L2 (60 MB), and two at least.
int copies_for(std::size_t working_set);

// Calls in one graph: whole turns of the copies that together last about `graph_us`, and no more nodes than a graph
// launches well.
int calls_for(double call_us, int copies, double graph_us);

}  // namespace ingot
