#include "ranks.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "ingot/runtime/dist/local_group.h"
#include "ingot/runtime/dist/nccl_library.h"
#include "ingot/runtime/util/error.h"
#include "ingot/runtime/util/library.h"

namespace train_lm {
namespace {

using ingot::Error;
using ingot::ErrorCode;

using Work = std::function<void(ingot::Context&, ingot::Comm&)>;

// What a rank threw first.
class FirstError {
 public:
  void keep_current() {
    const std::lock_guard lock(mutex_);
    if (error_ == nullptr) error_ = std::current_exception();
  }
  void rethrow() const {
    if (error_ != nullptr) std::rethrow_exception(error_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr error_;
};

// Calls rank(0) here and rank(i) on a thread each.
void on_threads(int ranks, const std::function<void(int)>& rank) {
  std::vector<std::jthread> threads;
  for (int i = 1; i < ranks; ++i) threads.emplace_back(rank, i);
  rank(0);
}

// The context of a rank: the given one of rank 0, or an own.
class RankContext {
 public:
  RankContext(ingot::Context& first, ingot::ContextOptions options, int rank) : context_(&first) {
    if (rank == 0) return;
    if (first.device().type == ingot::DeviceType::cuda) {
      options.where = ingot::ContextOptions::Where::cuda;
      options.device_index = rank;
    }
    options.record.clear();  // one rank records
    context_ = &own_.emplace(options);
  }
  ingot::Context& get() { return *context_; }

 private:
  std::optional<ingot::Context> own_;
  ingot::Context* context_;
};

void on_cpu(ingot::Context& context, const ingot::ContextOptions& options, int ranks, const Work& work) {
  ingot::LocalGroup group(ranks);
  FirstError error;
  on_threads(ranks, [&](int rank) {
    std::optional<ingot::Comm> comm;  // goes after the error is kept: others throw when a rank has ended
    std::optional<RankContext> own;
    try {
      own.emplace(context, options, rank);
      comm.emplace(own->get().device_api(), group, rank);
      work(own->get(), *comm);
    } catch (...) {
      error.keep_current();
      if (!comm) comm.emplace(context.device_api(), group, rank);
    }
    comm.reset();
  });
  error.rethrow();
}

// One communicator for each GPU from 0 on.
class Communicators {
 public:
  Communicators(int ranks, const std::string& cuda_root) : of_(static_cast<std::size_t>(ranks)) {
    std::string problem;
    nccl_ = ingot::NcclLibrary::open("", cuda_root, problem);
    if (nccl_ == nullptr) throw Error(ErrorCode::not_found, "--ranks", problem);
    library_ = ingot::Library::open(nccl_->path(), problem);
    const auto make = reinterpret_cast<int (*)(ncclComm**, int, const int*)>(library_.symbol("ncclCommInitAll"));
    destroy_ = reinterpret_cast<int (*)(ncclComm*)>(library_.symbol("ncclCommDestroy"));
    if (make == nullptr || destroy_ == nullptr) {
      throw Error(ErrorCode::not_found, "--ranks", nccl_->path() + " cannot make communicators");
    }
    if (const int result = make(of_.data(), ranks, nullptr); result != 0) {
      throw Error(ErrorCode::cuda_failed, "ncclCommInitAll", nccl_->functions().get_error_string(result));
    }
  }
  ~Communicators() {
    for (ncclComm* each : of_) {
      if (each != nullptr) static_cast<void>(destroy_(each));
    }
  }
  Communicators(const Communicators&) = delete;
  Communicators& operator=(const Communicators&) = delete;

  const ingot::NcclLibrary& nccl() const { return *nccl_; }
  ncclComm* at(int rank) const { return of_[static_cast<std::size_t>(rank)]; }

 private:
  std::vector<ncclComm*> of_;
  std::unique_ptr<ingot::NcclLibrary> nccl_;
  ingot::Library library_;
  int (*destroy_)(ncclComm*) = nullptr;
};

void on_gpus(ingot::Context& context, const ingot::ContextOptions& options, int ranks, const Work& work) {
  for (int rank = 1; rank < ranks; ++rank) {
    ingot::ContextOptions of_rank = options;
    of_rank.where = ingot::ContextOptions::Where::cuda;
    of_rank.device_index = rank;
    try {
      static_cast<void>(ingot::choose_device(of_rank));
    } catch (const Error&) {
      throw Error(
          ErrorCode::invalid_argument, "--ranks",
          fmt::format("is {}, and each rank needs its own GPU, but there are {}: take --ranks {}, or --device cpu",
                      ranks, rank, rank));
    }
  }
  if (context.device().index != 0) {
    throw Error(ErrorCode::invalid_argument, "--ranks",
                "takes the GPUs from the first on: choose them by CUDA_VISIBLE_DEVICES, not by INGOT_DEVICE");
  }
  const Communicators communicators(ranks, options.cuda_root.string());
  on_threads(ranks, [&](int rank) {
    try {
      RankContext own(context, options, rank);
      ingot::Comm comm(own.get().device_api(), communicators.nccl(), communicators.at(rank));
      work(own.get(), comm);
    } catch (const std::exception& error) {
      std::fputs(fmt::format("train_lm: error: rank {}: {}\n", rank, error.what()).c_str(), stderr);
      std::_Exit(1);
    }
  });
}

}  // namespace

void on_ranks(ingot::Context& context, const ingot::ContextOptions& options, int ranks, const Work& work) {
  if (ranks == 1) {
    ingot::Comm alone(context.device_api());
    return work(context, alone);
  }
  if (context.device().type == ingot::DeviceType::cuda) return on_gpus(context, options, ranks, work);
  on_cpu(context, options, ranks, work);
}

}  // namespace train_lm
