// The one place that names the test framework's header: moving to Catch2 version 3 is a change here.
#pragma once
#include <catch2/catch.hpp>
