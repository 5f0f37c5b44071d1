// Programs that are built without MPI: being started as several processes is an error.

#include "../../examples/processes.hpp"

#include <cstdlib>

#include "catch.hpp"
#include "nanovllm/core/error.hpp"

using Catch::Matchers::Contains;
using nanovllm::ConfigError;
using nanovllm::examples::Processes;

TEST_CASE("several processes without MPI are refused with what to build", "[processes]") {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"}) {
    INFO(name);
    for (const char* all : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"})
      ::unsetenv(all);
    Processes processes;
    CHECK_NOTHROW(processes.join());
    ::setenv(name, "1", 1);
    CHECK_NOTHROW(processes.join());
    ::setenv(name, "2", 1);
    CHECK_THROWS_AS(processes.join(), ConfigError);
    CHECK_THROWS_WITH(processes.join(), Contains(name) && Contains("-DNANOVLLM_MPI=ON"));
    CHECK(processes.group() == nullptr);
    CHECK_FALSE(processes.follows());
    processes.fail("nobody hears of it");
    ::unsetenv(name);
  }
}
