// Address on which a run answers requests (log.prometheus).
#pragma once
#include <string>

namespace gt {

struct Endpoint {
  std::string address = "127.0.0.1";  // numeric, IPv4 or IPv6
  int port = 0;
};

// Parses "PORT", "ADDRESS:PORT" or "[IPv6]:PORT"; localhost is 127.0.0.1. Names are not resolved. Throws kUsage.
Endpoint parse_endpoint(const std::string&);

}  // namespace gt
