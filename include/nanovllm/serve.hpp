#pragma once
/// An OpenAI-compatible service over an engine, without the HTTP server.

#include "nanovllm/serve/constraint/cached_constraint_compiler.hpp"
#include "nanovllm/serve/constraint/constraint_compiler.hpp"
#include "nanovllm/serve/constraint/output_constraint.hpp"
#include "nanovllm/serve/exchange.hpp"
#include "nanovllm/serve/health_report.hpp"
#include "nanovllm/serve/http.hpp"
#include "nanovllm/serve/metrics.hpp"
#include "nanovllm/serve/service.hpp"
#include "nanovllm/serve/service_config.hpp"
