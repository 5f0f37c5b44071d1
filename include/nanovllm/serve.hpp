#pragma once
/// An OpenAI-compatible service over an engine, without the HTTP server.

#include "nanovllm/api/serve/constraint/cached_constraint_compiler.hpp"
#include "nanovllm/api/serve/constraint/constraint_compiler.hpp"
#include "nanovllm/api/serve/constraint/output_constraint.hpp"
#include "nanovllm/api/serve/exchange.hpp"
#include "nanovllm/api/serve/health_report.hpp"
#include "nanovllm/api/serve/metrics.hpp"
#include "nanovllm/api/serve/service.hpp"
#include "nanovllm/api/serve/service_config.hpp"
