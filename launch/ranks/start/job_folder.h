// Folder for the shared memory of one job on this machine, removed when the job ends for any reason. Holds Open MPI's
// segments and session folder, which a killed mpirun leaves behind; also removes segments named after our ranks.
#pragma once
#include <string>

namespace gt {

class JobFolder {
 public:
  // Creates a unique folder in /dev/shm and removes those of dead jobs. If it cannot be created, path() is empty and
  // the system's default locations are used.
  JobFolder();
  ~JobFolder();  // removes it, and segments that killed ranks of this job could not unlink
  JobFolder(const JobFolder&) = delete;
  JobFolder& operator=(const JobFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int lock_ = -1;  // held while the owner lives; released by the kernel
  long begun_ = 0;
};

// Removes this user's folders whose owners are dead; returns their number.
int sweep_job_folders();

}  // namespace gt
