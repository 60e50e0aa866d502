// The CPU as a device. Work has been done when a call returns, so it has no streams, no fences and no graphs.
#pragma once

#include <memory>

#include "ingot/runtime/core/device_api.h"

namespace ingot {

std::unique_ptr<DeviceApi> make_cpu_device();

}  // namespace ingot
