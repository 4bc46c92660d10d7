#include "launch/config/config_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <initializer_list>
#include <set>
#include <tuple>

#include "data/tokens/llmc_tokens.h"
#include "data/tokens/token_file.h"
#include "kernels/core/check.h"
#include "kernels/core/text.h"
#include "launch/config/config_batch.h"
#include "launch/config/config_curriculum.h"
#include "launch/config/config_fp8.h"
#include "launch/config/config_hosts.h"
#include "launch/config/config_log.h"
#include "launch/config/config_moe.h"
#include "launch/config/config_optim.h"
#include "launch/config/config_paths.h"
#include "launch/config/config_precision.h"
#include "launch/config/tokenizer_advice.h"
#include "launch/config/values/fault_spec.h"
#include "launch/config/values/schedule_file.h"
#include "launch/options/near_numbers.h"
#include "launch/options/near_path.h"
#include "launch/options/near_word.h"
#include "launch/options/value_words.h"
#include "model/model_spec.h"
#include "parallel/pipeline/partition.h"

namespace gt {
namespace {

// Features not implemented yet. Implementing one deletes its row or widens `working`; no other code rejects them.
const std::vector<Unimplemented> kUnimplemented = {
    {"parallel.cp", "1", "context parallelism"},
    {"launch.launcher", "openmpi|slurm", "this launcher"},
};

class Checker {
 public:
  Checker(Config& c, const CheckContext& context, Problems& problems, std::vector<std::string>& notes)
      : c_(c), context_(context), problems_(problems), notes_(notes) {
    for (const Problem& p : problems.list()) failed_reading_.insert(p.key);
  }

  void run() {
    refuse_not_built();
    model();
    const HostCheck hosts = check_hosts(c_, context_, rules());
    slots_ = hosts.slots;
    mesh();
    check_min_dp(c_, context_, hosts.several, rules());
    check_peer_copies(c_, context_, hosts.several, rules());
    tensor_parallel();
    comm();
    zero();
    check_precision(c_, rules());
    partition();
    recompute();
    check_batch(c_, context_, rules());
    note_gradients(c_, rules());
    schedule();
    check_optimizer(c_, rules());
    check_curriculum(c_, rules());
    check_fp8(c_, rules());
    check_moe(c_, rules());
    files();
    check_log(c_, rules());
    try {
      parse_injections(c_.fault.inject);
    } catch (const Error& e) { bad("fault.inject", e.what()); }
  }

 private:
  std::string where(const std::string& key) const {
    const auto it = context_.origin.find(key);
    return it == context_.origin.end() ? "" : it->second;
  }
  bool from_demo(const std::string& key) const { return where(key).find("demo.json") != std::string::npos; }
  void bad(const std::string& key, std::string reason, std::string fix = "") {
    problems_.add(where(key), key, std::move(reason), std::move(fix));
  }

  // Returns false if one of these keys could not be parsed; rules about it would report spurious problems.
  bool known(std::initializer_list<const char*> keys) const {
    return std::none_of(keys.begin(), keys.end(), [&](const char* key) { return failed_reading_.count(key) > 0; });
  }

  void refuse_not_built() {
    const std::vector<Option> options = list_options(c_);
    for (const Unimplemented& n : kUnimplemented)
      for (const Option& o : options) {
        if (o.key() != n.key) continue;
        const std::string value = value_text(o), working = n.working;
        if (value == working || ("|" + working + "|").find("|" + value + "|") != std::string::npos) continue;
        std::string use = working.empty() ? "leave it empty" : "use " + working;
        for (size_t i; (i = use.find('|')) != std::string::npos;) use.replace(i, 1, " or ");
        bad(n.key, fmt::format("{} is not built yet in this version ({})", value, n.what), use);
      }
  }

  void model() {
    ModelConfig& m = c_.model;
    if (m.kv_heads == 0) m.kv_heads = m.heads;
    if (m.ffn == 0) m.ffn = m.gated ? (8 * m.hidden / 3 + 255) / 256 * 256 : 4 * m.hidden;
    if (!m.moe.dense_blocks.empty()) m.moe.dense_ffn = m.dense_ffn();
    if (m.head_dim == 0 && m.hidden % m.heads && known({"model.hidden", "model.heads"}))
      bad("model.heads", fmt::format("hidden {} is not divisible by heads {}", m.hidden, m.heads),
          fmt::format("heads may be {}, hidden may be {}",
                      list_of(nearest(divisors(m.hidden, [](int64_t) { return true; }), m.heads)),
                      list_of(multiples(m.heads, m.hidden))));
    if (m.heads % m.kv_heads && known({"model.heads", "model.kv_heads"}))
      bad("model.kv_heads", fmt::format("{} KV heads do not divide heads {}", m.kv_heads, m.heads),
          fmt::format("kv_heads may be {}, or 0 for as many as heads",
                      list_of(nearest(divisors(m.heads, [](int64_t) { return true; }), m.kv_heads))));
    if (m.window == 0 && m.global_every > 0)
      bad("model.global_every",
          fmt::format("{}, but no block has a window to be without: model.window is 0", m.global_every),
          "0, or a model.window of 1 or more");
    if (m.window == 0 && m.global_first > 0)
      bad("model.global_first",
          fmt::format("{}, but no block has a window to be without: model.window is 0", m.global_first),
          "leave it out, or a model.window of 1 or more");
    if (m.global_first > m.layers)
      bad("model.global_first", fmt::format("{} blocks of {}", m.global_first, m.layers),
          fmt::format("0 to {}", m.layers));
    if (m.position == PositionKind::kRotary && m.head_width() % 2 && known({"model.head_dim", "model.hidden"}))
      bad("model.position", fmt::format("rotary embeddings need an even head size, found {}", m.head_width()),
          "an even model.head_dim");
    rope();
    encoder();
    local_rope();
    lora();
    if (m.norm_zero_centered && m.norm != NormKind::kRms && known({"model.norm"}))
      bad("model.norm_zero_centered", "true: weights of a layer norm are stored as they are",
          "false, or model.norm rms_norm");
    if (m.norm_zero_centered && m.qk_norm == QkNormKind::kRow && known({"model.qk_norm"}))
      bad("model.qk_norm", "row: its weights are stored as they are, but model.norm_zero_centered is true",
          "head or none, or model.norm_zero_centered false");
    if (m.init == WeightInit::kTorch42 && !m.tied)
      bad("model.init", "torch42 supports tied weights only, as in llm.c", "normal, or model.tied true");
    if (m.init == WeightInit::kTorch42 && m.hidden < 16)
      bad("model.init",
          fmt::format("torch42 generates random numbers in blocks of 16, but model.hidden is {}", m.hidden),
          "normal, or model.hidden 16 or more");
  }

  void lora() {
    const ModelConfig& m = c_.model;
    LoraConfig& l = c_.model.lora;
    if (!known({"model.lora_rank", "model.lora_alpha", "model.lora_targets", "model.lora_dropout"})) return;
    const std::pair<const char*, bool> set[] = {{"model.lora_alpha", l.alpha > 0},
                                                {"model.lora_dropout", l.dropout > 0},
                                                {"model.lora_targets", !l.targets.empty()}};
    for (const auto& [key, given] : set)
      if (l.rank == 0 && given) bad(key, "no adapter reads it: model.lora_rank is 0", "leave it out, or a lora_rank");
    if (l.rank == 0 && c_.precision.frozen_weights != FrozenWeights::kSame)
      bad("precision.frozen_weights", "int8: without adapters every weight is trained, and int8 steps are too coarse",
          "same, or a model.lora_rank");
    if (l.rank == 0) return;
    const std::vector<std::string> names = lora_targets(m);
    l.targets = split_commas(l.targets);
    for (const std::string& target : l.targets) {
      if (std::find(names.begin(), names.end(), target) != names.end()) continue;
      const std::string guess = did_you_mean(target, names);
      bad("model.lora_targets", fmt::format("{}: the blocks of this model have no such linear layer", target),
          fmt::format("any of {}{}", fmt::join(names, ", "), guess.empty() ? "" : "; did you mean " + guess + "?"));
    }
    const char* const rank = "model.lora_rank";
    if (c_.precision.fp8 != Fp8Recipe::kOff)
      bad(rank, "adapters read 16-bit values, which precision.fp8 does not keep", "0, or precision.fp8 off");
    if (c_.precision.qat != Qat::kOff) bad(rank, "precision.qat trains the weights that LoRA freezes", "0, or no qat");
    if (m.init != WeightInit::kNormal)
      bad("model.init", fmt::format("{} draws no adapters", name_of(m.init)), "normal");
  }

  // Bidirectional models and the data that they need.
  void encoder() {
    const ModelConfig& m = c_.model;
    if (!known({"model.mask", "model.head", "model.token_types", "model.seq"})) return;
    const bool pairs = m.predicts_pairs(), full = m.mask == MaskKind::kFull;
    if (pairs != full)
      bad("model.mask",
          pairs ? "causal: model.head masked_lm_and_pairs predicts tokens from both sides"
                : "full: with model.head lm every position would see the token that it has to predict",
          pairs ? "full" : "causal, or model.head masked_lm_and_pairs");
    if (full && m.window > 0)
      bad("model.window", fmt::format("{}: bidirectional attention has no window", m.window), "0");
    if (!pairs && m.token_types > 0)
      bad("model.token_types", fmt::format("{}: the samples of model.head lm have no token types", m.token_types), "0");
    if (pairs && m.token_types == 1) bad("model.token_types", "1: sentence pairs have two types", "0, or 2");
    if (!pairs) return masking_without_pairs();
    if (m.seq < 5) bad("model.seq", fmt::format("{}: a sentence pair takes at least 5 tokens", m.seq), "5 or more");
    if (m.init == WeightInit::kTorch42) bad("model.init", "torch42 is llm.c's GPT-2", "normal");
    const auto refuse = [&](bool is, const char* key, const char* why, const char* fix) {
      if (is && known({key})) bad(key, why, fix);
    };
    refuse(c_.data.order != SampleOrder::kEpoch && c_.data.order != SampleOrder::kSequential, "data.order",
           "sentence pairs come in the order of their own epochs", "epoch");
    refuse(c_.data.eod_mask_loss, "data.eod_mask_loss", "sentence pairs hold no end-of-document tokens", "false");
    refuse(bool(c_.data.curriculum), "data.curriculum", "sentence pairs cannot be cut", "none");
    refuse(c_.data.pack != Packing::kStream, "data.pack", "a sentence pair holds two pieces of text and padding",
           "stream");
    refuse(c_.train.loss_mean != LossMean::kToken, "train.loss_mean",
           "the loss of model.head masked_lm_and_pairs is the mean over masked tokens plus the mean over pairs",
           "token");
    refuse(c_.parallel.dynamic_shapes, "parallel.dynamic_shapes", "sentence pairs are padded to model.seq", "false");
    const bool files =
        std::any_of(c_.data.train.begin(), c_.data.train.end(), [](const DataSource& s) { return s.path != "mock"; });
    refuse(files && context_.needs_data && c_.data.tokenizer.empty(), "data.tokenizer",
           "missing: it defines the tokens that mask, begin and separate sentences",
           "give the tokenizer that the token files were prepared with");
  }

  void masking_without_pairs() {
    static const std::set<std::string> kKeys{"data.mask_prob",  "data.max_predictions", "data.whole_words",
                                             "data.short_prob", "data.mask_token",      "data.cls_token",
                                             "data.sep_token",  "data.pad_token"};
    Config standard;
    const std::vector<Option> all = list_options(c_), usual = list_options(standard);
    for (size_t k = 0; k < all.size(); ++k)
      if (kKeys.count(all[k].key()) > 0 && value_text(all[k]) != value_text(usual[k]))
        bad(all[k].key(), "is for masked language models, but model.head is lm", "leave it out");
  }

  // Rejects parameters of a rope scaling that the chosen kind does not read.
  void rope() {
    const ModelConfig& m = c_.model;
    const RopeScaling &r = m.rope, usual;
    const RopeKind kind = r.kind;
    const char* const name = name_of(kind);
    if (!known({"model.rope_scaling", "model.position"})) return;
    if (m.position != PositionKind::kRotary && kind != RopeKind::kDefault)
      bad("model.rope_scaling", fmt::format("{}: positions are learned", name),
          "use default, or model.position rotary");
    const bool llama3 = kind == RopeKind::kLlama3, yarn = kind == RopeKind::kYarn;
    const std::tuple<const char*, bool, bool> numbers[] = {
        {"rope_factor", kind != RopeKind::kDefault, r.factor == usual.factor},
        {"rope_low_freq_factor", llama3, r.low_freq_factor == usual.low_freq_factor},
        {"rope_high_freq_factor", llama3, r.high_freq_factor == usual.high_freq_factor},
        {"rope_beta_fast", yarn, r.beta_fast == usual.beta_fast},
        {"rope_beta_slow", yarn, r.beta_slow == usual.beta_slow},
        {"rope_attention_factor", yarn, r.attention_factor == usual.attention_factor},
        {"rope_truncate", yarn, r.truncate == usual.truncate},
        {"rope_original_seq", llama3 || yarn, r.original_positions == usual.original_positions}};
    for (const auto& [key, read, unchanged] : numbers)
      if (!read && !unchanged)
        bad(std::string("model.") + key, fmt::format("model.rope_scaling {} does not read it", name),
            "leave it out, or choose another model.rope_scaling");
    if (llama3 && r.high_freq_factor <= r.low_freq_factor)
      bad("model.rope_high_freq_factor",
          fmt::format("{} is not above model.rope_low_freq_factor {}", r.high_freq_factor, r.low_freq_factor),
          fmt::format("more than {}", r.low_freq_factor));
  }

  void local_rope() {
    const ModelConfig& m = c_.model;
    const char* const key = "model.rope_local_theta";
    if (m.rope_local_theta == 0 || !known({key, "model.position", "model.window"})) return;
    if (m.position != PositionKind::kRotary) bad(key, "positions are learned", "0, or model.position rotary");
    if (m.window == 0) bad(key, "no block has a window: model.window is 0", "0, or a model.window of 1 or more");
    if (m.rope_local_theta <= 1)
      bad(key, fmt::format("{}: no frequency falls", m.rope_local_theta), "0, or more than 1");
  }

  void mesh() {
    ParallelConfig& p = c_.parallel;
    const int64_t split = p.tp * p.pp, world = context_.external_world;
    if (!known({"parallel.tp", "parallel.pp", "parallel.dp", "launch.ranks"})) {
      p.dp = std::max<int64_t>(p.dp, 1);
      return;
    }
    if (world > 1 && c_.launch.ranks == RankKind::kThreads) {
      bad("launch.ranks",
          fmt::format("threads: one process holds all ranks, but a launcher started {} processes", world),
          "start one process, or use --launch.ranks processes");
      if (p.dp == 0) p.dp = 1;
      return;
    }
    if (p.dp == 0) {
      p.dp = 1;
      if (slots_ > 0) {
        p.dp = std::max<int64_t>(1, slots_ / split);
        notes_.push_back(fmt::format("dp {} = {} slots / (tp {} x pp {})", p.dp, slots_, p.tp, p.pp));
      } else if (world > 0 && world % split == 0) {
        p.dp = world / split;
        if (world > 1) notes_.push_back(fmt::format("dp {} = {} ranks / (tp {} x pp {})", p.dp, world, p.tp, p.pp));
      } else if (world > 0) {
        bad("parallel.tp",
            fmt::format("the launcher started {} ranks, not divisible by tp {} x pp {}", world, p.tp, p.pp),
            fmt::format("start {} ranks, or choose tp x pp among {}", list_of(multiples(split, world)),
                        list_of(nearest(divisors(world, [](int64_t) { return true; }), split))));
      }
    } else if (world > 0 && split * p.dp != world) {
      bad("parallel.dp",
          fmt::format("the launcher started {} ranks, but pp {} x dp {} x cp {} x tp {} = {}", world, p.pp, p.dp, p.cp,
                      p.tp, split * p.dp),
          world % split ? fmt::format("start {} ranks", split * p.dp)
                        : fmt::format("start {} ranks, or use dp {}", split * p.dp, world / split));
    }
    if (c_.precision.tf32 && c_.device.kind == DeviceChoice::kCpu)
      bad("precision.tf32", "true: CPUs have no TF32 GEMMs", "leave it out, or use --device.kind cuda");
    if (c_.device.graphs == OnOff::kOn && c_.device.kind == DeviceChoice::kCpu)
      bad("device.graphs", "on: a CPU has no graphs", "use auto, which enables graphs if there is a GPU");
    if (c_.device.graphs == OnOff::kOn && c_.parallel.dynamic_shapes)
      bad("device.graphs",
          "on: with parallel.dynamic_shapes microbatches may differ in shape, so graphs cannot be replayed",
          "use auto, or parallel.dynamic_shapes false");
    if (slots_ > 0 && c_.world() > slots_)
      bad("parallel.tp",
          fmt::format("tp {} x pp {} x dp {} = {} ranks, but the chosen hosts have {} slots", p.tp, p.pp, p.dp,
                      c_.world(), slots_),
          "choose more hosts, give them more slots, or use a smaller layout");
    if (c_.world() > 65536) bad("parallel.dp", fmt::format("{} ranks; at most 65536", c_.world()));
  }

  void tensor_parallel() {
    const ModelConfig& m = c_.model;
    const int64_t tp = c_.parallel.tp;
    if (!known({"model.heads", "model.ffn", "model.hidden", "parallel.tp"})) return;
    // KV heads are sharded over the TP ranks, or each is replicated on several. No check if kv_heads equals heads or
    // does not divide it, which is reported elsewhere.
    const bool groups = known({"model.kv_heads"}) && m.kv_heads != m.heads && m.heads % m.kv_heads == 0;
    const auto groups_fit = [&](int64_t t) { return !groups || m.kv_heads % t == 0 || t % m.kv_heads == 0; };
    const auto fits = [&](int64_t t) { return m.heads % t == 0 && m.widths_fit(t) && groups_fit(t); };
    const std::string may = fmt::format("tp may be {}", list_of(nearest(divisors(m.heads, fits), tp)));
    if (m.heads % tp) bad("parallel.tp", fmt::format("model.heads {} is not divisible by tp {}", m.heads, tp), may);
    if (m.ffn % tp) bad("parallel.tp", fmt::format("model.ffn {} is not divisible by tp {}", m.ffn, tp), may);
    if (!m.moe.dense_blocks.empty() && m.dense_ffn() % tp && known({"model.moe_dense_ffn"}))
      bad("parallel.tp", fmt::format("model.moe_dense_ffn {} is not divisible by tp {}", m.moe.dense_ffn, tp), may);
    if (!groups_fit(tp))
      bad("parallel.tp",
          fmt::format("model.kv_heads {} is neither divisible by tp {} nor a divisor of it", m.kv_heads, tp), may);
    sequence_parallel();
  }

  void sequence_parallel() {
    const int64_t tp = c_.parallel.tp, seq = c_.model.seq;
    if (!known({"model.seq", "parallel.sequence_parallel"}) || seq % tp == 0) return;
    if (c_.parallel.sequence_parallel == AutoBool::kAuto)
      notes_.push_back(fmt::format("no sequence parallelism: model.seq {} is not divisible by tp {}, but {} would be",
                                   seq, tp, list_of(multiples(tp, seq))));
    if (c_.parallel.sequence_parallel == AutoBool::kTrue)
      bad("parallel.sequence_parallel", fmt::format("model.seq {} is not divisible by tp {}", seq, tp),
          fmt::format("model.seq may be {}, or use false", list_of(multiples(tp, seq))));
  }

  void comm() {
    if (!known({"comm.backend", "device.kind"}) || c_.device.kind != DeviceChoice::kCpu) return;
    if (c_.comm.backend == CommBackend::kNccl || c_.comm.backend == CommBackend::kDirect)
      bad("comm.backend", cat(name_of(c_.comm.backend), " transfers GPU memory, but device.kind is cpu"),
          "use auto, or device.kind cuda");
  }

  void zero() {
    const ZeroConfig& z = c_.zero;
    if (!known({"zero.stage", "zero.grad_reduce", "zero.offload", "device.kind"})) return;
    if (z.stage < 2 && z.grad_reduce == GradReduce::kEach)
      bad("zero.grad_reduce", fmt::format("each: zero.stage {} does not shard gradients", z.stage),
          "use zero.stage 2 or 3, or grad_reduce auto or end");
    if (z.offload != Offload::kNone && c_.device.kind == DeviceChoice::kCuda)
      bad("zero.offload", fmt::format("{} is not built yet in this version (offload from a GPU)", name_of(z.offload)),
          "use none");
    if (z.prescale && z.predivide_factor != 1)
      notes_.push_back("zero.predivide_factor has no effect: zero.prescale divides by dp before the sum");
    for (const char* key : {"zero.prefetch", "zero.persist_numel"})
      if (z.stage < 3 && !where(key).empty())
        notes_.push_back(fmt::format("{} has no effect at zero.stage {}: parameters are not sharded", key, z.stage));
  }

  void partition() {
    const ModelConfig& m = c_.model;
    const ParallelConfig& p = c_.parallel;
    if (!known({"model.layers", "parallel.pp", "parallel.vpp", "parallel.partition"})) return;
    const int64_t layers = static_cast<int64_t>(describe(m).layers.size()), stages = p.pp * p.vpp;
    const std::string of_layers = fmt::format("for {} layers (embedding, {} blocks, {}head)", layers, m.layers,
                                              m.norm_place == NormPlace::kSum ? "" : "norm, ");
    if (p.pp > layers)
      bad("parallel.pp", fmt::format("{} stages {}", p.pp, of_layers), fmt::format("pp may be 1 to {}", layers));
    else if (stages > layers)
      bad("parallel.vpp", fmt::format("pp {} x vpp {} = {} stages {}", p.pp, p.vpp, stages, of_layers),
          fmt::format("vpp may be 1{}{}", layers / p.pp > 1 ? fmt::format(" to {}", layers / p.pp) : "",
                      layers / p.vpp > 1 ? fmt::format(", or pp 2 to {}", layers / p.vpp) : ""));
    for (const char* rule : {"flops", "best", "auto", "uniform", "parameters"})
      if (p.partition == rule) return;
    if (p.partition.rfind("type:", 0) == 0) return partition_by_type();
    int64_t sum = 0, n = 0, empty = -1;  // empty: last inner stage without a block
    std::string_view rest = p.partition;
    for (bool more = true; more; ++n) {
      const size_t comma = rest.find(',');
      more = comma != std::string_view::npos;
      int64_t blocks;
      if (!parse_int(rest.substr(0, comma), blocks) || blocks < 0 || blocks > m.layers)
        return bad(
            "parallel.partition",
            fmt::format("expected flops, uniform, parameters, type:REGEX or blocks per stage as in 4,4, found \"{}\"",
                        p.partition),
            even_split());
      sum += blocks;
      if (blocks == 0 && n > 0 && more) empty = n;
      if (more) rest.remove_prefix(comma + 1);
    }
    const std::string expected = p.vpp > 1 ? fmt::format("pp x vpp is {}", stages) : fmt::format("pp is {}", p.pp);
    if (n != stages || sum != m.layers)
      bad("parallel.partition",
          fmt::format("{} blocks in {} stages, but model.layers is {} and {}", sum, n, m.layers, expected),
          even_split());
    else if (empty >= 0)
      bad("parallel.partition",
          fmt::format("{}: stage {} would hold no layer at all; only the first (embedding) and the last (norm, head) "
                      "may have 0 blocks",
                      p.partition, empty),
          even_split());
  }

  void partition_by_type() {
    const int64_t stages = c_.parallel.pp * c_.parallel.vpp;
    const std::vector<LayerCost> layers = describe(c_.model).layer_costs();
    if (stages > static_cast<int64_t>(layers.size())) return;  // reported elsewhere
    try {
      gt::partition(c_.parallel.partition, layers, static_cast<int>(stages));
    } catch (const Error& e) { bad("parallel.partition", e.what()); }
  }

  // Runs after batch(): a schedule file is valid for one number of microbatches.
  void schedule() {
    const ParallelConfig& p = c_.parallel;
    if (!known({"parallel.schedule", "parallel.pp", "parallel.vpp"})) return;
    if (p.vpp > 1 && p.pp == 1)
      return bad("parallel.vpp", fmt::format("{} chunks per pipeline rank, but parallel.pp is 1", p.vpp),
                 "use vpp 1, or pp 2 or more with --parallel.schedule interleaved");
    if (p.extra_in_flight > 0 && p.schedule != "1f1b")
      bad("parallel.extra_in_flight",
          fmt::format("{} extra microbatches in flight, but schedule {} has a fixed number", p.extra_in_flight,
                      p.schedule),
          "use 0, or --parallel.schedule 1f1b");
    if (is_schedule_file(p.schedule)) return schedule_file();
    std::vector<std::string> built = schedule_names();
    built.erase(std::find(built.begin(), built.end(), "forward"));  // used by evaluation only
    if (std::find(built.begin(), built.end(), p.schedule) == built.end()) {
      const std::string guess = did_you_mean(p.schedule, built);
      return bad("parallel.schedule",
                 fmt::format("expected {} or file:PATH, found \"{}\"{}", fmt::join(built, ", "), p.schedule,
                             guess.empty() ? "" : fmt::format(" (did you mean {}?)", guess)));
    }
    if (p.vpp > 1 && p.schedule != "interleaved")
      bad("parallel.vpp", fmt::format("{} chunks per pipeline rank, but schedule {} has one", p.vpp, p.schedule),
          "use vpp 1, or --parallel.schedule interleaved");
    if (p.vpp == 1 && p.pp > 1 && p.schedule == "interleaved")
      notes_.push_back(
          "schedule interleaved with vpp 1 has the bubble of 1f1b and keeps more activations; use vpp 2 or more");
  }

  void schedule_file() {
    const int64_t m = c_.train.grad_accum;
    if (!known({"model.tied", "train.micro_batch", "train.grad_accum", "train.global_batch"}) || m < 1) return;
    try {
      const bool tied = c_.model.tied;
      require_fits(read_schedule_file(c_.parallel.schedule, tied), c_.parallel.pp, c_.parallel.vpp, m, tied);
    } catch (const Error& e) { bad("parallel.schedule", e.what()); }
  }

  std::string even_split() const {
    std::vector<int64_t> v;
    const int64_t stages = c_.parallel.pp * c_.parallel.vpp;
    for (int64_t i = 0; i < std::min<int64_t>(stages, 64); ++i)
      v.push_back(c_.model.layers / stages + (i < c_.model.layers % stages));
    return fmt::format("for example {}", fmt::join(v, ","));
  }

  void recompute() {
    const ParallelConfig& p = c_.parallel;
    if (!known({"parallel.recompute", "parallel.recompute_layers", "model.layers"}) || p.recompute_layers == 0) return;
    if (p.recompute == Recompute::kNone)
      bad("parallel.recompute_layers", fmt::format("{} blocks, but parallel.recompute is none", p.recompute_layers),
          "add --parallel.recompute full");
    else if (p.recompute_layers > c_.model.layers)
      bad("parallel.recompute_layers",
          fmt::format("{} blocks of each stage, but model.layers is {}", p.recompute_layers, c_.model.layers),
          fmt::format("0 (all) to {}", c_.model.layers));
  }

  RuleContext rules() {
    const auto problem = [&](const std::string& key, std::string reason, std::string fix) {
      bad(key, std::move(reason), std::move(fix));
    };
    return {.where = [&](const std::string& key) { return where(key); },
            .known = [&](const char* key) { return known({key}); },
            .bad = problem,
            .notes = notes_};
  }

  // Text sources need a tokenizer: that of the model, or one that the command in the error trains.
  void text(const char* key, const std::string& path) {
    if (!c_.data.tokenizer.empty()) return;
    if (!context_.model_folder.empty())
      return bad(key,
                 path + ": text, which needs the model's tokenizer, and " + context_.model_folder +
                     " holds none that can be read",
                 "add --data.tokenizer FILE (a SentencePiece model, a tokenizer.json, a vocab.json beside "
                 "its merges.txt, a vocab.txt, a tekken.json, or tiktoken's ranks), or give token files made with it "
                 "by other tools");
    bad(key, path + ": text, which needs a tokenizer", tokenizer_advice(c_, path));
  }

  void sources(const char* key, const std::vector<DataSource>& list) {
    for (const DataSource& s : list)
      if (is_text_source(s.path)) {
        text(key, s.path);
      } else if (s.path != "mock" && !names_llmc_tokens(s.path)) {
        const std::string missing = missing_token_files(s.path);
        if (missing.empty()) continue;
        bad(key, missing,
            from_demo(key)
                ? "./launch/demo.sh makes it"
                : "give a text file, the prefix that `gpttrain data prepare --output` wrote, or llm.c's .bin");
      }
  }

  void files() {
    if (!check_paths(c_, rules())) return;
    const CheckpointConfig& k = c_.checkpoint;
    int64_t step;
    if (k.every != "auto" && (!parse_int(k.every, step) || step < 0))
      bad("checkpoint.every", fmt::format("expected auto or a number of steps 0.., found \"{}\"", k.every));
    if (k.staging_bytes != "auto" && (!parse_int(k.staging_bytes, step) || step < 0))
      bad("checkpoint.staging_bytes",
          fmt::format("expected auto or a number of bytes 0.., found \"{}\"", k.staging_bytes));
    if (k.every != "auto" && k.mtbf_hours > 0 && known({"checkpoint.every"}))
      bad("checkpoint.mtbf_hours", "is for checkpoint.every auto", "leave it out, or give --checkpoint.every auto");
    if (k.resume != "auto" && k.resume != "never" && (!parse_int(k.resume, step) || step < 0))
      bad("checkpoint.resume", fmt::format("expected auto, never or a step, found \"{}\"", k.resume));
    for (const std::string& part : k.load)
      if (part != "weights" && part != "optim" && part != "schedule" && part != "data" &&
          (part != "all" || k.load.size() > 1))
        bad("checkpoint.load", fmt::format("expected all, or some of weights, optim, schedule, data; found \"{}\"",
                                           fmt::join(k.load, " ")));
    if (k.load.empty())
      bad("checkpoint.load", "expected all, or some of weights, optim, schedule, data; found nothing");
    std::error_code ec;
    if (!k.load_from.empty() && context_.needs_data && !std::filesystem::exists(k.load_from, ec)) {
      const std::string guess = near_path(k.load_from);
      bad("checkpoint.load_from", k.load_from + ": does not exist",
          guess.empty() ? "give a run directory, its checkpoints folder, or a step" : "did you mean " + guess + "?");
    }
    if (k.load != std::vector<std::string>{"all"} && k.load_from.empty())
      bad("checkpoint.load", "a run's own checkpoints are always resumed completely",
          "set --checkpoint.load_from to load parts of a checkpoint");
    if (!context_.needs_data) return;
    if (c_.data.train.empty() && known({"data.train"}))
      bad("data.train", "missing: training data",
          "give a text file, the prefix that `gpttrain data prepare --output` wrote, or mock for random tokens");
    sources("data.train", c_.data.train);
    sources("data.valid", c_.data.valid);
    if (!c_.data.tokenizer.empty() && !std::filesystem::exists(c_.data.tokenizer, ec))
      bad("data.tokenizer", c_.data.tokenizer + ": no such file",
          from_demo("data.tokenizer") ? "./launch/demo.sh makes it" : "make one with `gpttrain tokenizer train`");
  }

  int slots_ = 0;  // 0: unrestricted
  Config& c_;
  const CheckContext& context_;
  Problems& problems_;
  std::vector<std::string>& notes_;
  std::set<std::string> failed_reading_;
};

}  // namespace

bool is_text_source(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code ec;
  if (path == "mock" || !fs::is_regular_file(path, ec) || names_llmc_tokens(path) ||
      fs::exists(token_prefix(path) + ".idx", ec))
    return false;
  return !path.ends_with(".bin") && !path.ends_with(".idx");
}

void resolve_and_check(Config& config, const CheckContext& context, Problems& problems,
                       std::vector<std::string>& notes) {
  Checker(config, context, problems, notes).run();
}

const std::vector<Unimplemented>& unimplemented_values() { return kUnimplemented; }

bool restrict_to_implemented(Option& o) {
  for (const Unimplemented& n : kUnimplemented)
    if (o.key() == n.key) {
      if (std::string_view(n.working).find('|') == std::string_view::npos) return false;
      o.domain = n.working;
    }
  return true;
}

}  // namespace gt
