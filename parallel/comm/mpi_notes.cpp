// Notes between process ranks: one small message each, on a separate communicator.
#include <algorithm>

#include "parallel/comm/mpi_state.h"

namespace gt {

void MpiFactory::open_notes() {
  if (shared_->notes != MPI_COMM_NULL) return;
  check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &shared_->notes), "MPI_Comm_dup");
  MPI_Comm_set_errhandler(shared_->notes, MPI_ERRORS_RETURN);
}

void MpiFactory::leave(int to, const Note& note) {
  auto& sent = shared_->sent_notes;
  for (int done = 1; !sent.empty() && done != 0;) {
    check_mpi(MPI_Test(&sent.front().request, &done, MPI_STATUS_IGNORE), "sending a note");
    if (done != 0) sent.pop_front();
  }
  sent.push_back({note, MPI_REQUEST_NULL});
  check_mpi(MPI_Isend(&sent.back().note, sizeof(Note), MPI_BYTE, to, 0, shared_->notes, &sent.back().request),
            "sending a note");
}

bool MpiFactory::take(int from, Note& note) {
  auto& come = shared_->come_notes;
  for (;;) {
    int there = 0;
    MPI_Status status{};
    check_mpi(MPI_Iprobe(MPI_ANY_SOURCE, 0, shared_->notes, &there, &status), "looking for notes");
    if (there == 0) break;
    Note n;
    check_mpi(MPI_Recv(&n, sizeof n, MPI_BYTE, status.MPI_SOURCE, 0, shared_->notes, MPI_STATUS_IGNORE),
              "receiving a note");
    come.emplace_back(status.MPI_SOURCE, n);
  }
  const auto it = std::find_if(come.begin(), come.end(), [&](const auto& c) {
    return c.first == from && c.second.group == note.group && c.second.tag == note.tag;
  });
  if (it == come.end()) return false;
  note = it->second;
  come.erase(it);
  return true;
}

GroupTrace MpiFactory::trace(uint64_t number, int leader, int rank, int size) {
  return GroupTrace(shared_->board, shared_->board_rank, number, leader, rank, size);
}

}  // namespace gt
