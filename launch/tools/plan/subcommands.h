// `gpttrain plan`: arguments and functions, rows of the table in launch/commands/subcommands.cpp.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "launch/ranks/command.h"
#include "launch/tools/plan/machine_types.h"

namespace gt {

struct PlanArgs {
  int64_t devices = 0, devices_per_node = 0, top = 10, trials = -1;
  bool search = false, require_match = false, json = false, calibrate = false, why = false;
  std::string device_type = "H100", device_figures, profile, fit, rows, output;
  std::vector<std::string> keep;
  double price = 0, watts = 0, tokens = 0;
  template <class V>
  void fields(V& v) {
    v("devices", devices, "0..1048576", "number of devices; 0: tp x pp x dp of the config");
    v("device_type", device_type, device_type_names(), "device type; need not be present on this machine");
    v("device_figures", device_figures, "",
      "a device that --device_type does not list, as in 989T,80G,3.35T: dense 16-bit FLOP/s, memory, its bytes/s; "
      "then, if "
      "known, bytes/s of an all-reduce inside a node and of the node's ports");
    v("devices_per_node", devices_per_node, "0..1024",
      "devices connected by fast links; 0: typical of the device type");
    v("search", search, "", "list the fastest layouts that fit instead of planning the config's own");
    v("top", top, "1..1000 layouts", "--search: number of layouts to list");
    v("keep", keep, "", "--search: keys to fix, as in parallel.tp=8");
    v("profile", profile, "",
      "machine constants and block times fitted by --fit: FILE, or FILE:NAME; empty: typical of the device type");
    v("require_match", require_match, "", "exit with code 2 if the plan does not fit");
    v("calibrate", calibrate, "",
      "--device_type cpu: measure the ops and the communication of the config's step, or of --search's layouts, on "
      "this machine first, for at most about a minute; kept in the user's cache folder for later plans and runs");
    v("trials", trials, "-1..64 layouts",
      "--search --calibrate: train this many of the layouts planned fastest for some steps each, for at most "
      "about 150 seconds, and list them first, by their measured steps; -1: 24");
    v("why", why, "", "name the limiting term and the smallest changes that fit or that are faster");
    v("tokens", tokens, "0..1e18 tokens", "tokens to train on, for time, energy and cost; 0: those of train.steps");
    v("price", price, "0..1e6", "price per device hour, to estimate the cost of the run");
    v("watts", watts, "0..1e5 W", "power per device with its share of the machine, to estimate the energy of the run");
    v("json", json, "", "print the plan as JSON");
    v("fit", fit, "",
      "fit machine constants and block times to a table of measured steps (CSV) and write them to --output");
    v("rows", rows, "", "predict every row of a table of measured steps (CSV), with --profile if given");
    v("output", output, "", "output file of --fit (JSON) or --rows (CSV); empty: standard output (--rows only)");
  }
};

Exit run_plan(const Command&);

}  // namespace gt
