// Checkpoints under every layout of up to 8 ranks (powers of two, ZeRO 0 to 3). A stopped and resumed run is bitwise
// identical to an uninterrupted one, and exported bytes do not depend on the layout. Runs a few layouts by default;
// nightly.sh sets GPT_TEST_LAYOUTS to run all.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <set>

#include "kernels/core/hash/sha256.h"
#include "tests/launch/process.h"
#include "tests/support/environment.h"
#include "tests/support/layouts.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

namespace fs = std::filesystem;

std::string flags_of(const EightRanks& l, bool experts = false) {
  return " --tp " + std::to_string(l.tp) + " --pp " + std::to_string(l.pp) + " --dp " + std::to_string(l.dp) +
         " --zero.stage " + std::to_string(l.zero) + (experts && l.dp % 2 == 0 ? " --ep 2 " : " ");
}

// All of them, or a maximally diverse subset.
std::vector<EightRanks> chosen(uint64_t standard) {
  const std::vector<EightRanks> all = layouts_of_eight();
  const size_t n = std::min<size_t>(all.size(), from_environment("GPT_TEST_LAYOUTS", standard));
  std::vector<EightRanks> out;
  for (size_t k = 0; k < n; ++k) out.push_back(all[(k * all.size() + all.size() / 2) / n]);
  return out;
}

const std::string kModel =
    "--model.layers 8 --model.hidden 32 --model.heads 8 --model.vocab 90 --model.seq 8 --model.dropout 0.1 "
    "--data.train mock --train.global_batch 16 --train.micro_batch 1 --device.kind cpu --log.tensorboard false "
    "--launch.ranks threads --schedule.type one_cycle_torch ";

const std::string kExperts =
    kModel + "--model.arch mixtral --model.ffn 48 --model.moe_experts 6 --model.moe_balance 0.01 ";

const std::string kBiased =
    kModel +
    "--model.arch dots1 --model.ffn 16 --model.moe_experts 8 --model.moe_groups 4 --model.moe_top_groups 2 "
    "--model.moe_top_k 3 --model.moe_bias_rate 0.01 --model.moe_dense_blocks 0,5 --model.moe_dense_ffn 24 ";

std::vector<double> tail(const std::vector<double>& v, size_t n) { return {v.end() - static_cast<long>(n), v.end()}; }

void check_resume(const std::string& model, const std::vector<EightRanks>& layouts) {
  const auto half = static_cast<int>(from_environment("GPT_TEST_STEPS", 4));
  const bool experts = model == kExperts;
  int good = 0;
  for (const EightRanks& l : layouts) {
    TempDir dir;
    const bool fp16 = (&l - layouts.data()) % 3 == 1;  // with a loss scale that must be restored
    const std::string run = model + flags_of(l, experts) +
                            (fp16 ? "--precision.amp O2 --precision.dtype fp16 --precision.loss_scale_window 3" : ""),
                      whole = " --train.steps " + std::to_string(2 * half),
                      save = " --checkpoint.every " + std::to_string(half);
    INFO(flags_of(l, experts));
    must(run + whole + save + " --log.name whole", dir);
    fs::create_directories(dir / "runs/half");
    fs::copy(dir / "runs/whole/checkpoints", dir / "runs/half/checkpoints", fs::copy_options::recursive);
    char newest[40];
    std::snprintf(newest, sizeof newest, "step-%09d", 2 * half);
    fs::remove_all(dir / ("runs/half/checkpoints/" + std::string(newest)));
    const Outcome r = must(run + whole + save + " --log.name half", dir);
    bool same = r.prints("from step " + std::to_string(half));
    for (const char* key : {"loss", "grad_norm", "lr", "samples"}) {
      const auto a = logged(dir / "runs/whole", key), b = logged(dir / "runs/half", key);
      const auto n = static_cast<size_t>(half);
      same = same && b.size() == n && a.size() == 2 * n && tail(a, n) == b;
    }
    CHECK(same);
    const Outcome diff = gpttrain("ckpt diff runs/whole runs/half", dir.path());
    INFO(diff.out);
    CHECK(diff.code == 0);
    CHECK(diff.prints("\nequal"));
    good += same && diff.code == 0;
  }
  std::printf("resume: %d of %zu layouts bitwise, %d + %d steps\n", good, layouts.size(), half, half);
}

void check_export(const std::string& model, const std::vector<EightRanks>& layouts) {
  TempDir dir;
  must(model + "--train.steps 2 --log.name origin", dir);
  std::set<std::string> hdf5, safetensors;
  int k = 0;
  for (const EightRanks& l : layouts) {
    const std::string layout = flags_of(l, model == kExperts);
    INFO(layout);
    const std::string run = "r" + std::to_string(k++);
    // Learning rate that is 0 in f32: other shards, same weights.
    must(model + layout +
             " --load runs/origin --finetune --train.steps 1 --optim.lr 1e-60 "
             "--optim.weight_decay 0 --log.name " +
             run,
         dir);
    must("export --load runs/" + run + " --format hdf5 --output " + run + ".h5", dir);
    must("export --load runs/" + run + " --output " + run + "-hf", dir);
    hdf5.insert(sha256_hex(read_file(dir / (run + ".h5"))));
    safetensors.insert(sha256_hex(read_file(dir / (run + "-hf/model.safetensors"))));
    fs::remove_all(dir / ("runs/" + run));
  }
  must("export --load runs/origin --format hdf5 --output o.h5", dir);
  CHECK(hdf5 == std::set<std::string>{sha256_hex(read_file(dir / "o.h5"))});
  CHECK(safetensors.size() == 1);
  std::printf("export: %zu SHA-256 of HDF5 and %zu of safetensors over %zu layouts\n", hdf5.size(), safetensors.size(),
              layouts.size());
}

}  // namespace

TEST_CASE("a run that stops and resumes is bitwise the uninterrupted run, under every layout", "[R07]") {
  check_resume(kModel, chosen(5));
}

TEST_CASE("exported bytes have one SHA-256 whichever layout wrote the checkpoint", "[R26]") {
  check_export(kModel, chosen(4));
}

TEST_CASE("a run of routed experts resumes bitwise, and its exported bytes depend on no layout") {
  check_resume(kExperts, chosen(3));
  check_export(kExperts, chosen(4));
}

TEST_CASE("so does one whose routers have biases that move") { check_resume(kBiased, chosen(3)); }
