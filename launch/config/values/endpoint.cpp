#include "launch/config/values/endpoint.h"

#include <arpa/inet.h>

#include "kernels/core/check.h"
#include "launch/options/json_text.h"

namespace gt {

Endpoint parse_endpoint(const std::string& text) {
  constexpr const char* kExpected = "expected PORT or ADDRESS:PORT, as in 9400 or 0.0.0.0:9400 or [::1]:9400";
  Endpoint e;
  const size_t colon = text.rfind(':');
  std::string port = text;
  if (colon != std::string::npos) {
    e.address = text.substr(0, colon), port = text.substr(colon + 1);
    if (e.address == "localhost") e.address = "127.0.0.1";
    if (e.address.size() > 2 && e.address.front() == '[' && e.address.back() == ']')
      e.address = e.address.substr(1, e.address.size() - 2);
    in_addr four{};
    in6_addr six{};
    GT_REQUIRE(inet_pton(AF_INET, e.address.c_str(), &four) == 1 || inet_pton(AF_INET6, e.address.c_str(), &six) == 1,
               Exit::kUsage, kExpected, ", with a numeric address");
  }
  int64_t number = 0;
  GT_REQUIRE(parse_int(port, number) && number >= 1 && number <= 65535, Exit::kUsage, kExpected, ", PORT 1 to 65535");
  e.port = static_cast<int>(number);
  return e;
}

}  // namespace gt
