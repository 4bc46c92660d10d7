#include "parallel/comm/mpi_state.h"

#include <sched.h>

#include <algorithm>
#include <functional>
#include <thread>
#include <utility>

#include "parallel/comm/node_memory.h"

namespace gt {

void check_mpi(int rc, const char* what) {
  if (rc == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(rc, text, &length);
  fail(Exit::kInternal, what, ": ", std::string(text, static_cast<size_t>(length)));
}

MpiWork& MpiFactory::Shared::start(const ProcessGroup& group, MPI_Comm comm, const CommCall& call, uint64_t seq) {
  if (free_.empty()) {
    works_.emplace_back();
    works_.back().index = works_.size() - 1;
    free_.push_back(works_.size() - 1);
  }
  MpiWork& w = works_[free_.back()];
  free_.pop_back();
  w.group = &group;
  w.comm = comm;
  w.call = call;
  w.seq = seq;
  w.phase = 1;
  w.node = nullptr;
  w.requests.clear();
  w.pieces.clear();
  active_.push_back(&w);
  return w;
}

// Throws if a message failed or had another size than this rank's call implies. The work then counts as complete.
void MpiFactory::Shared::check_pieces(MpiWork& w, int rc) {
  const int phase = std::exchange(w.phase, 0);
  for (size_t i = 0; i < w.pieces.size(); ++i) {
    const MpiWork::Piece& p = w.pieces[i];
    int error = rc == MPI_ERR_IN_STATUS ? w.statuses[i].MPI_ERROR : rc, bytes = p.bytes;
    if (p.receive && error == MPI_SUCCESS) MPI_Get_count(&w.statuses[i], MPI_BYTE, &bytes);
    GT_REQUIRE(bytes == p.bytes && error != MPI_ERR_TRUNCATE, Exit::kInternal, w.group->label(), ": rank ",
               w.group->rank(), " called ", to_string(w.call), " #", w.seq, " and expected ", p.bytes,
               " bytes from rank ", p.peer, ", which sent ", error == MPI_ERR_TRUNCATE ? "more" : cat(bytes),
               ": the ranks disagree about this call");
    if (error != MPI_ERR_PENDING) check_mpi(error, "a message");
  }
  w.phase = phase;
}

// Tests the requests of the current phase; once all are complete, checks received sizes and starts the next phase.
void MpiFactory::Shared::advance(MpiWork& w) {
  if (w.node != nullptr) return w.node->advance();
  while (w.phase > 0) {
    int done = 0;
    w.statuses.resize(w.requests.size());
    const int rc = MPI_Testall(static_cast<int>(w.requests.size()), w.requests.data(), &done, w.statuses.data());
    if (rc != MPI_SUCCESS || done) check_pieces(w, rc);
    if (done == 0) return;
    w.requests.clear();
    w.pieces.clear();
    if (w.call.op == CommOp::kSend || w.call.op == CommOp::kRecv)
      w.phase = 0;
    else
      continue_collective(w, w.group->rank(), w.group->size());
  }
}

void MpiFactory::Shared::progress() {
  for (MpiWork* w : active_) advance(*w);
  std::erase_if(active_, [](const MpiWork* w) {
    if (w->phase != 0) return false;
    w->counters->of(w->call.op).flight_ns += steady_ns() - w->started;
    return true;
  });
}

void MpiFactory::Shared::forget(const ProcessGroup& group) {
  int ended = 0;
  MPI_Finalized(&ended);
  std::erase_if(active_, [&](MpiWork* w) {
    if (w->group != &group) return false;
    for (size_t i = 0; !ended && i < w->requests.size(); ++i) {
      if (w->requests[i] == MPI_REQUEST_NULL) continue;
      if (w->pieces[i].receive) MPI_Cancel(&w->requests[i]);
      MPI_Request_free(&w->requests[i]);
    }
    return true;
  });
}

CommCall MpiFactory::Shared::wait(uint64_t index) {
  MpiWork& w = works_[index];
  const int64_t begin = steady_ns(), limit = std::chrono::nanoseconds(deadline).count();
  struct Waiting {  // reset on return and on exceptions
    GroupTrace* trace = nullptr;
    ~Waiting() {
      if (trace != nullptr) trace->end_wait();
    }
  } waiting;
  for (int round = 0;; ++round) {
    progress();
    if (w.phase == 0) break;
    if (waiting.trace == nullptr) {
      w.trace->begin_wait(w.call, w.seq, begin);
      waiting.trace = w.trace;
    }
    if (w.trace->broken()) fail(Exit::kInternal, w.group->label(), ": ", w.trace->broken_calls());
    if (steady_ns() - begin > limit) hang(w);
    if (!crowded && round < 200) continue;
    if (!crowded || round < 64)
      sched_yield();
    else
      std::this_thread::sleep_for(std::chrono::microseconds(std::min(20 + round / 8, 500)));
  }
  // Kept in descending order, so that a repeated sequence of calls reuses the same objects, with staging of the right
  // size.
  free_.insert(std::upper_bound(free_.begin(), free_.end(), index, std::greater<>()), index);
  return w.call;
}

void MpiFactory::Shared::hang(MpiWork& w) {
  std::vector<int> missing;
  if (w.node != nullptr) missing = w.node->missing();
  for (size_t i = 0; i < w.requests.size(); ++i) {
    int done = 0;
    if (w.requests[i] != MPI_REQUEST_NULL) MPI_Request_get_status(w.requests[i], &done, MPI_STATUS_IGNORE);
    if (done == 0 && (w.pieces[i].receive || w.call.op == CommOp::kSend)) missing.push_back(w.pieces[i].peer);
  }
  std::sort(missing.begin(), missing.end());
  missing.erase(std::unique(missing.begin(), missing.end()), missing.end());
  std::string last;
  for (int r : missing)
    if (const std::string call = w.trace->last_call(r); !call.empty()) last += cat("; rank ", r, ": ", call);
  fail(Exit::kHang, w.group->label(), ": rank ", w.group->rank(), " (world rank ", rank, ") waited ", deadline.count(),
       " ms in ", to_string(w.call), " #", w.seq, "; nothing from ranks ", to_string(missing), " of this group", last);
}

}  // namespace gt
