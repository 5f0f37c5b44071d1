// What XGrammar does with its messages: errors are thrown with their reason alone, and nothing is
// printed.
#include "support/logging.h"

#include <string>

namespace xgrammar {

namespace {

struct Refusal : LogFatalError {
  using LogFatalError::LogFatalError;

  // Without the time, the file and the line that LogFatalError puts before it.
  const char* what() const noexcept override { return std::runtime_error::what(); }
};

}  // namespace

void LogFatalImpl(const std::string& file, int line, const std::string& message) {
  throw Refusal(file, line, message);
}

void LogMessageImpl(const std::string&, int, int, const std::string&) {}

}  // namespace xgrammar
