// Processor conditions read from files laid out as in Linux's /sys.
#include "kernels/cpu/conditions.h"

#include <sched.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/support/test.h"

using namespace gt;
namespace fs = std::filesystem;

namespace {

// A fake /sys.
struct Sys {
  std::string root = (fs::temp_directory_path() / "gpttrain-sys-XXXXXX").string();
  Sys() { REQUIRE(mkdtemp(root.data()) != nullptr); }
  ~Sys() { fs::remove_all(root); }
};

void put(const fs::path& file, const std::string& text) {
  fs::create_directories(file.parent_path());
  std::ofstream(file) << text << '\n';
}

}  // namespace

TEST_CASE("a processor's clock is that of the allowed cores, its temperature that of the hottest package") {
  const Sys sys;
  const fs::path root = sys.root;
  cpu_set_t mine;
  REQUIRE(sched_getaffinity(0, sizeof mine, &mine) == 0);
  double sum = 0;
  for (int core = 0; core < 1024; ++core) {
    const bool ours = CPU_ISSET(core, &mine);
    if (!ours && core > 8) continue;
    put(root / "devices/system/cpu" / ("cpu" + std::to_string(core)) / "cpufreq/scaling_cur_freq",
        std::to_string(ours ? 2000000 + 1000 * core : 400000));
    if (ours) sum += 2000 + core;
  }
  put(root / "class/hwmon/hwmon0/name", "nvme");
  put(root / "class/hwmon/hwmon0/temp1_input", "90000");
  std::string why;
  DeviceConditions c = cpu::conditions_in(root, &why);
  CHECK(c.clock_mhz == Approx(sum / CPU_COUNT(&mine)));
  CHECK(std::isnan(c.celsius));
  CHECK_THAT(why, Catch::Contains("no processor temperature") && !Catch::Contains("no core clock"));
  put(root / "class/hwmon/hwmon1/name", "coretemp");
  put(root / "class/hwmon/hwmon1/temp1_input", "51000");
  put(root / "class/hwmon/hwmon2/name", "k10temp");
  put(root / "class/hwmon/hwmon2/temp1_input", "63500");
  c = cpu::conditions_in(root, nullptr);
  CHECK(c.celsius == 63.5);
  CHECK((std::isnan(c.watts) && std::isnan(c.memory_mhz) && std::isnan(c.busy) && !c.limits_known));
}

TEST_CASE("a machine without processor sensors has no clock and no temperature") {
  const Sys sys;
  std::string why;
  const DeviceConditions c = cpu::conditions_in(sys.root, &why);
  CHECK((std::isnan(c.clock_mhz) && std::isnan(c.celsius)));
  CHECK_THAT(why, Catch::Contains("no core clock in " + sys.root) && Catch::Contains("temperature"));
}
