// Where one job of this machine keeps its shared memory, so that all of it can be removed when the job is over, however
// it ended: Open MPI's own segments and session folder (a killed mpirun removes neither), and what our ranks name after
// themselves.
#pragma once
#include <string>

namespace gt {

class JobFolder {
 public:
  // A folder in /dev/shm that nobody else has, and a sweep of those whose makers are dead. No path where none can be
  // made: jobs then use the system's places.
  JobFolder();
  ~JobFolder();  // removes it, and segments that ranks of this job were killed too early to unlink
  JobFolder(const JobFolder&) = delete;
  JobFolder& operator=(const JobFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int lock_ = -1;     // held while the maker lives: the system drops it, however that ends
  long begun_ = 0;
};

// Removes the folders of this user whose makers are dead; returns how many.
int sweep_job_folders();

}  // namespace gt
