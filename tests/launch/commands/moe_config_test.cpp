// Settings of routed experts that cannot be trained, or are not built, are refused with their key and a remedy.
#include <sstream>

#include "launch/config/config.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

std::string problems_of(const std::string& flags) {
  std::istringstream in(flags);
  std::vector<std::string> words;
  for (std::string w; in >> w;) words.push_back(w);
  try {
    load_config({.flags = words});
  } catch (const Error& e) { return e.what(); }
  return "accepted";
}

}  // namespace

TEST_CASE("routers that get no gradient, and more choices than experts, are refused") {
  const std::string moe = "--model.arch mixtral ";
  CHECK(problems_of(moe) == "accepted");
  CHECK_THAT(problems_of(moe + "--model.moe_top_k 1"),
             Catch::Contains("--model.moe_top_k: 1 with model.moe_normalize true") && Catch::Contains("no gradient") &&
                 Catch::Contains("2 or more, or model.moe_normalize false"));
  CHECK_THAT(problems_of(moe + "--model.moe_top_k 1 --model.moe_gate sigmoid"), Catch::Contains("no gradient"));
  CHECK(problems_of(moe + "--model.moe_top_k 1 --model.moe_normalize false") == "accepted");
  CHECK_THAT(problems_of(moe + "--model.moe_top_k 9"),
             Catch::Contains("--model.moe_top_k: 9 experts for each token, but there are 8; 1 to 8"));
  CHECK_THAT(problems_of("--model.moe_balance 0.1"), Catch::Contains("--model.moe_balance: there are no experts"));
}

TEST_CASE("experts are split into equal parts over data-parallel ranks, or refused") {
  const std::string moe = "--model.arch mixtral ";
  CHECK(problems_of(moe + "--dp 4 --ep 2") == "accepted");
  CHECK(problems_of(moe + "--dp 4 --ep 4 --tp 2 --zero 3 --device.kind cuda") == "accepted");
  CHECK_THAT(problems_of(moe + "--dp 3 --ep 3"),
             Catch::Contains("--ep: 8 experts are not divisible by ep 3; ep may be 1, 2, 4, 8"));
  CHECK_THAT(problems_of(moe + "--dp 6 --ep 4"), Catch::Contains("--ep: ep 4 does not divide dp 6") &&
                                                     Catch::Contains("ep may be 1, 2, or dp a multiple of 4"));
  CHECK_THAT(problems_of("--dp 2 --ep 2"),
             Catch::Contains("--ep: 2 ranks to split experts over, but the model has none"));
}

TEST_CASE("settings of groups, biases, shared experts and dense blocks that contradict are refused with a remedy") {
  for (const auto& [flags, problem] :
       {std::pair{"--model.arch mixtral --model.moe_groups 2", "--model.moe_groups: 2: groups are chosen by sigmoid"},
        {"--model.arch dots1 --model.moe_groups 5", "--model.moe_groups: 5 groups of 128 experts"},
        {"--model.arch dots1 --model.moe_groups 128", "with two experts or more in a group"},
        {"--model.arch dots1 --model.moe_groups 64 --model.moe_top_groups 2",
         "--model.moe_top_groups: 2 of 64 groups of 2 experts, for 6 experts a token; 3 to 64"},
        {"--model.arch dots1 --model.moe_groups 2 --model.moe_top_groups 3", "3 of 2 groups"},
        {"--model.arch mixtral --model.moe_bias true", "--model.moe_bias: true: scores of a softmax"},
        {"--model.arch mixtral --model.moe_bias_rate 0.1", "--model.moe_bias_rate: 0.1: there is no bias to move"},
        {"--model.arch mixtral --model.moe_shared_gate true", "there is no shared expert"},
        {"--model.arch mixtral --model.moe_dense_blocks 3,1", "ascending numbers 0 to 11"},
        {"--model.arch mixtral --model.moe_dense_blocks 12", "ascending numbers 0 to 11"},
        {"--model.arch mixtral --model.layers 1 --model.moe_dense_blocks 0", "no block has experts"},
        {"--model.arch mixtral --model.moe_dense_ffn 64", "but no block has a dense MLP"},
        {"--model.arch mixtral --model.moe_dense_blocks 0 --model.moe_dense_ffn 63 --tp 2",
         "model.moe_dense_ffn 63 is not divisible by tp 2"},
        {"--model.moe_bias true", "--model.moe_bias: there are no experts"},
        {"--model.moe_groups 2", "--model.moe_groups: there are no experts"},
        {"--model.moe_shared 1", "--model.moe_shared: there are no experts"},
        {"--model.moe_dense_blocks 1", "--model.moe_dense_blocks: there are no experts"}}) {
    INFO(flags);
    CHECK_THAT(problems_of(flags), Catch::Contains(problem));
  }
  CHECK(problems_of("--model.arch dots1 --model.moe_groups 8 --model.moe_top_groups 4 --model.moe_dense_blocks 0,2") ==
        "accepted");
}

TEST_CASE("what is not built for experts is refused by name") {
  for (const auto& [flags, key] :
       {std::pair{"--model.mlp_bias true", "--model.mlp_bias: true"},
        {"--model.lora_rank 2", "--model.lora_rank: 2"},
        {"--amp O2 --precision.fp8 current --model.hidden 2048 --model.ffn 4096", "--precision.fp8: current"},
        {"--precision.qat int8", "--precision.qat: int8"},
        {"--optim.type lamb", "--optim.type: lamb"}}) {
    INFO(flags);
    CHECK_THAT(problems_of(std::string("--model.arch mixtral ") + flags),
               Catch::Contains(key) && Catch::Contains("is not built yet in this version"));
  }
}
