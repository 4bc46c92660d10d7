// Answers GET /metrics with the newest values of a run in Prometheus' text format (version 0.0.4). Nothing of a request
// is stored: bounded in number, size and time, all served by one thread of their own, so that silent clients delay
// nobody.
#pragma once
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "launch/config/values/endpoint.h"
#include "launch/observe/metrics.h"

namespace gt {

struct PrometheusValues {
  std::string run;  // label of every metric
  StepRecord step;
  double eval_loss = kUnknown;
  int64_t eval_step = -1, saved_step = -1, warnings = 0;
};
std::string prometheus_text(const PrometheusValues&);

// Returns the whole answer to a request, headers included.
std::string prometheus_answer(std::string_view request, const PrometheusValues&);

class PrometheusSink : public Sink {
 public:
  static constexpr size_t kMostRequest = 4096;  // bytes
  static constexpr int kMostSeconds = 2;        // for a request and its answer
  static constexpr size_t kMostClients = 32;    // at once

  explicit PrometheusSink(Endpoint e) : endpoint_(std::move(e)) {}
  ~PrometheusSink() override { stop(); }
  const char* name() const override { return "log.prometheus"; }
  void open();  // the port; before start(), so that a taken one ends the run before its first step. Throws kUsage
  void start(const StartInfo&) override;
  void step(const StepRecord&) override;
  void eval(const EvalRecord&) override;
  void saved(const SavedRecord&) override;
  void event(const EventRecord&) override;
  void end(const EndInfo&) override { stop(); }

 private:
  struct Client;
  void serve();
  bool accept_all(std::vector<Client>&) const;
  void advance(Client&);
  void stop();
  const Endpoint endpoint_;
  int listener_ = -1, wake_[2] = {-1, -1};
  std::thread thread_;
  std::mutex mutex_;  // guards values_
  PrometheusValues values_;
};

// Returns a sink whose port is open; nullptr for "". Throws kUsage.
std::unique_ptr<PrometheusSink> open_prometheus(const std::string& endpoint);

}  // namespace gt
