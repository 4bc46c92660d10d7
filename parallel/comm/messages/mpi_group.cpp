#include "parallel/comm/messages/mpi_group.h"

#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <exception>
#include <initializer_list>
#include <string>
#include <thread>
#include <vector>

#include "kernels/core/check.h"
#include "parallel/comm/messages/message_transport.h"

namespace gt {
namespace {

// Throws kInternal with MPI's error string.
void check_mpi(int rc, const char* what) {
  if (rc == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(rc, text, &length);
  fail(Exit::kInternal, what, ": ", std::string(text, static_cast<size_t>(length)));
}

bool is_finalized() {
  int ended = 0;
  MPI_Finalized(&ended);
  return ended != 0;
}

struct MpiChannel final : MessageChannel {
  explicit MpiChannel(MPI_Comm c) : comm(c) { MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN); }
  ~MpiChannel() override {
    if (!is_finalized() && std::uncaught_exceptions() == 0) MPI_Comm_free(&comm);  // may block on ranks that have ended
  }
  MPI_Comm comm;
};

class MpiSet final : public MessageSet {
 public:
  void use(MessageChannel& channel) override {
    comm_ = static_cast<MpiChannel&>(channel).comm;
    clear();
  }
  void send(const std::byte* from, int64_t bytes, int peer, int tag) override {
    do {
      const int now = post(bytes, peer, false);
      check_mpi(MPI_Isend(from, now, MPI_BYTE, peer, tag, comm_, &requests_.back()), "MPI_Isend");
      from += now, bytes -= now;
    } while (bytes > 0);
  }
  void receive(std::byte* to, int64_t bytes, int peer, int tag) override {
    do {
      const int now = post(bytes, peer, true);
      check_mpi(MPI_Irecv(to, now, MPI_BYTE, peer, tag, comm_, &requests_.back()), "MPI_Irecv");
      to += now, bytes -= now;
    } while (bytes > 0);
  }
  State test() override {
    int done = 0;
    statuses_.resize(requests_.size());
    const int rc = MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, statuses_.data());
    if (rc == MPI_SUCCESS && done == 0) return {};
    for (size_t i = 0; i < pieces_.size(); ++i) {
      const Piece& p = pieces_[i];
      int error = rc == MPI_ERR_IN_STATUS ? statuses_[i].MPI_ERROR : rc, bytes = p.bytes;
      if (p.receive && error == MPI_SUCCESS) MPI_Get_count(&statuses_[i], MPI_BYTE, &bytes);
      if (error == MPI_ERR_TRUNCATE) return {false, p.peer, p.bytes, -1};
      if (bytes != p.bytes) return {false, p.peer, p.bytes, bytes};
      if (error != MPI_ERR_PENDING) check_mpi(error, "a message");
    }
    if (done != 0) clear();
    return {done != 0};
  }
  void missing(std::vector<int>& peers, bool sends) const override {
    for (size_t i = 0; i < requests_.size(); ++i) {
      int done = 0;
      if (requests_[i] != MPI_REQUEST_NULL) MPI_Request_get_status(requests_[i], &done, MPI_STATUS_IGNORE);
      if (done == 0 && (pieces_[i].receive || sends)) peers.push_back(pieces_[i].peer);
    }
  }
  void abandon() override {
    for (size_t i = 0; !is_finalized() && i < requests_.size(); ++i) {
      if (requests_[i] == MPI_REQUEST_NULL) continue;
      if (pieces_[i].receive) MPI_Cancel(&requests_[i]);
      MPI_Request_free(&requests_[i]);
    }
    clear();
  }

 private:
  int post(int64_t bytes, int peer, bool receive) {
    constexpr int64_t kLargest = 1 << 30;  // bytes of one message: MPI counts are ints
    const int now = static_cast<int>(std::min(bytes, kLargest));
    requests_.push_back(MPI_REQUEST_NULL);
    pieces_.push_back({peer, now, receive});
    return now;
  }
  void clear() { requests_.clear(), pieces_.clear(); }

  struct Piece {
    int peer;
    int bytes;
    bool receive;
  };
  MPI_Comm comm_ = MPI_COMM_NULL;
  std::vector<MPI_Request> requests_;
  std::vector<MPI_Status> statuses_;
  std::vector<Piece> pieces_;  // what each request transfers
};

// First of these variables of the launcher, before MPI is initialized; 1 if none is set.
int announced(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (const char* text = std::getenv(name)) return std::max(1, std::atoi(text));
  }
  return 1;
}

// Over TCP, Open MPI sends messages above 64 KiB only once the receiver has answered a request. Neither side notices
// request or answer while it computes, and on a slow line they take two latencies more. Up to this size a message
// leaves with its call: line of 40 ms round trip, 100 Mbit/s, a message of 256 KiB 51 ms instead of 95, of 1 MiB 113
// instead of 257.
constexpr const char* kEagerBytes = "4194304";

void send_eagerly_between_machines() {
  for (const char* name : {"OMPI_MCA_btl_tcp_eager_limit", "OMPI_MCA_btl_tcp_rndv_eager_limit"})
    setenv(name, kEagerBytes, 0);
}

class MpiTransport final : public MessageTransport {
 public:
  MpiTransport();
  ~MpiTransport() override {
    if (owns_mpi_ && std::uncaught_exceptions() == unwinding_) MPI_Finalize();
  }
  std::string_view name() const override { return "mpi"; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  const std::vector<int>& local_ranks() const override { return local_ranks_; }
  int largest_tag() const override { return largest_tag_; }
  std::unique_ptr<MessageSet> make_set() override { return std::make_unique<MpiSet>(); }
  Channels split(std::span<const int> ranks) override;
  std::unique_ptr<MessageChannel> split_machine() override { return std::make_unique<MpiChannel>(machine()); }
  void open_notes() override;
  void leave(int to, const Note&) override;
  bool next_note(int& from, Note&) override;
  [[noreturn]] void abort(int code) override {
    if (!is_finalized()) MPI_Abort(MPI_COMM_WORLD, code);
    std::_Exit(code);
  }
  void pause(int us) override { std::this_thread::sleep_for(std::chrono::microseconds(us)); }

 private:
  MPI_Comm machine() const {
    MPI_Comm node = MPI_COMM_NULL;
    check_mpi(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &node),
              "MPI_Comm_split_type");
    return node;
  }
  bool owns_mpi_ = false;
  int unwinding_ = std::uncaught_exceptions();
  int rank_ = 0, size_ = 1, largest_tag_ = 32767;
  std::vector<int> local_ranks_;
  MPI_Comm notes_ = MPI_COMM_NULL;
  struct SentNote {
    Note note;
    MPI_Request request = MPI_REQUEST_NULL;
  };
  std::deque<SentNote> sent_notes_;  // until MPI has completed the send
};

MpiTransport::MpiTransport() {
  int running = 0;
  MPI_Initialized(&running);
  if (!running) {
    // Without this Open MPI spins: with 16 ranks on 2 processors a 4-byte all-reduce then takes 0.2 s.
    const int local = announced({"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"});
    if (local > std::max(1L, sysconf(_SC_NPROCESSORS_ONLN))) setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
    if (announced({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"}) > local) send_eagerly_between_machines();
    int level = 0;
    check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &level), "MPI_Init_thread");
    owns_mpi_ = true;
    GT_REQUIRE(level >= MPI_THREAD_FUNNELED, Exit::kInternal, "this MPI has no thread support (level ", level,
               "), MPI_THREAD_FUNNELED is needed");
  }
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &size_);
  MPI_Comm node = machine();
  int here = 1;
  MPI_Comm_size(node, &here);
  local_ranks_.resize(static_cast<size_t>(here));
  check_mpi(MPI_Allgather(&rank_, 1, MPI_INT, local_ranks_.data(), 1, MPI_INT, node), "MPI_Allgather");
  MPI_Comm_free(&node);
  int* value = nullptr;
  int known = 0;
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, static_cast<void*>(&value), &known);
  if (known) largest_tag_ = *value;
}

MessageTransport::Channels MpiTransport::split(std::span<const int> ranks) {
  MPI_Comm comm = MPI_COMM_NULL, messages = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split(MPI_COMM_WORLD, ranks.front(), rank_, &comm), "MPI_Comm_split");
  int found = 0;
  MPI_Comm_size(comm, &found);
  GT_CHECK(found == static_cast<int>(ranks.size()), "rank ", rank_, " requests a group of ", ranks.size(),
           " ranks, but ", found, " ranks gave a list that starts with ", ranks.front(),
           "; the lists of one call must partition the world");
  if (found == 1) {
    MPI_Comm_free(&comm);
    return {};
  }
  check_mpi(MPI_Comm_dup(comm, &messages), "MPI_Comm_dup");
  return {std::make_unique<MpiChannel>(comm), std::make_unique<MpiChannel>(messages)};
}

void MpiTransport::open_notes() {
  if (notes_ != MPI_COMM_NULL) return;
  check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &notes_), "MPI_Comm_dup");
  MPI_Comm_set_errhandler(notes_, MPI_ERRORS_RETURN);
}

void MpiTransport::leave(int to, const Note& note) {
  for (int done = 1; !sent_notes_.empty() && done != 0;) {
    check_mpi(MPI_Test(&sent_notes_.front().request, &done, MPI_STATUS_IGNORE), "sending a note");
    if (done != 0) sent_notes_.pop_front();
  }
  sent_notes_.push_back({note, MPI_REQUEST_NULL});
  SentNote& sent = sent_notes_.back();
  check_mpi(MPI_Isend(&sent.note, sizeof(Note), MPI_BYTE, to, 0, notes_, &sent.request), "sending a note");
}

bool MpiTransport::next_note(int& from, Note& note) {
  int there = 0;
  MPI_Status status{};
  check_mpi(MPI_Iprobe(MPI_ANY_SOURCE, 0, notes_, &there, &status), "looking for notes");
  if (there == 0) return false;
  from = status.MPI_SOURCE;
  check_mpi(MPI_Recv(&note, sizeof note, MPI_BYTE, from, 0, notes_, MPI_STATUS_IGNORE), "receiving a note");
  return true;
}

}  // namespace

MpiFactory::MpiFactory(std::chrono::milliseconds deadline, bool node_memory)
    : MessageFactory(std::make_unique<MpiTransport>(), deadline, node_memory) {}

}  // namespace gt
