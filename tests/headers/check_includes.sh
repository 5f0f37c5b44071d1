#!/usr/bin/env bash
# check_includes.sh [FOLDER]: every .hpp under FOLDER, include/ unless given, includes the header of
# each name of the standard library that it uses, for the names of the table below. It may be in the
# part between '#if NANOVLLM_BODIES', or a folder's own, and '#endif'. What is seen by way of another
# header does not count. Comments and strings are left out.
#
# headers/alone relies on this: it compiles each header after all of the standard library.
set -euo pipefail

cd "${1:-$(dirname "${BASH_SOURCE[0]}")/../../include}"

# A header, and the names that are looked for. A name that several headers have is left out.
table='
algorithm: adjacent_find all_of any_of binary_search clamp copy copy_if copy_n count_if equal fill fill_n find find_if lower_bound max max_element min min_element mismatch none_of partial_sort remove_if reverse sort stable_sort transform unique upper_bound
array: array
atomic: atomic atomic_ref
bit: bit_cast bit_ceil bit_width countl_zero countr_zero has_single_bit popcount
charconv: from_chars to_chars
chrono: chrono
cmath: ceil exp fabs floor isfinite isinf isnan log nextafter pow sqrt trunc
compare: strong_ordering
concepts: constructible_from convertible_to copy_constructible copyable default_initializable derived_from floating_point integral invocable movable predicate same_as unsigned_integral
condition_variable: condition_variable condition_variable_any
cstddef: byte nullptr_t ptrdiff_t size_t
cstdint: int16_t int32_t int64_t int8_t uint16_t uint32_t uint64_t uint8_t uintptr_t
cstring: memcmp memcpy memmove memset strerror strlen
deque: deque
exception: current_exception exception exception_ptr make_exception_ptr rethrow_exception terminate uncaught_exceptions
filesystem: filesystem
fstream: ifstream ofstream
functional: function
future: future promise
initializer_list: initializer_list
limits: numeric_limits
list: list
map: map multimap
memory: enable_shared_from_this make_shared make_unique shared_ptr unique_ptr weak_ptr
mutex: lock_guard mutex recursive_timed_mutex scoped_lock unique_lock
new: align_val_t bad_alloc nothrow
numeric: accumulate inner_product iota partial_sum
optional: nullopt optional
random: mt19937 mt19937_64 random_device
ranges: views
set: set
span: as_bytes as_writable_bytes span
stdexcept: invalid_argument logic_error runtime_error
stop_token: stop_callback stop_source stop_token
string: string to_string
string_view: string_view
system_error: errc error_code system_error
thread: this_thread thread
tuple: apply tie tuple
type_traits: conditional_t decay_t enable_if_t false_type is_base_of_v is_empty_v is_floating_point_v is_integral_v is_pointer_v is_same_v is_trivially_copyable_v is_void_v remove_cv_t remove_cvref_t true_type
unordered_map: unordered_map
unordered_set: unordered_set
utility: as_const declval exchange forward in_range index_sequence make_index_sequence move pair swap
variant: get_if holds_alternative variant visit
vector: vector
'

mapfile -t files < <(find . -name '*.hpp' -printf '%P\n' | LC_ALL=C sort)
if [ "${#files[@]}" -eq 0 ]; then
  echo "no headers under $PWD"
  exit 1
fi

awk -v table="$table" '
  function end_of_file(   name) {
    for (name in used) {
      if (header_of[name] in has) continue
      print file ":" used[name] ": std::" name " needs #include <" header_of[name] ">"
      violations++
    }
    delete has
    delete used
  }

  BEGIN {
    num_lines = split(table, lines, "\n")
    for (i = 1; i <= num_lines; i++) {
      num_words = split(lines[i], words, " ")
      for (k = 2; k <= num_words; k++) header_of[words[k]] = substr(words[1], 1, length(words[1]) - 1)
    }
  }

  FNR == 1 { end_of_file(); file = FILENAME }
  /^#include </ { has[substr($2, 2, length($2) - 2)] = 1 }
  {
    gsub(/"(\\.|[^"\\])*"/, "\"\"")
    sub(/\/\/.*/, "")
    rest = $0
    while (match(rest, /(^|[^A-Za-z0-9_:])(::)?std::(ranges::)?[a-z0-9_]+/)) {
      name = substr(rest, RSTART, RLENGTH)
      rest = substr(rest, RSTART + RLENGTH)
      is_of_ranges = name ~ /ranges::/
      sub(/.*::/, "", name)
      if (name in header_of && !(name in used) && (!is_of_ranges || header_of[name] == "algorithm"))
        used[name] = FNR
    }
  }

  END {
    end_of_file()
    exit violations > 0
  }
' "${files[@]}"
echo "${#files[@]} headers include what they use of the standard library"
