#pragma once
/// What a launcher of processes tells each of them: torchrun, or mpirun of Open MPI, MPICH and
/// Intel MPI.

#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "nanovllm/core/error.hpp"

namespace nanovllm {

/// A process's place among `size` of them, and where they meet.
struct ProcessPlace {
  int rank = 0;
  int size = 1;
  int local_rank = 0;              ///< among the processes of this host; chooses the GPU
  int local_size = 1;              ///< processes of this host
  std::string host = "localhost";  ///< of rank 0, as the others find it
  std::uint16_t port = 29500;      ///< that rank 0 listens on
};

/// Throws ConfigError naming the first field that makes no sense.
inline void validate(const ProcessPlace& place) {
  check<ConfigError>(place.size >= 1, "a group of processes has 1 or more, got ", place.size);
  check<ConfigError>(place.rank >= 0 && place.rank < place.size, "rank ", place.rank,
                     " is not in [0, ", place.size, "), the number of processes");
  check<ConfigError>(place.local_rank >= 0 && place.local_rank < place.local_size, "local rank ",
                     place.local_rank, " is not in [0, ", place.local_size,
                     "), the number of processes on this host");
  check<ConfigError>(!place.host.empty() && place.port != 0, "rank 0 is at '", place.host,
                     "', port ", place.port, ", which is no address");
}

namespace detail {

/// The number in an environment variable, if it is set. Throws ConfigError when it is none.
[[nodiscard]] inline std::optional<int> number_from_environment(const char* name) {
  const char* text = std::getenv(name);
  if (text == nullptr) return std::nullopt;
  const std::string_view view(text);
  int value = 0;
  const auto [end, error] = std::from_chars(view.data(), view.data() + view.size(), value);
  check<ConfigError>(error == std::errc() && end == view.data() + view.size(), name,
                     " must be a number, got '", view, "'");
  return value;
}

}  // namespace detail

/// Reads the environment that launchers make:
///
///     torchrun             RANK            WORLD_SIZE            LOCAL_RANK, LOCAL_WORLD_SIZE
///     mpirun, Open MPI     OMPI_COMM_WORLD_ RANK, SIZE, LOCAL_RANK, LOCAL_SIZE
///     MPICH, Intel MPI     PMI_RANK        PMI_SIZE              MPI_LOCALRANKID, MPI_LOCALNRANKS
///
/// and MASTER_ADDR and MASTER_PORT, localhost and 29500 unless set. torchrun itself listens on
/// MASTER_PORT; where it says so, the port is the next one. Without a local rank all processes are
/// on one host. Returns nothing when no launcher has been at work or there is one process. Throws
/// ConfigError for what makes no sense.
[[nodiscard]] inline std::optional<ProcessPlace> place_from_environment() {
  struct Names {
    const char *rank, *size, *local_rank, *local_size;
  };
  using detail::number_from_environment;
  for (const Names& names : {Names{"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
                             Names{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                                   "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
                             Names{"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"}}) {
    const auto rank = number_from_environment(names.rank);
    const auto size = number_from_environment(names.size);
    if (!rank || !size) continue;
    if (*size == 1) return std::nullopt;
    ProcessPlace place{.rank = *rank, .size = *size};
    place.local_rank = number_from_environment(names.local_rank).value_or(*rank);
    place.local_size = number_from_environment(names.local_size).value_or(*size);
    if (const char* host = std::getenv("MASTER_ADDR")) place.host = host;
    int port = number_from_environment("MASTER_PORT").value_or(place.port);
    const char* agent = std::getenv("TORCHELASTIC_USE_AGENT_STORE");
    if (agent != nullptr && std::string_view(agent) == "True") ++port;
    check<ConfigError>(port > 0 && port < 65536, "MASTER_PORT must be in [1, 65535], got ", port);
    place.port = static_cast<std::uint16_t>(port);
    validate(place);
    return place;
  }
  return std::nullopt;
}

}  // namespace nanovllm
