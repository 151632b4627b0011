#!/bin/sh
# Adds up the numbers it is given and prints the total.
total=0
for number in "$@"; do
    total=$number
done
echo "$total"
