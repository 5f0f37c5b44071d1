#pragma once
/// The readings of a text by a grammar, byte by byte.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/grammar/grammar_network.hpp"

namespace nanovllm {

/// A rule that began at one place of a text, and where its end leads to: all who called it there.
/// Fixed once the place is passed, and shared by whatever came of it.
struct GrammarFrame {
  struct Return {
    GrammarNetwork::NodeId node;
    std::shared_ptr<GrammarFrame> frame;  ///< of the caller; none for the root rule
  };
  std::vector<Return> returns;
  bool is_new = true;  ///< the place is not passed yet

  GrammarFrame() = default;
  GrammarFrame(const GrammarFrame&) = delete;
  GrammarFrame& operator=(const GrammarFrame&) = delete;
  ~GrammarFrame();  // without recursion: nested brackets may be many
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

  [[nodiscard]] bool is_dead() const { return items.empty() && !may_end; }
};

/// Makes readings go on. It has the memory that this takes, for one thread at a time.
class GrammarReader {
 public:
  static constexpr std::size_t kMaxCallers = 500;

  /// @param is_walk whether many a byte is tried at one place: what comes behind white space, say,
  ///                is remembered then, as long as the reader is there.
  GrammarReader(const GrammarNetwork& network, std::size_t max_readings, bool is_walk)
      : network_(network), max_readings_(max_readings), is_walk_(is_walk), slots_(256) {}

  /// The readings of no text yet.
  void begin(GrammarReadings& to);

  /// What `from` becomes by a byte; false if no reading has it. RequestError where there are more
  /// than max_readings, or one rule is called by more than kMaxCallers at one place. `from` and `to`
  /// are two.
  bool step(const GrammarReadings& from, std::uint8_t byte, GrammarReadings& to);

  /// What comes behind the terminal that `item` is in.
  void leave(const GrammarReadings::Item& item, GrammarReadings& to);

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

  void start(GrammarReadings& to);
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
};

}  // namespace nanovllm

#if NANOVLLM_BODIES
#include "nanovllm/grammar/grammar_readings.inc"
#endif
