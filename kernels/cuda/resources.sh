#!/usr/bin/env bash
# Compares the resources of every kernel with resources.txt: registers, stack, spills and shared memory, as reported by
# ptxas at compile time, and the widest loads and stores of device memory, from its PTX. Enforces the rules of
# exceptions.txt on all kernels, recorded or not.
#   resources.sh compile OBJECT COMMAND...       runs a compiler; keeps ptxas' report in OBJECT.resources
#   resources.sh check  RECORD RELEASE OBJECT... exits 1 and names kernels that spill, exceed the record, use narrower
#                                                accesses, newly use double precision, have no record, break a rule; and
#                                                records without a kernel
#   resources.sh record RECORD RELEASE OBJECT... rewrites the record, unless a kernel spills or breaks a rule
# OBJECTs: NAME.cu.o of the library, NAME.ptx of the same source. RELEASE: the compiler's. Releases allocate registers
# differently: with another release than the record's, registers, stack, shared memory and blocks are not compared.
set -euo pipefail

if [ "$1" = compile ]; then
  object=$2
  shift 2
  case $object in *.cu.o) ;; *) exec "$@" ;; esac
  code=0
  "$@" 2>"$object.stderr" || code=$?
  # Passes everything but ptxas' report on to the build's output.
  grep -vE '^ptxas info|^ *[0-9]+ bytes (stack frame|gmem)|^$' "$object.stderr" >&2 || true
  mv "$object.stderr" "$object.resources"
  exit $code
fi

action=$1 record=$2 release=$3
shift 3

# awk: strips namespaces, return type and parameters from a kernel's name.
name_of='
      function name_of(s,    i, depth, c) {
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
      }'

# Prints one tab-separated line per kernel. Per architecture: FILE KERNEL ARCH REGISTERS STACK SPILL SHARED. From PTX:
# FILE KERNEL ptx LOAD STORE DOUBLE THREADS LOCAL (bytes of the widest device memory access; 1 for double precision;
# threads per block from the launch bounds, 0 without; accesses to local memory).
measure() {
  local object
  for object in "$@"; do
    case $object in
      *.cu.o) measure_object "$object" ;;
      *.ptx) measure_ptx "$object" ;;
    esac
  done
}

measure_object() {
  local object=$1
  [ -s "$object.resources" ] || { echo "no report of ptxas beside $object: build it again" >&2; return 1; }
  c++filt <"$object.resources" | awk -v file="$(basename "$object" .cu.o)" "$name_of"'
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
}

measure_ptx() {
  c++filt <"$1" | awk -v file="$(basename "$1" .ptx)" "$name_of"'
    function say() {
      if (kernel != "")
        printf "%s\t%s\tptx\t%d\t%d\t%d\t%d\t%d\n", file, kernel, wide["ld"], wide["st"], double, threads, locals
      kernel = ""; wide["ld"] = wide["st"] = double = threads = locals = 0
    }
    /^(\.visible |\.weak )?\.entry / { say(); sub(/^.*\.entry /, ""); sub(/\($/, ""); kernel = name_of($0) }
    /^\.maxntid/ { gsub(/,/, ""); threads = $2 * $3 * $4 }
    match($0, /(ld|st)\.global[a-z0-9.:]*/) {
      way = substr($0, RSTART, 2); access = substr($0, RSTART, RLENGTH)
      match(access, /[0-9]+$/)
      bytes = substr(access, RSTART) / 8 * (access ~ /\.v4\./ ? 4 : access ~ /\.v2\./ ? 2 : 1)
      if (bytes > wide[way]) wide[way] = bytes
    }
    /(ld|st)\.local/ { ++locals }
    /^\t(@!?%p[0-9]+ +)?[a-z][a-z0-9._]*\.f64[ .\t]/ && !/\.param/ { double = 1 }
    END { say() }'
}

built=$(mktemp)
trap 'rm -f "$built"' EXIT
measure "$@" | LC_ALL=C sort -u >"$built"
[ -s "$built" ] || { echo "no kernels among $*" >&2; exit 1; }
cut -f 1-3 "$built" | uniq -d | sed 's/^/two kernels of one name: /' | grep . >&2 && exit 1

# Prints violations of the rules stated at the head of exceptions.txt; returns 1 if there are any.
keep_rules() {
  awk -F'\t' '
    function bad(text) { print $1 ".cu: " $2 " " text ", and exceptions.txt does not let it"; broken = 1 }
    function may(what,    i, found) {
      for (i = 1; i <= n; ++i)
        if ($1 == file[i] && index(rights[i], what) && $2 ~ "^(" pattern[i] ")$") found = used[i, what] = 1
      return found
    }
    FNR == NR && /^#/ { next }
    FNR == NR {
      split($0, part, " ")
      file[++n] = part[1]; pattern[n] = part[2]; rights[n] = part[3]
      if (part[3] !~ /^(loads|stores|double)(,(loads|stores|double))*$/ || part[4] == "") {
        print "exceptions.txt: not FILE KERNEL RIGHTS REASON: " $0; broken = 1
      }
      next
    }
    $3 != "ptx" { next }
    $4 < 16 && !may("loads") { bad("loads " $4 " bytes at once at most") }
    $5 < 16 && !may("stores") { bad("stores " $5 " bytes at once at most") }
    $6 > 0 && !may("double") { bad("computes in double precision") }
    $8 > 0 { print $1 ".cu: " $2 " has " $8 " accesses to local memory"; broken = 1 }
    END {
      for (i = 1; i <= n; ++i) {
        split(rights[i], part, ",")
        for (j in part)
          if (!((i, part[j]) in used)) {
            print "exceptions.txt: no kernel needs " part[j] " of " file[i] " " pattern[i]; broken = 1
          }
      }
      exit broken
    }' "$(dirname "$record")/exceptions.txt" "$built"
}

# awk: resident blocks per sm_90 SM: 64 warps; 64 Ki registers, allocated in units of 256 per warp within each quarter;
# 228 KiB of shared memory, 1 KiB per block reserved. Dynamic shared memory is not included.
blocks='
  function blocks(registers, threads, shared,    w, n, warps) {
    w = int((threads + 31) / 32)
    warps = 4 * int(16384 / (256 * int((registers * 32 + 255) / 256)))
    n = int(64 / w)
    if (int(warps / w) < n) n = int(warps / w)
    if (int(233472 / (shared + 1024)) < n) n = int(233472 / (shared + 1024))
    return n < 32 ? n : 32
  }'

if [ "$action" = record ]; then
  keep_rules >&2
  awk -F'\t' '$3 != "ptx" && $6 > 0 {print "spills: " $1 ".cu " $2 " " $3; bad = 1} END {exit bad}' "$built" >&2
  {
    echo "# File, kernel, then: ptx = bytes of the widest load from and store to device memory / 1 for double precision /"
    echo "# threads a block; architecture = registers a thread / bytes of stack / bytes of static shared memory a block;"
    echo "# blocks = what a multiprocessor of sm_90 holds. No kernel may spill."
    echo "# Written by: cmake --build BUILD --target cuda_resources_record"
    echo "release $release"
    awk -F'\t' "$blocks"'
      function flush() { if (last != "") print line (threads > 0 && held != "" ? " blocks=" held : "") }
      $1 "\t" $2 != last { flush(); last = $1 "\t" $2; line = $1 " " $2; threads = 0; held = "" }
      $3 == "ptx" { line = line " ptx=" $4 "/" $5 "/" $6 "/" $7; threads = $7; next }
      { line = line " " $3 "=" $4 "/" $5 "/" $7 }
      $3 ~ /^sm_90/ && threads > 0 { held = blocks($4, threads, $7) }
      END { flush() }' "$built"
  } >"$record"
  echo "$(grep -vcE '^#|^release' "$record") kernels recorded in $record"
  exit 0
fi
[ "$action" = check ] || { echo "resources.sh compile | check | record" >&2; exit 2; }

code=0
keep_rules || code=1
awk -v release="$release" -v record="$record" "$blocks"'
  function bad(text) { print text; ++failures }
  FNR == NR && /^#/ { next }
  FNR == NR && $1 == "release" { same = $2 == release; recorded = $2; next }
  FNR == NR {
    known[$1 " " $2] = 1
    for (i = 3; i <= NF; ++i) {
      split($i, part, "=")
      limit[$1 " " $2 " " part[1]] = part[2]
      if (part[1] != "blocks") archs[part[1]] = 1
    }
    next
  }
  {
    kernel = $1 " " $2; seen[kernel] = 1; key = kernel " " $3; built[$3] = 1
    if ($3 != "ptx" && $6 > 0) bad($1 ".cu: " $2 " spills " $6 " bytes of registers on " $3)
    if (!(kernel in known)) { if (!(kernel in reported)) bad($1 ".cu: " $2 " has no line"); reported[kernel] = 1; next }
    if (!($3 in archs)) next
    if (!(key in limit)) { bad($1 ".cu: " $2 " has no record for " $3); next }
    split(limit[key], most, "/")
    if ($3 == "ptx") {
      if ($4 + 0 < most[1]) bad($1 ".cu: " $2 " loads " $4 " bytes at once at most, recorded " most[1])
      if ($5 + 0 < most[2]) bad($1 ".cu: " $2 " stores " $5 " bytes at once at most, recorded " most[2])
      if ($6 + 0 > most[3]) bad($1 ".cu: " $2 " computes in double precision, recorded without")
      threads[kernel] = $7
    } else if (same) {
      if ($4 + 0 > most[1]) bad($1 ".cu: " $2 " takes " $4 " registers on " $3 ", recorded " most[1])
      if ($5 + 0 > most[2]) bad($1 ".cu: " $2 " takes " $5 " bytes of stack on " $3 ", recorded " most[2])
      if ($7 + 0 > most[3]) bad($1 ".cu: " $2 " takes " $7 " bytes of shared memory on " $3 ", recorded " most[3])
      if ($3 ~ /^sm_90/ && threads[kernel] > 0 && (n = blocks($4, threads[kernel], $7)) < limit[kernel " blocks"] + 0)
        bad($1 ".cu: a multiprocessor holds " n " blocks of " $2 ", recorded " limit[kernel " blocks"])
    }
    ++compared
  }
  END {
    for (k in known) if (!(k in seen)) { split(k, part, " "); bad(part[1] ".cu: " part[2] " has a line and is gone") }
    for (a in built) if (!(a in archs)) print "notice: nothing is recorded for " a
    if (!same) print "notice: compiled by " release ", recorded with " recorded ": registers, stack, shared memory and blocks are not compared"
    if (failures > 0) {
      print failures " differences from " record ". If they are meant: cmake --build BUILD --target cuda_resources_record"
      exit 1
    }
    print compared " kernels (times architectures) take no more and move as much at once as recorded, none spills"
  }' "$record" "$built" || code=1
exit $code
