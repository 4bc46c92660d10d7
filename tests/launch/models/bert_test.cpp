// BERT: both heads and every gradient equal to transformers' on every layout (tests/golden/make_hf_bert.py), export,
// import, training on prepared text, resume, and what a bidirectional model refuses.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <regex>

#include "autograd/ops.h"
#include "checkpoint/weights/weights.h"
#include "data/samples/pair_row.h"
#include "launch/tools/verify/mesh_run.h"
#include "launch/tools/weights/loaded_model.h"
#include "launch/tools/weights/model_weights.h"
#include "tests/launch/models/hf_fixture.h"
#include "tests/launch/process.h"
#include "tests/support/paths.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

constexpr int64_t kSeq = 16;

struct Golden {
  const char* name;
  int tensors;
  std::string folder() const { return source_dir() + "/tests/golden/hf_" + name; }
};
constexpr Golden kTied{"bert", 38}, kUntied{"bert_untied", 39}, kDeep{"bert_deep", 62};

// An i32 tensor of a safetensors file, by rows.
std::vector<std::vector<int32_t>> rows_of(const std::string& file) {
  const std::string bytes = read_file(file);
  uint64_t n = 0;
  std::memcpy(&n, bytes.data(), 8);
  const auto t = nlohmann::json::parse(bytes.substr(8, n))["rows"];
  const size_t rows = t["shape"][0], width = t["shape"][1], at = t["data_offsets"][0];
  std::vector<std::vector<int32_t>> out(rows, std::vector<int32_t>(width));
  for (size_t r = 0; r < rows; ++r) std::memcpy(out[r].data(), bytes.data() + 8 + n + at + 4 * width * r, 4 * width);
  return out;
}

// Logits of the tokens of a row [length * vocab], and of its pair [2], by the forward pass of training.
struct HeadOutputs {
  std::vector<float> tokens, pair;
};
HeadOutputs heads_of(LoadedModel& m, std::vector<int32_t> row) {
  const DeviceApi& device = *m.backend->device;
  const PairRow x{row, kSeq};
  Buffer ids(static_cast<int64_t>(row.size()) * 4, m.stream.device(), device);
  device.copy(ids.data(), row.data(), ids.bytes(), m.stream);
  const auto part = [&](int64_t first, Shape s) { return ids.tensor(s, DType::kI32, 4 * first); };
  MicroBatch mb{.tokens = part(0, {1, kSeq}),
                .types = part(2 * kSeq, {1, kSeq}),
                .lengths = part(3 * kSeq, {1}),
                .batch = 1,
                .seq = kSeq};
  Arena arena(Buffer(8 << 20, m.stream.device(), device));
  Pool pool(Buffer(kAlign, m.stream.device(), device));
  Tape tape(arena, pool, *m.backend->ops, m.stream);
  tape.set_recording(false);
  ModelStage& stage = *m.engine->stages().front();
  const Tensor hidden = stage.hidden(tape, {}, mb).value;
  const Tensor tokens = stage.logits(tape, hidden), pair = stage.pair_logits(tape, hidden, mb);
  const auto vocab = static_cast<size_t>(m.config.model.vocab), padded = static_cast<size_t>(tokens.shape.cols());
  HeadOutputs out;
  for (int32_t i = 0; i < x.length(); ++i) {
    const float* from = tokens.as<float>() + static_cast<size_t>(i) * padded;
    out.tokens.insert(out.tokens.end(), from, from + vocab);
  }
  out.pair.assign(pair.as<float>(), pair.as<float>() + 2);
  return out;
}

ModelConfig model_of(const std::string& folder) {
  return parse_hf_config(read_file(folder + "/config.json"), "config.json").model;
}

}  // namespace

TEST_CASE(
    "a BERT written by transformers predicts the same here with both heads, and is exported with its original bytes") {
  for (const Golden& g : {kTied, kUntied, kDeep}) {
    TempDir dir;
    const std::string folder = g.folder(), count = std::to_string(g.tensors);
    INFO(folder);
    CHECK(must("import --from " + folder + " --output in", dir).prints("step-000000000: " + count + " tensors"));
    const auto model = load_model(dir / "in", {"--device.kind", "cpu"});
    CHECK(model->config.model.arch == "bert");
    const Logical right = tensors_of(folder + "/heads.safetensors");
    const auto vocab = static_cast<ptrdiff_t>(model->config.model.vocab);
    const auto rows = rows_of(folder + "/heads.safetensors");
    for (size_t r = 0; r < rows.size(); ++r) {
      INFO("row " << r);
      const HeadOutputs outputs = heads_of(*model, rows[r]);
      const auto first = right.at("tokens").begin() + static_cast<ptrdiff_t>(r) * kSeq * vocab;
      CHECK(largest_difference(outputs.tokens, {first, first + static_cast<ptrdiff_t>(outputs.tokens.size())}) < 1e-5);
      const auto pair = right.at("pairs").begin() + 2 * static_cast<ptrdiff_t>(r);
      CHECK(largest_difference(outputs.pair, {pair, pair + 2}) < 1e-5);
    }
    must("export --load in --output hf", dir);
    CHECK(tensors_of(dir / "hf") == tensors_of(folder));
    const auto config = nlohmann::json::parse(read_file(dir / "hf/config.json"));
    auto original = nlohmann::json::parse(read_file(folder + "/config.json"));
    if (!original.contains("tie_word_embeddings")) original["tie_word_embeddings"] = true;  // transformers' own default
    for (const auto& [key, value] : config.items()) {
      INFO(key);
      CHECK(value == original.value(key, nlohmann::json()));
    }
    must("export --load in --format hdf5 --output w.h5", dir);
    must("import --from w.h5 --output b", dir);
    CHECK(must("ckpt diff in b", dir).prints(count + " of them bitwise equal"));
  }
}

TEST_CASE("a BERT without pooler and sentence pairs, BertForMaskedLM, begins both at their initial values") {
  TempDir dir;
  const std::string folder = kTied.folder();
  std::filesystem::create_directories(dir / "hf");
  Vfs vfs;
  const auto file = open_safetensors(vfs, folder);
  std::vector<std::pair<OutTensor, size_t>> kept;
  for (size_t k = 0; k < file->list().size(); ++k)
    if (const WeightInfo& w = file->list()[k];
        w.name.find("pooler") == std::string::npos && w.name.find("seq_relationship") == std::string::npos)
      kept.push_back({{w.name, w.shape, DType::kF32}, k});
  std::sort(kept.begin(), kept.end(), [](const auto& a, const auto& b) { return a.first.name < b.first.name; });
  std::vector<OutTensor> tensors;
  for (const auto& [t, k] : kept) tensors.push_back(t);
  REQUIRE(tensors.size() + 4 == file->list().size());
  write_safetensors(vfs, dir / "hf", tensors, {}, 1 << 30,
                    [&](size_t k, int64_t first, int64_t count) { return file->read(kept[k].second, first, count); });
  nlohmann::json config = nlohmann::json::parse(read_file(folder + "/config.json"));
  config["architectures"] = {"BertForMaskedLM"};
  write_file(dir / "hf/config.json", config.dump());
  const Outcome r = must("import --from hf --output in", dir);
  CHECK(r.prints("the folder has no pooler and no classes of sentence pairs"));
  const std::string n = std::to_string(tensors.size());
  CHECK(r.prints("read " + n + " of " + n + " tensors"));
  must("import --from " + folder + " --output whole", dir);
  CHECK(
      gpttrain("ckpt diff in whole", dir.path()).prints(std::to_string(kTied.tensors - 4) + " of them bitwise equal"));
  must("export --load in --output out", dir);
  CHECK(nlohmann::json::parse(read_file(dir / "out/config.json"))["architectures"][0] == "BertForPreTraining");
  // One tensor alone is a damaged folder.
  tensors.pop_back();
  write_safetensors(vfs, dir / "hf", tensors, {}, 1 << 30,
                    [&](size_t k, int64_t first, int64_t count) { return file->read(kept[k].second, first, count); });
  CHECK(gpttrain("import --from hf --output x", dir.path()).prints(": missing"));
}

TEST_CASE("the loss of both heads and all gradients of a BERT equal transformers' on every layout") {
  const Golden golden = GENERATE(kTied, kUntied, kDeep);
  const std::string folder = golden.folder();
  INFO(folder);
  const Logical theirs = tensors_of(folder + "/grads.safetensors");
  ModelConfig model = model_of(folder);
  model.dropout = model.attn_dropout = 0;
  const Logical grads = native_tensors(model, theirs, "grad.");
  const Logical weights = native_tensors(model, tensors_of(folder));
  struct Layout {
    MeshShape mesh;
    bool sequence_parallel;
    Recompute recompute;
    const char* schedule = "1f1b";
  };
  for (const Layout& l :
       {Layout{{}, false, Recompute::kNone}, Layout{{}, false, Recompute::kSelective},
        Layout{{.tp = 2}, false, Recompute::kNone}, Layout{{.tp = 2}, true, Recompute::kFull},
        Layout{{.pp = 2, .dp = 2}, false, Recompute::kNone}, Layout{{.pp = 2}, false, Recompute::kNone, "zb-h1"},
        Layout{{.pp = 4, .tp = 2}, true, Recompute::kSelective, "gpipe"}, Layout{{.dp = 4}, false, Recompute::kFull},
        Layout{{.tp = 4}, true, Recompute::kFull}}) {
    INFO("tp " << l.mesh.tp << " pp " << l.mesh.pp << " dp " << l.mesh.dp << " sequence parallel "
               << l.sequence_parallel);
    MeshRun run;
    run.engine.model = model;
    run.engine.model.seq = kSeq;
    run.engine.sequence_parallel = l.sequence_parallel;
    run.engine.recompute = l.recompute;
    run.engine.schedule = l.schedule;
    run.engine.loss_chunk = 7;
    run.engine.zero.stage = l.mesh.dp > 1 ? 3 : 0;
    run.global_batch = 4;
    run.mesh = l.mesh;
    run.samples = rows_of(folder + "/grads.safetensors");
    // pos_embed has the rows of the sequence alone here
    Logical cut = weights, right = grads;
    for (Logical* of : {&cut, &right}) of->at("pos_embed.weight").resize(static_cast<size_t>(kSeq * model.hidden));
    run.weights = &cut;
    const MeshResult r = run_mesh(run);
    CHECK(r.losses[0] == Approx(theirs.at("loss")[0]).epsilon(1e-6));
    REQUIRE(r.grads.size() == right.size());
    for (const auto& [name, expected] : right) {
      INFO(name);
      CHECK(relative_error(r.grads.at(name), expected) <= 1e-5);
    }
  }
}

TEST_CASE("hits of both heads of a BERT are transformers', on every layout") {
  const Golden golden = GENERATE(kTied, kUntied, kDeep);
  const std::string folder = golden.folder();
  INFO(folder);
  const Logical outputs = tensors_of(folder + "/heads.safetensors");
  const auto best = [](const std::vector<float>& logits, size_t at, size_t n) {
    const auto first = logits.begin() + static_cast<ptrdiff_t>(at * n);
    return static_cast<int32_t>(std::max_element(first, first + static_cast<ptrdiff_t>(n)) - first);
  };
  const ModelConfig model = model_of(folder);
  MeshRun run;
  run.engine.model = model;
  run.engine.model.dropout = run.engine.model.attn_dropout = 0;
  run.engine.model.seq = kSeq;
  run.engine.loss_chunk = 7;
  run.engine.lr.peak = 1e-30;  // the weights do not change
  run.evaluate = true;
  run.global_batch = 4;
  // Every second target, and one label, is what transformers predicts; the others are what they are.
  run.samples = rows_of(folder + "/heads.safetensors");
  const auto vocab = static_cast<size_t>(model.vocab), seq = static_cast<size_t>(kSeq);
  std::vector<double> hits(2);
  size_t targets = 0;
  for (size_t r = 0; r < run.samples.size(); ++r) {
    for (size_t k = 0; k < seq; ++k) {
      int32_t& target = run.samples[r][seq + k];
      if (target < 0) continue;
      const int32_t theirs = best(outputs.at("tokens"), r * seq + k, vocab);
      if (targets++ % 2 == 0) target = theirs;
      hits[0] += target == theirs;
    }
    int32_t& label = run.samples[r].back();
    if (r == 0) label = best(outputs.at("pairs"), r, 2);
    if (r == 1) label = 1 - best(outputs.at("pairs"), r, 2);
    hits[1] += label == best(outputs.at("pairs"), r, 2);
  }
  REQUIRE((hits[0] >= 4 && hits[0] < static_cast<double>(targets)));
  Logical weights = native_tensors(model, tensors_of(folder));
  weights.at("pos_embed.weight").resize(seq * static_cast<size_t>(model.hidden));
  run.weights = &weights;
  for (const MeshShape& mesh : {MeshShape{}, MeshShape{.tp = 2}, MeshShape{.tp = 4}, MeshShape{.pp = 2, .dp = 2},
                                MeshShape{.dp = 2, .tp = 2}}) {
    INFO("tp " << mesh.tp << " pp " << mesh.pp << " dp " << mesh.dp);
    run.mesh = mesh;
    run.engine.sequence_parallel = mesh.tp == 4;
    CHECK(run_mesh(run).eval_hits == hits);
  }
}

TEST_CASE(
    "a BERT's folder with copies of tied tensors and names of TensorFlow's norms is read, a copy that differs is not") {
  TempDir dir;
  const std::string folder = kTied.folder();
  must("import --from " + folder + " --output plain", dir);
  const auto rewrite = [&](const char* to, auto change) {
    std::string bytes = read_file(folder + "/model.safetensors");
    uint64_t n = 0;
    std::memcpy(&n, bytes.data(), 8);
    auto header = nlohmann::json::parse(bytes.substr(8, n));
    std::string data = bytes.substr(8 + n);
    change(header, data);
    const std::string text = header.dump();
    n = text.size();
    std::string out(8, '\0');
    std::memcpy(out.data(), &n, 8);
    std::filesystem::create_directories(dir / to);
    write_file(dir / to + "/model.safetensors", out + text + data);
    write_file(dir / to + "/config.json", read_file(folder + "/config.json"));
  };
  const auto copy = [](nlohmann::json& header, std::string& data, const char* from, const char* to) {
    const auto old = header[from];
    const size_t begin = old["data_offsets"][0], end = old["data_offsets"][1];
    header[to] = {
        {"dtype", old["dtype"]}, {"shape", old["shape"]}, {"data_offsets", {data.size(), data.size() + end - begin}}};
    data += data.substr(begin, end - begin);
  };
  constexpr const char *kTable = "bert.embeddings.word_embeddings.weight", *kBias = "cls.predictions.bias";
  rewrite("old", [&](nlohmann::json& header, std::string& data) {
    copy(header, data, kTable, "cls.predictions.decoder.weight");
    copy(header, data, kBias, "cls.predictions.decoder.bias");
    nlohmann::json renamed;
    for (auto& [key, value] : header.items()) {
      std::string name = key;
      for (const auto& [now, old] :
           {std::pair{"LayerNorm.weight", "LayerNorm.gamma"}, {"LayerNorm.bias", "LayerNorm.beta"}})
        if (name.ends_with(now)) name.replace(name.size() - std::strlen(now), std::string::npos, old);
      renamed[name] = value;
    }
    header = renamed;
  });
  must("import --from old --output old-in", dir);
  CHECK(must("ckpt diff plain old-in", dir).prints("38 of them bitwise equal"));
  rewrite("bad", [&](nlohmann::json& header, std::string& data) {
    copy(header, data, kBias, "cls.predictions.decoder.bias");
    data.back() = static_cast<char>(data.back() ^ 1);
  });
  const Outcome bad = gpttrain("import --from bad --output bad-in", dir.path());
  INFO(bad.out);
  CHECK(bad.code != 0);
  CHECK(bad.prints("cls.predictions.decoder.bias differs from the tensor that it is a copy of"));
}

namespace {

// Documents of made-up sentences, one a paragraph.
std::string paragraphs(int count) {
  std::string text;
  uint32_t x = 7;
  const auto next = [&](uint32_t n) {
    x = x * 1103515245u + 12345u;
    return (x >> 16) % n;
  };
  for (int d = 0; d < count; ++d) {
    for (uint32_t k = 20 + next(60); k > 0; --k) {
      for (uint32_t w = 2 + next(4); w > 0; --w) text += "etaoinshrdlu"[next(12)];
      text += k % 9 == 0 ? ".\n" : " ";
    }
    text += "\n\n";
  }
  return text;
}

constexpr const char* kRun =
    "--model.arch bert --model.layers 2 --model.hidden 32 --model.heads 4 --model.ffn 64 --model.vocab 400 --model.seq "
    "32 "
    "--data.train d --data.tokenizer tok.model --device.kind cpu --train.micro_batch 2 --train.global_batch 8 "
    "--optim.type lamb --optim.lr 0.02 --schedule.type constant --log.tensorboard false ";

void prepare(const TempDir& dir) {
  write_file(dir / "t.txt", paragraphs(60));
  must("tokenizer train --input t.txt --vocab 400 --output tok.model --control CLS,SEP,MASK", dir);
  must("data prepare --input t.txt --split-docs blank-line --tokenizer tok.model --output d", dir);
}

}  // namespace

TEST_CASE("a BERT learns from prepared text by LAMB, the same on another layout and after a resume, and is evaluated") {
  TempDir dir;
  prepare(dir);
  const std::string run = std::string(kRun) + "--train.eval_every 10 --train.eval_steps 2 ";
  must(run + "--log.name whole --train.steps 20", dir);
  const std::vector<double> loss = logged(dir / "runs/whole", "loss"), pair = logged(dir / "runs/whole", "pair_loss");
  REQUIRE(loss.size() == 20);
  REQUIRE(pair.size() == 20);
  CHECK(loss.back() < loss.front() - 0.2);
  CHECK((pair.front() > 0.5 && pair.front() < 0.9));
  must(run + "--log.name split --train.steps 8 --tp 2 --dp 2 --zero.stage 2 --launch.ranks threads", dir);
  must(run + "--log.name split --train.steps 20 --pp 2 --dp 2 --launch.ranks threads", dir);
  const std::vector<double> split = logged(dir / "runs/split", "loss");
  REQUIRE(split.size() == 20);
  for (size_t k = 0; k < 20; ++k) CHECK(split[k] == Approx(loss[k]).epsilon(1e-4));
  CHECK(logged(dir / "runs/split", "loss", "eval").back() ==
        Approx(logged(dir / "runs/whole", "loss", "eval").back()).epsilon(1e-4));
  const Outcome e =
      must("eval --load runs/whole --split valid --steps 2 --data.train d --data.tokenizer tok.model", dir);
  INFO(e.out);
  CHECK(e.prints("pair loss "));
  const auto accuracies = [&](const Outcome& o) {
    const std::regex each("accuracy ([0-9.]+) +\\(([0-9]+) (tokens|pairs)");
    std::vector<double> hits;
    for (std::sregex_iterator at(o.out.begin(), o.out.end(), each), end; at != end; ++at)
      hits.push_back(std::stod((*at)[1]) * std::stod((*at)[2]));
    return hits;
  };
  const std::vector<double> hits = accuracies(e);
  REQUIRE(hits.size() == 2);
  for (const double n : hits) CHECK((n > 0.9 && std::abs(n - std::round(n)) < 1e-3));
  CHECK(accuracies(must("eval --load runs/whole --split valid --steps 2 --data.train d --data.tokenizer tok.model "
                        "--tp 2 --launch.ranks threads",
                        dir)) == hits);
  const Outcome blind = gpttrain("eval --load runs/whole --split valid --steps 2 --data.train d", dir.path());
  CHECK(blind.code == 2);
  CHECK(blind.prints("data.tokenizer: missing"));
  const Outcome g = gpttrain("generate --load runs/whole --prompt x", dir.path());
  INFO(g.out);
  CHECK(g.code == 2);
  CHECK(g.prints("sees tokens on both sides of the one that it predicts and cannot continue a text"));
  must(run + "--log.name words --train.steps 2 --data.whole_words true", dir);
  CHECK(logged(dir / "runs/words", "loss")[0] != loss[0]);
  const Outcome changed = gpttrain(run + "--log.name whole --train.steps 22 --data.mask_prob 0.3", dir.path());
  INFO(changed.out);
  CHECK(changed.code == 2);
  CHECK(changed.prints("mask_prob 0.15"));
}

TEST_CASE(
    "a BERT without the tokens that it needs, or with decisions that do not fit together, is refused with a way out") {
  TempDir dir;
  write_file(dir / "t.txt", paragraphs(40));
  must("tokenizer train --input t.txt --vocab 400 --output tok.model", dir);
  must("data prepare --input t.txt --split-docs blank-line --tokenizer tok.model --output d", dir);
  const auto refused = [&](const std::string& args) {
    const Outcome o = gpttrain(args, dir.path());
    CHECK(o.code == 2);
    return o.out;
  };
  const std::string run = std::string(kRun) + "--train.steps 2 ";
  CHECK_THAT(refused(run), Catch::Contains("data.mask_token: ") && Catch::Contains("has no piece \"[MASK]\""));
  CHECK_THAT(refused(run + "--data.mask_token \"<pad>\""), Catch::Contains("data.cls_token"));
  const std::string bert = "--model.arch bert --data.train mock --train.steps 2 --device.kind cpu ";
  CHECK_THAT(refused(bert + "--model.mask causal"), Catch::Contains("predicts tokens from both sides"));
  CHECK_THAT(refused(bert + "--data.order megatron"), Catch::Contains("data.order"));
  CHECK_THAT(refused(bert + "--train.loss_mean microbatch"), Catch::Contains("train.loss_mean"));
  CHECK_THAT(refused(bert + "--model.window 4"), Catch::Contains("bidirectional attention has no window"));
  CHECK_THAT(refused(bert + "--data.curriculum fixed_linear"), Catch::Contains("sentence pairs cannot be cut"));
  CHECK_THAT(refused(std::string(kRun) + "--train.steps 2 --data.tokenizer \"\""), Catch::Contains("data.tokenizer"));
  const std::string gpt = "--data.train mock --train.steps 2 --device.kind cpu ";
  CHECK_THAT(refused(gpt + "--model.mask full"), Catch::Contains("would see the token that it has to predict"));
  CHECK_THAT(refused(gpt + "--model.token_types 2"), Catch::Contains("model.token_types"));
  CHECK_THAT(refused(gpt + "--data.mask_prob 0.2"), Catch::Contains("is for masked language models"));
}
