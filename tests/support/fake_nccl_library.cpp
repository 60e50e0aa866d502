// A libnccl.so.2 whose ranks are threads of one process and whose memory is the host's. Collectives wait for all ranks
// at the end of their group, as NCCL's do on the device. Its control functions, fake_nccl_*, are those of fake_nccl.h.
#include <bit>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace {

enum class Kind { gather, scatter, reduce };

// As nccl.h numbers them.
constexpr int kSuccess = 0;
constexpr int kRemoteError = 6;
constexpr int kInProgress = 7;

struct Request {
  Kind kind;
  const void* from;
  void* to;
  std::size_t count;
  int dtype;
  int operation;
};

// All communicators of a group, and their meeting.
struct Clique {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<const std::vector<Request>*> requests;
  std::size_t arrived = 0;
  std::uint64_t meetings = 0;

  bool meet() {
    std::unique_lock lock(mutex);
    const std::uint64_t number = meetings;
    if (++arrived == requests.size()) {
      arrived = 0;
      ++meetings;
      changed.notify_all();
      return true;
    }
    return changed.wait_for(lock, std::chrono::seconds(20), [&] { return meetings != number; });
  }
};

std::size_t size_of(int dtype) {
  if (dtype == 3 || dtype == 7) return 4;
  return dtype == 6 || dtype == 9 ? 2 : 1;
}

float half_to_float(std::uint16_t bits) {
  const std::uint32_t sign = std::uint32_t{bits & 0x8000U} << 16U;
  const float magnitude = std::bit_cast<float>((bits & 0x7fffU) << 13U) * 0x1p112F;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | sign);
}

float load(const void* from, std::size_t i, int dtype) {
  const auto* bytes = static_cast<const unsigned char*>(from) + i * size_of(dtype);
  std::uint16_t half = 0;
  float value = 0;
  if (dtype == 7) {
    std::memcpy(&value, bytes, sizeof(value));
    return value;
  }
  std::memcpy(&half, bytes, sizeof(half));
  return dtype == 9 ? std::bit_cast<float>(std::uint32_t{half} << 16U) : half_to_float(half);
}

// Of numbers that the dtype has exactly, which is all that the tests sum.
void store(void* to, std::size_t i, int dtype, float value) {
  auto* bytes = static_cast<unsigned char*>(to) + i * size_of(dtype);
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (dtype == 7) {
    std::memcpy(bytes, &bits, 4);
    return;
  }
  const std::uint32_t scaled = std::bit_cast<std::uint32_t>(value * 0x1p-112F);
  const auto half =
      static_cast<std::uint16_t>(dtype == 9 ? bits >> 16U : (bits >> 16U & 0x8000U) | (scaled >> 13U & 0x7fffU));
  std::memcpy(bytes, &half, 2);
}

}  // namespace

struct CUstream_st;

struct ncclComm {
  std::shared_ptr<Clique> clique;
  int rank = 0;
  int device = 0;
  std::string log;
  std::string failing;
  int failure = kSuccess;
  int async_error = kSuccess;
  int questions_in_progress = 0;
  bool is_nonblocking = false;
  bool only_notes = false;
  std::vector<Request> requests;

  int fails(const char* call) const { return failing == call ? failure : kSuccess; }
};

namespace {

// The communicator of this thread's group.
struct Group {
  int depth = 0;
  ncclComm* communicator = nullptr;
};

Group& group() {
  thread_local Group open;
  return open;
}

void reduce(const ncclComm& own, const Request& request, std::size_t index, std::size_t begin, void* to) {
  for (std::size_t i = 0; i < request.count; ++i) {
    if (request.dtype == 3) {
      std::uint32_t most = 0;
      for (const auto* each : own.clique->requests) {
        std::uint32_t bits = 0;
        std::memcpy(&bits, static_cast<const unsigned char*>((*each)[index].from) + 4 * (begin + i), 4);
        most = bits > most ? bits : most;
      }
      std::memcpy(static_cast<unsigned char*>(to) + 4 * i, &most, 4);
      continue;
    }
    float sum = 0;
    for (const auto* each : own.clique->requests) sum += load((*each)[index].from, begin + i, request.dtype);
    store(to, i, request.dtype, sum);
  }
}

void carry_out(const ncclComm& own, std::size_t index) {
  const Request& request = own.requests[index];
  const auto rank = static_cast<std::size_t>(own.rank);
  const std::size_t bytes = request.count * size_of(request.dtype);
  if (request.kind == Kind::gather) {
    auto* to = static_cast<unsigned char*>(request.to);
    for (const auto* each : own.clique->requests) {
      if ((*each)[index].from != to) std::memcpy(to, (*each)[index].from, bytes);
      to += bytes;
    }
    return;
  }
  std::vector<unsigned char> result(bytes);
  reduce(own, request, index, request.kind == Kind::scatter ? request.count * rank : 0, result.data());
  static_cast<void>(own.clique->meet());
  std::memcpy(request.to, result.data(), bytes);
}

int end(ncclComm& own) {
  own.log += "end; ";
  if (const int failed = own.fails("ncclGroupEnd"); failed != kSuccess) return failed;
  if (own.only_notes) return own.is_nonblocking ? kInProgress : kSuccess;
  own.clique->requests[static_cast<std::size_t>(own.rank)] = &own.requests;
  if (!own.clique->meet()) return kRemoteError;
  for (std::size_t index = 0; index < own.requests.size(); ++index) carry_out(own, index);
  if (!own.clique->meet()) return kRemoteError;
  return own.is_nonblocking ? kInProgress : kSuccess;
}

int ask(const char* name, const Request& request, ncclComm* communicator, CUstream_st* stream) {
  communicator->log += std::string(name) + " " + std::to_string(request.count) + " of " +
                       std::to_string(request.dtype) + (stream == nullptr ? " on the default stream" : "") + "; ";
  group().communicator = communicator;
  if (const int failed = communicator->fails(name); failed != kSuccess) return failed;
  communicator->requests.push_back(request);
  return kSuccess;
}

}  // namespace

extern "C" {

int ncclGetVersion(int* version) {
  *version = 22809;
  return kSuccess;
}

const char* ncclGetErrorString(int result) { return result == 1 ? "unhandled cuda error" : "remote process exited"; }
const char* ncclGetLastError(ncclComm* communicator) { return communicator->rank == 0 ? "" : "the cable is cut"; }

int ncclCommCount(const ncclComm* communicator, int* ranks) {
  *ranks = static_cast<int>(communicator->clique->requests.size());
  return communicator->fails("ncclCommCount");
}

int ncclCommUserRank(const ncclComm* communicator, int* rank) {
  *rank = communicator->rank;
  return kSuccess;
}

int ncclCommCuDevice(const ncclComm* communicator, int* device) {
  *device = communicator->device;
  return kSuccess;
}

int ncclCommGetAsyncError(ncclComm* communicator, int* result) {
  *result = communicator->async_error;
  if (communicator->questions_in_progress > 0) {
    --communicator->questions_in_progress;
    *result = kInProgress;
  }
  return communicator->fails("ncclCommGetAsyncError");
}

int ncclAllGather(const void* from, void* to, std::size_t count, int dtype, ncclComm* communicator,
                  CUstream_st* stream) {
  return ask("ncclAllGather", {Kind::gather, from, to, count, dtype, 0}, communicator, stream);
}

int ncclReduceScatter(const void* from, void* to, std::size_t count, int dtype, int operation, ncclComm* communicator,
                      CUstream_st* stream) {
  return ask("ncclReduceScatter", {Kind::scatter, from, to, count, dtype, operation}, communicator, stream);
}

int ncclAllReduce(const void* from, void* to, std::size_t count, int dtype, int operation, ncclComm* communicator,
                  CUstream_st* stream) {
  return ask("ncclAllReduce", {Kind::reduce, from, to, count, dtype, operation}, communicator, stream);
}

int ncclGroupStart() {
  ++group().depth;
  return kSuccess;
}

int ncclGroupEnd() {
  Group ended = group();
  if (ended.depth != 1) return 5;  // ncclInvalidUsage: none is open, or one has been left open
  group() = {};
  if (ended.communicator == nullptr) return kSuccess;
  const int result = end(*ended.communicator);
  ended.communicator->requests.clear();
  return result;
}

ncclComm** fake_nccl_make(int ranks, int device) {
  auto clique = std::make_shared<Clique>();
  clique->requests.resize(static_cast<std::size_t>(ranks));
  auto** made = new ncclComm*[static_cast<std::size_t>(ranks)];
  for (int rank = 0; rank < ranks; ++rank) {
    made[rank] = new ncclComm;
    made[rank]->clique = clique;
    made[rank]->rank = rank;
    made[rank]->device = device;
  }
  return made;
}

void fake_nccl_destroy(ncclComm* communicator) { delete communicator; }

const char* fake_nccl_calls(ncclComm* communicator) {
  thread_local std::string given;
  given.swap(communicator->log);
  communicator->log.clear();
  return given.c_str();
}

void fake_nccl_fail(ncclComm* communicator, const char* call, int result) {
  communicator->failing = call;
  communicator->failure = result;
}

void fake_nccl_set_async_error(ncclComm* communicator, int result) { communicator->async_error = result; }

void fake_nccl_set_in_progress(ncclComm* communicator, int questions) {
  communicator->is_nonblocking = true;
  communicator->questions_in_progress = questions;
}

void fake_nccl_only_note(ncclComm* communicator) { communicator->only_notes = true; }

}  // extern "C"
