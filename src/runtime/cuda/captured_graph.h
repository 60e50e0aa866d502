// The driver's graph of what a stream captured, and its executable graph once it is replayed.
#pragma once

#include <functional>
#include <memory>

#include "ingot/runtime/backend.h"
#include "ingot/runtime/cuda/driver.h"

namespace ingot {

// `driver` must outlive the result; the device's context is current, here and in the calls of what is returned.
std::unique_ptr<CapturedWork> capture_graph(const Driver& driver, int device_index, Stream& stream,
                                            const std::function<void()>& work);

}  // namespace ingot
