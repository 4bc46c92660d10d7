// Checkpoints of released formats must remain loadable. tests/golden/ckpt-v1.0 was written once, by the version in its
// manifest, and is never regenerated.
#include <filesystem>

#include "kernels/core/hash/sha256.h"
#include "tests/launch/process.h"
#include "tests/support/paths.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

namespace fs = std::filesystem;

const std::string kGolden = source_dir() + "/tests/golden/ckpt-v1.0";

}  // namespace

TEST_CASE("a checkpoint of format 1.0 is valid, exports the same bytes as ever, and a run resumes from it", "[R27]") {
  TempDir dir;
  fs::copy(kGolden, dir / "ckpt", fs::copy_options::recursive);
  CHECK(must("ckpt verify ckpt --deep", dir).prints("good"));
  CHECK(must("ckpt inspect ckpt", dir).prints("format 1.0"));
  must("export --load ckpt --output hf", dir);
  CHECK(sha256_hex(read_file(dir / "hf/model.safetensors")) ==
        "7934d90b4308ff5057ac2f4e1713239294799edbd2ac359ea7113755c43d5e03");
  const std::string step = "--config ckpt/step-000000003/config.json --train.steps 5 --launch.ranks threads ";
  const Outcome own = must(step + "--checkpoint.dir ckpt --log.name a --tp 1", dir);
  CHECK(own.prints("from step 3"));
  CHECK(logged(dir / "runs/a", "step") == std::vector<double>{4, 5});
  must(step + "--log.name b --load ckpt/step-000000003 --finetune --checkpoint.dir other", dir);
  CHECK(logged(dir / "runs/b", "step") == std::vector<double>{1, 2, 3, 4, 5});
}
