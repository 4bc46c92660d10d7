// Ranks with different build, data or options are detected before the first step, naming the trait and the machine.
#include "launch/ranks/rank_consistency.h"

#include "data/tokens/token_file.h"
#include "data/tokens/token_meta.h"
#include "launch/config/config.h"
#include "launch/train/training_data.h"
#include "tests/launch/process.h"
#include "tests/launch/ranks/agreed_errors.h"
#include "tests/support/test.h"

using namespace gt;
using Catch::Contains;

namespace {

// Returns each rank's error for these traits.
std::vector<std::string> errors_of(const std::vector<std::vector<Trait>>& traits) {
  return agreed_errors(static_cast<int>(traits.size()), [&](ProcessGroup& world, int rank) {
    require_consistent(world, traits[static_cast<size_t>(rank)]);
  });
}

void write_tokens(const std::string& prefix, const std::vector<std::vector<int32_t>>& documents) {
  TokenFileWriter out(prefix, TokenType::kU16);
  for (const auto& d : documents) out.add(d);
  out.finish();
}

std::string identity(const std::string& prefix) {
  DatasetOptions o;
  o.sources = {{prefix}};
  o.seq = 4;
  o.whole = true;
  return open_dataset(o)->contents().at(0).identity;
}

}  // namespace

TEST_CASE("equal ranks print nothing, others name the difference once, with machines and ranks, exit code 2") {
  const std::vector<Trait> a{{"program", "0.1 (git a)", "copy one build"}, {"data", "5 bytes", "copy the files"}};
  auto b = a, c = a;
  b[0].value = "0.1 (git b)";
  c[1].value = "6 bytes";
  CHECK(errors_of({a, a, a}) == std::vector<std::string>(3));
  const auto errors = errors_of({a, b, c, b});
  CHECK_THAT(errors[0], Contains("2 reports: ranks differ, so nothing was started:\n  program: 0.1 (git a) on ") &&
                            Contains(" (ranks 0, 2), 0.1 (git b) on ") && Contains(" (ranks 1, 3); copy one build") &&
                            Contains("\n  data: 5 bytes on ") && Contains(", 6 bytes on ") &&
                            Contains(" (rank 2); copy the files"));
  for (size_t r = 1; r < 4; ++r) CHECK_THAT(errors[r], Catch::StartsWith("2: "));
  c.pop_back();  // a different number of traits
  CHECK_THAT(errors_of({a, c})[0], Contains("data: 5 bytes on ") && Contains("nothing on "));
  CHECK_THAT(errors_of({c, a})[0], Contains("ranks differ"));
}

TEST_CASE("every option that affects the training is compared, options of one machine are not") {
  const auto of = [](const std::vector<std::string>& flags) {
    std::string out;
    for (const Trait& t : program_traits(load_config({.flags = flags}).config)) out += t.name + "=" + t.value + "\n";
    return out;
  };
  const std::string usual = of({});
  CHECK_THAT(usual, Contains("program=") && Contains("(git ") && Contains(", build ") && Contains("device.isa=") &&
                        Contains("\ntrain.seed=1234\n"));
  CHECK(of({"--train.seed", "7"}) != usual);
  CHECK(of({"--optim.betas", "0.9,0.99"}) != usual);
  CHECK(of({"--log.name", "other", "--launch.grace_s", "7"}) == usual);
}

TEST_CASE("files of equal size with other tokens, another index or another tokenizer have another identity") {
  TempDir dir;
  const std::vector<int32_t> one(3000, 1), two(3000, 2);
  write_tokens(dir / "a", std::vector<std::vector<int32_t>>(300, one));
  write_tokens(dir / "same", std::vector<std::vector<int32_t>>(300, one));
  std::vector<std::vector<int32_t>> middle(300, one);
  for (size_t i = 5; i < 295; ++i) middle[i] = two;
  write_tokens(dir / "middle", middle);
  write_tokens(dir / "index", std::vector<std::vector<int32_t>>(200, std::vector<int32_t>(4500, 1)));
  const std::string a = identity(dir / "a");
  CHECK(a == identity(dir / "same"));
  for (const char* name : {"middle", "index"}) {
    CHECK(std::filesystem::file_size(dir / (std::string(name) + ".bin")) == std::filesystem::file_size(dir / "a.bin"));
    CHECK(identity(dir / name) != a);
  }
  std::filesystem::copy(dir / "same.idx", dir / "m.idx");
  std::filesystem::copy(dir / "same.bin", dir / "m.bin");
  TokenMeta meta;
  meta.tokenizer_sha256 = std::string(64, 'a');
  write_token_meta(dir / "m.meta.json", meta);
  CHECK_THAT(identity(dir / "m"), Contains(", meta aaaaaaaaaaaa-"));
}
