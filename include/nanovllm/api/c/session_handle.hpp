#pragma once
/// What `nvllm_session` points to: a session, and the handle of its engine.

#include <utility>

#include "nanovllm/api/c/engine_handle.hpp"
#include "nanovllm/c/nanovllm.h"
#include "nanovllm/with/sessions/session.hpp"

/// It may outlive its engine, whose handle it keeps.
struct nvllm_session {
  nvllm_session(nvllm_engine& engine, nanovllm::Session made)
      : owner(engine), session(std::move(made)) {}

  nanovllm::c_api::HandleOwner owner;
  nanovllm::Session session;
};
