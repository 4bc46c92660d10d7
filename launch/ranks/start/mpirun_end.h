// Ends mpirun. SIGINT, SIGTERM and SIGHUP make it kill its ranks within a second, before they can save, so it runs with
// all three blocked, and is ended through the death of a rank, upon which it ends the others and removes its files.
#pragma once
#include <sys/types.h>

namespace gt {

// Kills mpirun's ranks on this machine; mpirun itself, by SIGKILL, if it has none or `now`.
void end_mpirun(pid_t mpirun, bool now);

// Removes what Open MPI leaves of a killed mpirun of this machine: its session folder, and its ranks' segments in
// /dev/shm. Requires: mpirun has ended.
void remove_mpirun_files(pid_t mpirun);

// A process that ends mpirun once this one has died, by SIGKILL too; it ends with this object.
class MpirunGuard {
 public:
  explicit MpirunGuard(pid_t mpirun);
  ~MpirunGuard();
  MpirunGuard(const MpirunGuard&) = delete;
  MpirunGuard& operator=(const MpirunGuard&) = delete;

 private:
  pid_t guard_ = -1;
  int alive_ = -1;  // write end of a pipe that nobody else holds
};

}  // namespace gt
