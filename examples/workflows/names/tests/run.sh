#!/bin/sh
# Runs every test of this folder from the project's root, and fails when one fails.
cd "$(dirname "$0")/.." || exit 1
for test in tests/*_test.sh; do
    sh "$test" || { echo "FAILED: $test"; exit 1; }
done
echo "all tests passed"
