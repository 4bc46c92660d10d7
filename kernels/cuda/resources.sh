#!/usr/bin/env bash
# What every kernel takes of a multiprocessor: registers, stack, spills, shared memory, as ptxas reports them when the
# kernels are compiled, held against the record in resources.txt.
#   resources.sh compile OBJECT COMMAND...     run a compiler, keep ptxas' report of a CUDA object as OBJECT.resources
#   resources.sh check  RECORD RELEASE OBJECT...   1 and the kernels' names: one that spills, takes more than recorded,
#                                                  has no line, or has a line and is gone
#   resources.sh record RECORD RELEASE OBJECT...   write the record anew
# RELEASE is the compiler's. Another release than the record's allocates registers as it likes: then only spills and
# missing lines are failures.
set -euo pipefail

if [ "$1" = compile ]; then
  object=$2
  shift 2
  case $object in *.cu.o) ;; *) exec "$@" ;; esac
  code=0
  "$@" 2>"$object.stderr" || code=$?
  # What is not ptxas' report is for whoever reads the build's output.
  grep -vE '^ptxas info|^ *[0-9]+ bytes (stack frame|gmem)|^$' "$object.stderr" >&2 || true
  mv "$object.stderr" "$object.resources"
  exit $code
fi

verb=$1 record=$2 release=$3
shift 3

# FILE KERNEL ARCH REGISTERS STACK SPILL SHARED, one line a kernel and architecture, tabs between
measure() {
  local object
  for object in "$@"; do
    case $object in *.cu.o) ;; *) continue ;; esac
    [ -s "$object.resources" ] || { echo "no report of ptxas beside $object: build it again" >&2; return 1; }
    c++filt <"$object.resources" | awk -v file="$(basename "$object" .cu.o)" '
      function name_of(s,    i, depth, c) {  # without namespaces, return type and parameters
        gsub(/\(anonymous namespace\)::/, "", s)
        gsub(/gt::cuda::/, "", s)
        sub(/^void /, "", s)
        if (s ~ /\)$/)
          for (i = length(s); i > 0; --i) {
            c = substr(s, i, 1)
            depth += (c == ")") - (c == "(")
            if (depth == 0) { s = substr(s, 1, i - 1); break }
          }
        gsub(/, /, ",", s)
        gsub(/ /, "_", s)
        return s
      }
      /Compiling entry function/ {
        split($0, part, "\047")
        kernel = name_of(part[2]); arch = part[4]
      }
      /bytes stack frame/ { stack += $1; spill += $5 + $9 }  # also of functions that it calls
      /Used [0-9]+ registers/ {
        shared = match($0, /[0-9]+ bytes smem/) ? substr($0, RSTART, RLENGTH) + 0 : 0
        match($0, /Used [0-9]+/)
        printf "%s\t%s\t%s\t%d\t%d\t%d\t%d\n", file, kernel, arch, substr($0, RSTART + 5, RLENGTH - 5), stack, spill, shared
        stack = spill = 0
      }'
  done
}

built=$(mktemp)
trap 'rm -f "$built"' EXIT
measure "$@" | LC_ALL=C sort -u >"$built"
[ -s "$built" ] || { echo "no kernels among $*" >&2; exit 1; }
cut -f 1-3 "$built" | uniq -d | sed 's/^/two kernels of one name: /' | grep . >&2 && exit 1

if [ "$verb" = record ]; then
  awk -F'\t' '$6 > 0 {print "spills: " $1 ".cu " $2 " " $3; bad = 1} END {exit bad}' "$built" >&2
  {
    echo "# Registers a thread, bytes of stack a thread, static shared memory a block: file, kernel, then architecture=those."
    echo "# No kernel may spill. Written by: cmake --build BUILD --target cuda_resources_record"
    echo "release $release"
    awk -F'\t' '
      $1 "\t" $2 != last { if (last != "") print line; last = $1 "\t" $2; line = $1 " " $2 }
      { line = line " " $3 "=" $4 "/" $5 "/" $7 }
      END { print line }' "$built"
  } >"$record"
  echo "$(grep -vcE '^#|^release' "$record") kernels recorded in $record"
  exit 0
fi
[ "$verb" = check ] || { echo "resources.sh compile | check | record" >&2; exit 2; }

awk -v release="$release" -v record="$record" '
  function bad(text) { print text; ++failures }
  FNR == NR && /^#/ { next }
  FNR == NR && $1 == "release" { same = $2 == release; recorded = $2; next }
  FNR == NR {
    known[$1 " " $2] = 1
    for (i = 3; i <= NF; ++i) { split($i, part, "="); limit[$1 " " $2 " " part[1]] = part[2]; archs[part[1]] = 1 }
    next
  }
  {
    kernel = $1 " " $2; seen[kernel] = 1; key = kernel " " $3; built[$3] = 1
    if ($6 > 0) bad($1 ".cu: " $2 " spills " $6 " bytes of registers on " $3)
    if (!(kernel in known)) { if (!(kernel in told)) bad($1 ".cu: " $2 " has no line"); told[kernel] = 1; next }
    if (!($3 in archs)) next
    if (!(key in limit)) { bad($1 ".cu: " $2 " has no record for " $3); next }
    split(limit[key], most, "/")
    if (same) {
      if ($4 + 0 > most[1]) bad($1 ".cu: " $2 " takes " $4 " registers on " $3 ", recorded " most[1])
      if ($5 + 0 > most[2]) bad($1 ".cu: " $2 " takes " $5 " bytes of stack on " $3 ", recorded " most[2])
      if ($7 + 0 > most[3]) bad($1 ".cu: " $2 " takes " $7 " bytes of shared memory on " $3 ", recorded " most[3])
    }
    ++compared
  }
  END {
    for (k in known) if (!(k in seen)) { split(k, part, " "); bad(part[1] ".cu: " part[2] " has a line and is gone") }
    for (a in built) if (!(a in archs)) print "notice: nothing is recorded for " a
    if (!same) print "notice: compiled by " release ", recorded with " recorded ": only spills and missing lines count"
    if (failures > 0) {
      print failures " differences from " record ". If they are meant: cmake --build BUILD --target cuda_resources_record"
      exit 1
    }
    print compared " kernels (times architectures) take no more than recorded, none spills"
  }' "$record" "$built"
