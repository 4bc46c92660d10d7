#include "kernels/cuda/attention/attention_cudnn.h"

#include <array>
#include <exception>
#include <vector>

#include "kernels/core/check.h"

#define CUDNN_FRONTEND_SKIP_JSON_LIB  // graphs are not serialized
#include <cudnn_frontend.h>

namespace gt::cuda {
namespace {

namespace fe = cudnn_frontend;
using Graph = fe::graph::Graph;
using TensorPtr = std::shared_ptr<fe::graph::Tensor_attributes>;

// Tensor UIDs of a graph. cuDNN receives their addresses in this order.
enum Uid : int64_t { kQ = 1, kK, kV, kOut, kLse, kDout, kDq, kDk, kDv, kEnd };

std::string reason(fe::error_t e) {
  std::string text = e.get_message();
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text.empty() ? cat("error ", static_cast<int>(e.get_code())) : text;
}

// Runs f and returns the message of a frontend exception; empty on success.
template <class F>
std::string words_of(F&& f) {
  try {
    const fe::error_t e = f();
    return e.code == fe::error_code_t::OK ? std::string() : reason(e);
  } catch (const Error&) {
    throw;  // one of ours
  } catch (const std::exception& e) { return e.what(); }
}

// Graph tensors of one call, [batch, heads, seq, head_dim] by strides: rows of one head are a pitch apart.
class Tensors {
 public:
  Tensors(Graph& graph, const AttentionCall& call) : graph_(graph), c_(call) {}

  TensorPtr input(Uid uid) {
    return graph_.tensor(attributes(uid, uid == kQ ? c_.heads : c_.kv_heads, c_.pitch[uid - kQ]));
  }
  TensorPtr rows(Uid uid) { return graph_.tensor(attributes(uid, c_.heads, c_.heads * c_.head_dim)); }
  TensorPtr lse() {
    return graph_.tensor(fe::graph::Tensor_attributes()
                             .set_uid(kLse)
                             .set_dim({c_.batch, c_.heads, c_.seq, 1})
                             .set_stride({c_.heads * c_.seq, c_.seq, 1, 1})
                             .set_data_type(fe::DataType_t::FLOAT));
  }
  void gradient(const TensorPtr& t, Uid uid) {
    shape(*t, uid, uid == kDq ? c_.heads : c_.kv_heads, c_.grad_pitch[uid - kDq]).set_output(true);
  }
  void rows_output(const TensorPtr& t, Uid uid) { shape(*t, uid, c_.heads, c_.heads * c_.head_dim).set_output(true); }

 private:
  fe::graph::Tensor_attributes attributes(Uid uid, int64_t heads, int64_t pitch) {
    fe::graph::Tensor_attributes t;
    shape(t, uid, heads, pitch);
    return t;
  }
  fe::graph::Tensor_attributes& shape(fe::graph::Tensor_attributes& t, Uid uid, int64_t heads, int64_t pitch) {
    return t.set_uid(uid)
        .set_dim({c_.batch, heads, c_.seq, c_.head_dim})
        .set_stride({c_.seq * pitch, c_.head_dim, pitch, 1});
  }

  Graph& graph_;
  const AttentionCall& c_;
};

void describe_forward(Graph& graph, Tensors& t, const AttentionCall& call) {
  auto options = fe::graph::SDPA_attributes();
  options.set_name("attention").set_attn_scale(call.scale);
  options.set_generate_stats(true).set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT);
  options.set_diagonal_band_right_bound(0);                                                  // causal
  if (call.window > 0) options.set_diagonal_band_left_bound(static_cast<int>(call.window));  // key + window > query
  const auto [out, lse] = graph.sdpa(t.input(kQ), t.input(kK), t.input(kV), options);
  t.rows_output(out, kOut);
  lse->set_output(true).set_uid(kLse).set_data_type(fe::DataType_t::FLOAT);
  lse->set_dim({call.batch, call.heads, call.seq, 1}).set_stride({call.heads * call.seq, call.seq, 1, 1});
}

void describe_backward(Graph& graph, Tensors& t, const AttentionCall& call) {
  auto options = fe::graph::SDPA_backward_attributes();
  options.set_name("attention_grad").set_attn_scale(call.scale);
  options.set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT).set_diagonal_band_right_bound(0);
  if (call.window > 0) options.set_diagonal_band_left_bound(static_cast<int>(call.window));
  options.set_deterministic_algorithm(call.deterministic);
  const auto [dq, dk, dv] =
      graph.sdpa_backward(t.input(kQ), t.input(kK), t.input(kV), t.rows(kOut), t.rows(kDout), t.lse(), options);
  t.gradient(dq, kDq);
  t.gradient(dk, kDk);
  t.gradient(dv, kDv);
}

// Builds and validates the graph of a call; returns the frontend's error on refusal.
fe::error_t describe(Graph& graph, const AttentionCall& call) {
  graph.set_io_data_type(call.type == DType::kBF16 ? fe::DataType_t::BFLOAT16 : fe::DataType_t::HALF)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  Tensors tensors(graph, call);
  call.backward ? describe_backward(graph, tensors, call) : describe_forward(graph, tensors, call);
  return graph.validate();
}

class Plan final : public AttentionPlan {
 public:
  Plan(cudnnHandle_t handle, const AttentionCall& call) : handle_(handle), call_(call) {}

  // Uses the first heuristic engine that builds: the same on every rank with this device and library version.
  fe::error_t build() {
    fe::error_t e = describe(graph_, call_);
    if (e.is_good()) e = graph_.build_operation_graph(handle_);
    if (e.is_good()) e = graph_.create_execution_plans({fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK});
    if (e.is_good()) e = graph_.check_support();
    if (e.is_good()) e = graph_.build_plans(fe::BuildPlanPolicy_t::HEURISTICS_CHOICE);
    if (e.is_good()) e = graph_.get_workspace_size(workspace_);
    if (e.is_bad()) return e;
    std::vector<int64_t> expected;
    for (int64_t uid = kQ; uid < (call_.backward ? kEnd : kDout); ++uid) expected.push_back(uid);
    GT_CHECK(graph_.get_variant_pack_uids_sorted() == expected, "cuDNN's tensor UIDs differ from those of attention");
    return e;
  }

  int64_t workspace() const override { return workspace_; }

  std::string run(const AttentionPointers& p, void* workspace) override {
    std::array<void*, kEnd - kQ> tensors{p.q, p.k, p.v, p.out, p.lse, p.dout, p.dq, p.dk, p.dv};
    return words_of([&] {
      return graph_.execute(handle_, tensors.data(), static_cast<int>(call_.backward ? kEnd - kQ : kDout - kQ),
                            workspace);
    });
  }

 private:
  cudnnHandle_t handle_;
  AttentionCall call_;
  Graph graph_;
  int64_t workspace_ = 0;
};

}  // namespace

std::string graph_unsupported_reason(const AttentionCall& call, int sm) {
  return words_of([&] {
    Graph graph;
    graph.set_sm_version(sm);
    fe::error_t e = describe(graph, call);
    return e.is_good() ? graph.build_operation_graph(nullptr) : e;
  });
}

std::unique_ptr<AttentionPlan> plan_attention(cudnnContext* handle, const AttentionCall& call, std::string* why) {
  std::unique_ptr<Plan> plan;
  *why = words_of([&] {
    plan = std::make_unique<Plan>(handle, call);
    return plan->build();
  });
  if (!why->empty()) plan.reset();
  return plan;
}

std::string engine_unsupported_reason(const AttentionCall& call, int sm, const std::string& device, int64_t workspace) {
  return words_of([&] {
    Graph graph;
    auto properties = std::make_shared<fe::DeviceProperties>();
    fe::error_t e = properties->deserialize({device.begin(), device.end()});
    graph.set_device_properties(properties).set_sm_version(sm);
    if (e.is_good()) e = describe(graph, call);
    if (e.is_good()) e = graph.build_operation_graph(nullptr);
    if (e.is_good()) e = graph.create_execution_plans({fe::HeurMode_t::A});
    if (e.is_good()) e = graph.deselect_workspace_greater_than(workspace).check_support();
    return e;
  });
}

}  // namespace gt::cuda
