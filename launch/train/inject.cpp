#include "launch/train/inject.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "kernels/core/check.h"
#include "launch/config/json_text.h"
#include "parallel/zero/shard_copy.h"

namespace gt {
namespace {

#ifdef GPT_TESTING
constexpr bool kBuiltIn = true;
#else
constexpr bool kBuiltIn = false;
#endif

struct SiteActions {
  const char *site, *actions;
};
constexpr SiteActions kSites[] = {
    {"step", " kill stop segv abort terminate exit delay "}, {"save", " delay "}, {"forward", " nan inf "},
    {"backward", " nan inf "}, {"grad", " nan inf scale "}, {"master", " nan inf flip "}, {"value", " flip "}};

[[noreturn]] void refuse(const std::string& what, const std::string& why) {
  fail(Exit::kUsage, "\"", what, "\": ", why, "; expected ACTION@SITE[:key=value,...], see ",
       "launch/train/inject.h");
}

void set_key(Injection& f, const std::string& whole, const std::string& key, const std::string& value) {
  if (key == "param") {
    f.param = value;
    return;
  }
  int64_t x = 0;
  if (!parse_int(value, x)) refuse(whole, cat(key, "=", value, " is no whole number"));
  for (const auto& [name, to] : {std::pair{"rank", &f.rank}, {"step", &f.step}, {"until", &f.until},
                                 {"index", &f.index}, {"mb", &f.microbatch}, {"bit", &f.bit}, {"ms", &f.ms}})
    if (key == name) {
      *to = x;
      return;
    }
  if (key != "n") refuse(whole, cat("unknown key ", key));
  f.n = static_cast<double>(x);
}

Injection parse_one(const std::string& text) {
  Injection f;
  const size_t at = text.find('@'), colon = std::min(text.find(':'), text.size());
  if (at == std::string::npos || at > colon) refuse(text, "no @");
  f.action = text.substr(0, at);
  f.site = text.substr(at + 1, colon - at - 1);
  const auto site = std::find_if(std::begin(kSites), std::end(kSites), [&](const SiteActions& s) { return f.site == s.site; });
  if (site == std::end(kSites)) refuse(text, cat("no site ", f.site, "; there are step, save, forward, backward, grad, master and value"));
  if (std::string(site->actions).find(" " + f.action + " ") == std::string::npos)
    refuse(text, cat("at ", f.site, " there are", site->actions));
  std::istringstream keys(colon < text.size() ? text.substr(colon + 1) : "");
  for (std::string pair; std::getline(keys, pair, ',');) {
    const size_t equals = pair.find('=');
    if (equals == std::string::npos) refuse(text, pair + ": no =");
    set_key(f, text, pair.substr(0, equals), pair.substr(equals + 1));
  }
  if (f.until < 0) f.until = f.step;
  if ((f.site == "step" || f.site == "save" || f.site == "value") && !f.param.empty())
    refuse(text, cat("at ", f.site, " there is no param="));
  if ((f.site == "forward" || f.site == "backward") && f.param.empty()) refuse(text, "no param=");
  return f;
}

void read_nowhere() {
  void* page = mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  static_cast<void>(*static_cast<volatile char*>(page));
}

void terminate_in_a_thread() {
  std::thread([] { throw std::runtime_error("fault.inject terminate"); }).join();
}

void change(float& x, const Injection& f) {
  if (f.action == "nan") x = std::numeric_limits<float>::quiet_NaN();
  if (f.action == "inf") x = std::numeric_limits<float>::infinity();
  if (f.action == "scale") x *= static_cast<float>(f.n);
  if (f.action != "flip") return;
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  bits ^= uint32_t{1} << (f.bit & 31);
  std::memcpy(&x, &bits, sizeof bits);
}

}  // namespace

std::vector<Injection> parse_injections(const std::string& spec) {
  std::vector<Injection> out;
  std::istringstream in(spec);
  for (std::string one; in >> one;) out.push_back(parse_one(one));
  GT_REQUIRE(out.empty() || kBuiltIn, Exit::kUsage,
             "this binary was built without it (cmake -DGPT_TESTING=ON)");
  return out;
}

std::vector<std::string> Injector::params() const {
  std::vector<std::string> out;
  for (const Injection& f : faults_)
    if (!f.param.empty()) out.push_back(f.param);
  return out;
}

bool Injector::due(const Injection& f, const char* site, int64_t step) const {
  return f.site == site && (f.step < 0 || (f.step <= step && step <= f.until));
}

bool Injector::hits(const Injection& f, const char* site, int64_t step) const {
  return due(f, site, step) && (f.rank < 0 || f.rank == rank_);
}

bool Injector::wants(const char* site, int64_t step) const {
  return std::any_of(faults_.begin(), faults_.end(), [&](const Injection& f) { return due(f, site, step); });
}

void Injector::at_value(int64_t step, std::byte* value, const DeviceApi& api, Stream stream) const {
  for (const Injection& f : faults_) {
    if (!hits(f, "value", step)) continue;
    uint16_t bits = 0;
    api.copy(&bits, value, sizeof bits, stream);
    api.synchronize(stream);
    bits = static_cast<uint16_t>(bits ^ 1u << (f.bit & 15));
    api.copy(value, &bits, sizeof bits, stream);
    api.synchronize(stream);
  }
}

std::vector<Injection> Injector::in_ops(int64_t step) const {
  std::vector<Injection> out;
  for (const Injection& f : faults_)
    if (hits(f, "forward", step) || hits(f, "backward", step)) out.push_back(f);
  return out;
}

void Injector::at_step(int64_t step) const {
  for (const Injection& f : faults_) {
    if (!hits(f, "step", step)) continue;
    if (f.action == "kill") kill(getpid(), SIGKILL);
    if (f.action == "stop") kill(getpid(), SIGSTOP);
    if (f.action == "segv") read_nowhere();
    if (f.action == "abort") std::abort();
    if (f.action == "terminate") terminate_in_a_thread();
    if (f.action == "exit") _exit(static_cast<int>(f.n));
    std::this_thread::sleep_for(std::chrono::milliseconds(f.ms));
  }
}

void Injector::at_save(int64_t step) const {
  for (const Injection& f : faults_)
    if (hits(f, "save", step)) std::this_thread::sleep_for(std::chrono::milliseconds(f.ms));
}

void Injector::at_tensors(const char* site, int64_t step, const std::vector<ShardView>& views, const Backend& backend,
                          Stream stream) const {
  for (const Injection& f : faults_) {
    if (!hits(f, site, step)) continue;
    for (const ShardView& v : views) {
      const std::string name = v.name.substr(v.name.find('/') + 1);
      if ((!f.param.empty() && f.param != name)) continue;
      const bool all = f.action == "scale";
      for (int64_t k = all ? 0 : f.index; k < (all ? v.data.numel() : std::min(f.index + 1, v.data.numel())); ++k) {
        ShardView one = v;
        one.data = v.data.slice(k, 1);
        float x = 0;
        fetch_view(one, &x, backend, stream);
        change(x, f);
        store_view(one, &x, backend, stream);
      }
    }
  }
}

}  // namespace gt
