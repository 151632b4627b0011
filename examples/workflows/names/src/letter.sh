# Writes a letter: a greeting, then the words.
. ./src/greet.sh

letter() {
    old_name "$1"
    printf '%s\n' "$2"
}
