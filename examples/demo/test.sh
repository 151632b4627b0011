#!/bin/sh
# Checks total.sh, and fails when one of its answers is wrong.
cd "$(dirname "$0")" || exit 1
failures=0

check() {
    expected=$1
    shift
    actual=$(sh total.sh "$@")
    if [ "$actual" = "$expected" ]; then
        echo "ok: total of '$*' is $actual"
    else
        echo "FAILED: total of '$*' is $actual, expected $expected"
        failures=$((failures + 1))
    fi
}

check 0
check 7 7
check 42 19 23
check 10 1 2 3 4

if [ "$failures" -gt 0 ]; then
    echo "$failures of 4 checks failed"
    exit 1
fi
echo "all 4 checks passed"
