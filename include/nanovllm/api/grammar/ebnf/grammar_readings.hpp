#pragma once
/// The readings of a text by a grammar, byte by byte.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "nanovllm/api/grammar/ebnf/grammar_network.hpp"
#include "nanovllm/api/grammar/ebnf/used_texts.hpp"
#include "nanovllm/core/error.hpp"

namespace nanovllm {

/// A rule that began at one place of a text, and where its end leads to: all callers at that place.
/// Fixed once the place is passed, and shared by all readings that came from it.
struct GrammarFrame {
  struct Return {
    GrammarNetwork::NodeId node;
    std::shared_ptr<GrammarFrame> frame;  ///< of the caller; none for the root rule
  };
  std::vector<Return> returns;
  bool is_new = true;                            ///< the place is not passed yet
  std::optional<std::int32_t> scope{};           ///< where its innermost scope began
  std::shared_ptr<GrammarFrame> next_to_free{};  ///< the destructor's

  GrammarFrame() = default;
  GrammarFrame(const GrammarFrame&) = delete;
  GrammarFrame& operator=(const GrammarFrame&) = delete;
  ~GrammarFrame() {  // without recursion: nested brackets may be many
    // Callers that no one else has are put into a list, before they are freed without theirs.
    std::shared_ptr<GrammarFrame> left;
    const auto leave = [&left](GrammarFrame& frame) {
      for (Return& each : frame.returns) {
        std::shared_ptr<GrammarFrame> caller = std::move(each.frame);
        if (!caller || caller.use_count() > 1) continue;
        caller->next_to_free = std::move(left);
        left = std::move(caller);
      }
    };
    leave(*this);
    while (left) {
      const std::shared_ptr<GrammarFrame> last = std::move(left);
      left = std::move(last->next_to_free);
      leave(*last);
    }
  }
};

/// Where all the readings of a text stand.
struct GrammarReadings {
  using FramePtr = std::shared_ptr<GrammarFrame>;

  /// Within a terminal.
  struct Item {
    GrammarNetwork::NodeId node;
    GrammarTerminal::State state;
    FramePtr frame;
  };
  std::vector<Item> items;
  bool may_end = false;  ///< the text may

  std::int32_t position = 0;  ///< bytes read
  UsedTexts used{};           ///< texts of the open scopes
  std::string unused{};       ///< the begin of the unused text that is being read, if any
  std::optional<std::int32_t> unused_scope{};  ///< the scope of `unused`, if that may end here

  [[nodiscard]] static std::int32_t scope_of(const Item& item) {
    return scope_of(item.frame.get());
  }
  /// 0, the whole text, where no rule is a scope.
  [[nodiscard]] static std::int32_t scope_of(const GrammarFrame* frame) {
    return frame ? frame->scope.value_or(0) : 0;
  }
  [[nodiscard]] bool is_dead() const { return items.empty() && !may_end; }
};

/// Advances readings. It owns the memory that this needs, for one thread at a time.
class GrammarReader {
 public:
  static constexpr std::size_t kMaxCallers = 500;

  /// @param is_walk whether many bytes are tried at one place: what follows white space, for
  /// example,
  ///                is then kept while the reader lives.
  GrammarReader(const GrammarNetwork& network, std::size_t max_readings, bool is_walk)
      : network_(network), max_readings_(max_readings), is_walk_(is_walk), slots_(256) {}

  /// The readings of no text yet.
  void begin(GrammarReadings& to);

  /// What `from` becomes by a byte; false if no reading has it. RequestError where there are more
  /// than max_readings, or one rule is called by more than kMaxCallers at one place. `from` and
  /// `to` are two.
  bool step(const GrammarReadings& from, std::uint8_t byte, GrammarReadings& to);

  /// What comes after the terminal that `item` of `from` is in.
  void leave(const GrammarReadings& from, const GrammarReadings::Item& item, GrammarReadings& to);

 private:
  using NodeId = GrammarNetwork::NodeId;
  using FramePtr = GrammarReadings::FramePtr;

  /// What was met at this place: a node in a frame, a state of a terminal, a rule that was called.
  struct Slot {
    std::uint32_t round = 0;
    NodeId node = 0;
    GrammarTerminal::State state{};
    const GrammarFrame* frame = nullptr;
    std::size_t number = 0;
  };
  struct Todo {
    NodeId node;
    FramePtr frame;
  };

  /// What follows a node in a frame.
  struct Following {
    NodeId node;
    FramePtr frame;
    GrammarReadings readings;
  };

  /// What an item becomes by a byte.
  struct Reading {
    GrammarTerminal::State state;
    bool goes_on, ends;
  };

  void start(GrammarReadings& to, std::int32_t position, const UsedTexts& used);
  bool read_unused(const GrammarReadings& from, const GrammarReadings::Item& item,
                   std::uint8_t byte, Reading& reading, GrammarReadings& to);
  void follow(GrammarReadings& to);
  void visit(NodeId node, const FramePtr& frame);
  void finish(GrammarReadings& to);
  void call(const GrammarNetwork::Node& node, const FramePtr& frame);
  std::pair<Slot*, bool> meet(NodeId node, GrammarTerminal::State state, const GrammarFrame* frame);
  void grow();

  const GrammarNetwork& network_;
  std::size_t max_readings_;
  bool is_walk_;
  std::vector<Following> known_;
  std::vector<Slot> slots_;  // a hash table; only those of this round count
  std::size_t num_slots_ = 0;
  std::uint32_t round_ = 0;
  std::vector<Todo> todo_;
  std::vector<FramePtr> new_frames_;
  std::vector<Reading> read_;  // [item]
  std::int32_t position_ = 0;
  bool has_new_scope_ = false;
};

inline void GrammarReader::begin(GrammarReadings& to) {
  start(to, 0, {});
  visit(network_.rules[static_cast<std::size_t>(network_.root)].start, nullptr);
  finish(to);
}

inline bool GrammarReader::step(const GrammarReadings& from, std::uint8_t byte,
                                GrammarReadings& to) {
  start(to, from.position + 1, from.used);
  read_.clear();
  bool is_continued = false;  // an unused text that could have ended goes on
  for (const GrammarReadings::Item& item : from.items) {
    const auto& node = network_.nodes[static_cast<std::size_t>(item.node)];
    const auto& terminal = network_.terminals[static_cast<std::size_t>(node.what)];
    Reading reading{item.state, false, false};
    if (terminal.step(reading.state, byte)) {
      reading.goes_on = terminal.goes_on(reading.state);
      reading.ends = terminal.accepts(reading.state);
      if (node.unused) is_continued |= read_unused(from, item, byte, reading, to);
    }
    read_.push_back(reading);
  }
  if (from.unused_scope && !is_continued) to.used.add(*from.unused_scope, from.unused);
  for (std::size_t i = 0; i < read_.size(); ++i) {
    const GrammarReadings::Item& item = from.items[i];
    const Reading& reading = read_[i];
    if (reading.goes_on && meet(item.node, reading.state, item.frame.get()).second)
      to.items.push_back({item.node, reading.state, item.frame});
    if (reading.ends) visit(network_.nodes[static_cast<std::size_t>(item.node)].next, item.frame);
  }
  if (is_walk_ && todo_.size() == 1) {
    follow(to);
  } else {
    finish(to);
  }
  return !to.is_dead();
}

/// Restricts the reading of an item whose text must be unused: it may end only as an unused text,
/// and may go on only if some unused text begins so. Returns whether the text began before this
/// byte.
inline bool GrammarReader::read_unused(const GrammarReadings& from,
                                       const GrammarReadings::Item& item, std::uint8_t byte,
                                       Reading& reading, GrammarReadings& to) {
  const auto& node = network_.nodes[static_cast<std::size_t>(item.node)];
  const auto& terminal = network_.terminals[static_cast<std::size_t>(node.what)];
  const UnusedText& unused = network_.unused[static_cast<std::size_t>(*node.unused)];
  const std::int32_t scope = GrammarReadings::scope_of(item);
  const bool begins = item.state == GrammarTerminal::State{};
  if (to.unused.empty()) {  // all items read the same text
    if (!begins) to.unused = from.unused;
    to.unused += static_cast<char>(byte);
  }
  if (reading.ends) reading.ends = unused.allows(to.unused, from.used, scope);
  if (reading.ends) to.unused_scope = scope;
  if (reading.goes_on)
    reading.goes_on =
        unused.can_end(terminal.dfa(), reading.state.dfa, to.unused, from.used, scope);
  return !begins;
}

/// As finish() where all comes of one node. Much is remembered: what follows white space in an
/// object of many properties is the same after each space. Frames of several places are one then,
/// which leads to the same.
inline void GrammarReader::follow(GrammarReadings& to) {
  constexpr std::size_t kMany = 16;
  const Todo now = todo_.back();
  const auto known = std::find_if(known_.begin(), known_.end(), [&](const Following& each) {
    return each.node == now.node && each.frame == now.frame && each.readings.used == to.used;
  });
  if (known != known_.end()) {
    todo_.pop_back();
    const GrammarReadings& readings = known->readings;
    to.items.insert(to.items.end(), readings.items.begin(), readings.items.end());
    to.may_end = readings.may_end;
    return;
  }
  const std::size_t num_before = to.items.size();
  has_new_scope_ = false;
  finish(to);
  if (to.items.size() < num_before + kMany || has_new_scope_)
    return;  // a scope depends on its position
  const auto first = to.items.begin() + static_cast<std::ptrdiff_t>(num_before);
  // What was there before could be among what follows, and would be missing from that.
  if (std::any_of(to.items.begin(), first,
                  [](const auto& item) { return item.state == GrammarTerminal::State{}; }))
    return;
  known_.push_back(
      {now.node, now.frame, {.items = {first, to.items.end()}, .may_end = to.may_end}});
  known_.back().readings.used = to.used;
}

inline void GrammarReader::leave(const GrammarReadings& from, const GrammarReadings::Item& item,
                                 GrammarReadings& to) {
  start(to, from.position + 1, from.used);
  if (from.unused_scope) to.used.add(*from.unused_scope, from.unused);
  visit(network_.nodes[static_cast<std::size_t>(item.node)].next, item.frame);
  finish(to);
}

inline void GrammarReader::start(GrammarReadings& to, std::int32_t position,
                                 const UsedTexts& used) {
  ++round_;
  num_slots_ = 0;
  to.items.clear();
  to.may_end = false;
  to.position = position_ = position;
  to.used = used;
  to.unused.clear();
  to.unused_scope.reset();
}

inline void GrammarReader::visit(NodeId node, const FramePtr& frame) {
  if (network_.nodes[static_cast<std::size_t>(node)].is_open) todo_.push_back({node, frame});
}

/// Goes on from what is to be visited to the terminals that come next.
inline void GrammarReader::finish(GrammarReadings& to) {
  using Kind = GrammarNetwork::Node::Kind;
  while (!todo_.empty()) {
    const Todo now = std::move(todo_.back());
    todo_.pop_back();
    if (!meet(now.node, {}, now.frame.get()).second) continue;
    const GrammarNetwork::Node& node = network_.nodes[static_cast<std::size_t>(now.node)];
    switch (node.kind) {
      case Kind::split:
        visit(node.what, now.frame);
        visit(node.next, now.frame);
        break;
      case Kind::terminal:
        if (node.unused &&
            !network_.unused[static_cast<std::size_t>(*node.unused)].can_end(
                network_.terminals[static_cast<std::size_t>(node.what)].dfa(), ByteDfa::kStart, "",
                to.used, GrammarReadings::scope_of(now.frame.get())))
          break;
        to.items.push_back({now.node, {}, now.frame});
        if (network_.terminals[static_cast<std::size_t>(node.what)].accepts({}))
          visit(node.next, now.frame);
        break;
      case Kind::call: call(node, now.frame); break;
      case Kind::end:
        if (!now.frame) {
          to.may_end = true;
        } else if (!now.frame->is_new) {  // a rule that read nothing is handled in `call`
          for (const GrammarFrame::Return& each : now.frame->returns) visit(each.node, each.frame);
        }
        break;
    }
  }
  for (const FramePtr& frame : new_frames_) frame->is_new = false;
  new_frames_.clear();
  check<RequestError>(to.items.size() <= max_readings_,
                      "the text has too many readings by the grammar");
}

inline void GrammarReader::call(const GrammarNetwork::Node& node, const FramePtr& frame) {
  const GrammarNetwork::Rule& rule = network_.rules[static_cast<std::size_t>(node.what)];
  // Rules have numbers that no node has here.
  const auto [slot, is_first] = meet(-1 - node.what, {}, nullptr);
  if (is_first) {
    slot->number = new_frames_.size();
    new_frames_.push_back(std::make_shared<GrammarFrame>());
    new_frames_.back()->scope = rule.is_scope ? position_ : frame ? frame->scope : std::nullopt;
    has_new_scope_ |= rule.is_scope;
    visit(rule.start, new_frames_.back());
  }
  auto& returns = new_frames_[slot->number]->returns;
  const auto add = [&](const GrammarFrame::Return& each) {
    // Calls have states that no automaton has.
    if (!meet(each.node, {-2 - node.what, 0}, each.frame.get()).second) return;
    check<RequestError>(returns.size() < kMaxCallers,
                        "the text has too many readings by the grammar");
    returns.push_back(each);
  };
  // Where nothing comes after the call, its end is that of the caller: a rule that repeats itself
  // at its end needs no more memory with each turn.
  const bool is_last =
      network_.nodes[static_cast<std::size_t>(node.next)].kind == GrammarNetwork::Node::Kind::end;
  if (is_last && frame && !frame->is_new) {
    for (const GrammarFrame::Return& each : frame->returns) add(each);
  } else {
    add({node.next, frame});
  }
  if (rule.may_be_empty) visit(node.next, frame);
}

/// The slot of a state, and whether this is its first visit at this place.
inline auto GrammarReader::meet(NodeId node, GrammarTerminal::State state,
                                const GrammarFrame* frame) -> std::pair<Slot*, bool> {
  if (2 * num_slots_ >= slots_.size()) grow();
  const auto hash = [&] {
    std::uint64_t value = static_cast<std::uint32_t>(node) * 0x9E3779B97F4A7C15u;
    value ^= reinterpret_cast<std::uintptr_t>(frame) * 0xC2B2AE3D27D4EB4Fu;
    value ^= (static_cast<std::uint64_t>(static_cast<std::uint32_t>(state.dfa)) << 32 |
              static_cast<std::uint32_t>(state.length)) *
             0x165667B19E3779F9u;
    return value ^ value >> 29;
  };
  for (std::size_t i = hash();; ++i) {
    Slot& slot = slots_[i & (slots_.size() - 1)];
    if (slot.round != round_) {
      slot = {round_, node, state, frame, 0};
      ++num_slots_;
      return {&slot, true};
    }
    if (slot.node == node && slot.frame == frame && slot.state == state) return {&slot, false};
  }
}

inline void GrammarReader::grow() {
  std::vector<Slot> old(slots_.size() * 2);
  old.swap(slots_);
  num_slots_ = 0;
  for (const Slot& slot : old) {
    if (slot.round != round_) continue;
    meet(slot.node, slot.state, slot.frame).first->number = slot.number;
  }
}

}  // namespace nanovllm
