// A worker reads a job's number from its socket and answers with a header and a text. The socket closes when either
// side ends, so a worker never outlives the command, and a worker that dies is noticed at once.
#include "worker_processes.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "ingot/runtime/util/error.h"
#include "ingot/runtime/util/file_descriptor.h"

namespace ingot::tools {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::uint64_t kLongestText = std::uint64_t{64} << 20;

struct Answer {
  std::uint64_t failed = 0;
  double seconds = 0;
  std::uint64_t text_bytes = 0;
};

// False with errno EAGAIN if nothing more came for a while, and with another if the other end is closed.
bool read_all(int file, void* data, std::size_t bytes) {
  auto* to = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t got = ::read(file, to, bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got == 0) errno = 0;
    if (got <= 0) return false;
    to += got;
    bytes -= static_cast<std::size_t>(got);
  }
  return true;
}

bool send_all(int file, const void* data, std::size_t bytes) {
  const auto* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t sent = ::send(file, from, bytes, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    from += sent;
    bytes -= static_cast<std::size_t>(sent);
  }
  return true;
}

[[noreturn]] void serve(int socket, const std::function<std::string(std::size_t)>& work) {
  std::uint64_t job = 0;
  while (read_all(socket, &job, sizeof(job))) {
    Answer answer;
    std::string text;
    const auto start = std::chrono::steady_clock::now();
    try {
      text = work(static_cast<std::size_t>(job));
    } catch (const std::exception& error) {
      answer.failed = 1;
      text = error.what();
    }
    answer.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    answer.text_bytes = text.size();
    if (!send_all(socket, &answer, sizeof(answer)) || !send_all(socket, text.data(), text.size())) break;
  }
  _exit(0);
}

std::string how_it_ended(pid_t process) {
  int status = 0;
  while (waitpid(process, &status, 0) < 0 && errno == EINTR) {}
  if (WIFSIGNALED(status)) {
    return fmt::format("the process that compiled it was ended by signal {} ({})", WTERMSIG(status),
                       strsignal(WTERMSIG(status)));
  }
  return fmt::format("the process that compiled it ended with exit code {}", WEXITSTATUS(status));
}

class Worker {
 public:
  // Throws Error{io_failed}. `others`: sockets that belong to other workers.
  Worker(const std::vector<Worker>& others, const std::function<std::string(std::size_t)>& work) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) fail();
    socket_ = FileDescriptor(ends[0]);
    // An answer is sent at once: a worker that stops in the middle of it hangs.
    constexpr timeval kPatience{.tv_sec = 5, .tv_usec = 0};
    setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof(kPatience));
    FileDescriptor far_end(ends[1]);
    const pid_t parent = getpid();
    process_ = fork();
    if (process_ < 0) fail();
    if (process_ != 0) return;
    // Busy or hung, it ends with the command, however that ends.
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent) _exit(1);
    socket_.close();
    for (const Worker& other : others) ::close(other.socket());
    serve(far_end.get(), work);
  }
  Worker(Worker&& other) noexcept
      : socket_(std::move(other.socket_)),
        process_(std::exchange(other.process_, 0)),
        job_(other.job_),
        deadline_(other.deadline_) {}
  Worker& operator=(Worker&& other) noexcept {
    std::swap(socket_, other.socket_);
    std::swap(process_, other.process_);
    std::swap(job_, other.job_);
    std::swap(deadline_, other.deadline_);
    return *this;
  }
  ~Worker() {
    if (process_ > 0 && busy()) kill(process_, SIGKILL);
    socket_.close();
    if (process_ > 0) how_it_ended(process_);
  }

  int socket() const { return socket_.get(); }
  bool busy() const { return job_.has_value(); }
  bool ended() const { return process_ == 0; }

  Clock::time_point deadline() const { return deadline_; }

  bool begin(std::size_t job, milliseconds limit) {
    const std::uint64_t number = job;
    job_ = job;
    deadline_ = Clock::now() + limit;
    return send_all(socket(), &number, sizeof(number));
  }

  // The result of its job; nothing if the process has died (`closed`), or says what no worker would.
  std::optional<JobResult> result(bool& closed) {
    Answer answer;
    const bool whole = read_all(socket(), &answer, sizeof(answer));
    closed = !whole && errno != EAGAIN;
    if (!whole || answer.failed > 1 || answer.text_bytes > kLongestText) return std::nullopt;
    JobResult result{.job = *job_, .failed = answer.failed != 0, .seconds = answer.seconds};
    result.text.resize(static_cast<std::size_t>(answer.text_bytes));
    if (!read_all(socket(), result.text.data(), result.text.size())) {
      closed = errno != EAGAIN;
      return std::nullopt;
    }
    job_.reset();
    return result;
  }
  // The result of a process that has died, or is about to.
  JobResult death() { return failure(""); }
  // Ends a process that lives but is no longer of use.
  JobResult ended_because(const std::string& why) {
    kill(process_, SIGKILL);
    return failure(why);
  }

 private:
  [[noreturn]] static void fail() {
    throw Error(ErrorCode::io_failed, "worker process", "cannot be started: " + std::system_category().message(errno));
  }

  JobResult failure(const std::string& why) {
    socket_.close();
    const std::string how = how_it_ended(std::exchange(process_, 0));
    return {.job = *std::exchange(job_, std::nullopt), .failed = true, .text = why.empty() ? how : why};
  }

  FileDescriptor socket_;
  pid_t process_ = 0;
  std::optional<std::size_t> job_;
  Clock::time_point deadline_{};
};

// Waits until at least one busy worker has something to say, or has worked for too long, or `stop` is to be asked
// again.
void wait_for_any(const std::vector<Worker>& workers, std::vector<pollfd>& ready) {
  ready.clear();
  auto first = Clock::time_point::max();
  for (const Worker& worker : workers) {
    ready.push_back({.fd = worker.busy() ? worker.socket() : -1, .events = POLLIN, .revents = 0});
    if (worker.busy()) first = std::min(first, worker.deadline());
  }
  constexpr milliseconds kLongestWait{50};  // signals are held back, so none ends the wait
  const auto wait = std::clamp(std::chrono::ceil<milliseconds>(first - Clock::now()), milliseconds(0), kLongestWait);
  if (poll(ready.data(), ready.size(), static_cast<int>(wait.count())) < 0) {
    for (pollfd& each : ready) each.revents = 0;
  }
}

// The outcome of a busy worker's job; nothing if it still works. Leaves a worker without a process if that is of no use
// any more.
std::optional<JobResult> outcome(Worker& worker, bool speaks, milliseconds limit) {
  if (speaks) {
    bool closed = false;
    if (auto result = worker.result(closed)) return result;
    return closed ? worker.death()
                  : worker.ended_because("the process that compiled it answered garbage and was ended");
  }
  if (Clock::now() < worker.deadline()) return std::nullopt;
  return worker.ended_because(
      fmt::format("the process that compiled it was ended after {:g}s", std::chrono::duration<double>(limit).count()));
}

}  // namespace

void run_in_workers(std::span<const std::size_t> jobs, const WorkerOptions& options) {
  std::vector<Worker> workers;
  std::vector<pollfd> ready;
  const unsigned processes =
      options.processes > 0 ? static_cast<unsigned>(options.processes) : std::thread::hardware_concurrency();
  const std::size_t wanted = std::min<std::size_t>(std::max(processes, 1U), jobs.size());
  std::size_t next = 0;
  std::size_t running = 0;
  while (true) {
    while (next < jobs.size() && running < wanted && !options.stop()) {
      auto idle = std::ranges::find_if_not(workers, &Worker::busy);
      if (idle == workers.end()) {
        try {
          workers.push_back(Worker(workers, options.work));
        } catch (const Error&) {
          if (running == 0) throw;
          break;  // fewer workers do it too
        }
        idle = std::prev(workers.end());
      }
      options.begun(jobs[next]);
      idle->begin(jobs[next], options.limit);  // if it has died meanwhile, its result will say so
      ++next;
      ++running;
    }
    if (running == 0 || options.stop()) return;  // what still runs is ended with its worker
    wait_for_any(workers, ready);
    for (std::size_t i = workers.size(); i-- > 0;) {
      if (!workers[i].busy()) continue;
      const std::optional<JobResult> result = outcome(workers[i], ready[i].revents != 0, options.limit);
      if (!result) continue;
      options.done(*result);
      if (workers[i].ended()) workers.erase(workers.begin() + static_cast<std::ptrdiff_t>(i));
      --running;
    }
  }
}

}  // namespace ingot::tools
