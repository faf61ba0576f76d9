#!/usr/bin/env bash
# Runs the device tests of this bundle, one program after the other, and keeps a log of each.
#
#   ./run.sh [LOG_DIR [FILTER]]     FILTER: only tests whose name contains it
#
# TEST_TIMEOUT_S: seconds that one program may take (default 300). The exit status is 0 if every program passed.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
logs=${1:-$here/logs}
filter=${2:-}
limit=${TEST_TIMEOUT_S:-300}
mkdir -p "$logs" && logs=$(cd "$logs" && pwd) || exit 1
# What would choose other kernels or other tests was meant for another program.
unset HOPPER_ATTENTION_PTX_DIR HOPPER_ATTENTION_CASE HOPPER_ATTENTION_PROPERTY_CASES HOPPER_ATTENTION_TEST_CHILD
# A machine where nothing can run has not passed.
export HOPPER_ATTENTION_REQUIRE_DEVICE=1 HOPPER_ATTENTION_REPORT_DIR="$logs"

echo "commit $(head -n 1 "$here/COMMIT")$(sed -n '2,$s/^/  /p' "$here/COMMIT")"
nvidia-smi --query-gpu=index,name,driver_version,compute_cap --format=csv,noheader 2>/dev/null | sed 's/^/gpu /'

failed=()
ran=()
for program in "$here"/device-tests/*; do
    [ -x "$program" ] || continue
    name=$(basename "$program")
    log="$logs/$name.log"
    ran+=("$log")
    start=$SECONDS
    (cd "$here" && exec timeout --kill-after=10 "$limit" "$program" ${filter:+"$filter"}) >"$log" 2>&1
    status=$?
    result=$(grep '^test result: ' "$log" | tail -n 1)
    case $status in
        0) ;;
        124 | 137) result="TIMED OUT after $limit s. ${result:-the last line: $(tail -n 1 "$log")}" ;;
        *) result="${result:-ended with status $status before its summary; the last line: $(tail -n 1 "$log")}" ;;
    esac
    printf '%-24s %4d s  %s\n' "$name" $((SECONDS - start)) "$result"
    # What a program says beside its list of tests: largest errors, what could not run.
    [ "$status" -ne 0 ] || grep -v '^test \|^running \|^$' "$log" | sed 's/^/    /'
    [ "$status" -eq 0 ] || failed+=("$name")
done
[ ${#ran[@]} -gt 0 ] || { echo "this bundle holds no device tests"; exit 1; }

# The closing line adds up what the programs counted; one that died before its summary counts as one failure.
count() { cat "${ran[@]}" | sed -n "s/^test result: .* \([0-9][0-9]*\) $1.*/\1/p" | awk '{ n += $1 } END { print n + 0 }'; }
silent=0
for name in ${failed[@]+"${failed[@]}"}; do
    grep -q '^test result: ' "$logs/$name.log" || silent=$((silent + 1))
    echo "--- $name: $logs/$name.log"
    tail -n 40 "$logs/$name.log"
done
echo "$(count passed) passed, $(($(count failed) + silent)) failed, $(count ignored) skipped"
[ ${#failed[@]} -eq 0 ]
