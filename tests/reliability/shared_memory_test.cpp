// Files in /dev/shm: what killed ranks leave there is removed, what belongs to a living process stays, whatever PID
// namespace (container) it lives in.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/core/check.h"
#include "kernels/core/owned_file.h"
#include "launch/ranks/start/stray_segments.h"
#include "tests/launch/process.h"
#include "tests/launch/rank_processes.h"
#include "tests/support/paths.h"
#include "tests/support/skip.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

const std::string kFolder = "/dev/shm";
const std::string kRun =
    "--model.layers 1 --model.hidden 16 --model.heads 2 --model.vocab 64 --model.seq 8 --data.train mock "
    "--train.global_batch 4 --train.micro_batch 1 --device.kind cpu --device.threads 1 --log.tensorboard false "
    "--schedule.type constant --tp 2 --train.steps 40 --checkpoint.every 5 --log.name x ";

bool exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

// Returns the path of an owned file whose owner was killed.
std::string stray_file() {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const pid_t child = fork();
  if (child == 0) {
    const OwnedFile mine = create_owned_file(kFolder);
    if (write(ends[1], mine.path.c_str(), mine.path.size()) < 0) _exit(1);
    for (;;) pause();
  }
  char path[256] = "";
  REQUIRE(read(ends[0], path, sizeof path - 1) > 0);
  for (const int fd : ends) close(fd);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  return path;
}

// A file in /dev/shm that this process made; removed at the end.
struct Marker {
  explicit Marker(std::string at) : path(std::move(at)) {
    close(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  }
  ~Marker() { unlink(path.c_str()); }
  std::string path;
};

}  // namespace

TEST_CASE("owned files in shared memory go with their owner, and only then", "[R11]") {
  const std::string stray = stray_file();
  OwnedFile mine = create_owned_file(kFolder);
  REQUIRE(mine.fd);
  const Marker foreign(cat(kFolder, "/gpttrain-", getpid(), "-other")), dead(kFolder + "/gpttrain-4000000-other");
  const Marker link(cat(kFolder, "/gpttrain-", getpid(), "-owned-aim"));
  const std::string to_link = cat(kFolder, "/gpttrain-", getpid(), "-owned-link");
  REQUIRE(symlink(foreign.path.c_str(), to_link.c_str()) == 0);
  CHECK(exists(stray));
  remove_ownerless_files(kFolder);
  CHECK_FALSE(exists(stray));
  CHECK_FALSE(exists(link.path));  // named as one, and nobody holds it
  for (const std::string& path : {mine.path, foreign.path, dead.path, to_link}) CHECK(exists(path));
  unlink(to_link.c_str());
  const pid_t child = fork();  // the lock is that of the opening: a fork holds it too
  if (child == 0)
    for (;;) pause();
  const std::string path = mine.path;
  mine = {};
  remove_ownerless_files(kFolder);
  CHECK(exists(path));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  remove_ownerless_files(kFolder);
  CHECK_FALSE(exists(path));
}

TEST_CASE("the end of a job removes what killed ranks left, and no file of a living one", "[R11]") {
  const std::string stray = stray_file();
  OwnedFile mine = create_owned_file(kFolder);
  const Marker foreign(cat(kFolder, "/gpttrain-", getpid(), "-other"));
  TempDir dir;
  must(kRun, dir);
  CHECK_FALSE(exists(stray));
  CHECK(exists(mine.path));
  CHECK(exists(foreign.path));
  unlink(mine.path.c_str());
}

TEST_CASE("a job in another PID namespace leaves the shared memory of living jobs alone", "[R11]") {
  TempDir dir;
  const std::string inside = "unshare -p -f --mount-proc ";
  if (shell(inside + "true", dir.path()).code != 0)
    return report_skipped("this system permits no PID namespace (unshare -p)");
  OwnedFile mine = create_owned_file(kFolder);
  REQUIRE(mine.fd);
  const Marker foreign(cat(kFolder, "/gpttrain-", getpid(), "-other"));  // as earlier versions name theirs
  const std::string stray = stray_file();
  const Outcome r = shell(inside + binary_dir() + "/gpttrain " + kRun, dir.path(), 100);
  INFO(r.out);
  CHECK(r.code == 0);
  CHECK(exists(mine.path));
  CHECK(exists(foreign.path));
  CHECK_FALSE(exists(stray));
  unlink(mine.path.c_str());
}

TEST_CASE("jobs in two PID namespaces on one /dev/shm save every checkpoint", "[R11]") {
  TempDir dir;
  const std::string inside = "unshare -p -f --mount-proc ";
  if (shell(inside + "true", dir.path()).code != 0)
    return report_skipped("this system permits no PID namespace (unshare -p)");
  const std::string run = binary_dir() + "/gpttrain " + kRun + "--checkpoint.every 1 --train.steps 60 --log.name ";
  std::string all;  // short jobs end while the long one saves
  for (int k = 0; k < 3; ++k)
    all += cat(inside, binary_dir(), "/gpttrain ", kRun, "--train.steps 5 --log.name short", k, " >/dev/null; ");
  const Outcome r = shell("{ " + all + "} & " + inside + run + "long; code=$?; wait; exit $code", dir.path(), 100);
  INFO(r.out);
  CHECK(r.code == 0);
  CHECK_FALSE(r.prints("not written"));
  CHECK(logged(dir / "runs/long", "loss").size() == 60);
}
