#!/usr/bin/env bash
# check_subject.sh FILE: whether the first line of a commit's message, as git's hook commit-msg has it,
# is 'area: what' in at most 72 characters, without a full stop, and a blank line follows.
set -euo pipefail

subject=$(sed -n 1p "$1")
second=$(sed -n 2p "$1")
case $subject in 'Merge '* | 'Revert '*) exit 0 ;; esac
if ! [[ "$subject" =~ ^[A-Za-z0-9_.,/\ -]+:\ [^\ ] ]]; then
  echo "a subject is 'area: what', for instance 'kv: count pins in check_invariants'; got '$subject'"
  exit 1
fi
if [ "${#subject}" -gt 72 ]; then
  echo "a subject has at most 72 characters; got ${#subject}: '$subject'"
  exit 1
fi
if [[ "$subject" =~ \.$ || "$subject" =~ [Ww][Ii][Pp]($|[^a-z]) ]]; then
  echo "a subject says what there is now, without a full stop; got '$subject'"
  exit 1
fi
if [ -n "$second" ] && [[ "$second" != '#'* ]]; then
  echo "a blank line follows the subject; got '$second'"
  exit 1
fi
