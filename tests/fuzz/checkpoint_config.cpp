// config.json of a checkpoint with valid hashes: what generate, eval and export do with it before computing.
#include "launch/tools/weights/checkpoint_config.h"

#include "tests/fuzz/sealed_step.h"
#include "tests/fuzz/target.h"

namespace gt::fuzz {
namespace {

SealedStep& step() {
  static SealedStep one;
  return one;
}

void run(std::string_view input) {
  step().aux["config.json"] = std::string(input);
  step().seal();
  Vfs vfs;
  const StepReader reader(vfs, step().path());
  Config c;
  if (refused([&] { c = gt::checkpoint_config(reader, {"--device.kind", "cpu"}); })) return;
  GT_CHECK(c.launch.hostfile.empty() && c.data.tokenizer.empty() && c.data.train.empty() &&
           c.log.dir == Config().log.dir);
  GT_CHECK(c.train.micro_batch * c.model.seq <= 1 << 20);
  GT_CHECK(c.model.vocab == 300 && c.model.layers == 1 && c.model.hidden == 8 && c.model.seq == 8);
  refused([&] { flags_with_data(reader, {"--device.kind", "cpu"}, {"eval", "--load", step().path()}); });
}

std::vector<std::string> seeds() {
  static const std::string written = SealedStep().aux["config.json"];  // as written by a run
  const size_t parallel = written.find("\"parallel\": {");
  const std::string model = written.substr(0, written.rfind(',', parallel)) + "}";
  return {written, model};
}

}  // namespace

Target checkpoint_config() {
  return {"checkpoint_config",
          run,
          seeds,
          {"\"model\": {", "\"precision\": {", "\"launch\": {\"hostfile\": \"/etc/passwd\"}", "-1",
           "9223372036854775807", "1e999", "\"layers\": 4096", "\"micro_batch\": 1099511627776", "null", "[]", ","},
          1500};
}

}  // namespace gt::fuzz
