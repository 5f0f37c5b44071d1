#pragma once
/// Which sequences a step computes, and the policies that decide it.

#include "nanovllm/sched/batch_config.hpp"
#include "nanovllm/sched/plan_builder.hpp"
#include "nanovllm/sched/policy/continuous_batching.hpp"
#include "nanovllm/sched/policy/preemption.hpp"
#include "nanovllm/sched/policy/prefill_first.hpp"
#include "nanovllm/sched/policy/priority.hpp"
#include "nanovllm/sched/policy/scheduling_policy.hpp"
#include "nanovllm/sched/scheduler.hpp"
#include "nanovllm/sched/sequence.hpp"
#include "nanovllm/sched/step_plan.hpp"
